"""The load at which a simulated server truly begins to miss its limits: a fine sweep in virtual time.

Nothing of the search is used, nor of the statistics that it goes by: a grid of loads, long runs of fresh seeds, and
percentiles by numpy over all requests of a grid point.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.record import RequestRecord
from loadgen.host import quiet_gc
from loadgen.sim.options import Options
from loadgen.sim.replay import simulate
from workloads.schedule import build
from workloads.spec import Workload

Taken = Callable[[Sequence[RequestRecord]], float]
"""The share of a limit that the requests of one load take; above 1 it is missed."""


@dataclass(frozen=True)
class Case:
    """A workload whose load is varied, the engine that it meets, and what has to hold.

    Attributes:
        limits: The same as `taken`, as flags of the search.
        load: The key that is varied, as a dotted path.
        near: A load not too far from the edge, where the sweep begins; it finds its own way from there.
        long_s: How long each run of the sweep measures.
        seeds: Runs at each load; more where a server tips over in some runs and not in others.
    """

    name: str
    plan: Mapping[str, Any]
    limits: tuple[str, ...]
    taken: Taken
    near: float
    long_s: float
    engine: Mapping[str, Any] = field(default_factory=dict)
    load: str = "arrivals.rate"
    seeds: int = 2

    @property
    def whole(self) -> bool:
        return not self.load.endswith("rate")


def ttft(q: float, limit_s: float) -> Taken:
    return lambda records: float(np.quantile([_first_s(each) for each in records], q)) / limit_s


def itl(q: float, limit_s: float) -> Taken:
    return lambda records: float(np.quantile(np.concatenate([_gaps_s(each) for each in records]), q)) / limit_s


def attained(share: float, first_s: float, gap_p99_s: float) -> Taken:
    """Misses, as a share of those that are allowed."""

    def good(record: RequestRecord) -> bool:
        gaps = _gaps_s(record)
        return _first_s(record) < first_s and (not len(gaps) or float(np.quantile(gaps, 0.99)) < gap_p99_s)

    return lambda records: (1 - float(np.mean([good(each) for each in records]))) / (1 - share)


def tightest(*taken: Taken) -> Taken:
    return lambda records: max(each(records) for each in taken)


def of_class(name: str, taken: Taken) -> Taken:
    return lambda records: taken([each for each in records if each.class_name == name])


def _first_s(record: RequestRecord) -> float:
    return (record.arrival_ns[0] - (record.sent_ns or 0)) / 1e9


def _gaps_s(record: RequestRecord) -> npt.NDArray[np.float64]:
    return np.diff(np.asarray(record.arrival_ns, dtype=np.float64)) / 1e9


def true_capacity(case: Case, seeds: int | None = None, step: float = 0.02, around: int = 3) -> float:
    """The load at which the tightest limit is just met.

    From a load found on a coarse grid, walk a fine one until `around` loads on either side of the edge are known. Noise
    may put a load on the wrong side: the edge lies where the shares on the wrong side of 1 add up to the least.
    """
    rough = edge(_walk(replace(case, long_s=case.long_s / 4), 1, max(0.15, step), 1, count(100)), case.whole)
    found = _walk(replace(case, near=rough), seeds or case.seeds, step, around, count(1000))
    print("   ", " ".join(f"{load:.4g}:{share:.3f}" for load, share in sorted(found.items())), flush=True)
    return edge(found, case.whole)


def _walk(case: Case, seeds: int, step: float, around: int, fresh: Iterator[int]) -> dict[float, float]:
    """The shares taken at loads of a grid on both sides of the edge. Every run has a seed of its own."""
    found: dict[float, float] = {}
    low, high, side = 0, -1, 1
    while side:
        low, high = (low, high + 1) if side > 0 else (low - 1, high)
        load = _on_grid(case, high if side > 0 else low, step)
        found[load] = taken_at(case, load, [next(fresh) for _ in range(seeds)])
        side = _next(found, around)
    return found


def _next(found: Mapping[float, float], around: int) -> int:
    """Whether to go on upwards (1) or downwards (-1); 0 where both sides are known well enough."""
    last = edge(found, whole=True)
    above = sum(load > last for load in found)
    return 1 if above < around else -1 if len(found) - above < around else 0


def _on_grid(case: Case, position: int, step: float) -> float:
    """Loads a step apart; of whole ones no less than 1 apart."""
    if not case.whole:
        return case.near * (1 + step) ** position
    return float(round(case.near) + position * max(1, round(case.near * step / 2)))


def taken_at(case: Case, load: float, seeds: Sequence[int]) -> float:
    """The share of the tightest limit that is taken at a load, over the requests of all seeds."""
    return case.taken([record for seed in seeds for record in requests_at(case, load, seed)])


def requests_at(case: Case, load: float, seed: int) -> list[RequestRecord]:
    """The requests of one run; those due in its first part, in which the load builds up, are left out."""
    plan = {**case.plan, "warmup": f"{case.long_s / 5:g}s", "duration": f"{case.long_s:g}s", "drain": "10h"}
    head, _, tail = case.load.partition(".")
    plan[head] = {**plan[head], tail: load} if tail else int(load)
    records: list[RequestRecord] = []
    with quiet_gc():
        simulate(build(Workload.model_validate(plan), seed), Options(**case.engine).config(), records.append)
    return [each for each in records if each.stage != "warmup" and each.outcome == "ok"]


def edge(found: Mapping[float, float], whole: bool) -> float:
    """The split of the loads with the least on its wrong side; between two loads, by a line over the logarithms.

    Of whole loads the last that meets the limits; 0 and infinity where no load or all of them do.
    """
    loads = sorted(found)
    levels = [math.log(min(max(found[load], 0.1), 10.0)) for load in loads]
    wrong = [sum(map(abs, (max(x, 0.0) for x in levels[:k]))) - sum(min(x, 0.0) for x in levels[k:])
             for k in range(len(loads) + 1)]  # fmt: skip
    k = int(np.argmin(wrong))
    if whole or k in (0, len(loads)):
        return loads[k - 1] if k else 0.0
    low, high = min(levels[k - 1], 0.0), max(levels[k], 0.0)
    share = -low / (high - low) if high > low else 0.5
    return loads[k - 1] * (loads[k] / loads[k - 1]) ** share
