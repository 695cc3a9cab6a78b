"""From a run to the numbers of its report: the document that summary.json holds and every format shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import checks, counts, goodput, latency, slo, stalls
from analysis.limits import ALL, Limit, good_limits, parse_limits
from analysis.phases import phases
from analysis.quantiles import Bools
from analysis.run import Run
from analysis.sessions import sessions
from analysis.throughput import Window, length_s, measured_windows, throughput, windows

FORMAT_VERSION = 1


@dataclass(frozen=True)
class _Whole:
    """What is found once for a whole run and then counted over parts of it."""

    run: Run
    stalls: stalls.Stalls
    good: goodput.Good


def summarize(
    run: Run,
    limits: Sequence[Limit] | None = None,
    strict_point: bool = False,
    good: Mapping[str, Any] | None = None,
    max_errors: float = slo.MAX_ERRORS,
) -> dict[str, Any]:
    """Every number of the report, as plain JSON values (no NaN).

    Args:
        run: What was measured.
        limits: The gate; None takes the limits of the run's workload, an empty list asks for none.
        strict_point: Judge by the values alone (see `slo.gate`).
        good: Per-request limits by name; None takes those of the run's workload.
        max_errors: Highest share of failed requests where a gate has no limit on errors.

    Raises:
        ValueError: The workload's limits, per-request limits or stall settings are malformed (one line).
    """
    workload = run.meta.get("workload")
    spec: Mapping[str, Any] = workload if isinstance(workload, Mapping) else {}
    asked = list(parse_limits(spec.get("slo") or {}, allow_e2e=True) if limits is None else limits)
    wanted = good_limits((spec.get("good") or {}) if good is None else good)
    whole = _Whole(run, stalls.find(run), goodput.judge(run, wanted, asked))
    rows, spans = run.measured, measured_windows(run)
    head = _part(whole, rows, spans)
    head["stalls"]["episodes"] = stalls.episodes(run, whole.stalls, rows)
    by_class = {name: (mine & rows, _part(whole, mine & rows, spans)) for name, mine in run.classes.items()}
    scopes = {name: slo.Scope(*each) for name, each in by_class.items()} | {ALL: slo.Scope(rows, head)}
    gate = slo.gate(run, asked, scopes, checks.doubt(run, rows, asked), strict_point, max_errors)
    summary = {
        "format_version": FORMAT_VERSION,
        "run": _about(run, spans),
        **head,
        "slo": gate,
        "phases": phases(run, rows, head, whole.stalls),
        "by_class": {name: part | {"sessions": sessions(run, mine)} for name, (mine, part) in by_class.items()},
        "by_turn": _by_turn(whole, rows, spans),
        "by_stage": _by_stage(whole),
        "client": _client(run, rows, asked),
        "server": None,
    }
    return summary | {"warnings": checks.warnings(run, rows, summary, asked)}


def _part(whole: _Whole, rows: Bools, spans: list[Window]) -> dict[str, Any]:
    """The numbers of the requests in the mask `rows`, over the windows of their stages."""
    run = whole.run
    blocks, undefined = latency.metrics(run, rows)
    good = goodput.goodput(run, whole.good, rows, length_s(spans))
    if good["attainment"] is None:
        undefined["goodput"] = goodput.NO_LIMITS if not (rows & whole.good.limited).any() else "no request was due"
    return {
        "requests": counts.requests(run, rows),
        "metrics": blocks,
        "undefined": undefined,
        "tokens": counts.tokens(run, rows),
        "throughput": throughput(run, rows, spans),
        "stalls": stalls.totals(run, whole.stalls, rows),
        "goodput": good,
    }


def _by_turn(whole: _Whole, rows: Bools, spans: list[Window]) -> dict[str, Any]:
    turn = whole.run.column("turn")
    numbers = np.unique(turn[rows & ~np.isnan(turn)])
    return {str(int(number)): _part(whole, rows & (turn == number), spans) for number in numbers}


def _by_stage(whole: _Whole) -> dict[str, Any]:
    run = whole.run
    spans = windows(run) if run.stages else {}
    return {name: _part(whole, run.where("stage", name), [span]) for name, span in spans.items()}


def _about(run: Run, spans: list[Window]) -> dict[str, Any]:
    meta = run.meta
    workload = meta.get("workload")
    spec: Mapping[str, Any] = workload if isinstance(workload, Mapping) else {"name": workload}
    plain = ("id", "target", "model", "endpoint", "started_at", "seed", "loop")
    return {
        **{key: meta.get(key) for key in plain},
        "workload": spec.get("name") or meta.get("name"),
        "duration_s": length_s(spans),
        "offered_rps": next((each["offered_rps"] for each in run.stages if each.get("offered_rps")), None),
        "concurrency": spec.get("concurrency"),
        "complete": bool(meta.get("complete", True)),
        "interrupted_by": meta.get("interrupted_by"),
        "timestamp_source": meta.get("timestamp_source"),
    }


def _client(run: Run, rows: Bools, limits: list[Limit]) -> dict[str, Any]:
    lag_s = run.column("send_lag_s")[rows]
    lag_s = lag_s[~np.isnan(lag_s)]
    return {
        "saturated": checks.saturation(run, rows, limits) is not None,
        "loop_lag_p99_s": checks.loop_lag_p99_s(run),
        "send_lag_p99_s": float(np.quantile(lag_s, 0.99)) if len(lag_s) else None,
        "cpu_share": _cpu_share(run),
        "workers": int(run.column("worker").max()) + 1 if len(run.requests) else None,
    }


def _cpu_share(run: Run) -> float | None:
    """Mean share of one core that the client used."""
    if run.client is None or "cpu_share" not in run.client or run.client["cpu_share"].isna().all():
        return None
    return float(run.client["cpu_share"].mean())
