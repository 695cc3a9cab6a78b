"""The search for the highest load that meets every limit: which load to try next, and what the tries say.

Bracket by doubling, halve the bracket in ratio until it is as narrow as asked, then repeat the edge: a load that passed
once by luck does not pass for the answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.slo import FAIL, NO_VERDICT, PASS

FACTOR = 2.0
"""The step of the bracket."""


@dataclass(frozen=True)
class Point:
    """One load that was tried. `meets` is whether the values themselves are within the limits, whatever the certainty;
    None where they are not known. `margin` is the largest share of its limit that a value took (above 1: missed)."""

    load: float
    verdict: str
    meets: bool | None
    margin: float | None = None


@dataclass(frozen=True)
class Search:
    """What is looked for.

    Attributes:
        first: The load to begin with.
        precision: The answer is the highest load that passes, to this share: 0.05 is 5 %.
        lowest, highest: Loads are not tried beyond.
        most_points: How many tries at most.
        whole: Loads are whole numbers (users), not rates.
    """

    first: float
    precision: float = 0.05
    lowest: float = 1e-3
    highest: float = 1e6
    most_points: int = 12
    whole: bool = False

    def next_load(self, points: Sequence[Point]) -> float | None:
        """The load to try after `points` (in the order of trying); None when there is nothing left to learn."""
        if len(points) >= self.most_points:
            return None
        if not points:
            return self._rounded(self.first)
        good, bad = bracket(points)
        if good is None:
            return self._below(bad)
        if bad is None:
            return None if good >= self.highest else self._rounded(min(self.highest, good * FACTOR))
        if self._narrow(good, bad):
            return good if self._unconfirmed(points, good) else None
        middle = self._rounded(math.sqrt(good * bad))
        if middle in (good, bad):
            return good if self._unconfirmed(points, good) else None
        return middle

    def _below(self, bad: float | None) -> float | None:
        assert bad is not None, "a point is good or bad"
        return None if bad <= self.lowest else self._rounded(max(self.lowest, bad / FACTOR))

    def _narrow(self, good: float, bad: float) -> bool:
        return bad <= good * (1 + self.precision) * (1 + 1e-9) or (self.whole and bad - good <= 1)

    def _unconfirmed(self, points: Sequence[Point], load: float) -> bool:
        return sum(point.load == load for point in points) < 2

    def _rounded(self, load: float) -> float:
        """Loads that a person can read: three digits, or whole numbers."""
        if self.whole:
            return float(max(1, round(load)))
        digits = 2 - math.floor(math.log10(load))
        return round(load, digits)


def passes(points: Sequence[Point]) -> bool:
    """Whether a load tried in `points` (all of the same load) is believed to meet the limits.

    A try without a verdict counts by its values. Where tries disagree, the more certain ones decide, and among equals
    the bad news.
    """
    certain = [point for point in points if point.verdict in (PASS, FAIL)]
    if certain:
        return all(point.verdict == PASS for point in certain)
    return all(bool(point.meets) for point in points)


def bracket(points: Sequence[Point]) -> tuple[float | None, float | None]:
    """The highest load that passes below all that fail, and the lowest that fails; None where there is none."""
    by_load: dict[float, list[Point]] = {}
    for point in points:
        by_load.setdefault(point.load, []).append(point)
    bad = min((load for load, tries in by_load.items() if not passes(tries)), default=None)
    good = [load for load, tries in by_load.items() if passes(tries) and (bad is None or load < bad)]
    return max(good, default=None), bad


def point_of(load: float, summary: Mapping[str, Any]) -> Point:
    """What a run's summary says of its load."""
    gate = summary["slo"]
    limits = gate["limits"]
    known = [limit for limit in limits if limit["value"] is not None]
    meets = all(map(_met, known)) if len(known) == len(limits) and limits else None
    return Point(load, gate["verdict"] or NO_VERDICT, meets, max(map(_taken, known), default=None))


def _met(limit: Mapping[str, Any]) -> bool:
    value, bound = limit["value"], limit["limit"]
    return bool(value <= bound if limit["operator"].startswith("<") else value >= bound)


def _taken(limit: Mapping[str, Any]) -> float:
    """The share of an upper limit that its value took, or how often the value goes into a lower one."""
    value, bound = limit["value"], limit["limit"]
    above, below = (value, bound) if limit["operator"].startswith("<") else (bound, value)
    return float(above / below) if below else math.inf


def outcome(points: Sequence[Point], search: Search) -> dict[str, Any]:
    """The answer as JSON data: `capacity` (None where no load passed), the bracket, how sure it is and why."""
    good, bad = bracket(points)
    tries = [point for point in points if point.load == good]
    if good is None:
        sure, why = False, "no load that was tried meets the limits" if points else "nothing was tried"
    elif bad is None:
        sure, why = False, f"every load that was tried passes, up to {good:g}: the edge lies higher"
    elif not search._narrow(good, bad):
        sure, why = False, f"stopped after {len(points)} tries: the edge lies between {good:g} and {bad:g}"
    elif any(point.verdict == NO_VERDICT for point in tries):
        sure, why = False, f"at {good:g} the values meet the limits, but their intervals do not settle it: longer runs"
    else:
        sure, why = True, f"{good:g} passes in {len(tries)} of {len(tries)} tries, {bad:g} does not"
    return {"capacity": good, "fails_at": bad, "settled": sure, "reason": why, "tries": len(points)}


def knee(loads: Sequence[float], good: Sequence[float]) -> float | None:
    """The load at which a curve of goodput against load bends away from its first straight part.

    The point farthest above the line between its ends, both axes scaled to one (Satopaa et al., "Kneedle", 2011); None
    for fewer than three points and for a curve that nowhere lies above that line.
    """
    pairs = sorted(zip(loads, good, strict=True))
    if len(pairs) < 3 or pairs[0][0] == pairs[-1][0]:
        return None
    (x0, y0), (x1, _) = pairs[0], pairs[-1]
    low, high = min(y for _, y in pairs), max(y for _, y in pairs)
    if high == low:
        return None
    end = (pairs[-1][1] - low) / (high - low)
    start = (y0 - low) / (high - low)
    above = [((y - low) / (high - low) - (start + (end - start) * (x - x0) / (x1 - x0)), x) for x, y in pairs[1:-1]]
    best, at = max(above)
    return at if best > 1e-9 else None


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Positions of the points that no other beats in both values, more being better, by descending first value."""
    order = sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1]))
    kept, best = [], -math.inf
    for i in order:
        if points[i][1] > best:
            kept.append(i)
            best = points[i][1]
    return kept
