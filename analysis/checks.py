"""What the report must warn of: each check gives the figure and says what to do, or gives nothing."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis import doubts
from analysis.limits import Limit
from analysis.quantiles import Bools, Floats
from analysis.run import Run
from analysis.throughput import windows

LAG_FLOOR_S = 0.02
DELIVERED_SHARE = 0.98
_GRACE_NS = 100e6

Text = str | None


def send_lag_s(run: Run, rows: Bools) -> Floats:
    """How late we sent each request by our own fault: the wait for a slot that `max_in_flight` imposes is not."""
    lag_s = run.column("send_lag_s")
    known = rows & ~np.isnan(lag_s)
    cap = (run.meta.get("limits") or {}).get("max_in_flight")
    return lag_s[known & ~_held_back(run, int(cap))] if cap else lag_s[known]


def saturation(run: Run, rows: Bools, limits: "list[Limit]") -> Text:
    """Why the client itself was too slow to be believed, if it was."""
    tightest = min((limit.value for limit in limits if limit.metric.startswith("ttft") and limit.is_upper), default=0.0)
    lag_s, allowed_s = send_lag_s(run, rows), max(LAG_FLOOR_S, tightest / 10)
    late_s = float(np.quantile(lag_s, 0.99)) if len(lag_s) else 0.0
    if late_s > allowed_s:
        return (
            f"the client is saturated: it sent requests {late_s * 1e3:.0f} ms late (p99; {allowed_s * 1e3:.0f} ms are "
            "allowed): lower the rate, or give it a core of its own"
        )
    loop_s = loop_lag_p99_s(run)
    if run.meta.get("timestamp_source") == "kernel" or loop_s is None:
        return None
    half_s = run.usual_gap_ns(rows & run.streamed) / 2e9
    if not loop_s > half_s:  # NaN: there is no gap
        return None
    return (
        f"the client is saturated: its event loop was {loop_s * 1e3:.1f} ms late (p99), over half the median gap "
        f"between tokens ({half_s * 1e3:.1f} ms), and arrivals are stamped in "
        "user space: lower the load, or give it a core of its own"
    )


def loop_lag_p99_s(run: Run) -> float | None:
    """The 99th percentile of each second's longest delay of the client's event loop."""
    lag_s = run.sampled("client", "loop_lag_max_s")
    return None if lag_s is None or np.isnan(lag_s).all() else float(np.nanquantile(lag_s, 0.99))


def undelivered(run: Run, rows: Bools) -> Text:
    """How much of an open loop's load was not sent within its stage, if that is over 2 %."""
    due = rows & ~np.isnan(run.column("due_ns")) & ~run.where("outcome", "skipped")
    if not due.any():
        return None
    sent_ns = run.column("sent_ns")
    in_time = np.zeros(len(due), dtype=bool)
    for name, (_, end_ns) in windows(run).items():
        in_time |= run.where("stage", name) & (sent_ns <= end_ns + _GRACE_NS) if run.stages else run.sent
    attempted = run.sent & np.isnan(sent_ns)  # a refused connection was delivered as far as we could
    share = float(((in_time | attempted) & due).sum() / due.sum())
    if share >= DELIVERED_SHARE:
        return None
    return (
        f"the load was not delivered: {share:.1%} of the requests due were sent in time "
        f"({DELIVERED_SHARE:.0%} are needed): raise --max-in-flight, or lower the rate"
    )


def interruption(run: Run) -> Text:
    if run.meta.get("complete", True):
        return None
    by = run.meta.get("interrupted_by") or "its process was ended"
    return f"the run was cut short ({by}): its numbers cover only what had ended by then"


def doubt(run: Run, rows: Bools, limits: "list[Limit]") -> Text:
    """Why no limit can be judged, if so."""
    return interruption(run) or undelivered(run, rows) or saturation(run, rows, limits)


def warnings(run: Run, rows: Bools, summary: Mapping[str, Any], limits: "list[Limit]") -> list[dict[str, str]]:
    """Every warning that applies to the requests in the mask `rows`, after those that the driver found."""
    found: dict[str, Text] = {
        "interrupted": interruption(run),
        "client_saturated": saturation(run, rows, limits),
        "load_not_delivered": undelivered(run, rows),
        "clock_stepped": _clock_stepped(run),
        **doubts.all_of(run, rows, summary),
    }
    handed_over = [dict(each) for each in run.meta.get("warnings") or []]
    return handed_over + [{"code": code, "text": text} for code, text in found.items() if text]


def _clock_stepped(run: Run) -> Text:
    stepped_ns = (run.meta.get("clock") or {}).get("stepped_ns") or 0
    if abs(stepped_ns) < 1_000_000:
        return None
    return f"the system clock stepped by {stepped_ns / 1e6:.1f} ms during the run: repeat it with the clock settled"


def _held_back(run: Run, cap: int) -> Bools:
    """The requests that found all slots of their worker taken when they were due: each has its part of `cap`."""
    worker = np.nan_to_num(run.column("worker"))
    # One that sent nothing has its part too; runs put together, or written before the number was, may tell too few.
    workers = max(int(run.meta.get("workers") or 1), int(worker.max(initial=0)) + 1)
    held = np.zeros(run.size, dtype=bool)
    for number in range(workers):
        mine = worker == number
        held[mine] = _waiting(run, mine, (cap - number + workers - 1) // workers)
    return held


def _waiting(run: Run, mine: Bools, slots: int) -> Bools:
    """Of the requests in the mask `mine`, those that `slots` others, in flight or waiting themselves, were before: of
    several due at one instant, those that were sent first."""
    due, sent, end = (run.column(name)[mine] for name in ("due_ns", "sent_ns", "end_ns"))
    counted = run.sent[mine] & ~np.isnan(due)
    order = np.lexsort((sent, due))
    before = np.empty(len(due))
    before[order] = np.cumsum(counted[order]) - counted[order]
    ended = np.sort(end[counted & ~np.isnan(end)])
    waiting: Bools = before - np.searchsorted(ended, due, side="right") >= slots
    return waiting
