"""Durations and rates as people write them in a workload file, and as the code takes them: seconds, and per second."""

import math
import re

_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
DURATION = _NUMBER + r"\s*(us|ms|s|m|h)"
RATE = _NUMBER + r"\s*/\s*(s|m|h)"
_DURATION = re.compile(DURATION)
_RATE = re.compile(RATE)
LONGEST_S = 3.6e7
"""Over a year. Longer ones are slips, and would be numbers that no plan can hold."""
_SECONDS = {"us": 1e6, "ms": 1e3, "s": 1.0, "m": 1 / 60, "h": 1 / 3600}
"""How many of the unit make a second: `250 / 1e3` is exactly 0.25, `250 * 1e-3` is not."""


def parse_duration(text: object) -> float:
    """`250ms`, `10s`, `5m`, `1h` -> seconds; 0 needs no unit. ValueError for anything else, a bare number included, and
    for more than LONGEST_S."""
    if text == 0 and not isinstance(text, bool):
        return 0.0
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not math.isfinite(float(match[1])):
        raise ValueError("expected a duration such as 250ms, 10s or 5m")
    seconds = float(match[1]) / _SECONDS[match[2]]
    if seconds > LONGEST_S:
        raise ValueError(f"expected a duration of at most {LONGEST_S / 3600:,.0f}h")
    return seconds


def parse_rate(value: object) -> float:
    """`4/s`, `90/m`, `2.5` (per second) -> per second. ValueError unless it is a finite number above 0."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        rate = float(value)
    else:
        match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
        rate = float(match[1]) * _SECONDS[match[2]] if match else math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError("expected a rate above 0 such as 4/s or 90/m")
    return rate


def plain(number: float) -> str:
    """The shortest text that reads back as the same number: 8.0 -> '8', 0.1 -> '0.1'."""
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(float(number))


def duration_text(seconds: float) -> str:
    """Seconds as a duration that `parse_duration` reads back exactly."""
    return f"{plain(seconds)}s"


def rate_text(per_s: float) -> str:
    """A rate that `parse_rate` reads back exactly."""
    return f"{plain(per_s)}/s"


def to_ns(seconds: float) -> int:
    """Seconds as integer nanoseconds."""
    return round(seconds * 1e9)
