"""Stalls: the gaps in which a stream froze.

A stall is a gap longer than max(floor, factor x median gap of the same request).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from analysis.quantiles import Bools, Floats, Ints, order_within, segment_quantile
from analysis.run import Run
from analysis.units import seconds

FLOOR_S, FACTOR = 0.2, 5.0


@dataclass(frozen=True)
class Stalls:
    """Stalls of a run's streams as parallel arrays; `find` gives them in order of request.

    Attributes:
        row: Position of the request in `Run.requests`.
        end: Position of the event that ended it, in `Run.events`.
        start_ns, end_ns: Instants on the run's timeline.
        stalled_s: What it was longer than the median gap of its request.
    """

    row: Ints
    end: Ints
    start_ns: Ints
    end_ns: Ints
    stalled_s: Floats

    def take(self, chosen: Bools | Ints) -> "Stalls":
        return Stalls(*(getattr(self, each.name)[chosen] for each in fields(self)))


def settings(meta: Mapping[str, Any]) -> tuple[float, float]:
    """Floor in seconds and factor, from the workload of a run. ValueError if they are no numbers."""
    workload = meta.get("workload")
    given = (workload.get("stall") if isinstance(workload, Mapping) else None) or {}
    return seconds(given.get("floor") or FLOOR_S), float(given.get("factor") or FACTOR)


def find(run: Run) -> Stalls:
    """The stalls of all requests that succeeded and were streamed."""
    return _longer(run, np.where(run.streamed, _limit_ns(run), np.inf))


def standing_still(run: Run) -> Stalls:
    """The gaps of any request that are longer than half of what makes a stall, by its own or by the usual limit.

    A freeze of the whole engine is as long for everyone, give or take a step, but not a stall by everyone's own limit.
    """
    limit_ns = _limit_ns(run)
    told = limit_ns[~np.isnan(limit_ns)]
    return _longer(run, np.minimum(limit_ns, np.median(told) if len(told) else np.inf) / 2)


def _limit_ns(run: Run) -> Floats:
    """How long a gap of each request may be without being a stall; NaN for a request without gaps.

    Nearly always that is the floor. Only where half of the gaps are so long that their median may count is it looked
    for: sorting the gaps of a long run takes longer than all the rest.
    """
    floor_s, factor = settings(run.meta)
    if run.cells is not None:
        return np.asarray(np.maximum(floor_s * 1e9, factor * run.cells.quantile_ns(0.5)))
    starts, sizes = run.gaps.starts[:-1], np.diff(run.gaps.starts)
    limit_ns = np.where(sizes > 0, floor_s * 1e9, np.nan)
    filled = np.flatnonzero(sizes)
    if len(filled):
        long = np.add.reduceat(run.gaps.gap_ns > floor_s * 1e9 / factor, starts[filled], dtype=np.int64)
        slow = filled[2 * long >= sizes[filled]]
        limit_ns[slow] = np.maximum(limit_ns[slow], factor * _median_ns(run, slow))
    return limit_ns


def _median_ns(run: Run, rows: Ints) -> Floats:
    """The median gap of each of these requests; NaN without any."""
    if run.cells is not None:
        return run.cells.quantile_ns(0.5)[rows]
    gaps, asked = run.gaps, np.zeros(run.size, dtype=bool)
    asked[rows] = True
    chosen, sizes = gaps.of(asked), np.where(asked, np.diff(gaps.starts), 0)
    ordered = order_within(gaps.gap_ns[chosen], gaps.row[chosen])
    return segment_quantile(ordered, np.concatenate([[0], np.cumsum(sizes)]), 0.5)[rows]


def _longer(run: Run, limit_ns: Floats) -> Stalls:
    """The gaps longer than the limit of their request."""
    gaps = run.gaps
    at = np.flatnonzero(gaps.gap_ns > limit_ns[gaps.row])
    row, end, gap_ns = gaps.row[at], gaps.end[at], gaps.gap_ns[at]
    end_ns = run.events.arrival_ns[end]
    return Stalls(row, end, end_ns - gap_ns, end_ns, (gap_ns - _median_ns(run, row)) / 1e9)
