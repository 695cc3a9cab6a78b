"""Is the capacity that a search finds the true one, in how many runs, and does a killed search go on to the same?

    python -m tests.bench.capacity [--searches 2] [--seed 1] [--kills 5] [--live] [NAME …]

For each case below, a fine sweep in virtual time (tests/bench/true_capacity.py) finds the load at which the limits
begin to be missed; then `loadgen capacity --simulate` looks for it, in processes of their own and with other seeds.
Wanted: within 5 % (one user) in at most 12 runs, whatever the workload, limit, GPU and router; killed (SIGKILL) at
random points and gone on with by --resume, the same answer. `--live` times one search against `loadgen serve`.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options
from tests.bench.true_capacity import Case, attained, itl, of_class, tightest, true_capacity, ttft

POISSON = {"process": "poisson", "rate": 1}
RAG = {
    "shape": "rag", "system_tokens": 200, "documents": {"count": 500, "tokens": 250, "top_k": 5},
    "input_tokens": 40, "output_tokens": {"law": "lognormal", "mean": 40, "p95": 80},
}  # fmt: skip
SHORT = {
    "shape": "chat", "input_tokens": {"law": "lognormal", "mean": 60, "p95": 200},
    "output_tokens": {"law": "lognormal", "mean": 60, "p95": 150},
}  # fmt: skip
CHAT = SHORT | {
    "system_tokens": 200, "turns": {"law": "geometric", "mean": 3, "max": 12},
    "think_time": {"law": "lognormal", "mean": "6s", "p95": "15s"},
}  # fmt: skip
AGENT = {
    "shape": "agent", "system_tokens": 300, "steps": {"law": "uniform", "low": 3, "high": 8}, "input_tokens": 150,
    "tool_time": {"law": "lognormal", "mean": "1s", "p95": "3s"}, "tool_result_tokens": 300, "output_tokens": 50,
}  # fmt: skip


def _plan(classes: Mapping[str, Any], **load: Any) -> dict[str, Any]:
    return {"name": "case", "classes": dict(classes), **(load or {"arrivals": POISSON})}


CASES = [
    Case("rag, TTFT p95", _plan({"rag": RAG}), ("--slo=ttft.p95<1s",), ttft(0.95, 1.0), 1.3, 7200, {"gpu": "l4"}),
    Case("short, ITL p99", _plan({"c": SHORT}), ("--slo=itl.p99<100ms",), itl(0.99, 0.1), 8.6, 1200, {"gpu": "l4"}),
    Case("rag, goodput", _plan({"rag": RAG}), ("--good=ttft<600ms", "--good=gap_p99<300ms"),
         attained(0.9, 0.6, 0.3), 8.4, 1200, {"gpu": "l40s"}),
    Case("conversations", _plan({"chat": CHAT}), ("--slo=ttft.p95<500ms",), ttft(0.95, 0.5), 3.2, 1200, {"gpu": "l4"},
         seeds=8),
    Case("agents, two limits", _plan({"a": AGENT}), ("--slo=ttft.p95<1s", "--slo=itl.p99<150ms"),
         tightest(ttft(0.95, 1.0), itl(0.99, 0.15)), 0.5, 3600, {"gpu": "l4"}),
    Case("closed loop", _plan({"rag": RAG}, concurrency=1), ("--slo=ttft.p95<1s",), ttft(0.95, 1.0), 30, 3600,
         {"gpu": "a10"}, load="concurrency"),
    Case("users every 20 s", _plan({"rag": RAG}, users=1, every="20s"), ("--slo=ttft.p95<1s",), ttft(0.95, 1.0), 56,
         2400, {"gpu": "l4"}, load="users"),
    Case("2 replicas, round robin", _plan({"rag": RAG}), ("--slo=ttft.p95<800ms",), ttft(0.95, 0.8), 3.7, 2400,
         {"gpu": "l4", "replicas": 2}),
    Case("2 replicas, least loaded", _plan({"rag": RAG}), ("--slo=ttft.p95<800ms",), ttft(0.95, 0.8), 2.8, 3000,
         {"gpu": "l4", "replicas": 2, "router": "least-loaded"}),
    Case("bursts", _plan({"rag": RAG}, arrivals=POISSON | {"process": "gamma", "cv": 2}), ("--slo=ttft.p95<4s",),
         ttft(0.95, 4.0), 1.2, 14400, {"gpu": "l4"}),
    Case("mixed, a limit a class", _plan({"c": SHORT | {"weight": 3}, "rag": RAG}),
         ("--slo=rag:ttft.p95<1s", "--slo=c:itl.p99<400ms"),
         tightest(of_class("rag", ttft(0.95, 1.0)), of_class("c", itl(0.99, 0.4))), 2.6, 3000, {"gpu": "l4"}),
    Case("prefill first, 70B on 4 H100", _plan({"rag": RAG}), ("--slo=ttft.p95<1s",), ttft(0.95, 1.0), 9.9, 900,
         {"gpu": "h100", "model": "llama-3.1-70b", "tp": 4, "policy": "prefill-first"}),
]  # fmt: skip


def words(case: Case, folder: Path, out: str, seed: int, *more: str) -> list[str]:
    """The command line of a search that begins a factor of about three below the edge."""
    file = folder / "case.yaml"
    file.write_text(yaml.safe_dump({**case.plan, "duration": "2m", "warmup": "20s"}))
    engine = [f"--{key.replace('_', '-')}={value}" for key, value in case.engine.items()]
    return [sys.executable, "-m", "loadgen.cli", "capacity", str(file), "--simulate", "--format=json", "--quiet",
            f"--out={folder / out}", f"--seed={seed}", f"--start={_start(case)}", *case.limits, *engine,
            *more]  # fmt: skip


def _start(case: Case) -> float:
    return max(1, round(case.near / 3)) if case.whole else float(f"{case.near / 3:.2g}")


def searched(case: Case, seed: int, folder: Path, out: str = "search", *more: str) -> dict[str, Any]:
    done = subprocess.run(words(case, folder, out, seed, *more), capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def killed_and_resumed(command: Sequence[str], dice: random.Random, whole_s: float) -> tuple[dict[str, Any], int]:
    """The answer of a search that is killed at random points until it ends by itself, and how often it was killed."""
    book = Path(next(word for word in command if word.startswith("--out="))[6:]) / "capacity.json"
    kills = 0
    while True:
        resumed = [*command, "--resume"] if book.exists() else list(command)
        process = subprocess.Popen(resumed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=dice.uniform(0.05, 0.5) * whole_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            continue
        if not out:
            raise RuntimeError(err)
        found: dict[str, Any] = json.loads(out)
        return found, kills


QUICK = "--longest=8"
"""For searches that are killed: how long their runs are does not matter."""


def row(case: Case, true: float, found: Mapping[str, Any], took_s: float) -> str:
    capacity = found["capacity"]
    ends = found["ci95"] or (float("nan"), float("nan"))
    error = f"{100 * (capacity / true - 1):+5.1f} %" if capacity else "  none"
    known = "settled" if found["settled"] else "open"
    return (f"{case.name:<30} true {true:7.4g} found {capacity or 0:7.4g} {error} 95 % {ends[0]:.4g} to {ends[1]:.4g} "
            f"{found['tries']:3d} runs {took_s:5.0f} s {known}")  # fmt: skip


def search_all(cases: Sequence[Case], seeds: Sequence[int]) -> int:
    """How many searches miss by more than 5 %, or take more than 12 runs."""
    bad = 0
    for case in cases:
        true = true_capacity(case)
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                found = searched(case, seed, Path(folder))
            print(row(case, true, found, time.monotonic() - began), flush=True)
            near = found["capacity"] and abs(found["capacity"] - true) <= max(0.05 * true, 1.0 if case.whole else 0.0)
            bad += not near or found["tries"] > 12
    return bad


def kill_all(case: Case, wanted: int, seed: int) -> int:
    """How many answers differ, over searches that are killed until there were as many kills as wanted."""
    dice, kills, bad = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        whole = searched(case, seed, folder, "whole", QUICK)
        took_s = time.monotonic() - began
        for number in count():
            if kills >= wanted:
                return bad
            command = words(case, folder, f"killed-{number}", seed, QUICK)
            found, times = killed_and_resumed(command, dice, took_s)
            kills, bad = kills + times, bad + (found != whole)
            same = "the same answer" if found == whole else f"{found['capacity']} in place of {whole['capacity']}"
            print(f"{case.name:<30} killed {times} times: {same}", flush=True)
            took_s *= 1 if times else 0.7  # the machine has become faster
    raise AssertionError("the count has no end")


def live() -> None:
    """A search on a real server, which takes what its runs take."""
    plan = {"name": "live", "arrivals": POISSON, "duration": "5s", "warmup": "1s", "drain": "5s",
            "classes": {"c": {"input_tokens": 1500, "output_tokens": 20}}}  # fmt: skip
    with tempfile.TemporaryDirectory() as name, LocalServer(Options(gpu="l40s")) as server:
        file = Path(name) / "live.yaml"
        file.write_text(yaml.safe_dump(plan))
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "loadgen.cli", "capacity", str(file), "--target", server.url, "--start=4",
                        "--slo=ttft.p50<250ms", "--rest=0.5", f"--out={name}/out", "--no-progress"],
                       check=False)  # fmt: skip
        print(f"live search: {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only the cases in whose names one of these is")
    parser.add_argument("--searches", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of the first search of a case; the others follow")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--live", action="store_true")
    asked = parser.parse_args()
    chosen = [case for case in CASES if not asked.names or any(name in case.name for name in asked.names)]
    bad = search_all(chosen, range(asked.seed, asked.seed + asked.searches))
    if asked.kills:
        bad += kill_all(chosen[0], asked.kills, seed=5)
    if asked.live:
        live()
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
