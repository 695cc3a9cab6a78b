"""Exact order statistics: of samples, of samples that count several times, and within segments of one array.

Percentiles interpolate linearly between order statistics (type 7, the default of numpy.quantile).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
EMPTY: dict[str, Any] = {
    "n": 0, "mean": None, "std": None, "min": None, **dict.fromkeys(PERCENTILES), "max": None, "ci95": None,
}  # fmt: skip


@dataclass(frozen=True)
class Ordered:
    """Samples in ascending order; `cumulated` says up to which rank each of them counts (None: each counts once)."""

    values: Floats
    cumulated: Ints | None

    @classmethod
    def of(cls, samples: Floats, counts: Ints | None = None) -> "Ordered":
        if counts is None:
            return cls(np.sort(samples), None)
        order = np.argsort(samples)
        return cls(samples[order], np.cumsum(counts[order], dtype=np.int64))

    def __len__(self) -> int:
        """How many samples there are, repeated ones included."""
        if self.cumulated is None or not len(self.values):
            return len(self.values)
        return int(self.cumulated[-1])

    def at(self, q: Floats) -> Floats:
        """The quantiles of at least one sample. Infinite samples are allowed."""
        position = (len(self) - 1) * q
        low, high = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
        if self.cumulated is not None:
            low_at, high_at = (np.searchsorted(self.cumulated, rank, side="right") for rank in (low, high))
        else:
            low_at, high_at = low, high
        below, above = self.values[low_at], self.values[high_at]
        with np.errstate(invalid="ignore"):
            between = np.clip(below + (above - below) * (position - low), below, above)
        return np.where(below == above, below, between)


def block(samples: Floats, counts: Ints | None = None, ordered: Ordered | None = None) -> dict[str, Any]:
    """The summary of one metric; `counts` says how often each sample counts (once if None). All null without samples.

    NaN is no sample. `std` is that of the population. Samples without NaN may come with their order, to sort but once.
    """
    if ordered is None:
        known = ~np.isnan(samples)
        samples, counts = samples[known], None if counts is None else counts[known]
        ordered = Ordered.of(samples, counts)
    if not len(ordered):
        return dict(EMPTY)
    mean = float(np.average(samples, weights=counts))
    found = ordered.at(np.array(list(PERCENTILES.values())))
    return {
        "n": len(ordered),
        "mean": mean,
        "std": float(np.sqrt(np.average((samples - mean) ** 2, weights=counts))),
        "min": float(ordered.values[0]),
        **dict(zip(PERCENTILES, map(float, found), strict=True)),
        "max": float(ordered.values[-1]),
        "ci95": None,
    }


def quantile(samples: Floats, q: float, counts: Ints | None = None) -> float:
    """One quantile; NaN without samples. Infinite samples are allowed."""
    ordered = Ordered.of(samples, counts)
    return float(ordered.at(np.array([q]))[0]) if len(ordered) else float("nan")


def segment_quantile(ordered: Ints, starts: Ints, q: float) -> Floats:
    """The quantile of each segment of values that ascend within segments; NaN for an empty one.

    Segment i is `ordered[starts[i]:starts[i + 1]]`.
    """
    sizes = np.diff(starts)
    result = np.full(len(sizes), np.nan)
    filled = sizes > 0
    position = (sizes[filled] - 1) * q
    low = np.floor(position).astype(np.int64)
    first = starts[:-1][filled]
    below = ordered[first + low].astype(np.float64)
    above = ordered[first + np.minimum(low + 1, sizes[filled] - 1)].astype(np.float64)
    result[filled] = below + (above - below) * (position - low)
    return result


def order_within(values: Ints, segment: Ints) -> Ints:
    """`values` (>= 0) sorted within runs of equal `segment`, which must not descend."""
    if not len(values):
        return values
    span = int(values.max()) + 1
    if (int(segment[-1]) + 1) * span < 2**63:  # one sort of plain integers is several times faster than two keys
        base = segment.astype(np.int64) * span
        return np.asarray(np.sort(base + values) - base)
    return values[np.lexsort((values, segment))]
