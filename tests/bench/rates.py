"""Does the client keep up with very many requests a second, connections a second, and streams at once?

    python -m tests.bench.rates [--rate 2000] [--streams 10000] [--seconds 5]

Three loads on the token server (core 1), the client on core 0: requests that are soon answered, over connections that
are used again; the same rate of requests that each need a new connection, as no earlier one has ended; and many streams
at once with a token a second each. Wanted: at 2,000 a second a p99 of `send lag` (sent - due) within 2 ms; 10,000
streams in less than 1 GB.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.rundir import read_run
from tests.bench.loads import CLIENT_CORE, SERVER_CORE
from tests.bench.token_server import running

CLASSES = "classes: {c: {shape: chat, turns: 1, system_tokens: 0, input_tokens: 20, output_tokens: %d}}\n"


@dataclass(frozen=True)
class Load:
    """What is sent, as lines of a workload file, and how the server answers."""

    name: str
    plan: str
    tokens: int
    first_ms: float
    gap_ms: float


def loads(rate: float, streams: int, seconds: float) -> list[Load]:
    steady = f"arrivals: {{process: constant, rate: {rate:g}/s}}\nmax_in_flight: null\nduration: "
    long_s = min(seconds, 3.0)
    return [
        Load(f"{rate:,.0f} requests/s", f"{steady}{seconds:g}s\n", 2, 5, 5),
        Load(f"{rate:,.0f} connections/s", f"{steady}{long_s:g}s\n", 2, long_s * 1000 + 1000, 5),
        Load(f"{streams:,} streams", f"concurrency: {streams}\nrequests: {streams}\n", 10, 3000, 1000),
    ]


def row(load: Load) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "w.yaml").write_text(f"name: rates\nwarmup: 0s\ndrain: 60s\n{load.plan}{CLASSES % load.tokens}")
        words = [str(Path(sys.executable).with_name("loadgen")), "run", str(folder / "w.yaml"), "--model", "bench",
                 "--no-calibrate", "--quiet", "--no-progress", "--format", "json", "--out", str(folder / "run"),
                 "--no-metrics", "--workers", "1"]  # fmt: skip
        with running(folder, load.first_ms, load.gap_ms, core=SERVER_CORE) as server:
            child = subprocess.Popen(
                ["taskset", "-c", str(CLIENT_CORE), *words, "--target", server.url], stdout=subprocess.DEVNULL
            )
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        run = read_run(folder / "run")
    lag_ms = run.column("send_lag_s") * 1e3
    connect_ms = run.column("connect_s") * 1e3
    told = lag_ms[~np.isnan(lag_ms)]
    late = np.quantile(told, [0.5, 0.99, 1.0]).round(2).tolist() if len(told) else [None] * 3
    return {
        "load": load.name,
        "ok": f"{int(run.ok.sum()):,} of {len(run.requests):,}",
        "send lag p50, p99, max ms": late,
        "new connections": int((~np.isnan(connect_ms)).sum()),
        "connect p99 ms": round(float(np.nanquantile(connect_ms, 0.99)), 2) if (connect_ms > 0).any() else None,
        "CPU s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak RSS MB": round(usage.ru_maxrss / 1024),
        "exit": child.returncode,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5)
    asked = parser.parse_args()
    rows = [row(load) for load in loads(asked.rate, asked.streams, asked.seconds)]
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
