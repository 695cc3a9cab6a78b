"""The search for the highest load that meets every limit: which load to try next, for how long, and what the tries say.

*Which load.* Bracket by doubling; then where the line between the ends of the bracket crosses the limits, away from the
ends, until the bracket is as narrow as asked; then the ends again, until it is known well enough where between them the
limits are crossed. A load that passed once by luck does not pass for the answer.

*How long.* As long as the workload says until there is a bracket. A run begins with an empty server, and a short one
may be over before the trouble starts; and the nearer the edge, the more it takes to tell the sides apart. So from there
on, tries last until ENOUGH requests, or as long as they may: first the ends of which a short run is not to be believed.
What is tried again at last is tried for twice as long each time.

*What they say.* Short tries err: one misses its limits at a load below another that meets them. Of each try only the
level counts, the logarithm of the share of the tightest limit that was taken; a curve that rises with the load is
fitted to the levels, each with the length of its try as weight (isotonic regression by pooling adjacent violators, Ayer
et al. 1955). The edge is where that curve crosses 0. How well it is known: the levels are drawn anew, DRAWS times, each
within the interval of its try; the answer is the median of the edges that follow, and the middle 95 % of them are its
interval (a parametric bootstrap).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.intervals import Z95, student_t
from analysis.limits import SHARES
from analysis.slo import FAIL, NO_VERDICT, PASS

FACTOR = 2.0
"""The step of the bracket."""

ENOUGH, MOST = 10_000, 8
"""Requests of a long try, and how many times as many they may become."""

LEAST = 100
"""Requests that were seen on either side of an edge that is known: a server that falls behind does so over many."""

FAR = math.log(4.0)
"""Levels beyond say that the edge is far, and nothing of how far."""

NEAR = math.log(2.0)
"""Ends of a bracket whose levels differ by more do not lie on a line: servers fall off a cliff."""

BESIDE = 0.25
"""No try comes nearer to an end of the bracket than this share of it."""

VAGUE = 0.5
"""Standard error of a level without an interval, where nothing else is known; that of a stretched try is less by the
square root."""

DRAWS = 400


@dataclass(frozen=True)
class Point:
    """One load that was tried. `meets` is whether the values themselves are within the limits, whatever the certainty;
    None where they are not known. `margin` is the largest share of its limit that a value took (above 1: missed),
    `stretch` how many times as long as the workload says the try was, `error` the standard error of the margin's
    logarithm (None where its interval is open), `requests` how many were measured."""

    load: float
    verdict: str
    meets: bool | None
    margin: float | None = None
    stretch: float = 1.0
    error: float | None = None
    requests: int = 0

    @property
    def level(self) -> float:
        """Above 0: the limits are missed."""
        level = min(FAR, math.log(self.margin)) if self.margin else -FAR
        if self.verdict == FAIL or not self.meets:
            return level if level > 0 else FAR
        return max(-FAR, min(level, 0.0))


@dataclass(frozen=True)
class Try:
    """A load, and how many times as long as the workload says."""

    load: float
    stretch: float = 1.0


@dataclass(frozen=True)
class Search:
    """What is looked for.

    Attributes:
        first: The load to begin with.
        precision: How near the answer is to come: 0.05 is 5 %.
        lowest, highest: Loads are not tried beyond.
        most_points: How many tries at most.
        whole: Loads are whole numbers (users), not rates.
        longest: Tries are not stretched beyond.
    """

    first: float
    precision: float = 0.05
    lowest: float = 1e-3
    highest: float = 1e6
    most_points: int = 12
    whole: bool = False
    longest: float = 1.0

    def next_try(self, points: Sequence[Point]) -> Try | None:
        """What to try after `points` (in the order of trying); None when there is nothing left to learn."""
        if len(points) >= self.most_points:
            return None
        if not points:
            return Try(self.rounded(self.first))
        good, bad = bracket(points)
        length = max(point.stretch for point in points)
        if good is None or bad is None:
            return self._beyond(good, bad, length)
        enough = self._enough(points, good)
        length = max(length, enough)
        for load in (good, bad):
            if not _sure(points, load) and 2 * max(point.stretch for point in points if point.load == load) < enough:
                return Try(load, length)
        middle = self.rounded(between(points))
        if not self.narrow(good, bad) and middle not in (good, bad):
            return Try(middle, length)
        if sum(point.load == good for point in points) > 1 and self.known(points):
            return None
        times = {load: sum(point.stretch for point in points if point.load == load) for load in (good, bad)}
        return Try(min(times, key=times.__getitem__), max(length, min(2 * length, MOST * enough, self.longest)))

    def known(self, points: Sequence[Point]) -> bool:
        """Whether the edge is bracketed, and its interval reaches no further than the precision on either side."""
        good, bad = bracket(points)
        if good is None or bad is None or not self.narrow(good, bad):
            return False
        if min(sum(point.requests for point in points if point.load == load) for load in (good, bad)) < LEAST:
            return False
        low, edge, high = self.edge(points)
        reach = max(edge * self.precision, 1.0 if self.whole else 0.0) * (1 + 1e-9)
        return edge - low <= reach and high - edge <= reach

    def edge(self, points: Sequence[Point]) -> tuple[float, float, float]:
        """Where the limits begin to be missed (of whole loads the highest that meets them), and around it the ends of
        its 95 % interval: 2.5 %, 50 % and 97.5 % of the edges drawn. The same tries give the same. Needs a bracket."""
        drawn = np.random.default_rng(0).standard_normal((DRAWS, len(points))) * errors(points)
        drawn += [point.level for point in points]
        edges = np.sort([self._edge(points, each.tolist()) for each in drawn])
        low, edge, high = edges[[round(q * (DRAWS - 1)) for q in (0.025, 0.5, 0.975)]].tolist()
        return low, edge, high

    def _edge(self, points: Sequence[Point], values: Sequence[float]) -> float:
        """The edge by tries whose levels are these; a step beyond all tries where these lie on one side."""
        known = levels(points, values)
        good, bad = _ends(known)
        if good is None or bad is None:
            return known[0][0] / FACTOR if good is None else known[-1][0] * FACTOR
        return good if self.whole else _within(known, lambda low, high: -low / (high - low))

    def narrow(self, good: float, bad: float) -> bool:
        return bad <= good * (1 + self.precision) * (1 + 1e-9) or (self.whole and bad - good <= 1)

    def rounded(self, load: float) -> float:
        """Loads that a person can read: three digits, or whole numbers."""
        if self.whole:
            return float(max(1, round(load)))
        digits = 2 - math.floor(math.log10(load))
        return round(load, digits)

    def _beyond(self, good: float | None, bad: float | None, length: float) -> Try | None:
        """One step further where the bracket has one end."""
        if good is not None:
            return None if good >= self.highest else Try(self.rounded(min(self.highest, good * FACTOR)), length)
        assert bad is not None, "a load is good or bad"
        return None if bad <= self.lowest else Try(self.rounded(max(self.lowest, bad / FACTOR)), length)

    def _enough(self, points: Sequence[Point], near: float) -> float:
        """How many times as long as the workload says a long try is, by those of a load near the edge."""
        each = max(point.requests / point.stretch for point in points if point.load == near)
        return float(min(self.longest, max(1, math.ceil(ENOUGH / each)))) if each else self.longest


def _sure(points: Sequence[Point], load: float) -> bool:
    """Whether a load surely misses the limits, or meets them by far; a near pass may be that of a short run."""
    tries = [point for point in points if point.load == load]
    return any(point.verdict == FAIL or (point.verdict == PASS and point.level <= -FAR) for point in tries)


def levels(points: Sequence[Point], values: Sequence[float]) -> list[tuple[float, float]]:
    """Each load that was tried and its level, both rising, fitted to the values of the tries."""
    blocks: list[tuple[list[float], float, float]] = []  # loads, level, weight
    for load in sorted({point.load for point in points}):
        tries = [(value, point.stretch) for point, value in zip(points, values, strict=True) if point.load == load]
        weight = sum(stretch for _, stretch in tries)
        blocks.append(([load], sum(value * stretch for value, stretch in tries) / weight, weight))
        while len(blocks) > 1 and blocks[-2][1] > blocks[-1][1]:
            (low, a, m), (high, b, n) = blocks[-2:]
            blocks[-2:] = [(low + high, (a * m + b * n) / (m + n), m + n)]
    return [(load, level) for loads, level, _ in blocks for load in loads]


def errors(points: Sequence[Point]) -> list[float]:
    """The standard error of each level: by the interval of its try, or by how much long tries near the edge scatter.

    The interval of one run's tail is open, or wide to be on the safe side; several runs show what it is in truth. They
    scatter about the fitted curve, each stretch of equal levels of which is one number fitted. Of short tries that is
    not to be believed, as the loads were chosen by what they showed. A verdict says at least on which side of 0 a level
    lies.
    """
    curve = dict(_levels(points))
    near = [point for point in points if abs(point.level) < NEAR and point.stretch > 1]
    freedom = len(near) - len({curve[point.load] for point in near})
    scatter = math.inf
    if freedom > 1:
        squares = sum(point.stretch * (point.level - curve[point.load]) ** 2 for point in near)
        scatter = math.sqrt(squares / freedom) * student_t(freedom) / Z95
    return [_error_of(point, scatter / math.sqrt(point.stretch) if point.stretch > 1 else math.inf) for point in points]


def _error_of(point: Point, scatter: float) -> float:
    own = VAGUE / math.sqrt(point.stretch) if point.error is None else point.error
    return min(own, scatter) if point.verdict == NO_VERDICT else min(own, scatter, abs(point.level) / Z95)


def bracket(points: Sequence[Point]) -> tuple[float | None, float | None]:
    """The highest load believed to meet the limits, and the lowest believed to miss them; None where there is none."""
    return _ends(_levels(points))


def between(points: Sequence[Point]) -> float:
    """The load to try next inside a bracket: near the crossing, but not so near to an end that the other one stays.

    In the middle where the ends do not lie on a line.
    """
    return _within(
        _levels(points),
        lambda low, high: 0.5 if high - low > NEAR else min(max(-low / (high - low), BESIDE), 1 - BESIDE),
    )


def _levels(points: Sequence[Point]) -> list[tuple[float, float]]:
    return levels(points, [point.level for point in points])


def _ends(known: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    good = max((load for load, level in known if level <= 0), default=None)
    return good, min((load for load, level in known if level > 0), default=None)


def _within(known: Sequence[tuple[float, float]], share: Callable[[float, float], float]) -> float:
    """The load that lies at a share of the bracket, which is found from the levels of its ends."""
    good, bad = _ends(known)
    assert good is not None, "there is a bracket"
    assert bad is not None, "there is a bracket"
    at = dict(known)
    return float(good * (bad / good) ** share(at[good], at[bad]))


def point_of(load: float, summary: Mapping[str, Any], stretch: float = 1.0) -> Point:
    """What a run's summary says of its load."""
    gate = summary["slo"]
    limits = gate["limits"]
    known = [limit for limit in limits if limit["value"] is not None]
    meets = all(map(_met, known)) if len(known) == len(limits) and limits else None
    tightest = max(known, key=_margin, default=None)
    margin, error = (None, None) if tightest is None else (_margin(tightest), _error(tightest))
    return Point(load, gate["verdict"] or NO_VERDICT, meets, margin, stretch, error, summary["requests"]["ok"])


