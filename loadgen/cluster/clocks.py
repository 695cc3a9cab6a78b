"""How the clock of another machine runs against ours, from round trips; pure.

A round trip that left us at `sent`, met their clock at `there` and was back at `back` says that their clock is ahead of
ours by there − (sent + back) / 2, wrong by at most (back − sent) / 2, however unequal the two ways were.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOW = 3.0
"""A reading that may be wrong by more than so many times the best one's error tells nothing beside it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """At `at_ns` of our clock theirs was ahead of it by `ahead_ns`, give or take at most `error_ns`."""

    at_ns: int
    ahead_ns: int
    error_ns: int

    @classmethod
    def of(cls, sent_ns: int, there_ns: int, back_ns: int) -> "Reading":
        middle_ns = (sent_ns + back_ns) // 2
        return cls(middle_ns, there_ns - middle_ns, (back_ns - sent_ns) // 2 + 1)


def best(readings: Iterable[Reading]) -> Reading:
    """That of the quickest round trip."""
    return min(readings, key=lambda reading: reading.error_ns)


@dataclass(frozen=True, slots=True)
class ClockFit:
    """Their clock is ahead of ours by `ahead_ns` + `drift` · t at the instant t, in nanoseconds of our clock.

    Attributes:
        drift: How much faster theirs runs: 1e-6 is a microsecond a second.
        error_ns: The most by which that can be wrong from the first reading to the last, if theirs ran evenly; where a
            reading says that it did not, what that one allows.
        readings: How many it was made from.
    """

    ahead_ns: float
    drift: float
    error_ns: int
    readings: int

    def placed(self, there_ns: NDArray[np.int64], taken_ahead_ns: float = 0.0) -> NDArray[np.int64]:
        """Readings of their clock as readings of ours; those were taken as ours plus `taken_ahead_ns` before."""
        late_ns = (self.ahead_ns - taken_ahead_ns + self.drift * there_ns) / (1 + self.drift)
        placed: NDArray[np.int64] = there_ns - np.rint(late_ns).astype(np.int64)
        return placed

    def facts(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "offset_s": self.ahead_ns / 1e9,
            "drift_ppm": self.drift * 1e6,
            "error_s": self.error_ns / 1e9,
            "readings": self.readings,
        }


def fit(readings: Sequence[Reading]) -> ClockFit:
    """One offset, if that agrees with all readings, else an offset and a drift. Slow round trips do not count, but for
    the first and the last.

    How far two straight lines are apart is greatest at an end: so the first and the last reading bound the error.
    """
    limit_ns = SLOW * best(readings).error_ns
    ends = (readings[0], readings[-1])
    kept = [each for each in readings if each.error_ns <= limit_ns or each in ends]
    level = _line(kept, 0)
    if all(abs(each.ahead_ns - level.ahead_ns) <= each.error_ns for each in kept):
        return level
    return min(level, _line(kept, 1), key=lambda each: each.error_ns)


def _line(readings: Sequence[Reading], degree: int) -> ClockFit:
    """Least squares, each reading by the weight of its accuracy."""
    at = np.array([each.at_ns for each in readings], dtype=np.float64)
    first_ns = readings[0].ahead_ns  # may be hours: taken off, so that no digit is lost
    ahead = np.array([each.ahead_ns - first_ns for each in readings], dtype=np.float64)
    error = np.array([each.error_ns for each in readings], dtype=np.float64)
    centre, scale = at.mean(), float(np.ptp(at)) or 1.0
    *slope, level = np.polyfit((at - centre) / scale, ahead, degree if np.ptp(at) else 0, w=1 / error)
    drift = float(slope[0]) / scale if slope else 0.0
    off = np.abs(ahead - level - drift * (at - centre))
    contradicts = off > error
    contradicts[[0, -1]] = True
    worst = float((off + error)[contradicts].max())
    return ClockFit(first_ns + float(level) - drift * centre, drift, int(np.ceil(worst)), len(readings))
