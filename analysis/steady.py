"""Is a measured stage a steady state, or did TTFT or the queue still move while it was measured?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.quantiles import Bools, Floats
from analysis.run import Run

_BLOCKS = 20
_Z = 3.0
_CHANGE, _SETTLED = 1.25, 1.1


@dataclass(frozen=True)
class Trend:
    """Medians over the first and the last third of a stage, and the seconds after which nothing moves any more."""

    early: float
    late: float
    settled_s: float | None


def unsteady(run: Run, ok: Bools) -> str | None:
    """What moved over a measured stage, and what to do; None where nothing did, or the plan moves the load itself.

    TTFT is looked at in first turns only: later ones have longer prompts by nature.
    """
    codes, names = run.words("stage")
    level = {names[code] for code in set(codes[ok].tolist()) - {-1}} - _ramps(run)
    for name in sorted(level):
        mine = ok & run.where("stage", name)
        first = mine & (run.column("turn") == 1)
        if found := trend(run.column("sent_ns")[first], run.column("ttft_s")[first]):
            return _told("TTFT", f"{found.early * 1e3:.0f} to {found.late * 1e3:.0f} ms", found)
        found = trend(run.column("sent_ns")[mine], in_flight(run)[mine])
        if found and abs(found.late - found.early) >= 2:
            return _told("the number of requests in flight", f"{found.early:.0f} to {found.late:.0f}", found)
    return None


def _ramps(run: Run) -> set[str]:
    """The stages that begin at one rate and end at another."""
    workload = run.meta.get("workload")
    planned = workload.get("stages") if isinstance(workload, Mapping) else None
    asked = enumerate(planned if isinstance(planned, list) else [], 1)
    moving = {f"stage{i}" for i, each in asked if isinstance(each, Mapping) and each.get("from") != each.get("to")}
    return {stage["name"] for stage in run.stages if stage["name"].partition(" of run ")[0] in moving}


def trend(at_ns: Floats, values: Floats) -> Trend | None:
    """The trend of values over time, if they have a clear one.

    Requests close in time are alike, as they share a queue: blocks of time are compared, not single samples.
    """
    order = np.argsort(at_ns, kind="stable")
    at_ns, values = at_ns[order], values[order]
    if len(values) < 2 * _BLOCKS:
        return None
    medians = np.array([np.median(part) for part in np.array_split(values, _BLOCKS)])
    early, late = _ends(values)
    if not _moves(medians) or _change(values) < _CHANGE:
        return None
    rests = ((k, medians[k:]) for k in range(1, _BLOCKS // 2 + 1))
    steady = next((k for k, rest in rests if not _moves(rest) and _change(rest) < _SETTLED), None)
    starts_s = np.array([part[0] for part in np.array_split(at_ns, _BLOCKS)]) / 1e9
    return Trend(early, late, None if steady is None else float(starts_s[steady] - starts_s[0]))


def in_flight(run: Run) -> Floats:
    """By request, how many were open when it was sent; NaN where it was not."""
    sent, end = run.column("sent_ns"), run.column("end_ns")
    begun, ended = np.sort(sent[~np.isnan(sent)]), np.sort(end[~np.isnan(sent) & ~np.isnan(end)])
    found = np.searchsorted(begun, sent, side="right") - np.searchsorted(ended, sent, side="right")
    return np.where(np.isnan(sent), np.nan, found)


def _told(what: str, change: str, found: Trend) -> str:
    falls = found.late < found.early
    if found.settled_s is not None:
        remedy = f"about {np.ceil(found.settled_s):.0f} s more of --warmup would have been enough"
    elif falls:
        remedy = "it had not settled by half of the stage: lengthen --warmup, or run longer"
    else:
        remedy = "the server falls behind: lower the load, or run longer"
    return (
        f"{what} {'fell' if falls else 'rose'} from {change} (medians of the first and the last third of the measured "
        f"stage), which is not a steady state: {remedy}"
    )


def _ends(values: Floats) -> tuple[float, float]:
    third = len(values) // 3
    return float(np.median(values[:third])), float(np.median(values[-third:]))


def _change(values: Floats) -> float:
    low, high = sorted(_ends(values))
    return high / low if low else np.inf


def _moves(medians: Floats) -> bool:
    return abs(_rank_correlation(medians)) * math.sqrt(len(medians) - 1) >= _Z


def _rank_correlation(values: Floats) -> float:
    """Spearman's, of values against their order; equal values share a rank."""
    below = np.searchsorted(np.sort(values), values, side="left")
    rank = (below + np.searchsorted(np.sort(values), values, side="right")) / 2
    return 0.0 if rank.std() == 0 else float(np.corrcoef(rank, np.arange(len(values)))[0, 1])
