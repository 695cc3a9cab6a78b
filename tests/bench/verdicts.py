"""How often verdicts are wrong: comparisons of a server with itself, a slower server, and gates near their limit.

    python -m tests.bench.verdicts [--runs 200] [--of synthetic|engine]

Synthetic runs come from tests/analysis/synthetic.py: an M/D/1 queue in front of prefill, ITL with levels of the moment
(AR(1)), of the request and of the token. Those of the engine are of the built-in one in virtual time, tests/bench/
engine_runs.py: what is slower there is its memory. `true` values are those of one very long run. What is wanted, each
of 200:

A/A         the same server twice, other seeds, tolerance 5 %: worse or better in at most 5 %
slower      ITL 15 % slower: worse in at least 90 %
gates       a true value 10 % inside its limit fails, or one 10 % outside passes, in under 1 %
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pandas as pd

from analysis.compare.numbers import compare
from analysis.limits import Limit
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.synthetic import Server, simulate
from tests.bench.engine_runs import ENGINE_LOADS

GOOD = {"ttft": 0.4, "gap_p99": 0.06}
WORKLOAD = {"name": "synthetic", "good": GOOD}


Truth = dict[tuple[str, str | None], float]


class Source(Protocol):
    """Where runs of one kind of load come from; `requests` of a run if not as many as usual."""

    @property
    def name(self) -> str: ...

    @property
    def requests(self) -> int: ...

    def run(self, seed: int, slower: float = 1.0, requests: int | None = None) -> Run: ...


@dataclass(frozen=True)
class Load:
    name: str
    server: Server
    requests: int
    tokens: int

    def run(self, seed: int, slower: float = 1.0, requests: int | None = None) -> Run:
        server = replace(self.server, itl_s=self.server.itl_s * slower)
        return simulate(server, requests or self.requests, self.tokens, seed, workload=WORKLOAD)


LOADS = [
    Load("calm", Server(load=0.3, failures=0.02), 600, 60),
    Load("busy", Server(load=0.7, failures=0.02), 2400, 60),
    Load("moody", Server(load=0.5, memory=0.98, moment=0.1, failures=0.02), 1200, 40),
]
ASKED: Sequence[tuple[str, str | None]] = (
    ("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("itl", "p99"), ("tpot", "p95"), ("e2e", "mean"),
    ("attainment", None), ("errors", None), ("goodput", None), ("output_tokens_per_s", None),
)  # fmt: skip


def compared(load: Source, slower: float, runs: int, first_seed: int = 0, sides: int = 1) -> Counter[str]:
    """Verdicts of comparisons with a server whose ITL is slower by a factor, several runs a side if asked."""
    found: Counter[str] = Counter()
    for number in range(runs):
        seeds = range(first_seed + 2 * sides * number, first_seed + 2 * sides * (number + 1))
        base, candidate = [load.run(seed) for seed in seeds[:sides]], [load.run(seed, slower) for seed in seeds[sides:]]
        metrics = [each for each in compare(base, candidate)["metrics"] if each["decides"]]
        verdicts = {each["verdict"] for each in metrics}
        found["worse"] += "worse" in verdicts
        found["better"] += "better" in verdicts
        found["itl worse"] += any(each["verdict"] == "worse" for each in metrics if each["metric"] in ("itl", "tpot"))
        found["wrong"] += bool(verdicts & {"worse", "better"})
    return found


def truth(load: Source, requests: int = 60_000, seed: int = 999_999) -> Truth:
    """The values that a run of the same load would have if it were very long."""
    limits = [Limit(metric, statistic, "<", 1.0) for metric, statistic in ASKED]
    entries = summarize(load.run(seed, requests=requests), limits, strict_point=True)["slo"]["limits"]
    return {(each["metric"], each["statistic"]): each["value"] for each in entries if each["value"]}


def gated(load: Source, runs: int, true: Truth, first_seed: int = 0) -> dict[tuple[str, str], Counter[str]]:
    """Verdicts by metric and by whether its true value is inside or outside of the limit by 10 %."""
    limits = list(_limits(true))
    found = {(_name(limit), where): Counter[str]() for limit, where in limits}
    for seed in range(first_seed, first_seed + runs):
        entries = summarize(load.run(seed), [limit for limit, _ in limits])["slo"]["limits"]
        for (limit, where), entry in zip(limits, entries, strict=False):
            found[_name(limit), where][entry["verdict"]] += 1
    return found


def _limits(true: Truth) -> Any:
    for (metric, statistic), value in true.items():
        more = metric in ("attainment", "goodput", "output_tokens_per_s")
        for where, share in (("inside", 0.9), ("outside", 1.1)):
            yield Limit(metric, statistic, ">" if more else "<", value * share if more else value / share), where


def _name(limit: Limit) -> str:
    return ".".join(part for part in (limit.metric, limit.statistic) if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--of", choices=("synthetic", "engine"), default="synthetic")
    parser.add_argument("--gates", action="store_true", help="gates only, no comparisons")
    parser.add_argument("names", nargs="*", help="only the loads in whose names one of these is")
    asked = parser.parse_args()
    everything: Sequence[Source] = LOADS if asked.of == "synthetic" else ENGINE_LOADS
    loads = [load for load in everything if not asked.names or any(name in load.name for name in asked.names)]
    for load in () if asked.gates else loads:
        print(pd.DataFrame(_comparisons(load, asked.runs)).to_string(index=False), flush=True)
    for load in loads:
        rows = [
            {"load": load.name, "limit on": metric, "true value": f"10 % {where}",
             **{key: f"{100 * counts[key] / asked.runs:.1f} %" for key in ("pass", "fail", "no_verdict")}}
            for (metric, where), counts in gated(load, asked.runs, truth(load)).items()
        ]  # fmt: skip
        print(pd.DataFrame(rows).to_string(index=False), flush=True)


def _comparisons(load: Source, runs: int) -> list[dict[str, Any]]:
    rows = []
    for name, slower, sides in (("A/A", 1.0, 1), ("A/A, 3 runs a side", 1.0, 3), ("ITL 15 % slower", 1.15, 1)):
        count = runs if sides == 1 else runs // 4
        found = compared(load, slower, count, sides=sides)
        shares = {key: f"{100 * found[key] / count:.1f} %" for key in ("worse", "better", "wrong", "itl worse")}
        rows.append({"load": load.name, "requests": load.requests, "compared": name, "runs": count, **shares})
    return rows


if __name__ == "__main__":
    main()
