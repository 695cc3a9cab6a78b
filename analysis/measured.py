"""The number that a limit is held against, with its interval and what weakens it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from analysis.fluidity import deadlines, targets
from analysis.intervals import (
    FEW_BLOCKS,
    Z95,
    Interval,
    Labels,
    Sample,
    early_stopping,
    mean_interval,
    needed_share,
    open_end,
    quantile_interval,
    samples_needed,
    share_interval,
    too_few,
)
from analysis.latency import METRICS, PER_REQUEST, STREAM_METRICS, sample, why_itl_unknown
from analysis.limits import Limit, quantile_of
from analysis.looks import z_of
from analysis.pooled import run_count
from analysis.quantiles import Bools, Ints, Ordered, quantile
from analysis.run import Run
from analysis.throughput import per_block

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
        far: Whether so many requests without a sample near the limit prove it, as told in `_far`.
        requests: How many requests the samples are of.
        unseen: Of a rate of which no event has come, the one below which it is with 95 %.
    """

    value: float | None
    reason: str | None = None
    ends: Interval | None = None
    missed: int = 0
    worst: float | None = None
    few: str | None = None
    stretch: float = 1.0
    early_stopping: float | None = None
    far: bool = False
    requests: int = 0
    unseen: float | None = None


def measure(run: Run, limit: Limit, scope: Scope) -> Measured:
    """What a limit is held against, in the unit of its metric."""
    part = scope.part
    if limit.metric in ("fluidity", "stall") and (lost := _lost(run, limit.metric)):
        return Measured(None, lost)
    if limit.metric in METRICS:
        return _latency(run, limit, scope)
    if limit.metric == "stall":
        return _stall(run, limit, scope)
    if limit.metric == "errors":
        return _errors(run, part["requests"])
    if limit.metric == "fluidity":
        return _fluidity(run, scope)
    if limit.metric in ("attainment", "goodput"):
        name = "attainment" if limit.metric == "attainment" else "goodput_per_s"
        value = part["goodput"]["requests_per_s" if limit.metric == "goodput" else limit.metric]
        return _counted(value, part["requests"]["ci95"][name], part["undefined"].get("goodput"))
    return _counted(part["throughput"][limit.metric], part["throughput"]["ci95"][limit.metric])


def _lost(run: Run, metric: str) -> str | None:
    return run.undefined.get("stalls" if metric == "stall" else metric)


def _counted(value: float | None, ends: list[float] | None, reason: str | None = None) -> Measured:
    if value is None:
        return Measured(None, reason or "undefined")
    return Measured(value, ends=(ends[0], ends[1]) if ends else None, few=None if ends else FEW_BLOCKS)


def _errors(run: Run, requests: Mapping[str, Any]) -> Measured:
    """Without a single failure there is nothing to resample: the value stands for itself, however short the run."""
    if requests["failed"]:
        return _counted(requests["error_rate"], requests["ci95"]["error_rate"])
    return _none_yet(run, requests["sent"])


def _none_yet(run: Run, trials: float) -> Measured:
    """A rate of which no event has come in so many trials: it may well be one at which none would come with a chance of
    5 % (the rule of three; Hanley and Lippman-Hand 1983).

    A run that is looked at several times would be stopped at the first look that happens to see none. There that rate
    is the end of the interval, and the chance that of a wrong verdict at a look.
    """
    unseen = -math.log(_chance(run)) / trials if trials else None
    return Measured(0.0, ends=(0.0, unseen) if unseen and z_of(run) > Z95 else None, unseen=unseen)


def _chance(run: Run) -> float:
    """Of an interval of the run not to hold."""
    return 2 * (1 - NormalDist().cdf(z_of(run)))


def _stall(run: Run, limit: Limit, scope: Scope) -> Measured:
    """Without a single stall the value stands for itself, and so does a count or a longest one, which has no rate."""
    name, totals = _STALL_KEYS[limit.statistic or ""], scope.part["stalls"]
    if totals["share_of_requests"] is None:
        return Measured(None, "no answer was streamed")
    if not totals["count"] and name in totals["ci95"]:
        trials = {"share": np.sum(scope.rows & run.streamed), "per_1k": (scope.part["tokens"]["output"] or 0) / 1000}
        return _none_yet(run, float(trials[limit.statistic or ""]))
    if name not in totals["ci95"]:
        return Measured(totals[name] or 0.0)
    return _counted(totals[name], totals["ci95"][name])


