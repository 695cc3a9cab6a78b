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


class Profile(Protocol):
    """A rate that varies around its mean: r(t) is the rate at t seconds over the mean rate."""

    def mass(self, t_s: float) -> float:
        """The integral of r from 0 to `t_s`, in seconds: at the mean rate, as many arrivals come in that time."""

    def times(self, mass: Floats) -> Floats:
        """The inverse of `mass`, in ascending order for ascending values."""


@dataclass(frozen=True, slots=True)
class Varying:
    """`base` on a clock that runs as fast as the rate: `rate` is the mean of a process whose rate follows `profile`.

    Arrivals are drawn at an even rate and moved to the instants at which the profile has let as much pass (time
    rescaling). That is exact for a Poisson process, puts the i-th of a constant one where the integral of the rate is
    i, and draws nothing in vain.
    """

    profile: Profile
    base: ArrivalProcess = Poisson()

    def offsets(self, rng: np.random.Generator, rate: float, horizon_s: float, count: int | None = None) -> Floats:
        times = self.profile.times(self.base.offsets(rng, rate, self.profile.mass(horizon_s), count))
        return np.minimum(times, np.nextafter(horizon_s, 0))


@dataclass(frozen=True, slots=True)
class Ramp:
    """From the rate `start` to the rate `end` in a straight line that takes `length_s`; not defined beyond."""

    start: float
    end: float
    length_s: float

    def mass(self, t_s: float) -> float:
        first, slope = self._line()
        return first * t_s + slope * t_s**2 / 2

    def times(self, mass: Floats) -> Floats:
        first, slope = self._line()
        # The root of first·t + slope·t²/2 = mass in the form that loses no digits where the slope is small.
        return np.asarray(2 * mass / (first + np.sqrt(np.maximum(0, first**2 + 2 * slope * mass))), dtype=np.float64)

    def _line(self) -> tuple[float, float]:
        mean = (self.start + self.end) / 2
        return self.start / mean, (self.end - self.start) / mean / self.length_s


@dataclass(frozen=True, slots=True)
class OnOff:
    """Bursts: all arrivals in the first `burst_s` of every burst_s + pause_s, at an even rate there."""

    burst_s: float
    pause_s: float

    def mass(self, t_s: float) -> float:
        period = self.burst_s + self.pause_s
        whole = math.floor(t_s / period)
        return whole * period + min(t_s - whole * period, self.burst_s) * period / self.burst_s

    def times(self, mass: Floats) -> Floats:
        period = self.burst_s + self.pause_s
        start = np.floor(mass / period) * period
        return np.asarray(start + (mass - start) * (self.burst_s / period), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Sine:
    """A wave around the mean, `amplitude` (0 to 1) of it up and down, that begins at the mean and rises."""

    period_s: float
    amplitude: float

    def mass(self, t_s: float) -> float:
        return float(self._mass(np.array([t_s]))[0])

    def times(self, mass: Floats) -> Floats:
        # The mass is ahead of the time by 0 to amplitude·period/π, and never falls: halve that interval until it is
        # below a nanosecond's part of a period.
        low = np.maximum(0, mass - self.amplitude * self.period_s / math.pi)
        high = mass.astype(np.float64)
        for _ in range(56):
            middle = (low + high) / 2
            early = self._mass(middle) < mass
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return np.asarray(high, dtype=np.float64)

    def _mass(self, t: Floats) -> Floats:
        turn = 2 * math.pi / self.period_s
        return np.asarray(t + self.amplitude / turn * (1 - np.cos(turn * t)), dtype=np.float64)
