"""Lines and intervals from a handful of repeats: robust against a hiccup, the same for the same run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.intervals import Interval, student_t
from analysis.quantiles import Bools, Floats

DRAWS = 1000
MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, for normal samples."""
PAIR_MEDIAN = 0.954
"""The median difference between two normal samples of standard deviation 1: sqrt(2) * 0.6745."""
PAIRS_EFFICIENCY = 0.6
"""What the median of differences knows of the spread, in degrees of freedom (by simulation: 97 % are covered)."""


@dataclass(frozen=True)
class Line:
    """y = at_zero + per_x * x, with the 95 % interval of the slope (None: too few points)."""

    per_x: float
    at_zero: float
    ci95: Interval | None


def theil_sen(x: Floats, y: Floats) -> Line | None:
    """The median of the slopes between any two points of different x (Theil 1950, Sen 1968); None without such points.

    The interval is that of the bootstrap over points, drawn anew within each x so that none is lost.
    """
    i, j = np.triu_indices(len(x), 1)
    if not (x[i] != x[j]).any():
        return None
    per_x = float(_slopes(x, y[None, :])[0])
    return Line(per_x, float(np.median(y - per_x * x)), _interval(x, y))


def _slopes(x: Floats, y: Floats) -> Floats:
    """The slope of each row of `y`."""
    i, j = np.triu_indices(len(x), 1)
    apart: Bools = x[i] != x[j]
    i, j = i[apart], j[apart]
    found: Floats = np.median((y[:, i] - y[:, j]) / (x[i] - x[j]), axis=1)
    return found


def _interval(x: Floats, y: Floats) -> Interval | None:
    groups = [np.flatnonzero(x == value) for value in np.unique(x)]
    if min(map(len, groups)) < 2:
        return None
    rng = np.random.default_rng(0)
    drawn = np.empty((DRAWS, len(x)))
    for group in groups:
        drawn[:, group] = y[rng.choice(group, (DRAWS, len(group)))]
    low, high = np.quantile(_slopes(x, drawn), [0.025, 0.975])
    return float(low), float(high)


def pooled_intervals(groups: Sequence[Floats], floor: float) -> list[Interval | None]:
    """The 95 % interval of the median of each group of samples; None where nothing tells of their spread.

    Three repeats alone say next to nothing of their spread, so it is pooled: all groups scatter alike on the scale of
    log(x + floor), which is by a factor where samples are far above `floor` and by an amount where they are far below.
    The spread is read off the median difference between two samples of one group, which a hiccup or two do not move
    (as Rousseeuw and Croux 1993 do), and goes with Student's t.

    Args:
        floor: Above 0; about the noise that samples have however small they are.
    """
    logs = [np.log(group + floor) for group in groups]
    pairs = np.concatenate([np.abs(each[i] - each[j]) for each in logs for i, j in [np.triu_indices(len(each), 1)]])
    if not len(pairs):
        return [None] * len(groups)
    freedom = sum(max(0, len(each) - 1) for each in logs)
    error = student_t(max(1.0, freedom * PAIRS_EFFICIENCY)) * float(np.median(pairs)) / PAIR_MEDIAN * MEDIAN_ERROR
    return [_around(each, error / math.sqrt(len(each)), floor) if len(each) else None for each in logs]


def _around(logs: Floats, half: float, floor: float) -> Interval:
    middle = float(np.median(logs))
    return max(0.0, math.exp(middle - half) - floor), math.exp(middle + half) - floor


def spread_of(groups: Sequence[Floats], floor: float) -> list[dict[str, Any]]:
    """`{median, ci95, max}` of each group, null where it is empty (see `pooled_intervals`)."""
    return [
        {
            "median": float(np.median(group)) if len(group) else None,
            "ci95": None if ends is None else list(ends),
            "max": float(group.max()) if len(group) else None,
        }
        for group, ends in zip(groups, pooled_intervals(groups, floor), strict=True)
    ]