def _fluidity(run: Run, scope: Scope) -> Measured:
    """Of all token deadlines in scope those that were met; the tokens of streams that were only played back met none.

    The deadlines of one request are alike, and so are those of requests close in time: blocks of time tell.
    """
    due = targets(run)
    if run.thinned:
        return Measured(None, "token deadlines take every token event, and this run did not keep them")
    if unknown := int(np.sum(run.tokens_unknown & scope.rows)):
        return Measured(None, why_itl_unknown(run, scope.rows, unknown))
    met, missed = deadlines(run, scope.rows, due.ttft_s, due.tbt_s)
    if not met.sum() + missed.sum():
        return Measured(None, "no answer was streamed")
    absent = np.where(scope.rows & run.ok & ~run.streamed, run.events.per_request, 0)
    sums = [per_block(scope.blocks[scope.rows], each[scope.rows].astype(np.float64), run_count(run))
            for each in (met, met + missed + absent)]  # fmt: skip
    ends = share_interval([(sums[0], sums[1])], z_of(run))
    return Measured(
        float(met.sum() / (met + missed + absent).sum()),
        ends=ends,
        missed=int(absent.sum()),
        few=None if ends else FEW_BLOCKS,
    )


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
        return _mean(block["mean"], found, int(absent.sum()), z_of(run))
    measured = _percentile(statistic, q, found, absent, z_of(run))
    measured = replace(measured, early_stopping=_bound(found, q) if limit.metric in PER_REQUEST else None)
    requests = int((scope.rows & run.ok).sum())
    return replace(measured, far=_far(limit, q, found, requests, _chance(run)), requests=requests)


def _far(limit: Limit, q: float, found: Sample, requests: int, chance: float) -> bool:
    """Whether a percentile without an upper end is below an upper limit all the same, as no sample comes near that.

    Were more than 1 - q of the samples beyond, n requests would show none with a chance of q^n at most, taken that
    such samples come to requests independently: below 5 % from n = 3 / (1 - q) on (the rule of three; Hanley and
    Lippman-Hand 1983), or a smaller chance where the run is looked at several times. What makes the interval open is
    that small changes of the level last; that says nothing of values far above it, while values just below it would be
    a warning. Samples that never came are near.
    """
    return bool(np.all(found.values <= FAR * limit.value)) and requests * (1 - q) >= -math.log(chance)


def _mean(value: float, found: Sample, missed: int, z: float) -> Measured:
    if missed:
        return Measured(value, ends=(math.inf, math.inf), missed=missed, worst=math.inf)
    ends = mean_interval(found, value, z)
    return Measured(value, ends=ends, few=None if ends else FEW_BLOCKS)


def _percentile(statistic: str, q: float, found: Sample, absent: Ints, z: float) -> Measured:
    ordered = Ordered.of(found.values, found.counts)
    worst, missed = float(ordered.at(np.array([q]))[0]), int(absent.sum())
    ends, few, stretch = _ends(statistic, q, found, ordered, z)
    return Measured(
        value=_of_those_that_came(found, q) if missed else worst,
        ends=ends,
        missed=missed,
        worst=worst,
        few=few,
        stretch=stretch,
    )


def _ends(
    statistic: str, q: float, found: Sample, ordered: Ordered, z: float
) -> tuple[Interval | None, str | None, float]:
    """The interval of a percentile; else, or where it is open, why, and how many times as long a run it takes."""
    if few := too_few(statistic, q, len(ordered)):
        return None, few, samples_needed(q) / len(ordered)
    ends = quantile_interval([found], ordered, q, z)
    if ends is None:
        return None, FEW_BLOCKS, 1.0
    stretch = needed_share([found], ordered, q, z)
    return ends, open_end(found, ordered, q) if stretch > 1 else None, stretch


def _of_those_that_came(found: Sample, q: float) -> float:
    came = np.isfinite(found.values)
    return quantile(found.values[came], q, None if found.counts is None else found.counts[came])


def _bound(found: Sample, q: float) -> float | None:
    bound = early_stopping(Ordered.of(found.values, found.counts), q)
    return bound if bound is not None and math.isfinite(bound) else None


def _with_absent(found: Sample, absent: Ints, blocks: Labels) -> Sample:
    """The samples, and one beyond any value for each that never came: it belongs to the block of its request."""
    at = np.flatnonzero(absent)
    if not len(at):
        return found
    counts = np.ones(len(found.values), dtype=np.int64) if found.counts is None else found.counts
    values = np.append(found.values, np.full(len(at), np.inf))
    return Sample(values, np.append(counts, absent[at]), np.append(found.block, blocks[at]), found.runs)


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
