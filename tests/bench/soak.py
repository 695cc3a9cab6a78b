"""A steady rate for a long time: does the memory of client or server grow, does the rate drift, do descriptors leak?
See README.md beside this file."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.counts import requests as counted
from analysis.run import Run
from analysis.rundir import read_run
from loadgen.sim.child import LocalServer

WORKLOAD = """
name: soak
classes:
  soak: {shape: chat, turns: 1, system_tokens: 0, input_tokens: 50, output_tokens: %d}
"""
SAMPLE_S = 1.0
WARM_SHARE = 0.2
"""Part of the time, at least WARM_S, in which memory may still grow: pools fill, caches warm."""
WARM_S = 60.0
PARTS = 4
MOST_GROWTH, MOST_DRIFT, MOST_FILES = 0.05, 0.02, 3


@dataclass(frozen=True)
class Sample:
    """Of one process at `at_s` from the start; memory is what is resident (VmRSS)."""

    at_s: float
    who: str
    rss_mb: float
    files: int


def sample(who: str, pid: int, at_s: float) -> Sample | None:
    """None where the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    rss_kb = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), None)
    return None if rss_kb is None else Sample(at_s, who, rss_kb / 1024, files)


def watched(client: "subprocess.Popen[bytes]", server_pid: int) -> Iterator[Sample]:
    """Samples of both until the client ends."""
    began_s = time.monotonic()
    while client.poll() is None:
        at_s = time.monotonic() - began_s
        yield from filter(None, (sample("client", client.pid, at_s), sample("server", server_pid, at_s)))
        time.sleep(SAMPLE_S)


def command(asked: argparse.Namespace, url: str, model: str, folder: Path) -> list[str]:
    workload = folder / "soak.yaml"
    workload.write_text(WORKLOAD % asked.tokens)
    load = f"--rate {asked.rate:g} --arrival constant --duration {asked.minutes * 60:g}s --workers 1"
    fixed = f"--seed 7 --model {model} --no-calibrate --no-priority --no-progress --format json"
    return [
        *f"{Path(sys.executable).with_name('loadgen')} run {workload} --target {url} {load} {fixed}".split(),
        *f"--keep-events {asked.keep_events} --out {folder / 'run'}".split(),
    ]


def soak(asked: argparse.Namespace, folder: Path) -> tuple[pd.DataFrame, Run, int]:
    """What was sampled, what was measured, and the exit status of the run."""
    with LocalServer() as server, (folder / "summary.json").open("wb") as output:
        client = subprocess.Popen(command(asked, server.url, server.model, folder), stdout=output)
        samples = pd.DataFrame(watched(client, server.pid))
    return samples, read_run(folder / "run"), client.returncode


def while_loaded(samples: pd.DataFrame, seconds: float) -> pd.DataFrame:
    """After the warm-up and before the end of the load: what comes then is the conversion and the report."""
    warm_s = max(WARM_S, WARM_SHARE * seconds) if seconds > 2 * WARM_S else WARM_SHARE * seconds
    return samples[(samples["at_s"] >= warm_s) & (samples["at_s"] <= seconds)]


def parts_of(samples: pd.DataFrame) -> pd.DataFrame:
    """Mean memory and most descriptors of both processes in each part of the time."""
    part = pd.cut(samples["at_s"], PARTS)
    groups = samples.groupby([part, "who"], observed=True)
    return groups.agg(rss_mb=("rss_mb", "mean"), files=("files", "max")).unstack("who").round(1)


def rates_of(run: Run, seconds: float) -> list[float]:
    """Requests sent per second in each part of the time."""
    sent_s = run.column("sent_ns") / 1e9
    counts, _ = np.histogram(sent_s[~np.isnan(sent_s)], PARTS, (0, seconds))
    return [float(count) * PARTS / seconds for count in counts]


def checks(samples: pd.DataFrame, run: Run, seconds: float, rate: float) -> Iterator[tuple[str, bool, str]]:
    """Name, whether it holds, and the figure."""
    for who, mine in samples.groupby("who"):
        first, last = mine.head(len(mine) // PARTS), mine.tail(len(mine) // PARTS)
        before, after = first["rss_mb"].mean(), last["rss_mb"].mean()
        grown = after / before - 1
        yield f"memory of the {who}", grown < MOST_GROWTH, f"{before:.1f} to {after:.1f} MB ({grown:+.1%})"
        fewest = [
            int(part["files"].min()) for part in (first, last)
        ]  # connections come and go with the load: not these
        yield f"descriptors of the {who}", fewest[1] - fewest[0] <= MOST_FILES, f"fewest {fewest[0]} to {fewest[1]}"
    rates = rates_of(run, seconds)
    off = max(abs(each / rate - 1) for each in rates)
    yield "achieved rate", off < MOST_DRIFT, f"{min(rates):.3f} to {max(rates):.3f} of {rate:g} requests/s"
    count = counted(run, np.ones(len(run.requests), dtype=bool))
    ends_in = sum(count[name] for name in ("ok", "failed", "cancelled", "skipped", "not_sent"))
    whole = ends_in == count["planned"] == round(rate * seconds) and run.requests["request_id"].is_unique
    yield "one outcome each", whole, f"{count['planned']} planned; {count['by_outcome']}"


def size_mb(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=20, help="requests per second")
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--keep-events", default="all")
    asked = parser.parse_args()
    seconds = asked.minutes * 60
    with tempfile.TemporaryDirectory() as name:
        samples, run, status = soak(asked, Path(name))
        print(f"exit status {status}; {size_mb(Path(name) / 'run'):.1f} MB on disk")
    peak = samples.groupby("who")["rss_mb"].max().round(1).to_dict()
    print(f"peak resident, report included: {peak}\n\n{parts_of(while_loaded(samples, seconds)).to_string()}\n")
    results = list(checks(while_loaded(samples, seconds), run, seconds, asked.rate))
    for what, holds, figure in results:
        print(f"{'ok  ' if holds else 'FAIL'}  {what}: {figure}")
    return int(status != 0 or not all(holds for _, holds, _ in results))


if __name__ == "__main__":
    sys.exit(main())
