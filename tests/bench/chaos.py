"""Runs whose server or network misbehaves: every request must end in exactly one outcome, the totals must add up, and
nobody may see a traceback. See README.md beside this file."""

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.record import OUTCOMES
from analysis.rundir import read_run
from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options

WORKLOAD = """
name: chaos
classes:
  chaos: {shape: chat, turns: 1, system_tokens: 0, input_tokens: 50, output_tokens: 100}
"""
RATE = 10
LOADGEN = str(Path(sys.executable).with_name("loadgen"))
NETEM = "ip link set lo up && tc qdisc add dev lo root netem loss 1% delay 50ms 10ms"
LIMITS = "--connect-timeout 3s --first-token-timeout 8s --idle-timeout 8s --drain 10s"
PLAIN = "--seed 7 --workers 1 --no-calibrate --no-priority --no-progress --no-metrics --format json"

Meddle = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """One misfortune.

    Attributes:
        seconds: How long requests are sent.
        status: The exit status that is documented for it.
        expected: Outcomes of which at least one must show, or the misfortune did not happen.
        flags: More of `loadgen run`.
        server: Runs the server meanwhile: yields its flags (target and model) and what is done to it.
        namespace: Whether it has a network of its own, which loses and delays packets.
    """

    seconds: int
    status: int
    expected: frozenset[str]
    server: "Callable[[], Any]"
    flags: str = ""
    namespace: bool = False


@contextmanager
def restarted() -> Iterator[tuple[str, Meddle]]:
    """Killed after 4 s, and back 3 s later."""
    servers = [LocalServer().start()]
    url, model = servers[0].url, servers[0].model

    def meddle() -> None:
        time.sleep(4)
        os.kill(servers[0].pid, signal.SIGKILL)
        time.sleep(3)
        servers.append(LocalServer(port=int(url.rpartition(":")[2])).start())

    try:
        yield f"--target {url} --model {model}", meddle
    finally:
        for server in servers:
            server.stop()


@contextmanager
def stopped() -> Iterator[tuple[str, Meddle]]:
    """Stands still for 30 s."""
    with LocalServer() as server:

        def meddle() -> None:
            time.sleep(4)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                time.sleep(30)
            finally:
                os.kill(server.pid, signal.SIGCONT)

        yield f"--target {server.url} --model {server.model}", meddle


@contextmanager
def resetting() -> Iterator[tuple[str, Meddle]]:
    with LocalServer(Options(inject=("reset:share=0.3,after=20",))) as server:
        yield f"--target {server.url} --model {server.model}", lambda: None


@contextmanager
def mute() -> Iterator[tuple[str, Meddle]]:
    """Accepts, reads, and never answers."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    kept.append(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"--target http://127.0.0.1:{listener.getsockname()[1]} --model none", lambda: None
    for each in kept:
        each.close()


@contextmanager
def built_in() -> Iterator[tuple[str, Meddle]]:
    """The run's own engine, in the run's own network."""
    yield "", lambda: None


CASES = {
    "killed and restarted": Case(14, 0, frozenset({"connect_failed", "broken"}), restarted),
    "resets": Case(10, 0, frozenset({"broken"}), resetting),
    "resets, with retries": Case(10, 0, frozenset({"broken"}), resetting, "--retries 2"),
    "stands still for 30 s": Case(42, 0, frozenset({"timeout_idle", "timeout_first_token"}), stopped),
    "accepts, never answers": Case(5, 3, frozenset({"timeout_first_token"}), mute),
    "cut by the end of the drain": Case(5, 3, frozenset({"cancelled"}), mute, "--first-token-timeout 0 --drain 2s"),
    "1 % loss, 50 ms ± 10 ms": Case(15, 0, frozenset({"ok"}), built_in, namespace=True),
}


def command(case: Case, target: str, folder: Path) -> list[str]:
    workload = folder / "chaos.yaml"
    workload.write_text(WORKLOAD)
    load = f"--rate {RATE} --arrival constant --duration {case.seconds}s"
    words = f"{LOADGEN} run {workload} {load} {PLAIN} {LIMITS} {target} {case.flags} --out {folder / 'run'}"
    return ["unshare", "-n", "sh", "-c", f"{NETEM} && exec {words}"] if case.namespace else shlex.split(words)


def suffer(case: Case, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The run, from its start to its end, with what is done to its server."""
    with case.server() as (target, meddle):
        child = subprocess.Popen(
            command(case, target, folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while not (folder / "run" / "journal.bin").exists() and child.poll() is None:
            time.sleep(0.05)
        trouble = threading.Thread(target=meddle)
        trouble.start()
        out, err = child.communicate()
        trouble.join()
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def faults(case: Case, folder: Path, done: "subprocess.CompletedProcess[str]") -> list[str]:
    """What is not as promised, a line each."""
    if done.returncode != case.status:
        return [f"exit status {done.returncode}, expected {case.status}: {done.stderr.strip()[-300:]}"]
    again = subprocess.run([LOADGEN, "report", folder / "run", "--format", "json"], capture_output=True, text=True)
    told = json.loads(done.stdout)["requests"]
    requests = read_run(folder / "run").requests
    parts = ("ok", "failed", "cancelled", "skipped", "not_sent")
    found = {
        "a traceback": "Traceback" in done.stderr + again.stderr,
        f"the report's status is {again.returncode}": again.returncode not in (0, 1, 3),
        "another report than the run's": again.returncode in (0, 1, 3) and json.loads(again.stdout)["requests"] != told,
        f"{told['planned']} planned": told["planned"] != RATE * case.seconds,
        "the totals do not add up": told["planned"] != sum(told[part] for part in parts),
        "a request that is there twice": not requests["request_id"].is_unique,
        "an outcome that is none": not set(requests["outcome"]) <= set(OUTCOMES),
        f"none of {sorted(case.expected)}": not case.expected & set(told["by_outcome"]),
        "an end before its start": bool((requests["end_ns"] < requests["sent_ns"]).any()),
    }
    return [what for what, bad in found.items() if bad]


def may_shape() -> bool:
    """Whether this user may have a network of his own that loses packets."""
    with suppress(FileNotFoundError):
        return not subprocess.run(["unshare", "-n", "sh", "-c", NETEM], capture_output=True).returncode
    return False


def row(name: str, case: Case) -> dict[str, object]:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = suffer(case, Path(folder))
        bad = faults(case, Path(folder), done)
    outcomes = json.loads(done.stdout)["requests"]["by_outcome"] if done.stdout else {}
    return {"case": name, "s": round(time.monotonic() - began_s), "exit": done.returncode,
            "outcomes": ", ".join(f"{what} {count}" for what, count in outcomes.items()),
            "faults": "; ".join(bad) or "none"}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    asked = parser.parse_args()
    chosen = {name: case for name, case in CASES.items() if asked.only in name}
    if not may_shape():
        print("no packet loss: a network namespace with tc netem is not permitted here", file=sys.stderr)
        chosen = {name: case for name, case in chosen.items() if not case.namespace}
    table = pd.DataFrame([row(name, case) for name, case in chosen.items()])
    print(table.to_string(index=False))
    return int((table["faults"] != "none").any())


if __name__ == "__main__":
    sys.exit(main())
