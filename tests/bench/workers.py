"""What a token costs each of several workers, and the ceiling that follows. See README.md beside this file."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.run import Run
from analysis.rundir import read_run
from tests.bench.loads import WORKLOAD
from tests.bench.token_server import running


def carry(workers: int, streams: int, tokens: int) -> tuple[Run, pd.DataFrame]:
    """A run of `streams` streams for each worker, 50 tokens a second each, and what the server sent."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload = folder / "bench.yaml"
        workload.write_text(f"{WORKLOAD % tokens}concurrency: {workers * streams}\nrequests: {workers * streams}\n")
        with running(folder) as server:
            asked = {"url": server.url, "out": str(folder / "run"), "workload": str(workload), "workers": workers,
                     "model": "bench", "priority": True}  # fmt: skip
            command = [sys.executable, "-m", "tests.loadgen.runner", json.dumps(asked)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return read_run(folder / "run"), server.log()


def cpu_us_per_token(run: Run) -> list[float]:
    """Of each worker: CPU time of its whole process over the tokens that came in the seconds it was sampled."""
    assert run.client is not None
    costs = []
    owner = run.requests.set_index("request_id")["worker"]
    worker = run.chunks["request_id"].astype("object").map(owner)
    for number, samples in run.client.groupby("worker"):
        ends_ns = samples["t_ns"].to_numpy()
        arrival_ns = np.sort(run.chunks["arrival_ns"][worker == number].to_numpy())
        starts_ns = np.concatenate([[0], ends_ns[:-1]])
        got = np.searchsorted(arrival_ns, ends_ns) - np.searchsorted(arrival_ns, starts_ns)
        steady = got > got.max() / 2  # the seconds between the opening of the streams and their end
        cpu_s = samples["cpu_share"].to_numpy() * (ends_ns - starts_ns) / 1e9
        costs.append(float(cpu_s[steady].sum() / got[steady].sum() * 1e6))
    return costs


def row(workers: int, streams: int, tokens: int) -> dict[str, object]:
    run, sent = carry(workers, streams, tokens)
    arrival_ns = run.chunks["arrival_ns"]
    costs = cpu_us_per_token(run)
    reads = len(run.chunks[["request_id", "read_id"]].drop_duplicates())
    return {
        "workers": workers,
        "streams": workers * streams,
        "tok/s": round(len(arrival_ns) / float(arrival_ns.max() - arrival_ns.min()) * 1e9),
        "CPU µs/token": ", ".join(f"{cost:.1f}" for cost in costs),
        "ceiling tok/s": round(sum(1e6 / cost for cost in costs)),
        "events/read": round(len(run.chunks) / reads, 3),
        "server late p99 ms": round(float(np.quantile(sent["before_ns"] - sent["due_ns"], 0.99)) / 1e6, 2),
        "scheduling": run.meta["host"]["scheduling"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200, help="for each worker; 50 tokens a second each")
    parser.add_argument("--tokens", type=int, default=300, help="per stream")
    asked = parser.parse_args()
    rows = [row(workers, asked.streams, asked.tokens) for workers in (1, 2)]
    print(pd.DataFrame(rows).to_string(index=False))
    ceilings = [float(str(each["ceiling tok/s"])) for each in rows]
    print(f"\ntwo workers, on a core each, carry {ceilings[1] / ceilings[0]:.2f} times what one carries")


if __name__ == "__main__":
    main()
