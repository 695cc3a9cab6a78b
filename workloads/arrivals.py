"""When sessions arrive: values that turn a rate into absolute offsets, with no clock and no drift."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ArrivalProcess(Protocol):
    """A law of arrivals in time, without its rate."""

    def offsets(self, rng: np.random.Generator, rate: float, horizon_s: float, count: int | None = None) -> Floats:
        """Ascending offsets in seconds, in [0, horizon_s), at `rate` per second on average.

        With a `count` there are exactly that many of them, spread over the horizon as the process would, given that it
        made that many; `rate` is then not used.
        """


@dataclass(frozen=True, slots=True)
class Constant:
    """One arrival every 1 / rate, the first at 0."""

    def offsets(self, rng: np.random.Generator, rate: float, horizon_s: float, count: int | None = None) -> Floats:  # noqa: ARG002
        # Rounded: 0.1/s × 30 s is 3 arrivals, though the product is 3.0000000000000004.
        n = math.ceil(round(rate * horizon_s, 6)) if count is None else count
        interval = rate if count is None else n / horizon_s if n else 1.0
        return np.arange(n, dtype=np.float64) / interval


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals: the gaps are exponential (CV 1) and the counts of disjoint intervals independent."""

    def offsets(self, rng: np.random.Generator, rate: float, horizon_s: float, count: int | None = None) -> Floats:
        # Given their number, the arrivals of a Poisson process are independent and uniform.
        n = int(rng.poisson(rate * horizon_s)) if count is None else count
        return np.sort(rng.random(n)) * horizon_s


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma-distributed gaps with coefficient of variation `cv`: burstier than Poisson above 1, more even below."""

    cv: float

    def offsets(self, rng: np.random.Generator, rate: float, horizon_s: float, count: int | None = None) -> Floats:
        if count is not None:
            times = np.cumsum(self._gaps(rng, count + 1))
            return np.asarray(times[:-1] * (horizon_s / times[-1]), dtype=np.float64)
        # Start long before 0, so that 0 is an instant like any other and not the end of a gap.
        lead = 30 * max(1.0, self.cv**2)
        gaps = self._gaps(rng, math.ceil(rate * horizon_s + 2 * lead))
        while gaps.sum() <= lead + rate * horizon_s:
            gaps = np.concatenate([gaps, self._gaps(rng, len(gaps))])
        times = (np.cumsum(gaps) - lead) / rate
        return times[(times >= 0) & (times < horizon_s)]

    def _gaps(self, rng: np.random.Generator, n: int) -> Floats:
        shape = self.cv**-2
        return rng.gamma(shape, 1 / shape, n)