def _met(limit: Mapping[str, Any]) -> bool:
    value, bound = limit["value"], limit["limit"]
    return bool(value <= bound if limit["operator"].startswith("<") else value >= bound)


def _margin(limit: Mapping[str, Any]) -> float:
    return _taken(limit, limit["value"])


def _taken(limit: Mapping[str, Any], value: float) -> float:
    """The share of an upper limit that a value takes; of a lower one on a share, of the misses that it allows; of any
    other, how often the value goes into it."""
    bound = limit["limit"]
    if limit["operator"].startswith("<"):
        above, below = value, bound
    elif limit["metric"] in SHARES:
        above, below = 1 - value, 1 - bound
    else:
        above, below = bound, value
    return float(above / below) if below else math.inf if above else 0.0


def _error(limit: Mapping[str, Any]) -> float | None:
    """Standard error of the logarithm of the share taken, by the farther end of the value's interval; None without."""
    taken = [_margin(limit), *(_taken(limit, end) for end in limit.get("ci95") or ())]
    if len(taken) < 3 or min(taken) <= 0 or math.isinf(max(taken)):
        return None
    return max(abs(math.log(end / taken[0])) for end in taken[1:]) / Z95


def outcome(points: Sequence[Point], search: Search) -> dict[str, Any]:
    """The answer as JSON data.

    `capacity` is where the limits begin to be missed (None where no load meets them; of whole loads the highest that
    meets them). Its interval is `ci95`, no less than the bracket where that is not narrow. `passes_at` and `fails_at`
    are the tries on both sides of it, `settled` is whether it is known to the precision asked for, `reason` why.
    """
    good, bad = bracket(points)
    edge, ends, settled = good, None, False
    if good is not None and bad is not None:
        low, edge, high = map(search.rounded, search.edge(points))
        settled = search.known(points)
        ends = [low, high] if search.narrow(good, bad) else [min(low, good), max(high, bad)]
    return {"capacity": edge, "ci95": ends, "passes_at": good, "fails_at": bad, "settled": settled,
            "reason": _reason(points, search, settled), "tries": len(points)}  # fmt: skip


def _reason(points: Sequence[Point], search: Search, settled: bool) -> str:
    good, bad = bracket(points)
    if good is None:
        return "no load that was tried meets the limits" if points else "nothing was tried"
    if bad is None:
        return f"every load that was tried meets the limits, up to {good:g}: the edge lies higher"
    if not search.narrow(good, bad):
        return f"stopped after {len(points)} tries: the edge lies between {good:g} and {bad:g}"
    told = f"{good:g} meets the limits, {bad:g} does not"
    return told if settled else f"{told}; where between is not known to {search.precision:.0%}: longer runs would tell"


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
