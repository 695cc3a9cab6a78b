"""Verdicts: do the numbers of a run meet its limits, and can they be trusted to say so?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.latency import METRICS, STREAM_METRICS, samples
from analysis.limits import ALL, Limit, parse_good, parse_limit, parse_limits, quantile_of
from analysis.quantiles import Bools, quantile
from analysis.run import Run

__all__ = ["Limit", "Scope", "exit_status", "gate", "parse_good", "parse_limit", "parse_limits"]

PASS, FAIL, NO_VERDICT = "pass", "fail", "no_verdict"
MAX_ERRORS = 0.01
_STALL_KEYS = {"per_1k": "per_1k_tokens", "count": "count", "share": "share_of_requests", "longest": "longest_s",
               "total": "total_s"}  # fmt: skip


@dataclass(frozen=True)
class Scope:
    """What a limit is held against: the requests in the mask `rows`, and their part of the summary."""

    rows: Bools
    part: Mapping[str, Any]


@dataclass(frozen=True)
class _Value:
    value: float | None
    samples: int | None = None
    missed: int = 0
    reason: str | None = None


def gate(
    run: Run,
    limits: Sequence[Limit],
    scopes: Mapping[str, Scope],
    doubt: str | None = None,
    strict_point: bool = False,
    max_errors: float = MAX_ERRORS,
) -> dict[str, Any]:
    """The `slo` part of the summary.

    Args:
        run: The run.
        limits: What was asked. Unless one of them is on errors, one on errors is added.
        scopes: By class, and the whole run under "all".
        doubt: Why the run as a whole cannot be judged, if so.
        strict_point: Judge by the values alone, whatever the doubts and however few the samples.
        max_errors: Highest share of failed requests where no limit on errors is given.
    """
    if not limits:
        return {"verdict": None, "limits": []}
    asked = list(limits)
    if all(limit.metric != "errors" for limit in limits):
        asked.append(Limit("errors", None, "<=", max_errors))
    succeeded = bool(scopes[ALL].part["requests"]["ok"])
    entries = [_entry(run, limit, scopes, succeeded, None if strict_point else doubt, strict_point) for limit in asked]
    verdicts = {entry["verdict"] for entry in entries}
    verdict = next((each for each in (FAIL, NO_VERDICT) if each in verdicts), PASS)
    return {"verdict": verdict, "limits": entries}


def exit_status(summary: Mapping[str, Any]) -> int:
    """0 passed or nothing asked, 1 a limit missed, 3 no verdict, or nothing asked and nothing succeeded."""
    verdict = summary["slo"]["verdict"]
    if verdict is None:
        return 0 if summary["requests"]["ok"] else 3
    return {PASS: 0, FAIL: 1}.get(verdict, 3)


def _entry(
    run: Run, limit: Limit, scopes: Mapping[str, Scope], succeeded: bool, doubt: str | None, strict_point: bool
) -> dict[str, Any]:
    scope = scopes.get(limit.class_name)
    found = _value(run, limit, scope) if scope else _Value(None, reason=f"no request of class {limit.class_name!r}")
    verdict, reason = _judge(limit, found, succeeded, doubt, strict_point)
    return {
        "class": limit.class_name,
        "metric": limit.metric,
        "statistic": limit.statistic,
        "operator": limit.operator,
        "limit": limit.value,
        "value": found.value,
        "ci95": None,
        "verdict": verdict,
        "reason": reason,
    }


def _judge(
    limit: Limit, found: _Value, succeeded: bool, doubt: str | None, strict_point: bool
) -> tuple[str, str | None]:
    if not succeeded:
        return NO_VERDICT, "nothing succeeded"
    if found.value is None or found.reason:
        return NO_VERDICT, found.reason or "undefined"
    if doubt:
        return NO_VERDICT, doubt
    if not strict_point and (few := _too_few(limit, found.samples)):
        return NO_VERDICT, few
    if not limit.holds(found.value):
        return FAIL, None
    if found.missed:
        return FAIL, f"{found.missed} samples that never came count as misses"
    return PASS, None


def _too_few(limit: Limit, count: int | None) -> str | None:
    """A percentile q needs 10 / (1 - q) samples."""
    q = quantile_of(limit.statistic)
    if count is None or q is None or limit.statistic in ("min", "max"):
        return None
    needed = round(10 / (1 - q))
    return f"{count} samples are too few for {limit.statistic}: it needs {needed}" if count < needed else None


def _value(run: Run, limit: Limit, scope: Scope) -> _Value:
    part = scope.part
    if limit.metric in METRICS:
        return _latency(run, limit, scope)
    if limit.metric == "stall":
        return _stall(limit, part["stalls"])
    if limit.metric == "errors":
        return _Value(part["requests"]["error_rate"])
    group = part["goodput"] if limit.metric in ("attainment", "goodput") else part["throughput"]
    value = group["requests_per_s" if limit.metric == "goodput" else limit.metric]
    return _Value(value, reason=None if value is not None else part["undefined"].get("goodput", "undefined"))


def _stall(limit: Limit, totals: Mapping[str, Any]) -> _Value:
    value = totals[_STALL_KEYS[limit.statistic or ""]]
    if totals["share_of_requests"] is None:
        return _Value(None, reason="no answer was streamed")
    return _Value(0.0 if value is None else value)  # the longest of no stalls


def _latency(run: Run, limit: Limit, scope: Scope) -> _Value:
    name = f"{limit.metric}_s"
    block = scope.part["metrics"][name]
    if not block["n"]:
        return _Value(None, reason=scope.part["undefined"].get(name))
    if limit.metric in ("itl", "tpot") and _contradicted(run, scope.rows):
        return _Value(None, reason="the usage of some requests contradicts their number of token events")
    values, counts = samples(run, scope.rows, limit.metric)
    q = quantile_of(limit.statistic)
    value = block["mean"] if q is None else block.get(limit.statistic, quantile(values, q, counts))
    absent = _absent(run, limit, scope.rows)
    missed = absent and limit.is_upper and limit.statistic != "min"
    if missed and q is not None:
        counts = np.ones(len(values), dtype=np.int64) if counts is None else counts
        worst = quantile(np.append(values, np.inf), q, np.append(counts, absent))
        missed = not limit.holds(worst)
    return _Value(value, block["n"], absent if missed else 0)


def _contradicted(run: Run, rows: Bools) -> bool:
    return bool((rows & run.ok & run.where("tokens_source", "mismatch")).any())


def _absent(run: Run, limit: Limit, rows: Bools) -> int:
    """Samples that are worse than the limit but have no value: of streams only played back, of requests cut too old."""
    if limit.metric in STREAM_METRICS:
        played_back = rows & run.ok & ~run.streamed
        events = run.events.per_request[played_back]
        return int(len(events) if limit.metric == "tpot" else np.maximum(events - 1, 1).sum())
    since = run.column("due_ns" if limit.metric.endswith("_due") else "sent_ns")
    came = {"ttft": "first_token_ns", "ttft_due": "first_token_ns", "ttfat": "first_answer_ns"}
    if limit.metric not in (*came, "e2e", "e2e_due"):
        return 0
    age_s = (run.column("end_ns") - since) / 1e9
    open_still = np.isnan(run.column(came[limit.metric])) if limit.metric in came else np.ones(len(age_s), dtype=bool)
    return int((rows & run.where("outcome", "cancelled") & open_still & (age_s > limit.value)).sum())
