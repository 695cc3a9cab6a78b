"""Goodput: requests that succeeded and met every limit of their own, per second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fluidity import fluidity, targets
from analysis.intervals import BLOCKS, Labels, share_interval
from analysis.limits import ALL, GOOD_METRICS, Limit, gap_quantile
from analysis.looks import z_of
from analysis.pooled import run_count
from analysis.quantiles import Bools, Floats, segment_quantile
from analysis.run import Run
from analysis.throughput import Flow, per_block, rate_interval

NO_LIMITS = "no per-request limits: give some under good:, with --good or with --slo"


@dataclass(frozen=True)
class Good:
    """Which requests met what: `good` meets all limits of its class, `limited` says whether that class has any.

    `by_limit` holds for each limit the requests it applies to and those that meet it.
    """

    good: Bools
    limited: Bools
    by_limit: dict[str, tuple[Bools, Bools]]


def per_request_limits(good: Mapping[str, float], limits: Sequence[Limit], class_name: str) -> dict[str, float]:
    """The limits in seconds that a request of a class must meet: those of `good`, else what the SLO's limits imply.

    A limit on ttft, ttfat, tpot or e2e holds for each request; one on itl or gap becomes `gap_p99`. The tightest
    counts. A least share of token deadlines (`fluidity.at_least`) comes on top.
    """
    if good:
        return dict(good)
    derived: dict[str, float] = {}
    for limit in limits:
        name = "gap_p99" if limit.metric in ("itl", "gap") else limit.metric
        if limit.class_name in (ALL, class_name) and limit.is_upper and name in (*GOOD_METRICS, "gap_p99"):
            derived[name] = min(limit.value, derived.get(name, np.inf))
    return derived


def judge(run: Run, good: Mapping[str, float], limits: Sequence[Limit]) -> Good:
    """Hold every request against the limits of its class."""
    passed, limited = run.ok.copy(), np.zeros(len(run.ok), dtype=bool)
    least = targets(run).at_least
    fluent = {} if least is None or run.thinned else {"fluidity": least}
    by_limit: dict[str, tuple[Bools, Bools]] = {}
    for class_name, mine in run.classes.items():
        wanted = per_request_limits(good, limits, class_name) | fluent
        limited |= mine & bool(wanted)
        for name, value in wanted.items():
            met = mine & _meets(run, name, value)
            passed &= ~mine | met
            before = by_limit.get(name, (np.zeros_like(mine), np.zeros_like(mine)))
            by_limit[name] = (before[0] | mine, before[1] | met)
    return Good(passed, limited, by_limit)


def goodput(run: Run, judged: Good, rows: Bools, length_s: float) -> dict[str, Any]:
    """Goodput and attainment of the requests in the mask `rows`; all None where no limit applies.

    The denominator of attainment is every request that was due: failed, cut, skipped and unsent ones too.
    """
    wanted = due(run, rows)
    if not (wanted & judged.limited).any():
        return dict.fromkeys(("requests_per_s", "output_tokens_per_s", "attainment")) | {"by_limit": {}}
    good = wanted & judged.good
    tokens = float(np.nansum(run.column("output_tokens")[good]))
    return {
        "requests_per_s": float(good.sum()) / length_s if length_s else None,
        "output_tokens_per_s": tokens / length_s if length_s else None,
        "attainment": float(good.sum() / wanted.sum()),
        "by_limit": {
            name: float((met & wanted).sum() / (applies & wanted).sum())
            for name, (applies, met) in judged.by_limit.items()
            if (applies & wanted).any()
        },
    }


def intervals(run: Run, judged: Good, rows: Bools, blocks: Labels, flowed: Flow) -> dict[str, Any]:
    """Of attainment and of good requests per second; `blocks` are those of the requests in the mask `rows`."""
    wanted = due(run, rows)
    good = wanted & judged.good
    if not (wanted & judged.limited).any():
        return dict.fromkeys(("attainment", "goodput_per_s"))
    runs, z = run_count(run), z_of(run)
    share = share_interval([(per_block(blocks[good], runs=runs), per_block(blocks[wanted], runs=runs))], z)
    timed = flowed.length_s and share
    mine = flowed.due[good]
    started = np.where(mine < 0, blocks[good] // BLOCKS * BLOCKS, mine)  # a start outside of its window: at its edge
    return {
        "attainment": share and list(share),
        "goodput_per_s": rate_interval(per_block(started, runs=runs), flowed.block_s, z) if timed else None,
    }


def due(run: Run, rows: Bools) -> Bools:
    return rows & ~(run.where("outcome", "not_sent") & np.isnan(run.column("due_ns")))


def _meets(run: Run, name: str, limit: float) -> Bools:
    """Success within the limit; an answer too short to have the metric (one token) meets it."""
    if name == "fluidity":
        due = targets(run)
        return run.ok & (fluidity(run, run.ok, due.ttft_s, due.tbt_s) >= limit)
    q = gap_quantile(name)
    if q is None and name != "tpot":
        return run.ok & (run.column(f"{name}_s") <= limit)
    if q is None:
        values = run.column("tpot_s")
        too_short = np.isnan(values) & ~np.isnan(run.column("output_tokens"))
    else:
        values = _gap_quantiles_s(run, q)
        too_short = run.events.per_request == 1
    return run.streamed & (too_short | (values <= limit))


def _gap_quantiles_s(run: Run, q: float) -> Floats:
    if run.cells is not None:
        return run.cells.quantile_ns(q) / 1e9
    return segment_quantile(run.gaps.ordered_ns, run.gaps.starts, q) / 1e9
