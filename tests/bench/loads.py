"""One load of a bench: the token server on one core, `loadgen run` on another, and what the run cost."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.run import Run
from analysis.rundir import read_run
from tests.bench.token_server import running

SERVER_CORE, CLIENT_CORE = 1, 0

WORKLOAD = """
name: bench
classes:
  bench: {shape: chat, turns: 1, system_tokens: 0, input_tokens: 20, output_tokens: %d}
"""


@dataclass(frozen=True)
class Load:
    """`streams` requests at once, `tokens` tokens each.

    `stamps` "user" makes the client take its arrival times itself, as where the kernel gives none.
    """

    streams: int
    tokens: int
    transport: str = "fast"
    stamps: str = "kernel"


@dataclass(frozen=True)
class Outcome:
    load: Load
    run: Run
    sent: pd.DataFrame
    cpu_s: float
    peak_rss_mb: float

    @property
    def tokens(self) -> int:
        return len(self.run.chunks)

    @property
    def tokens_per_s(self) -> float:
        """By arrival at the client, over the time from the first token to the last."""
        arrival_ns = self.run.chunks["arrival_ns"]
        return self.tokens / float(arrival_ns.max() - arrival_ns.min()) * 1e9


def command(load: Load, url: str, folder: Path) -> list[str]:
    workload = folder / "bench.yaml"
    workload.write_text(WORKLOAD % load.tokens)
    options = f"--concurrency {load.streams} --requests {load.streams} --transport {load.transport}"
    fixed = "--model bench --no-calibrate --quiet --no-progress --format json"
    return [
        *f"taskset -c {CLIENT_CORE} {Path(sys.executable).with_name('loadgen')} run {workload} --target {url}".split(),
        *f"{options} {fixed} --out {folder / 'run'}".split(),
    ]


def measure(load: Load) -> Outcome:
    """Runs the load. Raises RuntimeError if loadgen did not end well."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(folder, core=SERVER_CORE) as server:
            environment = os.environ | ({"LOADGEN_TIMESTAMPS": "user"} if load.stamps == "user" else {})
            with (folder / "summary.json").open("w") as output:
                child = subprocess.Popen(command(load, server.url, folder), env=environment, stdout=output)
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"loadgen ended with status {child.returncode} under {load}")
        cpu_s = usage.ru_utime + usage.ru_stime
        return Outcome(load, read_run(folder / "run"), server.log(), cpu_s, usage.ru_maxrss / 1024)


def numbers(text: str) -> list[int]:
    """The type of an option like `50,200,800`."""
    return [int(part) for part in text.split(",")]
