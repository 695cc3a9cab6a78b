"""Quantities as people write them: `500ms`, `2s`, `95%`."""

import re

SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ%]*)\s*", re.IGNORECASE)


def seconds(value: str | float) -> float:
    """A duration: a number is seconds already, a text needs a unit. ValueError (one line) for anything else."""
    if isinstance(value, int | float):
        return float(value)
    number, unit = _split(value)
    if unit not in SECONDS:
        raise ValueError(f"{value.strip()!r} is not a duration: write a number and a unit, such as 500ms or 2s")
    return number * SECONDS[unit]


def share(value: str | float) -> float:
    """A share between 0 and 1, written `95%` or `0.95`. ValueError (one line) for anything else."""
    number, unit = (float(value), "") if isinstance(value, int | float) else _split(value)
    result = number / 100 if unit == "%" else number
    if unit not in ("", "%") or not 0 <= result <= 1:
        raise ValueError(f"{str(value).strip()!r} is not a share: write 95% or 0.95")
    return result


def plain(value: str) -> float:
    """A number without a unit. ValueError (one line) for anything else."""
    number, unit = _split(value)
    if unit:
        raise ValueError(f"{value.strip()!r}: expected a number without a unit")
    return number


def _split(text: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text.strip()!r} is not a number with a unit, such as 500ms or 95%")
    return float(match[1]), match[2].lower()
