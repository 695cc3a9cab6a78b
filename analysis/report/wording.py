"""Quantities as reports show them: about three significant digits, and the unit of the metric."""

from collections.abc import Mapping
from typing import Any

from analysis.intervals import samples_needed
from analysis.limits import quantile_of

WEAK = "~ of fewer samples than this percentile needs"

_UNITS = {"stall": {"longest": "s", "total": "s", "share": "%"}, "attainment": "%", "errors": "%",
          "fluidity": "%"}  # fmt: skip
_PLAIN = ("goodput", "requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")


def is_weak(statistic: str, count: int) -> bool:
    """Whether a percentile of so many samples is to be marked."""
    q = quantile_of(statistic)
    return q is not None and q < 1 and count < samples_needed(q)


def quantity(metric: str, statistic: str | None, value: float | None) -> str:
    """A value of a limit's metric and statistic, with its unit."""
    if value is None:
        return "–"
    unit = _UNITS.get(metric, "s")
    if isinstance(unit, dict):
        unit = unit.get(statistic or "", "")
    if unit == "%":
        return f"{percent(value)}%"
    return seconds(value) if unit == "s" and metric not in _PLAIN else number(value)


def interval(metric: str, statistic: str | None, ends: list[float] | None) -> str:
    """`[412, 530] ms`, or nothing where there is no interval."""
    if ends is None:
        return ""
    low, high = (quantity(metric, statistic, end) for end in ends)
    unit = high.lstrip("0123456789.,-")
    same = unit and low.endswith(unit) and low.lstrip("0123456789.,-") == unit
    return f"[{low.removesuffix(unit)}, {high.removesuffix(unit)}]{unit}" if same else f"[{low}, {high}]"


def limit_name(limit: Mapping[str, Any]) -> str:
    """`ttft.p95` of an entry of the summary's limits, or of a comparison's metrics."""
    return ".".join(part for part in (limit["metric"], limit["statistic"]) if part)


def percent(share: float) -> str:
    """Two decimals, as 99.95 is not 100; more only where nothing would be left."""
    value = 100 * share
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.2f}".rstrip("0").rstrip(".")


def seconds(value: float) -> str:
    if abs(value) >= 1:
        return f"{value:,.{digits(value)}f} s"
    return f"{value * 1e3:.{digits(value * 1e3)}f} ms"


def milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value * 1e3:,.{digits(value * 1e3)}f}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.{digits(value)}f}"


def digits(value: float) -> int:
    """Decimals that leave about three significant digits."""
    return 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
