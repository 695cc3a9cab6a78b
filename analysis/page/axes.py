"""Axes of a drawing: where a value lies on one, and at which values it is labelled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.quantiles import Floats

Scale = Literal["linear", "log", "nines"]
Unit = Literal["s", "clock", "count", "share", "times", "change", "points"]
Tick = tuple[float, str]

MOST_TOLD = 1_000_000
"""Samples that a scale of nines has room for: it ends at p99.9999."""

_TICKS = 5
_CHANGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 0.9, 1.0, 2.0, 4.0, 9.0)
"""By which a ratio on an axis is labelled, up or down."""
_CLOCK_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)
_NINES = {
    0.0: "0",
    0.5: "p50",
    0.9: "p90",
    0.99: "p99",
    0.999: "p99.9",
    0.9999: "p99.99",
    0.99999: "p99.999",
    0.999999: "p99.9999",
}


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, in seconds, shares or plain numbers.

    On a scale of nines each further nine of a share (90 %, 99 %, 99.9 %) takes as much room as the one before, so that
    the tail of a distribution can be read. `unit` says how values are written: a ratio as the `change` that it is, a
    difference of shares in percentage `points`.
    """

    label: str
    scale: Scale
    low: float
    high: float
    unit: Unit = "count"

    def place(self, values: "Floats | Sequence[float]") -> Floats:
        """Position along the axis, 0 at its low end and 1 at its high end; values beyond are put at the ends."""
        low, high = self._bent(np.array([self.low, self.high]))
        known = np.clip(np.asarray(values, dtype=np.float64), self.low, self.high)
        return np.asarray((self._bent(known) - low) / (high - low))

    def ticks(self) -> list[Tick]:
        if self.scale == "nines":
            return [(value, name) for value, name in _NINES.items() if value <= self.high]
        if self.scale == "log":
            found = _change_ticks if self.unit == "change" else _log_ticks
            return [(value, written(value, self.unit)) for value in found(self.low, self.high)]
        step = _clock_step(self.high) if self.unit == "clock" else nice((self.high - self.low) / _TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [step * i for i in range(first, last + 1)]
        return [(value, written(value, self.unit, self.high)) for value in values]

    def _bent(self, values: Floats) -> Floats:
        if self.scale == "log":
            return np.asarray(np.log10(values))
        return np.asarray(-np.log10(1 - values)) if self.scale == "nines" else values


def linear(label: str, values: "Floats | Sequence[float]", unit: Unit = "count") -> Axis:
    """From 0 to a little beyond the greatest value."""
    known = _finite(values)
    greatest = float(known.max(initial=0.0)) or 1.0
    step = nice(greatest / _TICKS)
    return Axis(label, "linear", 0.0, step * math.ceil(greatest / step - 1e-9), unit)


def log(label: str, values: "Floats | Sequence[float]", unit: Unit = "s") -> Axis:
    """Over all positive values, with ends that are 1, 2 or 5 times a power of ten."""
    known = _finite(values)
    known = known[known > 0]
    if not len(known):
        return Axis(label, "log", 1e-3, 1.0, unit)
    high = nice(float(known.max()) * 1.02)
    low = 1 / nice(1.02 / float(known.min()))
    return Axis(label, "log", min(low, high / 4), high, unit)


def spanning(label: str, values: "Floats | Sequence[float]", unit: Unit = "count") -> Axis:
    """Logarithmic where the values span more than a factor of 30, else linear."""
    known = _finite(values)
    known = known[known > 0]
    wide = len(known) > 0 and known.max() > 30 * known.min()
    return log(label, known, unit) if wide else linear(label, 1.02 * known, unit)


def clock(end_s: float) -> Axis:
    return Axis("time since the start", "linear", 0.0, max(end_s, 1e-3), "clock")


def nines(samples: int) -> Axis:
    """Percentiles as far as so many samples reach."""
    reach = min(max(samples, 10), MOST_TOLD)
    return Axis("percentile", "nines", 0.0, 1 - 1 / reach, "share")


def around(label: str, values: "Floats | Sequence[float]", least: float, most: float) -> Axis:
    """Ratios, with 1 in the middle: as far as the values reach, at least and at most to a change by these shares."""
    known = _finite(values)
    reach = float(np.abs(np.log(known[known > 0])).max(initial=0.0))
    high = math.exp(min(max(1.08 * reach, math.log1p(least)), math.log1p(most)))
    return Axis(label, "log", 1 / high, high, "change")


def nice(value: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below `value` (> 0)."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def written(value: float, unit: Unit, high: float | None = None) -> str:
    """A tick; on a linear axis in the unit that fits its high end."""
    if unit == "clock":
        return _clock(value, high or value)
    if unit == "share":
        return f"{100 * value:.6g}%"
    if unit == "s":
        return _seconds(value, high or value)
    if unit == "change":
        return f"{100 * (value - 1):+.4g}%" if abs(value - 1) > 1e-9 else "0"
    if unit == "points":
        return f"{100 * value:+.4g}" if value else "0"
    return _count(value) + ("×" if unit == "times" else "")


def _seconds(value: float, high: float) -> str:
    if not value:
        return "0"
    scale, unit = (1, "s") if high >= 1 else (1e-3, "ms") if high >= 1e-3 else (1e-6, "µs")
    return f"{value / scale:.6g} {unit}"


def _count(value: float) -> str:
    steps = ((1e15, 1e15, "P"), (1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
    for least, scale, prefix in steps:
        if value >= least:
            return f"{value / scale:.6g}{prefix}"
    return f"{value:,.6g}"


def _clock(value: float, high: float) -> str:
    if high <= 120:
        return f"{value:.6g} s"
    hours, minutes, left = int(value // 3600), int(value % 3600 // 60), int(value % 60)
    return f"{hours}:{minutes:02}:{left:02}" if high >= 3600 else f"{minutes}:{left:02}"


def _clock_step(high: float) -> float:
    if high < 5:
        return nice(high / _TICKS)
    return next((step for step in _CLOCK_STEPS if step >= high / 7), nice(high / 7))


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where there are few."""
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades <= 2 else (1, 3) if decades <= 3 else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil(decades / 6))
    found = [step * 10.0**power for power in range(first, last + 1, stride) for step in steps]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def _change_ticks(low: float, high: float) -> list[float]:
    """No change, and from there outwards as many as have room."""
    room, found = 0.17 * math.log(high / low), [1.0]
    for direction in (1, -1):
        last = 1.0
        for change in _CHANGES:
            value = 1 + direction * change
            if low <= value <= high and abs(math.log(value / last)) >= room:
                found.append(value)
                last = value
    return sorted(found)


def _finite(values: "Floats | Sequence[float]") -> Floats:
    known = np.asarray(values, dtype=np.float64)
    return known[np.isfinite(known)]
