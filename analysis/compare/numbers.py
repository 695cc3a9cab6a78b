"""Is a candidate slower than a base? Ratios of their metrics, with intervals, held against a tolerance.

Both sides are measured as in `analysis.intervals`; the two intervals of a metric join into one of the ratio on the
scale of logarithms (MOVER: Zou and Donner 2008). Errors are compared by difference, in percentage points; tokens per
second of an open loop by request due, as the number of requests is up to chance.

Many metrics give many chances of a false alarm, so only the headline metrics decide (latencies by class where there are
several), and each has to prove its change by an interval so wide that all of them together hold at 95 % (Bonferroni).

| verdict of a metric | when |
|---|---|
| worse, better | the whole of the wider interval lies beyond the tolerance |
| same | the whole of the 95 % interval lies within the tolerance |
| unclear | neither, or there is no interval |
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from analysis import checks
from analysis.compare.sides import Estimate, Member, estimate, members
from analysis.counts import tokens
from analysis.intervals import Interval, finite
from analysis.limits import ALL, good_limits, parse_limits
from analysis.run import Run

BETTER, SAME, WORSE, UNCLEAR = "better", "same", "worse", "unclear"
WIDE = "the interval reaches beyond the tolerance and within it: run longer, or several times"
ERROR_TOLERANCE = 0.01
"""Errors may differ by this share of requests, whatever the tolerance of the other metrics."""

Metric = tuple[str, str | None]
LATENCIES: list[Metric] = [("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("itl", "p99"), ("tpot", "p50"),
                           ("e2e", "p95")]  # fmt: skip
RATES: list[Metric] = [("attainment", None), ("errors", None), ("output_tokens_per_s", None)]
FURTHER: list[Metric] = [("ttft_due", "p95"), ("ttft", "p99"), ("gap", "p99"), ("tpot", "p95"), ("e2e", "p50"),
                         ("stall", "per_1k")]  # fmt: skip
_MORE_IS_BETTER = ("attainment", "output_tokens_per_s")
_FREE = ("name", "seed", "slo", "good", "stall", "duration", "requests", "warmup", "drain")
"""Keys of a workload that may differ between comparable runs."""


def compare(base: Sequence[Run], candidate: Sequence[Run], tolerance: float = 0.05) -> dict[str, Any]:
    """The comparison of two sides as plain JSON values; several runs of a side are pooled.

    With several runs a side, what differs from run to run is part of the intervals; with one it cannot be.

    Returns:
        `verdict` (the worst of the metrics that decide), `metrics` (each with class, metric, statistic, base,
        candidate, ratio or difference, ci95, verdict, decides, reason), `sides` and `warnings`.

    Raises:
        ValueError: What is not comparable, in one line: no runs, another workload or loop, a base without successes.
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance {tolerance:g}: expected a share between 0 and 1, such as 0.05")
    _check(base, candidate)
    spec = _spec(base[0])
    good, limits = good_limits(spec.get("good") or {}), parse_limits(spec.get("slo") or {}, allow_e2e=True)
    sides = members(base, good, limits), members(candidate, good, limits)
    metrics = _metrics(*sides, tolerance)
    return {
        "format_version": 1,
        "verdict": _verdict(metrics),
        "tolerance": tolerance,
        "error_tolerance": ERROR_TOLERANCE,
        "sides": {"base": _about(base), "candidate": _about(candidate)},
        "metrics": metrics,
        "warnings": list(_warnings(base, candidate, metrics, tolerance)),
    }


def exit_status(comparison: Mapping[str, Any]) -> int:
    """0: every metric that decides is the same or better, or at least cannot be worse by more than the tolerance.

    1: one of them is worse. 3: none is shown to be worse, but one may be: its interval reaches beyond the tolerance, or
    it has none.
    """
    return {WORSE: 1, UNCLEAR: 3}.get(comparison["verdict"], 0)


def _verdict(metrics: Sequence[Mapping[str, Any]]) -> str:
    deciding = [each for each in metrics if each["decides"]]
    verdicts = {each["verdict"] for each in deciding}
    if WORSE in verdicts:
        return WORSE
    if any(each["may_be_worse"] for each in deciding):
        return UNCLEAR
    return BETTER if BETTER in verdicts else SAME


def _metrics(base: list[Member], candidate: list[Member], tolerance: float) -> list[dict[str, Any]]:
    deciding, further = _asked(base, candidate)
    found = []
    for asked, count in ((deciding, len(deciding)), (further, len(deciding) + len(further))):
        z = NormalDist().inv_cdf(1 - 0.025 / max(1, count))
        for class_name, (metric, statistic) in asked:
            a, b = (estimate(side, class_name, metric, statistic, z) for side in (base, candidate))
            if a.value is not None or b.value is not None:
                found.append(_entry(class_name, (metric, statistic), a, b, tolerance, asked is deciding))
    return found


