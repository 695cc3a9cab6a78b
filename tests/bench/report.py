"""What a report costs: a run directory with many token events, from reading Parquet to the text.

    python -m tests.bench.report [--events 10000000] [--tokens 500] [--classes 4] [--turns 3]
        [--per-event 1] [--profile]

The directory is made in a temporary folder by one process and read by another, whose time and peak memory are printed.
What is wanted with 10 million events: under 15 s and under 2 GB, all in.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from analysis.columns import CHUNKS, REQUESTS
from analysis.frames import table_of
from analysis.report.text import render
from analysis.rundir import read_run
from analysis.summary import summarize
from tests.analysis.synthetic import Server, simulate

SLO = ["ttft.p95<2s", "ttft.p99<3s", "itl.p99<80ms", "gap.p95<60ms", "stall.per_1k<1", "errors<2%", "attainment>80%"]


def write(path: Path, events: int, tokens: int, classes: int, turns: int, per_event: int) -> None:
    """A run directory as `RunWriter` leaves it, in row groups of the same size; `tokens` are events of each request."""
    count = max(1, events // tokens)
    run = simulate(Server(failures=0.005, load=0.7, service_s=0.02), count, tokens, seed=1)
    requests = run.requests
    requests["class"] = np.array([f"class{i}" for i in range(classes)])[np.arange(count) % classes]
    requests["completion_tokens"] *= per_event
    run.chunks["n_tokens"] = per_event
    requests["turn"] = np.arange(count) // classes % turns + 1
    path.mkdir(parents=True)
    for name, frame, columns in (("requests", requests, REQUESTS), ("chunks", run.chunks, CHUNKS)):
        pq.write_table(table_of(frame, columns), path / f"{name}.parquet", row_group_size=200_000)
    slo = {"all": SLO} | {f"class{i}": ["ttft.p95<2s", "itl.p99<80ms"] for i in range(classes)}
    workload = {"name": "synthetic", "slo": slo}
    (path / "run.json").write_text(json.dumps(run.meta | {"workload": workload}), encoding="utf-8")


def read(path: Path, profile: bool) -> None:
    began, cpu_began = time.perf_counter(), time.process_time()
    run = read_run(path)
    loaded = time.perf_counter()
    if profile:
        import cProfile

        cProfile.runctx("summarize(run)", globals(), {"run": run}, sort="cumtime")
        return
    summary = summarize(run)
    counted = time.perf_counter()
    text = render(summary)
    ended = time.perf_counter()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(text)
    cpu_s = time.process_time() - cpu_began
    print(f"{len(run.requests):,} requests, {len(run.chunks):,} token events")
    print(f"read {loaded - began:.1f} s, summary {counted - loaded:.1f} s, text {ended - counted:.1f} s")
    print(f"all {ended - began:.1f} s, {cpu_s:.1f} s of CPU, peak {peak_mb:,.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (
        ("--events", 10_000_000),
        ("--tokens", 500),
        ("--classes", 4),
        ("--turns", 3),
        ("--per-event", 1),
    ):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--make", type=Path)
    parser.add_argument("--read", type=Path)
    asked = parser.parse_args()
    if asked.make:
        write(asked.make, asked.events, asked.tokens, asked.classes, asked.turns, asked.per_event)
    elif asked.read:
        read(asked.read, asked.profile)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            for step in ("--make", "--read"):
                subprocess.run([sys.executable, "-m", "tests.bench.report", step, str(path), *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
