"""From a run to the numbers of its report: the document that summary.json holds and every format shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import checks, counts, goodput, latency, looks, slo
from analysis.intervals import in_order
from analysis.limits import ALL, Limit, good_limits, parse_limits
from analysis.phases import phases
from analysis.pooled import run_numbers
from analysis.quantiles import Bools, Floats
from analysis.rates import error_interval, stall_intervals
from analysis.run import Run
from analysis.server import server_part
from analysis.sessions import sessions
from analysis.stalls import episodes as stalls
from analysis.throughput import (
    Flow,
    Window,
    flow,
    length_s,
    measured_windows,
    offered_rps,
    start_ns,
    throughput,
    windows,
)

FORMAT_VERSION = 1


@dataclass(frozen=True)
class _Whole:
    """What is found once for a whole run and then counted over parts of it."""

    run: Run
    stalls: stalls.Stalls
    good: goodput.Good
    start_ns: Floats
    measured: Flow


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
    rows, spans = run.measured, measured_windows(run)
    whole = _Whole(run, stalls.find(run), goodput.judge(run, wanted, asked), start_ns(run), flow(run, spans))
    top = _scope(whole, rows, np.ones_like(rows))
    episodes = {"episodes": stalls.episodes(run, whole.stalls, rows)}
    head = {**top.part, "stalls": {**top.part["stalls"], **episodes}}
    by_class = {name: _scope(whole, mine & rows, mine) for name, mine in run.classes.items()}
    doubt = checks.doubt(run, rows, asked)
    gate = slo.gate(run, asked, by_class | {ALL: top}, length_s(spans), doubt, strict_point, max_errors)
    summary = {
        "format_version": FORMAT_VERSION,
        "run": _about(run, spans),
        **head,
        "slo": gate,
        "phases": phases(run, rows, head, whole.stalls),
        "by_class": {name: {**one.part, "sessions": sessions(run, one.rows)} for name, one in by_class.items()},
        "by_turn": _by_turn(whole, rows),
        "by_stage": _by_stage(whole, top),
        "client": _client(run, rows, asked),
        "server": server_part(run),
    }
    return summary | {"warnings": checks.warnings(run, rows, summary, asked)}


def _scope(whole: _Whole, rows: Bools, kin: Bools, flowed: Flow | None = None) -> slo.Scope:
    """The numbers of the requests in the mask `rows`, over the windows of their stages (the measured ones if None);
    `kin` are those like them of all stages."""
    run, flowed = whole.run, flowed or whole.measured
    blocks = in_order(whole.start_ns, rows, run_numbers(run))
    metrics, undefined = latency.metrics(run, rows, blocks)
    good = goodput.goodput(run, whole.good, rows, flowed.length_s)
    if good["attainment"] is None:
        undefined["goodput"] = goodput.NO_LIMITS if not (rows & whole.good.limited).any() else "no request was due"
    ends = {"error_rate": error_interval(run, rows, blocks)} | goodput.intervals(run, whole.good, rows, blocks, flowed)
    part = {
        "requests": counts.requests(run, rows) | {"ci95": ends},
        "metrics": metrics,
        "undefined": undefined,
        "tokens": counts.tokens(run, rows),
        "throughput": throughput(run, rows, kin, flowed),
        "stalls": stalls.totals(run, whole.stalls, rows) | {"ci95": stall_intervals(run, whole.stalls, rows, blocks)},
        "goodput": good,
    }
    return slo.Scope(rows, part, blocks)


def _by_turn(whole: _Whole, rows: Bools) -> dict[str, Any]:
    turn = whole.run.column("turn")
    numbers = np.unique(turn[rows & ~np.isnan(turn)])
    return {str(int(number)): dict(_scope(whole, rows & (turn == number), turn == number).part) for number in numbers}


def _by_stage(whole: _Whole, top: slo.Scope) -> dict[str, Any]:
    """The only stage that is measured, where it is the only one, has the numbers of the whole."""
    run, parts = whole.run, {}
    for name, span in (windows(run) if run.stages else {}).items():
        mine = run.where("stage", name)
        same = [span] == measured_windows(run) and bool(np.array_equal(mine, top.rows))
        parts[name] = dict(top.part if same else _scope(whole, mine, np.ones_like(mine), flow(run, [span])).part)
    return parts


def _about(run: Run, spans: list[Window]) -> dict[str, Any]:
    meta = run.meta
    workload = meta.get("workload")
    spec: Mapping[str, Any] = workload if isinstance(workload, Mapping) else {"name": workload}
    plain = ("id", "target", "engine", "model", "endpoint", "started_at", "seed", "loop")
    return {
        **{key: meta.get(key) for key in plain},
        "workload": spec.get("name") or meta.get("name"),
        "duration_s": length_s(spans),
        "offered_rps": offered_rps(run),
        "concurrency": spec.get("concurrency"),
        "complete": bool(meta.get("complete", True)),
        "interrupted_by": meta.get("interrupted_by"),
        "looks": looks.told(run),
        "timestamp_source": meta.get("timestamp_source"),
    }


def _client(run: Run, rows: Bools, limits: list[Limit]) -> dict[str, Any]:
    lag_s = checks.send_lag_s(run, rows)
    return {
        "saturated": checks.saturation(run, rows, limits) is not None,
        "loop_lag_p99_s": checks.loop_lag_p99_s(run),
        "send_lag_p99_s": float(np.quantile(lag_s, 0.99)) if len(lag_s) else None,
        "cpu_share": _cpu_share(run),
        "workers": int(run.column("worker").max()) + 1 if run.size else None,
    }


def _cpu_share(run: Run) -> float | None:
    """How many cores the client used on average, 1.0 for one: its processes together."""
    shares, worker = (run.sampled("client", name) for name in ("cpu_share", "worker"))
    if shares is None or np.isnan(shares).all():
        return None
    worker = np.zeros_like(shares) if worker is None else np.nan_to_num(worker)
    parts = [shares[(worker == number) & ~np.isnan(shares)] for number in np.unique(worker)]
    return float(sum(part.mean() for part in parts if len(part)))
