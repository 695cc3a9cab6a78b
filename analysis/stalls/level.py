"""Numbers that change in steps over time: how many intervals are open, and means of that over other intervals."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from analysis.quantiles import Bools, Floats, Ints

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """`value[i]` holds from `at_ns[i]` up to `at_ns[i + 1]`; 0 before the first instant, and the last value ever after.

    Attributes:
        at_ns: Ascending.
    """

    at_ns: Floats
    value: Floats | Bools

    @classmethod
    def open(cls, start_ns: Numbers, end_ns: Numbers) -> "Level":
        """How many of the intervals are open. Those with a NaN are left out."""
        known = ~(np.isnan(start_ns) | np.isnan(end_ns))
        starts, ends = np.sort(start_ns[known]), np.sort(end_ns[known])
        at = np.unique(np.concatenate([starts, ends]).astype(np.float64))
        count = np.searchsorted(starts, at, side="right") - np.searchsorted(ends, at, side="right")
        return cls(at, count.astype(np.float64))

    def at(self, t_ns: Numbers) -> Floats:
        found: Floats = np.append(self.value, 0.0)[np.searchsorted(self.at_ns, t_ns, side="right") - 1]
        return found

    def share_of(self, whole: "Level") -> "Level":
        """This level over another; 0 where the other is 0."""
        at = np.union1d(self.at_ns, whole.at_ns)
        over = whole.at(at)
        return Level(at, np.divide(self.at(at), over, out=np.zeros(len(at)), where=over > 0))

    def times(self, other: "Level") -> "Level":
        at = np.union1d(self.at_ns, other.at_ns)
        return Level(at, self.at(at) * other.at(at))

    def area(self, start_ns: Numbers, end_ns: Numbers) -> Floats:
        """The integral over each interval, in nanoseconds."""
        if not len(self.at_ns):
            return np.zeros(len(start_ns))
        return self._before(end_ns) - self._before(start_ns)

    def mean(self, start_ns: Numbers, end_ns: Numbers) -> Floats:
        """The mean over each interval; the value at its start where it has no length."""
        length = np.asarray(end_ns - start_ns, dtype=np.float64)
        area = self.area(start_ns, end_ns)
        return np.divide(area, length, out=self.at(start_ns), where=length > 0)

    def _before(self, t_ns: Numbers) -> Floats:
        """The integral from the first instant to each of these."""
        step = np.clip(np.searchsorted(self.at_ns, t_ns, side="right") - 1, 0, None)
        found: Floats = self._areas[step] + self.value[step] * np.maximum(t_ns - self.at_ns[step], 0)
        return found

    @cached_property
    def _areas(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self.value[:-1] * np.diff(self.at_ns))])


def open_at(start_ns: Ints, end_ns: Ints, t_ns: Ints) -> Ints:
    """How many of the intervals [start, end] hold each instant."""
    begun = np.searchsorted(np.sort(start_ns), t_ns, side="right")
    found: Ints = begun - np.searchsorted(np.sort(end_ns), t_ns, side="left")
    return found
