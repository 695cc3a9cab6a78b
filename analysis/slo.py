"""Verdicts: do the numbers of a run meet its limits, and can they be trusted to say so?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis.intervals import finite
from analysis.limits import ALL, Limit, parse_good, parse_limit, parse_limits
from analysis.measured import Measured, Scope, measure
from analysis.report.wording import quantity
from analysis.run import Run

__all__ = ["Limit", "Scope", "exit_status", "gate", "parse_good", "parse_limit", "parse_limits"]

PASS, FAIL, NO_VERDICT = "pass", "fail", "no_verdict"
MAX_ERRORS = 0.01
_HOPELESS = 1000.0


class _Verdict(NamedTuple):
    """A verdict on a limit, why, and without one the length of run that would settle it (None: none would)."""

    verdict: str
    reason: str | None = None
    needed_s: float | None = None


def gate(
    run: Run,
    limits: Sequence[Limit],
    scopes: Mapping[str, Scope],
    length_s: float,
    doubt: str | None = None,
    strict_point: bool = False,
    max_errors: float = MAX_ERRORS,
) -> dict[str, Any]:
    """The `slo` part of the summary.

    Args:
        run: The run.
        limits: What was asked. Unless one of them is on errors, one on errors is added; it is no claim to be proven
            but a guard, and so passes by its value alone.
        scopes: By class, and the whole run under "all".
        length_s: Of the measured stages, to say how long a run would settle what this one does not.
        doubt: Why the run as a whole cannot be judged, if so.
        strict_point: Judge by the values alone, whatever the doubts, the intervals and the number of samples.
        max_errors: Highest share of failed requests where no limit on errors is given.
    """
    if not limits:
        return {"verdict": None, "limits": []}
    guard = [Limit("errors", None, "<=", max_errors)] if all(limit.metric != "errors" for limit in limits) else []
    succeeded = bool(scopes[ALL].part["requests"]["ok"])
    entries = []
    for limit in (*limits, *guard):
        scope = scopes.get(limit.class_name)
        found = measure(run, limit, scope) if scope else Measured(None, f"no request of class {limit.class_name!r}")
        lenient = strict_point or (limit in guard and not doubt and _by_value(limit, found).verdict == PASS)
        verdict = _judge(limit, found, succeeded, length_s, None if strict_point else doubt, lenient)
        entries.append(_entry(limit, found, verdict))
    verdicts = {entry["verdict"] for entry in entries}
    return {"verdict": next((each for each in (FAIL, NO_VERDICT) if each in verdicts), PASS), "limits": entries}


def exit_status(summary: Mapping[str, Any]) -> int:
    """0 passed or nothing asked, 1 a limit missed, 3 no verdict, or nothing asked and nothing succeeded."""
    verdict = summary["slo"]["verdict"]
    if verdict is None:
        return 0 if summary["requests"]["ok"] else 3
    return {PASS: 0, FAIL: 1}.get(verdict, 3)


def _entry(limit: Limit, found: Measured, verdict: _Verdict) -> dict[str, Any]:
    return {
        "class": limit.class_name,
        "metric": limit.metric,
        "statistic": limit.statistic,
        "operator": limit.operator,
        "limit": limit.value,
        "value": found.value,
        "ci95": finite(found.ends),
        **verdict._asdict(),
        "mlperf_early_stopping": found.early_stopping,
    }


def _judge(
    limit: Limit, found: Measured, succeeded: bool, length_s: float, doubt: str | None, lenient: bool
) -> _Verdict:
    if not succeeded:
        return _Verdict(NO_VERDICT, "nothing succeeded")
    if found.value is None:
        return _Verdict(NO_VERDICT, found.reason or "undefined")
    if doubt:
        return _Verdict(NO_VERDICT, doubt)
    return _by_value(limit, found) if lenient else _by_interval(limit, found, length_s)


def _by_value(limit: Limit, found: Measured) -> _Verdict:
    values = [each for each in (found.value, found.worst) if each is not None]
    if values and all(map(limit.holds, values)):
        return _Verdict(PASS)
    return _Verdict(FAIL, _missed(found) if found.missed else None)


def _by_interval(limit: Limit, found: Measured, length_s: float) -> _Verdict:
    """Pass or fail where the value and its whole interval agree; else why not, and how long a run would settle it.

    What has no interval by its nature, such as a maximum, is judged by its value.
    """
    by_value = _by_value(limit, found)
    if found.ends is None and found.unseen is not None and not limit.holds(found.unseen):
        may = quantity(limit.metric, limit.statistic, found.unseen)
        return by_value._replace(reason=f"there was none; so short a run may miss a rate of up to {may}")
    if found.ends is None:
        return by_value if found.few is None else _unclear(found.few, found.stretch, length_s)
    if all(limit.holds(end) == (by_value.verdict == PASS) for end in found.ends):
        return by_value
    ends = finite(found.ends)
    if ends is None and by_value.verdict == PASS and limit.is_upper and found.far:
        return _Verdict(PASS, f"no sample of {found.requests:,} requests comes within a fifth of it")
    if ends is None:
        return _unclear(found.few or _missed(found), found.stretch, length_s)
    value = found.value or 0.0
    end = ends[1] if value < limit.value else ends[0]
    distance = abs(limit.value - value)
    stretch = ((end - value) / distance) ** 2 if distance else math.inf
    shown = " to ".join(quantity(limit.metric, limit.statistic, each) for each in ends)
    return _unclear(f"the limit lies within the interval {shown}", stretch, length_s)


def _missed(found: Measured) -> str:
    return f"{found.missed:,} samples that never came count as misses"


def _unclear(why: str, stretch: float, length_s: float) -> _Verdict:
    """No verdict, and how long a run at this load would settle it: an interval shrinks with the square root of time."""
    needed_s = max(stretch, 1.0) * length_s
    if stretch > _HOPELESS:
        return _Verdict(NO_VERDICT, f"{why}; the value is too close to the limit for a longer run to settle it")
    if stretch <= 1 or not needed_s:
        return _Verdict(NO_VERDICT, why, needed_s)
    told = f"{math.ceil(needed_s)} s" if needed_s < 100 else f"{math.ceil(needed_s / 60)} min"
    return _Verdict(NO_VERDICT, f"{why}; it takes about {told} at this load", needed_s)
