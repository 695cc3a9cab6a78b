"""The grammar of limits: `metric.statistic < value`, such as `ttft.p95 < 800ms` or `errors < 1%`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from analysis.latency import METRICS
from analysis.units import plain, seconds, share

ALL = "all"
"""Stands for the whole run in place of a class."""

STALL_STATISTICS: dict[str, Callable[[str], float]] = {
    "per_1k": plain, "count": plain, "share": share, "longest": seconds, "total": seconds,
}  # fmt: skip
SHARES = ("attainment", "errors", "fluidity")
RATES = ("goodput", "requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
GOOD_METRICS = ("ttft", "ttft_due", "ttfat", "tpot", "e2e", "e2e_due")
_STATISTICS = ("mean", "min", "max", "p50", "p90", "p95", "p99", "p999")
_LIMIT = re.compile(r"\s*(\w+)(?:\s*\.\s*([\w.]+))?\s*(<=|>=|<|>)\s*(\S.*?)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition of a gate. `value` is in seconds, a share, or a plain number, as the metric is."""

    metric: str
    statistic: str | None
    operator: str
    value: float
    class_name: str = ALL

    def holds(self, value: float) -> bool:
        compare = {"<": value < self.value, "<=": value <= self.value, ">": value > self.value}
        return compare.get(self.operator, value >= self.value)

    @property
    def is_upper(self) -> bool:
        return self.operator.startswith("<")


def parse_limit(text: str, class_name: str = ALL) -> Limit:
    """Read one limit. ValueError with one line that says which part is wrong and what would be right."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise ValueError(f"limit {text!r}: expected metric.statistic < value, such as 'ttft.p95 < 800ms'")
    metric, statistic, operator, value = match.groups()
    try:
        read = _reader(metric, statistic)
        return Limit(metric, statistic, operator, read(value), class_name)
    except ValueError as problem:
        raise ValueError(f"limit {text!r}: {problem}") from None


def parse_limits(slo: Mapping[str, Sequence[str]], allow_e2e: bool = False) -> list[Limit]:
    """Read the limits of each class. ValueError (one line) also where e2e stands alone and that is not allowed."""
    limits = [parse_limit(text, class_name) for class_name, texts in slo.items() for text in texts]
    latencies = {limit.metric for limit in limits} & set(METRICS)
    if latencies and latencies <= {"e2e", "e2e_due"} and not allow_e2e:
        raise ValueError(
            "a limit on e2e alone hides which phase is slow: add one on ttft and one on itl, gap or tpot, "
            "or allow it with --allow-e2e"
        )
    return limits


def parse_good(text: str) -> tuple[str, float]:
    """Name and seconds of one per-request limit, such as `ttft<500ms` or `gap_p99<200ms`. ValueError: one line."""
    name, sign, value = text.partition("<")
    if not sign:
        raise ValueError(f"good {text!r}: expected metric < duration, such as 'ttft < 500ms'")
    return next(iter(good_limits({name.strip().replace(".", "_"): value.removeprefix("=")}).items()))


def good_limits(good: Mapping[str, Any]) -> dict[str, float]:
    """The `good:` part of a workload as seconds by name. ValueError (one line): an unknown name or a bad duration."""
    for name in good:
        if name not in GOOD_METRICS and gap_quantile(name) is None:
            valid = (*GOOD_METRICS, "gap_p99", "gap_max")
            raise ValueError(f"good: {_unknown(name, 'per-request metric', valid)}")
    return {name: seconds(value) for name, value in good.items()}


def gap_quantile(name: str) -> float | None:
    """The quantile that `gap_p99`, `gap_max` and the like mean; None for other names."""
    statistic = name.removeprefix("gap_")
    return quantile_of(statistic) if statistic != name else None


def quantile_of(statistic: str | None) -> float | None:
    """`p95` -> 0.95, `p99.9` and `p999` -> 0.999, `min` and `max` -> 0 and 1; None for anything else."""
    if statistic in ("min", "max"):
        return float(statistic == "max")
    match = re.fullmatch(r"p(?:(\d{1,2})(?:\.(\d+))?|(999+))", statistic or "")
    if match is None:
        return None
    whole, fraction, nines = match.groups()
    return float(f"0.{nines or whole.zfill(2) + (fraction or '')}")


def _reader(metric: str, statistic: str | None) -> Callable[[str], float]:
    """What reads the value of a limit on this metric and statistic."""
    if metric in METRICS:
        if statistic != "mean" and quantile_of(statistic) is None:
            raise ValueError(_unknown(statistic, f"statistic of {metric}", _STATISTICS, "or any pNN"))
        return seconds
    if metric == "stall":
        if statistic not in STALL_STATISTICS:
            raise ValueError(_unknown(statistic, "statistic of stall", tuple(STALL_STATISTICS)))
        return STALL_STATISTICS[statistic]
    if metric not in SHARES + RATES:
        raise ValueError(_unknown(metric, "metric", (*METRICS, "stall", *SHARES, *RATES)))
    if statistic is not None:
        raise ValueError(f"{metric} has no statistics: write {metric} < value")
    return share if metric in SHARES else plain


def _unknown(word: str | None, what: str, valid: Sequence[str], more: str = "") -> str:
    listed = " ".join([", ".join(valid), more]).strip()
    if word is None:
        return f"the {what} is missing: one of {listed}"
    near = get_close_matches(word, valid, 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {word!r}{hint} (one of {listed})"