def _asked(base: list[Member], candidate: list[Member]) -> tuple[list[tuple[str, Metric]], list[tuple[str, Metric]]]:
    """What decides and what informs, each as class and metric. Nothing decides that both sides leave undefined."""
    names = sorted({name for each in (*base, *candidate) for name in each.run.classes})
    latencies = [(name, metric) for name in (names if len(names) > 1 else [ALL]) for metric in LATENCIES]
    deciding = latencies + [(ALL, metric) for metric in RATES]
    everything = [(name, metric) for name in (ALL, *(names if len(names) > 1 else []))
                  for metric in (*LATENCIES, *RATES, *FURTHER)]  # fmt: skip
    known = [one for one in deciding if _defined(base, *one) or _defined(candidate, *one)]
    return known, [one for one in everything if one not in deciding]


def _defined(side: list[Member], class_name: str, metric: Metric) -> bool:
    return metric[0] != "attainment" or any((each.good.limited & each.rows(class_name)).any() for each in side)


def _entry(
    class_name: str, metric: Metric, base: Estimate, candidate: Estimate, tolerance: float, decides: bool
) -> dict[str, Any]:
    by_difference = metric[0] == "errors"
    change = _difference if by_difference else _log_ratio
    allowed = ERROR_TOLERANCE if by_difference else math.log1p(tolerance)
    value, ends, together = change(base, candidate)
    sign = -1 if metric[0] in _MORE_IS_BETTER else 1
    verdict, may_be_worse = _judge(ends, together, allowed, sign)
    reason = _why_unclear(ends, allowed) if ends else base.reason or candidate.reason or "a value of 0 has no ratio"
    if metric[0] in ("errors", "stall") and base.value == candidate.value == 0:
        verdict, may_be_worse, reason = SAME, False, "none on either side"
    shown = ends if by_difference or ends is None else (_exp(ends[0]), _exp(ends[1]))
    return {
        "class": class_name,
        "metric": metric[0],
        "statistic": metric[1],
        "base": base.value if base.shown is None else base.shown,
        "candidate": candidate.value if candidate.shown is None else candidate.shown,
        "ratio": None if by_difference or value is None else math.exp(value),
        "difference": value if by_difference else None,
        "ci95": shown and finite(ends) and list(shown),
        "verdict": verdict,
        "may_be_worse": may_be_worse,
        "decides": decides,
        "reason": reason if verdict == UNCLEAR or not ends else None,
    }


def _why_unclear(ends: Interval, allowed: float) -> str:
    if finite(ends) is None:
        return "too few samples, alike as they are, to bound it: run longer"
    if ends[0] > allowed or ends[1] < -allowed:
        return "beyond the tolerance by itself, but among so many metrics one may be so by chance: run longer"
    return WIDE


def _judge(ends: Interval | None, together: Interval | None, allowed: float, sign: int) -> tuple[str, bool]:
    """The verdict on a change, and whether it may be for the worse by more than what is allowed."""
    if ends is None or together is None:
        return UNCLEAR, True
    low, high = sorted(sign * end for end in ends)
    wide_low, wide_high = sorted(sign * end for end in together)
    if wide_low > allowed:
        return WORSE, True
    if wide_high < -allowed:
        return BETTER, False
    return (SAME, False) if -allowed <= low and high <= allowed else (UNCLEAR, high > allowed)


Change = tuple[float | None, Interval | None, Interval | None]


def _log_ratio(base: Estimate, candidate: Estimate) -> Change:
    if not base.value or not candidate.value or min(base.value, candidate.value) < 0:  # a clock may have run back
        return None, None, None
    value = math.log(candidate.value / base.value)
    pairs = ((base.ends, candidate.ends), (base.together, candidate.together))
    ends = [_mover(value, *(_errors(*each, math.log) for each in ((base.value, a), (candidate.value, b))))
            if a and b else None for a, b in pairs]  # fmt: skip
    return value, ends[0], ends[1]


def _difference(base: Estimate, candidate: Estimate) -> Change:
    if base.value is None or candidate.value is None:
        return None, None, None
    value = candidate.value - base.value
    pairs = ((base.ends, candidate.ends), (base.together, candidate.together))
    ends = [_mover(value, *(_errors(*each, float) for each in ((base.value, a), (candidate.value, b))))
            if a and b else None for a, b in pairs]  # fmt: skip
    return value, ends[0], ends[1]


def _errors(value: float, ends: Interval, scale: Any) -> Interval:
    """How far the value lies from its lower and its upper end."""
    low, high = ends
    below = scale(low) if low > 0 or scale is float else -math.inf
    return scale(value) - below, (scale(high) if math.isfinite(high) else math.inf) - scale(value)


