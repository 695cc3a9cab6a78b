"""95 % confidence intervals for runs in which neighbours are alike.

Requests close in time share a queue, and the tokens of one request share its batch and its luck: taken for independent
samples, 10,000 tokens would seem to prove what 50 requests cannot. So a request goes, with all its tokens, into the
block of time in which it was due, and only blocks are held against each other.

*Blocks.* The requests in order of their start are cut into BLOCKS stretches of equal size. A statistic that is a sum
over blocks (samples below a value, failures, tokens) has a variance that the bootstrap over blocks would estimate by
drawing blocks anew. Its limit for many draws is known in closed form, the sum of squares of what the blocks deviate, so
nothing is drawn: the same run gives the same interval.

*Several runs.* Runs of one workload that are judged together have BLOCKS blocks each, and what differs from run to run
adds to the variance (see `spread`).

*Long memory.* Plain block resampling takes blocks for independent. In a busy queue they are not, and simulated runs
(tests/bench/intervals.py) show its intervals cover far less than they promise. Instead of the sum of squares, the
variance is read off the slow changes across blocks: the mean square of the first COSINES cosine waves in them (the
equal-weighted cosine estimator of Mueller 2004; Lazarus, Lewis, Stock and Watson 2018). Where blocks are independent
the two agree; where they are not, this one sees it. Being a mean of so few squares it asks for Student's t.

*Percentiles.* The share of samples up to a percentile has such a variance; the share's interval, turned back into
values, is that of the percentile (Woodruff 1952). In the tail the likeness of neighbours itself is hard to see: 20
requests over p99 may be one bad moment. It is taken to be no less than at p90 and p95, where there is more to go by.
An end that the samples do not reach is infinite: they are too few, or too much alike, to bound the percentile.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from analysis.quantiles import PERCENTILES, Bools, Floats, Ints, Ordered

BLOCKS, FEWEST_BLOCKS = 48, 20
COSINES = 12
Z95 = 1.959964
_TAIL = (0.9, 0.95)

Labels = npt.NDArray[np.int16]
"""A block of time by its number, -1 for none: of the first run below BLOCKS, of the second below 2 BLOCKS, …"""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """Variance of a sum, and the degrees of freedom with which it is known."""

    variance: float
    freedom: float

    def half_width(self, z: float = Z95) -> float:
        return student_t(self.freedom, z) * math.sqrt(self.variance)


@dataclass(frozen=True)
class Sample:
    """Samples of one run, or of several: their values, how often each counts (None: once), and the block of each."""

    values: Floats
    counts: Ints | None
    block: Labels
    runs: int = 1

    @cached_property
    def per_block(self) -> Floats:
        return self._sums(slice(None))

    def up_to(self, value: float) -> Floats:
        """How many samples of each block do not exceed a value."""
        if value not in self._up_to:
            self._up_to[value] = self.per_block - self._sums(np.flatnonzero(self.values > value))
        return self._up_to[value]

    @cached_property
    def _up_to(self) -> dict[float, Floats]:
        """Percentiles far out look at those before them as well: counting is what takes the time."""
        return {}

    def deviations(self, mean: float) -> Floats:
        """Sum of what the samples of each block differ from a mean."""
        weights = (self.values - mean) * (1 if self.counts is None else self.counts)
        return np.bincount(self.block, weights, BLOCKS * self.runs).astype(np.float64)

    def _sums(self, chosen: "slice | Ints") -> Floats:
        weights = None if self.counts is None else self.counts[chosen]
        return np.bincount(self.block[chosen], weights, BLOCKS * self.runs).astype(np.float64)


def in_order(start_ns: Floats, rows: Bools, run: Ints | None = None) -> Labels:
    """The block of each request in the mask `rows`: equal numbers of requests, in order of start.

    Requests that started at one instant are interchangeable: their order is drawn, always alike. So are those of which
    no start is known, which come last. `run` numbers the run of each request where they are of several.
    """
    result = np.full(len(rows), -1, dtype=np.int16)
    for number in range(1 if run is None or not len(run) else int(run.max()) + 1):
        at = np.flatnonzero(rows if run is None else rows & (run == number))
        drawn = np.random.default_rng(0).permutation(len(at))
        order = at[np.lexsort((drawn, start_ns[at]))]
        result[order] = number * BLOCKS + np.arange(len(at)) * BLOCKS // max(len(at), 1)
    return result


def spread(runs: Sequence[Floats]) -> Spread:
    """Of the total of what blocks deviate, by run; what differs from run to run adds to it.

    Only with several runs can the latter be seen. With T_r the total of run r of R,

        within  = sum of the variance of each T_r by its own blocks
        between = R / (R - 1) * sum of (T_r - mean T)^2
        variance = within + max(0, between - within)

    the analysis-of-variance estimate for random effects, not below 0 (Cochran 1954; DerSimonian and Laird 1986): runs
    that differ no more than their blocks let expect add nothing. The degrees of freedom of the two parts join by
    Satterthwaite (1946). One array may hold the blocks of several runs; a run that has none of them does not count.
    """
    runs = [part for sums in runs for part in sums.reshape(-1, BLOCKS) if part.any()]
    within = sum(_slow_variance(sums) for sums in runs)
    freedom = float(COSINES * max(1, len(runs)))
    totals = np.array([sums.sum() for sums in runs])
    if len(runs) < 2:
        return Spread(within, freedom)
    between = float(np.sum((totals - totals.mean()) ** 2)) * len(runs) / (len(runs) - 1)
    extra = max(0.0, between - within)
    if not extra:
        return Spread(within, freedom)
    joined = (within + extra) ** 2 / (within**2 / freedom + extra**2 / (len(runs) - 1))
    return Spread(within + extra, joined)


def too_short(sums: Floats) -> bool:
    """Whether a run has too few blocks with anything in them to compare them over time."""
    filled = np.count_nonzero(sums.reshape(-1, BLOCKS), axis=1)
    return not filled.any() or bool(np.any((filled > 0) & (filled < FEWEST_BLOCKS)))


def quantile_interval(runs: Sequence[Sample], ordered: Ordered, q: float, z: float = Z95) -> Interval | None:
    """Of a quantile over the samples of all runs, which `ordered` holds; None where there are too few blocks.

    An end may be infinite. `z` is the normal quantile that stands for the confidence asked for.
    """
    if any(too_short(run.per_block) for run in runs):
        return None
    half = quantile_spread(runs, ordered, q).half_width(z)
    low, high = q - half, q + half
    ends = ordered.at(np.array([max(low, 0.0), min(high, 1.0)]))
    return float(ends[0]) if low >= 0 else -math.inf, float(ends[1]) if high <= 1 else math.inf


def quantile_spread(runs: Sequence[Sample], ordered: Ordered, q: float) -> Spread:
    """Of the share of samples up to the quantile."""
    levels = [q, *(level for level in _TAIL if level < q)]
    effects = [_alikeness(runs, ordered, level) for level in levels]
    most = max(effects, key=lambda each: each.variance)
    return Spread(most.variance * q * (1 - q) / len(ordered), most.freedom)


def percentile_intervals(
    sample: Sample, ordered: Ordered, z: float = Z95
) -> tuple[dict[str, list[float] | None], dict[str, str]]:
    """The `ci95` of a metric block, and the reason for each percentile that has none."""
    found: dict[str, list[float] | None] = {}
    missing: dict[str, str] = {}
    for name, q in PERCENTILES.items():
        few = too_few(name, q, len(ordered))
        ends = None if few else quantile_interval([sample], ordered, q, z)
        found[name] = finite(ends)
        if found[name] is None:
            missing[name] = few or (open_end(sample, ordered, q) if ends else FEW_BLOCKS)
    return found, missing


def mean_interval(sample: Sample, mean: float, z: float = Z95) -> Interval | None:
    if too_short(sample.per_block):
        return None
    half = spread([sample.deviations(mean)]).half_width(z) / float(sample.per_block.sum())
    return mean - half, mean + half


def share_interval(runs: Sequence[tuple[Floats, Floats]], z: float = Z95) -> Interval | None:
    """Of a share, from hits and trials of each block of each run; None where there are too few blocks.

    Wilson's with continuity correction, with as many trials as independent ones would tell as much (never more than
    there are): unlike value +- error it stays within 0 and 1, and does not shrink to nothing where all or none hit.
    The correction is for rare hits, whose counts are skewed.
    """
    hits, trials = (float(sum(run[part].sum() for run in runs)) for part in (0, 1))
    if any(too_short(run[1]) for run in runs):
        return None
    share = hits / trials
    found = spread([own - share * of for own, of in runs])
    independent = trials * share * (1 - share)
    alike = max(1.0, found.variance / independent) if independent else 1.0
    t, n = student_t(found.freedom, z), trials / alike
    low = _wilson(max(0.0, share - 0.5 / n), n, -t) if hits else 0.0
    return low, _wilson(min(1.0, share + 0.5 / n), n, t) if hits < trials else 1.0


def _wilson(share: float, n: float, t: float) -> float:
    within = t * math.sqrt(share * (1 - share) / n + t**2 / (4 * n**2))
    return (share + t**2 / (2 * n) + within) / (1 + t**2 / n)


def ratio_interval(runs: Sequence[tuple[Floats, Floats]], z: float = Z95) -> Interval | None:
    """Of a ratio of two positive sums over blocks, such as stalls to tokens; None where there are too few blocks.

    Made on the scale of logarithms, as a rate cannot fall below 0.
    """
    above, below = (float(sum(run[part].sum() for run in runs)) for part in (0, 1))
    if any(too_short(run[1]) for run in runs) or not above:
        return None
    ratio = above / below
    half = spread([own - ratio * of for own, of in runs]).half_width(z) / above
    return ratio * math.exp(-half), ratio * math.exp(half)


def student_t(freedom: float, z: float = Z95) -> float:
    """The quantile of Student's t that stands where `z` does for the normal one (Wallace 1959)."""
    scaled = z * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(scaled**2 / freedom))


