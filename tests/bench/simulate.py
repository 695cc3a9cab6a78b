"""An hour of mixed traffic on simulated replicas: what planning, simulating and summarizing it cost."""

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from analysis.record import RequestRecord
from analysis.roofline import Roofline
from analysis.run import Run
from analysis.summary import summarize
from loadgen.host import keep_memory, quiet_gc
from loadgen.sim import catalog
from loadgen.sim.core import ClusterConfig, SimConfig
from loadgen.sim.replay import simulate
from workloads.schedule import build
from workloads.spec import Workload

CLASSES = {
    "chat": {
        "weight": 3, "shape": "chat", "turns": {"law": "geometric", "mean": 4}, "system_tokens": 300,
        "think_time": {"law": "lognormal", "mean": "8s", "p95": "20s"},
        "input_tokens": {"law": "lognormal", "mean": 60, "p95": 200},
        "output_tokens": {"law": "lognormal", "mean": 210, "p95": 600},
    },
    "rag": {
        "weight": 3, "shape": "rag", "system_tokens": 200, "input_tokens": 60, "output_tokens": 150,
        "documents": {"count": 2000, "tokens": 350, "top_k": 3, "popularity": {"law": "zipf", "s": 1.1}},
    },
}  # fmt: skip
"""Prompts of about 1,000 tokens in the mean, answers of about 200."""


@contextmanager
def timed(what: str) -> Iterator[None]:
    wall_s, cpu_s = time.monotonic(), time.process_time()
    yield
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    print(f"{what:<12} {cpu_s:8.1f} s CPU {wall_s:8.1f} s wall, peak memory so far {peak_gb:.2f} GB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=50, help="requests per second")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--router", default="round_robin")
    parser.add_argument("--no-summary", action="store_true", help="only the simulation")
    asked = parser.parse_args()
    keep_memory()
    arrivals = {"process": "poisson", "rate": f"{asked.rate:g}/s", "unit": "requests"}
    plan = {"name": "hour", "arrivals": arrivals, "duration": f"{asked.minutes:g}m", "classes": CLASSES}
    roofline = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))
    config = ClusterConfig(SimConfig(roofline), asked.replicas, asked.router)
    records: list[RequestRecord] = []
    with timed("simulate"), quiet_gc():
        ended = simulate(build(Workload.model_validate(plan), 1), config, records.append)
    done = [record for record in records if record.outcome == "ok"]
    tokens = sum(len(record.arrival_ns) for record in records)
    prompt = sum(record.prompt_tokens or 0 for record in done) / len(done)
    cached = sum(record.cached_tokens or 0 for record in done) / len(done)
    print(f"{len(records):,} requests, {tokens:,} tokens; mean prompt {prompt:.0f} ({cached:.0f} cached)")
    if asked.no_summary:
        return
    stages = [asdict(stage) for stage in ended.stages]
    with timed("columns"):
        run = Run.from_records({"stages": stages, "loop": "open", "workload": {"name": "hour"}}, records)
        del records, done
    with timed("summarize"):
        summary = summarize(run)
    for name in ("ttft_s", "itl_s"):
        print(name, {key: summary["metrics"][name][key] for key in ("p50", "p95", "p99")})


if __name__ == "__main__":
    main()
