"""The number that a limit is held against, with its interval and what weakens it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.intervals import (
    FEW_BLOCKS,
    Interval,
    Labels,
    Sample,
    early_stopping,
    mean_interval,
    needed_share,
    open_end,
    quantile_interval,
    samples_needed,
    too_few,
)
from analysis.latency import METRICS, PER_REQUEST, STREAM_METRICS, sample
from analysis.limits import Limit, quantile_of
from analysis.quantiles import Bools, Ints, Ordered, quantile
from analysis.run import Run

_STALL_KEYS = {"per_1k": "per_1k_tokens", "count": "count", "share": "share_of_requests", "longest": "longest_s",
               "total": "total_s"}  # fmt: skip

FAR = 0.8
"""A sample up to this share of an upper limit is far from it."""


@dataclass(frozen=True)
class Scope:
    """What a limit is held against: the requests in the mask `rows`, their part of the summary, and their blocks."""

    rows: Bools
    part: Mapping[str, Any]
    blocks: Labels


@dataclass(frozen=True)
class Measured:
    """One number of a run.

    Attributes:
        value: None where it is undefined, for a `reason`.
        ends: Its interval, an end of which may be infinite; None where it has none.
        missed: Samples that never came and count as beyond any limit; `worst` and `ends` have them in.
        worst: The value with those that were missed.
        few: Why it takes a longer run, `stretch` times as long, before it can be judged at all.
        early_stopping: MLPerf's upper bound of a percentile, the samples taken for independent.
        near: How many samples are beyond the limit or within a fifth of it; None where there are none to look at.
        requests: How many requests the samples are of.
    """

    value: float | None
    reason: str | None = None
    ends: Interval | None = None
    missed: int = 0
    worst: float | None = None
    few: str | None = None
    stretch: float = 1.0
    early_stopping: float | None = None
    near: int | None = None
    requests: int = 0


def measure(run: Run, limit: Limit, scope: Scope) -> Measured:
    """What a limit is held against, in the unit of its metric."""
    part = scope.part
    if limit.metric in METRICS:
        return _latency(run, limit, scope)
    if limit.metric == "stall":
        return _stall(limit, part["stalls"])
    if limit.metric == "errors":
        return _errors(part["requests"])
    if limit.metric in ("attainment", "goodput"):
        name = "attainment" if limit.metric == "attainment" else "goodput_per_s"
        value = part["goodput"]["requests_per_s" if limit.metric == "goodput" else limit.metric]
        return _counted(value, part["requests"]["ci95"][name], part["undefined"].get("goodput"))
    return _counted(part["throughput"][limit.metric], part["throughput"]["ci95"][limit.metric])


def _counted(value: float | None, ends: list[float] | None, reason: str | None = None) -> Measured:
    if value is None:
        return Measured(None, reason or "undefined")
    return Measured(value, ends=(ends[0], ends[1]) if ends else None, few=None if ends else FEW_BLOCKS)


def _errors(requests: Mapping[str, Any]) -> Measured:
    """Without a single failure there is nothing to resample: the value stands for itself, however short the run."""
    return (
        Measured(0.0) if requests["failed"] == 0 else _counted(requests["error_rate"], requests["ci95"]["error_rate"])
    )


def _stall(limit: Limit, totals: Mapping[str, Any]) -> Measured:
    """Without a single stall the value stands for itself, and so does a count or a longest one, which has no rate."""
    name = _STALL_KEYS[limit.statistic or ""]
    if totals["share_of_requests"] is None:
        return Measured(None, "no answer was streamed")
    if not totals["count"] or name not in totals["ci95"]:
        return Measured(totals[name] or 0.0)
    return _counted(totals[name], totals["ci95"][name])


def _latency(run: Run, limit: Limit, scope: Scope) -> Measured:
    name, statistic = f"{limit.metric}_s", limit.statistic or ""
    block = scope.part["metrics"][name]
    if not block["n"]:
        return Measured(None, scope.part["undefined"].get(name))
    if limit.metric in ("itl", "tpot") and bool((scope.rows & run.ok & run.where("tokens_source", "mismatch")).any()):
        return Measured(None, "the usage of some requests contradicts their number of token events")
    absent = _absent(run, limit, scope.rows)
    absent = absent if limit.is_upper and statistic != "min" else np.zeros_like(absent)
    if statistic in ("min", "max"):
        value = float(block[statistic])
        return Measured(value, missed=int(absent.sum()), worst=math.inf if absent.any() else value)
    known = None if absent.any() or limit.metric in PER_REQUEST else block["ci95"].get(statistic)
    if known:  # of tokens there may be very many: what was found once is not sorted again
        return Measured(float(block[statistic]), ends=(known[0], known[1]))
    found = _with_absent(sample(run, scope.rows, limit.metric, scope.blocks), absent, scope.blocks)
    q = quantile_of(limit.statistic)
    if q is None:
        return _mean(block["mean"], found, int(absent.sum()))
    measured = _percentile(statistic, q, found, absent, per_request=limit.metric in PER_REQUEST)
    return replace(measured, near=_near(limit, found), requests=int((scope.rows & run.ok).sum()))


def _near(limit: Limit, found: Sample) -> int:
    """How many samples lie above a fifth below an upper limit, those that never came among them."""
    near = ~(found.values <= FAR * limit.value)
    return int(near.sum() if found.counts is None else found.counts[near].sum())


def _mean(value: float, found: Sample, missed: int) -> Measured:
    if missed:
        return Measured(value, ends=(math.inf, math.inf), missed=missed, worst=math.inf)
    ends = mean_interval(found, value)
    return Measured(value, ends=ends, few=None if ends else FEW_BLOCKS)


def _percentile(statistic: str, q: float, found: Sample, absent: Ints, per_request: bool) -> Measured:
    ordered = Ordered.of(found.values, found.counts)
    worst, missed = float(ordered.at(np.array([q]))[0]), int(absent.sum())
    ends, few, stretch = _ends(statistic, q, found, ordered)
    return Measured(
        value=_of_those_that_came(found, q) if missed else worst,
        ends=ends,
        missed=missed,
        worst=worst,
        few=few,
        stretch=stretch,
        early_stopping=_bound(ordered, q) if per_request else None,
    )


def _ends(statistic: str, q: float, found: Sample, ordered: Ordered) -> tuple[Interval | None, str | None, float]:
    """The interval of a percentile; else, or where it is open, why, and how many times as long a run it takes."""
    if few := too_few(statistic, q, len(ordered)):
        return None, few, samples_needed(q) / len(ordered)
    ends = quantile_interval([found], ordered, q)
    if ends is None:
        return None, FEW_BLOCKS, 1.0
    stretch = needed_share([found], ordered, q)
    return ends, open_end(found, ordered, q) if stretch > 1 else None, stretch


def _of_those_that_came(found: Sample, q: float) -> float:
    came = np.isfinite(found.values)
    return quantile(found.values[came], q, None if found.counts is None else found.counts[came])


def _bound(ordered: Ordered, q: float) -> float | None:
    bound = early_stopping(ordered, q)
    return bound if bound is not None and math.isfinite(bound) else None


def _with_absent(found: Sample, absent: Ints, blocks: Labels) -> Sample:
    """The samples, and one beyond any value for each that never came: it belongs to the block of its request."""
    at = np.flatnonzero(absent)
    if not len(at):
        return found
    counts = np.ones(len(found.values), dtype=np.int64) if found.counts is None else found.counts
    values = np.append(found.values, np.full(len(at), np.inf))
    return Sample(values, np.append(counts, absent[at]), np.append(found.block, blocks[at]))


def _absent(run: Run, limit: Limit, rows: Bools) -> Ints:
    """By request, samples that are worse than the limit but have no value: of streams that were only played back, and
    of requests that were cut at an age beyond the limit."""
    none = np.zeros(len(rows), dtype=np.int64)
    if limit.metric in STREAM_METRICS:
        gaps = np.ones_like(none) if limit.metric == "tpot" else np.maximum(run.events.per_request - 1, 1)
        return (rows & run.ok & ~run.streamed) * gaps
    came = {"ttft": "first_token_ns", "ttft_due": "first_token_ns", "ttfat": "first_answer_ns"}
    if limit.metric not in (*came, "e2e", "e2e_due"):
        return none
    since = run.column("due_ns" if limit.metric.endswith("_due") else "sent_ns")
    age_s = (run.column("end_ns") - since) / 1e9
    open_still = np.isnan(run.column(came[limit.metric])) if limit.metric in came else np.ones(len(rows), dtype=bool)
    return (rows & run.where("outcome", "cancelled") & open_still & (age_s > limit.value)).astype(np.int64)
