"""Numbers as people read them: three significant digits and a unit."""

import math

_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for scale, unit in ((1, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{number(seconds / scale)} {unit}"
    return f"{number(seconds / 1e-6)} µs" if seconds else "0 s"


def amount(value: float, unit: str) -> str:
    """As in 64.2 TFLOP or 16.1 GB: powers of 1,000."""
    for scale, prefix in _STEPS:
        if value >= scale:
            return f"{number(value / scale)} {prefix}{unit}"
    return f"{number(value)} {unit}"


def dollars(value: float | None) -> str:
    """Cents where there are any, else three digits of however little it is."""
    if value is None:
        return "–"
    decimals = 2 if value >= 1 or not value else 2 - math.floor(math.log10(value))
    return f"${value:,.{decimals}f}"


def number(value: float) -> str:
    if 0 < value < 1:
        return f"{value:.2g}"
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def share(value: float) -> str:
    """Whole percents where there are any; only all is 100%."""
    if 0.995 <= value < 1:
        return ">99%"
    return f"{value:.0%}" if value >= 0.00995 or not value else f"{value:.1%}" if value >= 0.001 else "<0.1%"


def plain(value: float, noun: str) -> str:
    """As in 1 byte or 0.516 bytes."""
    return f"{value:.3g} {noun}{'' if value == 1 else 's'}"


def count(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'' if value == 1 else 's'}"