def _mover(value: float, base: Interval, candidate: Interval) -> Interval:
    return value - math.hypot(candidate[0], base[1]), value + math.hypot(candidate[1], base[0])


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _check(base: Sequence[Run], candidate: Sequence[Run]) -> None:
    """ValueError with one line where the two sides cannot be compared."""
    if not base or not candidate:
        raise ValueError("a comparison needs at least one run of each side")
    first, name = base[0], _name(base[0])
    for run in (*base, *candidate):
        if run.meta.get("loop") != first.meta.get("loop"):
            raise ValueError(f"{_name(run)}: {run.meta.get('loop')} loop, but {name}: {first.meta.get('loop')} loop: "
                             "not comparable; run both alike")  # fmt: skip
        if path := _differs(_load(first), _load(run)):
            raise ValueError(f"{_name(run)} and {name} differ in their workload ({path}): not comparable; run the same")
    for run in base:
        if not (run.ok & run.measured).any():
            raise ValueError(f"{_name(run)}: no request of the base succeeded: there is nothing to compare with")


def _differs(a: object, b: object, path: str = "") -> str | None:
    """The first key whose values differ, with both."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = (key for key in [*a, *(key for key in b if key not in a)] if a.get(key) != b.get(key))
        return next((_differs(a.get(key), b.get(key), f"{path}.{key}".lstrip(".")) for key in keys), None)
    return None if a == b else f"{path or 'name'}: {_short(a)} and {_short(b)}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else text[:39] + "…"


def _load(run: Run) -> object:
    """What a run asked of the server: its workload without what only says how long and how it is judged."""
    workload = run.meta.get("workload")
    if not isinstance(workload, Mapping):
        return workload
    return {key: value for key, value in workload.items() if key not in _FREE} or workload.get("name")


def _spec(run: Run) -> Mapping[str, Any]:
    workload = run.meta.get("workload")
    return workload if isinstance(workload, Mapping) else {}


def _name(run: Run) -> str:
    return str(run.meta.get("id") or "a run")


def _about(runs: Sequence[Run]) -> dict[str, Any]:
    plain = ("model", "target", "timestamp_source")
    return {
        "runs": [_name(run) for run in runs],
        "requests": sum(int(run.measured.sum()) for run in runs),
        "ok": sum(int((run.measured & run.ok).sum()) for run in runs),
        **{key: runs[0].meta.get(key) for key in plain},
    }


def _warnings(
    base: Sequence[Run], candidate: Sequence[Run], metrics: Sequence[Mapping[str, Any]], tolerance: float
) -> Iterator[dict[str, str]]:
    """How the answer is weakened."""
    texts = {
        "seed": "the runs have different seeds: their texts, lengths and times differ, not only their servers",
        "timestamp_source": "arrivals are stamped by the kernel in some runs and after the read in others: the latter "
        "include the client's own lateness",
        "model": "the runs are of different models",
    }
    for key, text in texts.items():
        found = {str(run.meta.get(key)) for run in (*base, *candidate)}
        if len(found) > 1:
            yield {"code": key, "text": f"{text} ({', '.join(sorted(found))})"}
    for run in (*base, *candidate):
        if text_ := checks.doubt(run, run.measured, []):
            yield {"code": "doubtful_run", "text": f"{_name(run)}: {text_}"}
    if min(len(base), len(candidate)) < 2:
        yield {"code": "one_run", "text": "one run of a side: what differs from run to run (a restart, a neighbour on "
               "the machine) is not in the intervals; repeat each side to include it"}  # fmt: skip
    if _buffered(base, candidate, metrics, tolerance):
        yield {"code": "buffering", "text": "ITL is better but TTFT is worse, and tokens came several to a read: that "
               "is what a proxy that buffers looks like, not a faster engine"}  # fmt: skip


def _buffered(
    base: Sequence[Run], candidate: Sequence[Run], metrics: Sequence[Mapping[str, Any]], tolerance: float
) -> bool:
    ratio = {(each["metric"], each["statistic"]): each["ratio"] for each in metrics if each["class"] == ALL}
    itl, ttft = ratio.get(("itl", "p50")) or ratio.get(("tpot", "p50")), ratio.get(("ttft", "p50"))
    before, after = (max(tokens(run, run.measured)["events_per_read"] or 1.0 for run in side)
                     for side in (base, candidate))  # fmt: skip
    clumped = after > 1.2 * before
    zero = any(each["metric"] == "itl" and each["candidate"] == 0 for each in metrics)
    return clumped and (zero or (itl or 1) < 1 - tolerance) and (ttft or 1) > 1 + tolerance
