"""Runs on a Ray cluster of two nodes, by hand: the same numbers as from one process, and what a lost node costs.

    python -m tests.real.cluster [same|key|stop|cut|death …]

Needs the extra `ray`. As root on Linux each node has a network of its own, and the second a clock that is an hour
ahead; else both are on 127.0.0.1. Takes seven minutes; the lines say what was done, and what came of it.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

from analysis.rundir import read_run
from loadgen.host import raise_priority
from workloads.request import turn_count
from workloads.schedule import build
from workloads.spec import load_workload

BIN = Path(sys.executable).parent
KEY = "sk-not-to-be-seen-0123456789"
AHEAD_S = 3600
WORKLOAD = """
name: two-nodes
arrivals: {process: poisson, rate: 5/s}
duration: %ds
drain: 10s
seed: 7
classes:
  c:
    shape: chat
    turns: 1
    input_tokens: {law: lognormal, mean: 800, p95: 3000}
    output_tokens: {law: lognormal, mean: 60, p95: 150}
"""
SMALL = ["--object-store-memory=100000000", "--num-cpus=2", "--block"]


class Nodes:
    """Two nodes, started and killed."""

    def __init__(self, folder: Path, apart: bool) -> None:
        self.here, self.head, self.other = ("10.77.0.1", "10.77.0.2", "10.77.0.3") if apart else ("127.0.0.1",) * 3
        self.apart = apart
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_head(self) -> None:
        within = ["ip", "netns", "exec", "loadgen-2"] if self.apart else []
        where = [
            f"--node-ip-address={self.head}",
            "--port=6399",
            "--ray-client-server-port=10001",
            f"--temp-dir={self.folder}/ray",
        ]
        self._start("head", [*within, BIN / "ray", "start", "--head", "--include-dashboard=false", *where])

    def start_other(self) -> None:
        clock = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork"]
        within = ["ip", "netns", "exec", "loadgen-3", *clock] if self.apart else []
        where = [f"--address={self.head}:6399", f"--node-ip-address={self.other}"]
        self._start("other", [*within, BIN / "ray", "start", *where])

    def _start(self, name: str, command: list[Any]) -> None:
        path = self.folder / f"{name}.log"
        with path.open("wb") as log:
            process = self.processes[name] = subprocess.Popen([*map(str, command), *SMALL], stdout=log, stderr=log)
        wait_for(lambda: "--block" in path.read_text() or process.poll() is not None, 60)
        if process.poll() is not None:
            raise SystemExit(f"{name}: {path.read_text().strip().splitlines()[-1]}")

    def kill(self, name: str) -> None:
        for pid in descendants(self.processes.pop(name).pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, as far as they still hang on it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        threads = [task.name for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
        children += [c for task in threads for c in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(one for child in children for one in descendants(int(child)))]


def wait_for(done: Callable[[], bool], seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until_s:
            raise SystemExit(f"nothing came in {seconds:g} s")
        time.sleep(0.1)


def listens(host: str, port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex((host, port)) == 0


@contextmanager
def networks() -> Iterator[bool]:
    """A bridge with two network namespaces on it; False where that is not permitted."""
    steps = ["link add loadgen-br type bridge", "addr add 10.77.0.1/24 dev loadgen-br", "link set loadgen-br up"]
    for i in (2, 3):
        steps += [
            f"netns add loadgen-{i}",
            f"link add loadgen-v{i} type veth peer name eth0 netns loadgen-{i}",
            f"link set loadgen-v{i} master loadgen-br up",
            f"-n loadgen-{i} addr add 10.77.0.{i}/24 dev eth0",
            f"-n loadgen-{i} link set eth0 up",
            f"-n loadgen-{i} link set lo up",
        ]
    _clear()
    try:
        yield all(_ip(step) for step in steps)
    finally:
        _clear()


def _ip(step: str) -> bool:
    return subprocess.run(["ip", *step.split()], capture_output=True).returncode == 0


def _clear() -> None:
    """A namespace goes when the last of its processes has, and its link with it: both are named, and what is not there
    is no matter."""
    for step in ("link del loadgen-v2", "link del loadgen-v3", "netns del loadgen-2", "netns del loadgen-3"):
        _ip(step)
    _ip("link del loadgen-br")


class Bench:
    """Runs of one workload against one server."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        self.folder, self.nodes = folder, nodes
        serve = ["serve", "--host", nodes.here, "--port", "8123"]  # each run sends the same prompts: nothing cached
        engine = ["--model", "llama-3.1-70b", "--tp", "4", "--no-prefix-cache"]
        self.server = subprocess.Popen(
            [BIN / "loadgen", *serve, *engine], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        raise_priority(self.server.pid)  # on few cores the senders would starve it, and that would be measured
        wait_for(lambda: listens(nodes.here, 8123), 30)
        self.target = f"http://{nodes.here}:8123"

    def run(self, name: str, seconds: int, *words: str, act: Callable[[Any, Path], None] | None = None) -> "Ran":
        (self.folder / "workload.yaml").write_text(WORKLOAD % seconds)
        out = self.folder / name
        command = ["run", self.folder / "workload.yaml", "--target", self.target, "--out", out, "--format", "json"]
        process = subprocess.Popen(
            [BIN / "loadgen", *map(str, command), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"LOADGEN_API_KEY": KEY},
        )  # fmt: skip
        if act is not None:
            wait_for(lambda: any(path.stat().st_size > 10_000 for path in out.glob("journal-0.bin")), 90)
            act(process, out)
        printed, said = process.communicate(timeout=180)
        if not printed and act is None:
            raise SystemExit(f"{name}: exit status {process.returncode}: {said}")
        return Ran(out, process.returncode, json.loads(printed) if printed else {}, said)

    def on_nodes(self, name: str, seconds: int, *words: str, act: Callable[[Any, Path], None] | None = None) -> "Ran":
        return self.run(name, seconds, "--cluster", f"ray://{self.nodes.head}:10001", *words, act=act)


class Ran:
    def __init__(self, out: Path, status: int, summary: dict[str, Any], said: str) -> None:
        self.out, self.status, self.summary, self.said = out, status, summary, said
        self.run = read_run(out) if (out / "run.json").exists() else None

    def statistic(self, metric: str, which: str) -> tuple[float, list[float] | None]:
        block = self.summary["metrics"][metric]
        return block[which], block["ci95"].get(which)


def the_same_numbers(bench: Bench) -> Iterator[str]:
    alone, spread = bench.run("alone", 60, "--workers", "1"), bench.on_nodes("spread", 60)
    counts = [{key: ran.summary["requests"][key] for key in ("planned", "ok", "failed")} for ran in (alone, spread)]
    assert counts[0] == counts[1], counts
    assert set(alone.run.requests["request_id"]) == set(spread.run.requests["request_id"])
    yield f"one process and two nodes: {counts[0]}, output tokens {spread.summary['tokens']['output']}"
    assert alone.summary["tokens"]["output"] == spread.summary["tokens"]["output"]
    apart = []
    for metric, which in product(("ttft_s", "itl_s", "tpot_s", "e2e_s"), ("p50", "p90", "p95")):
        (one, of_one), (two, of_two) = alone.statistic(metric, which), spread.statistic(metric, which)
        if of_one is None or of_two is None:
            continue
        if of_one[0] > of_two[1] or of_two[0] > of_one[1]:
            apart.append(f"{metric} {which}")
        yield f"  {metric} {which}: {one * 1e3:.3f} {_ms(of_one)} and {two * 1e3:.3f} {_ms(of_two)} ms"
    yield f"  intervals that do not meet: {', '.join(apart) or 'none'}"
    for node in spread.run.meta["nodes"]:
        clock = node["clock"]
        error = f"error up to {clock['error_s'] * 1e3:.2f} ms, drift {clock['drift_ppm']:.3g} ppm"
        yield f"  clock of node {node['node']}: {clock['offset_s']:.6f} s ahead, {error}"
        true_s = min((0, AHEAD_S), key=lambda s: abs(s - clock["offset_s"]))
        assert abs(clock["offset_s"] - true_s) <= clock["error_s"], "off by more than was stated"
    first_due_ns = spread.run.requests.groupby("worker")["due_ns"].min()
    yield f"  first due times: {', '.join(f'{ns / 1e6:.1f} ms' for ns in first_due_ns)}; exit status {spread.status}"


def _ms(interval: list[float]) -> str:
    return "–".join(f"{value * 1e3:.3f}" for value in interval).join("[]")


def the_key_is_nowhere(bench: Bench) -> Iterator[str]:
    seen: list[str] = []

    def look(process: Any, out: Path) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if KEY.encode() in path.read_bytes():
                    seen.append(str(path))
            except OSError:
                continue

    ran = bench.on_nodes("hidden", 5, act=look)
    places = [bench.nodes.folder / "ray", ran.out]
    seen += [str(file) for place in places for file in place.rglob("*") if file.is_file() and _has_key(file)]
    assert not seen, seen
    yield f"the key is on no command line, in no log or file of Ray, in no result; exit status {ran.status}"


def _has_key(file: Path) -> bool:
    try:
        return KEY.encode() in file.read_bytes()
    except OSError:
        return False


def a_stop_keeps_what_was_measured(bench: Bench) -> Iterator[str]:
    ran = bench.on_nodes("stopped", 60, act=lambda process, out: process.send_signal(signal.SIGINT))
    outcomes = ran.run.requests["outcome"].value_counts().to_dict()
    assert ran.status == 130, (ran.status, ran.said)
    assert set(ran.run.requests["worker"]) == {0, 1}
    yield f"SIGINT: exit status {ran.status}, {outcomes}, {ran.run.meta['interrupted_by']}"
    alive = [pid for each in bench.nodes.processes.values() for pid in descendants(each.pid) if _is_worker(pid)]
    wait_for(lambda: not [pid for pid in alive if _is_worker(pid)], 10)
    yield "  no worker is left on the nodes"


def _is_worker(pid: int) -> bool:
    try:
        return b"loadgen.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def a_node_that_dies_costs_its_share(bench: Bench) -> Iterator[str]:
    def kill(process: Any, out: Path) -> None:
        time.sleep(3)
        bench.nodes.kill("other")

    yield from _without(bench, "lost", 20, kill)


def a_node_that_is_cut_off_does_too(bench: Bench) -> Iterator[str]:
    if not bench.nodes.apart:
        return

    def cut(process: Any, out: Path) -> None:
        time.sleep(3)
        _ip("link set loadgen-v3 down")

    yield from _without(bench, "cut", 50, cut)
    senders = [pid for pid in descendants(bench.nodes.processes["other"].pid) if _is_worker(pid)]
    wait_for(lambda: not any(_is_worker(pid) for pid in senders), 60)
    yield "  its worker has ended"
    bench.nodes.kill("other")
    _ip("link set loadgen-v3 up")
    bench.nodes.start_other()


def _without(bench: Bench, name: str, seconds: int, act: Callable[[Any, Path], None]) -> Iterator[str]:
    ran = bench.on_nodes(name, seconds, act=act)
    assert ran.status == 3, (ran.status, ran.said)
    requests = ran.run.requests
    last_s = requests.groupby("worker")["sent_ns"].max() / 1e9
    yield f"a node is {name} in mid-run: exit status {ran.status}; {requests['outcome'].value_counts().to_dict()}"
    yield "  last sent: " + ", ".join(f"worker {worker + 1} at {at_s:.1f} s" for worker, at_s in last_s.items())
    yield f"  said: {ran.run.meta['interrupted_by']}"
    planned = _planned(bench)
    kept = {worker: len(rows) / planned[worker] for worker, rows in requests.groupby("worker")}
    assert min(kept.values()) < 1 == max(kept.values()), kept
    yield f"  kept of each share: {', '.join(f'{share:.0%}' for share in kept.values())}"


def _planned(bench: Bench) -> list[int]:
    plan = build(load_workload(str(bench.folder / "workload.yaml"), {}), 7)
    return [sum(turn_count(session) for session in plan.shard(i, 2).sessions()) for i in range(2)]


CASES = {
    "same": the_same_numbers,
    "key": the_key_is_nowhere,
    "stop": a_stop_keeps_what_was_measured,
    "cut": a_node_that_is_cut_off_does_too,
    "death": a_node_that_dies_costs_its_share,
}


def main() -> None:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        nodes = Nodes(folder, stack.enter_context(networks()))
        stack.callback(nodes.stop)
        print("two networks, clocks an hour apart" if nodes.apart else "both nodes on 127.0.0.1", flush=True)
        nodes.start_head()
        nodes.start_other()
        bench = Bench(folder, nodes)
        stack.callback(bench.server.kill)
        for case in sys.argv[1:] or CASES:
            for line in CASES[case](bench):
                print(line, flush=True)


if __name__ == "__main__":
    main()
