"""How often `--until-verdict` is wrong: looks that share the error, beside looks that each claim all of it.

    python -m tests.bench.until [--runs 200] [--looks 5]

Runs of tests/analysis/synthetic.py, as long as the last look asks, each looked at as it grows: at a first length, twice
that, and so on. Of every limit the first verdict counts, as that is where a run would be stopped. `true` values are
those of one very long run. What is wanted:

10 % inside, outside    the wrong verdict in under 1 % of runs
on the limit            any verdict in about 5 % of runs at most: each would be one of chance
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.limits import Limit
from analysis.looks import as_of
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.synthetic import Server, simulate

WORKLOAD = {"name": "synthetic", "good": {"ttft": 0.4, "gap_p99": 0.06}}


@dataclass(frozen=True)
class Load:
    """A server, and how many requests of how many tokens the first look sees."""

    name: str
    server: Server
    requests: int
    tokens: int = 12


LOADS = [
    Load("calm", Server(load=0.3, failures=0.02), 300),
    Load("busy", Server(load=0.7, failures=0.02), 600),
    Load("moody", Server(load=0.5, memory=0.98, moment=0.1, failures=0.02), 300),
]
ASKED: Sequence[tuple[str, str | None]] = (
    ("ttft", "p90"), ("ttft", "p95"), ("itl", "p50"), ("itl", "p99"), ("e2e", "mean"), ("attainment", None),
    ("goodput", None), ("output_tokens_per_s", None),
)  # fmt: skip
MORE_IS_BETTER = ("attainment", "goodput", "output_tokens_per_s")
PLACES = {"10 % inside": 0.9, "on the limit": 1.0, "10 % outside": 1.1}

Truth = dict[tuple[str, str | None], float]


def truth(load: Load, requests: int = 60_000, seed: int = 999_999) -> Truth:
    long = simulate(load.server, requests, load.tokens, seed, workload=WORKLOAD)
    limits = [Limit(metric, statistic, "<", 1.0) for metric, statistic in ASKED]
    entries = summarize(long, limits, strict_point=True)["slo"]["limits"]
    return {(each["metric"], each["statistic"]): each["value"] for each in entries}


def growing(load: Load, looks: int, seed: int, shared: bool) -> Run:
    """A run of all its looks, as the run directory would describe it; `shared`: they share the error."""
    run = simulate(load.server, load.requests * 2 ** (looks - 1), load.tokens, seed, workload=WORKLOAD)
    due_ns = run.column("due_ns")
    ends_ns = [int(due_ns[load.requests * 2**look - 1]) + 1 for look in range(looks)]
    names = [f"main-{look + 1}" for look in range(looks)]
    stages = [
        {**run.stages[0], "name": name, "start_ns": start_ns, "end_ns": end_ns}
        for name, start_ns, end_ns in zip(names, [0, *ends_ns], ends_ns, strict=False)
    ]
    stage = pd.Categorical.from_codes(np.searchsorted(ends_ns, due_ns, "right").clip(max=looks - 1), names)
    meta = {**run.meta, "stages": stages, "looks": {"ends_ns": ends_ns if shared else [], "taken": None}}
    return run.but(meta=meta, requests=run.requests.assign(stage=stage))


def first_verdicts(run: Run, limits: Sequence[Limit], looks: int) -> list[tuple[str, int]]:
    """Of each limit the verdict at which a run would be stopped, and the look at which it comes."""
    found: list[tuple[str, int]] = [("no_verdict", looks)] * len(limits)
    for look in range(1, looks + 1):
        entries = summarize(as_of(run, look), limits)["slo"]["limits"]
        for at, entry in enumerate(entries[: len(limits)]):
            if found[at][0] == "no_verdict":
                found[at] = entry["verdict"], look
    return found


def limits_of(true: Truth) -> list[tuple[str, Limit]]:
    """A limit on each metric in each of PLACES."""
    return [
        (place, Limit(*metric, ">" if metric[0] in MORE_IS_BETTER else "<",
                      value * share if metric[0] in MORE_IS_BETTER else value / share))
        for metric, value in true.items() for place, share in PLACES.items()
    ]  # fmt: skip


def tried(
    load: Load, looks: int, runs: int, true: Truth, shared: bool = True, first_seed: int = 0
) -> dict[tuple[str, str], Counter[str]]:
    """Verdicts by metric and place of its limit, and under `looks` how many they took in all."""
    asked = limits_of(true)
    found = {(_name(limit), place): Counter[str]() for place, limit in asked}
    for seed in range(first_seed, first_seed + runs):
        run = growing(load, looks, seed, shared)
        for (place, limit), (verdict, look) in zip(
            asked, first_verdicts(run, [limit for _, limit in asked], looks), strict=True
        ):
            found[_name(limit), place].update({verdict: 1, "looks": look})
    return found


def wrong(place: str, counts: Counter[str]) -> int:
    """How many verdicts are those of chance: on the limit, each of them is."""
    return {"10 % inside": counts["fail"], "10 % outside": counts["pass"]}.get(place, counts["fail"] + counts["pass"])


def _name(limit: Limit) -> str:
    return ".".join(part for part in (limit.metric, limit.statistic) if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--looks", type=int, default=5)
    asked = parser.parse_args()
    for load in LOADS:
        true = truth(load)
        both = [tried(load, asked.looks, asked.runs, true, shared) for shared in (True, False)]
        rows: list[dict[str, Any]] = []
        for key, counts in both[0].items():
            metric, place = key
            rows.append({
                "load": load.name, "limit on": metric, "true value": place,
                "wrong": f"{100 * wrong(place, counts) / asked.runs:.1f} %",
                "wrong if each look claimed 5 %": f"{100 * wrong(place, both[1][key]) / asked.runs:.1f} %",
                "settled": f"{100 * (counts['pass'] + counts['fail']) / asked.runs:.0f} %",
                "looks, mean": f"{counts['looks'] / asked.runs:.1f}",
            })  # fmt: skip
        print(pd.DataFrame(rows).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