def normal_z(t: float, freedom: float) -> float:
    """The inverse of `student_t`."""
    return math.sqrt(freedom * math.log1p(t**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)


def samples_needed(q: float) -> int:
    """Fewest samples for a percentile: ten beyond it."""
    return round(10 / (1 - q))


def too_few(name: str, q: float, count: int) -> str | None:
    needed = samples_needed(q)
    return f"{count:,} samples are too few for {name}: it needs {needed:,}" if count < needed else None


FEW_BLOCKS = f"fewer than {FEWEST_BLOCKS} requests: there is nothing to compare over time"


def open_end(sample: Sample, ordered: Ordered, q: float) -> str:
    """Why an end of the interval is infinite."""
    worth = q * (1 - q) / quantile_spread([sample], ordered, q).variance
    return f"{len(ordered):,} samples, alike as they are, say no more than {worth:,.0f} independent ones: too few"


def needed_share(runs: Sequence[Sample], ordered: Ordered, q: float, z: float = Z95) -> float:
    """How many times as many samples it takes for both ends of the interval to be finite."""
    return (quantile_spread(runs, ordered, q).half_width(z) / min(q, 1 - q)) ** 2


def finite(ends: Interval | None) -> list[float] | None:
    return None if ends is None or not all(map(math.isfinite, ends)) else list(ends)


def early_stopping(ordered: Ordered, q: float, confidence: float = 0.99) -> float | None:
    """Upper bound of a percentile as the MLPerf load generator reports it; None where there are too few samples.

    The t-th largest sample, for the largest t such that t or fewer of n independent samples lie above the percentile
    with a probability of no more than 1 - confidence. It takes the samples for independent, so with queues and tokens
    it promises too much: it is here for those who know it.
    """
    n = len(ordered)
    most = int(n * (1 - q)) + 1
    k = np.arange(1, most + 1)
    steps = np.log((n - k + 1) / k * (1 - q) / q)
    chance = np.cumsum(np.exp(n * math.log(q) + np.concatenate([[0.0], np.cumsum(steps)])))
    t = int(np.searchsorted(chance, 1 - confidence, side="right")) - 1
    return float(ordered.at(np.array([(n - t) / (n - 1)]))[0]) if t >= 1 else None


def _alikeness(runs: Sequence[Sample], ordered: Ordered, q: float) -> Spread:
    """By how much the variance of the share of samples up to a quantile exceeds that of independent samples."""
    value = min(float(ordered.at(np.array([q]))[0]), sys.float_info.max)  # samples that never came lie beyond any value
    up_to = [run.up_to(value) for run in runs]
    total = float(len(ordered))
    share = sum(float(each.sum()) for each in up_to) / total
    found = spread([each - share * run.per_block for each, run in zip(up_to, runs, strict=True)])
    independent = total * share * (1 - share)
    return Spread(found.variance / independent if independent else 0.0, found.freedom)


def _slow_variance(sums: Floats) -> float:
    """Of the total of a series whose neighbours may be alike, by its first cosine waves."""
    at = (np.arange(len(sums)) + 0.5) / len(sums)
    waves = math.sqrt(2) * np.cos(np.pi * np.outer(np.arange(1, COSINES + 1), at))
    return float(np.mean((waves @ sums) ** 2))
