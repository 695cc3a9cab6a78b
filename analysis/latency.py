"""Samples and summaries of the latency metrics, each phase on its own.

Only requests that succeeded give samples. `ttft` is first token - sent, `ttft_due` first token - due, `ttfat` first
token that is not thinking - sent, `tpot` (last - first token) / (N - k_1), `e2e` last token - sent. `gap` is the time
between token events; each gap that ends in an event of k tokens gives k samples of gap / k to `itl`.
"""

from typing import Any

import numpy as np

from analysis.intervals import Labels, Sample, percentile_intervals
from analysis.looks import z_of
from analysis.pooled import run_count
from analysis.quantiles import Bools, Floats, Ints, Ordered, block
from analysis.run import Run

PER_REQUEST = ("ttft", "ttft_due", "ttfat", "tpot", "e2e", "e2e_due", "send_lag", "connect")
METRICS = ("ttft", "ttft_due", "ttfat", "itl", "gap", "tpot", "e2e", "e2e_due", "send_lag", "connect")
STREAM_METRICS = ("itl", "gap", "tpot")
"""Metrics that a stream which was only played back does not have."""
DUE_METRICS = ("ttft_due", "e2e_due", "send_lag")

Samples = tuple[Floats, Ints | None]
"""Values in seconds, and how often each counts (None: once)."""


def sample(run: Run, rows: Bools, metric: str, blocks: Labels) -> Sample:
    """The samples of one metric over the requests in the mask `rows`; none where the metric is undefined.

    `blocks` says for each request which block of time it belongs to.
    """
    runs = run_count(run)
    if metric in run.undefined:
        return Sample(np.empty(0), None, blocks[:0], runs)
    if metric in PER_REQUEST:
        values = run.column(f"{metric}_s")
        chosen = rows & run.ok & ~np.isnan(values)
        return Sample(values[chosen], None, blocks[chosen], runs)
    if metric == "itl" and bool(np.any(run.tokens_unknown & rows)):
        return Sample(np.empty(0), None, blocks[:0], runs)
    if run.cells is not None:
        values, counts, row = run.cells.samples(rows & run.streamed, per_token=metric == "itl")
        return Sample(values, counts, blocks[row], runs)
    at = run.gaps.of(rows & run.streamed)
    return Sample(*_gap_samples(run, at, per_token=metric == "itl"), blocks[run.gaps.row[at]], runs)


def gap_samples(run: Run, rows: Bools, kinds: Bools) -> Samples:
    """Gaps of the streams in `rows` that end in an event of a kind in `kinds` (a mask over record.KINDS)."""
    gaps = run.gaps
    return _gap_samples(run, (rows & run.streamed)[gaps.row] & kinds[run.events.kind[gaps.end]], per_token=False)


def metrics(run: Run, rows: Bools, blocks: Labels) -> tuple[dict[str, Any], dict[str, str]]:
    """A block for every metric, and the reason for each one without samples, or without one of its intervals.

    The latter are under `<metric>.ci95`.
    """
    made: dict[str, Any] = {}
    missing: dict[str, str] = {}
    single = False
    for metric in METRICS:
        name = f"{metric}_s"
        if metric == "gap" and single:  # one token an event: gaps and inter-token latencies are the same
            made[name], few = dict(made["itl_s"]), missing.get("itl_s.ci95")
        else:
            found = sample(run, rows, metric, blocks)
            made[name], few = _block(found, z_of(run))
            single = metric == "itl" and found.counts is None and len(found.values) > 0
        if not made[name]["n"]:
            missing[name] = why_undefined(run, rows, metric)
        elif few:
            missing[f"{name}.ci95"] = few
    return made, missing


def _block(found: Sample, z: float) -> tuple[dict[str, Any], str | None]:
    ordered = Ordered.of(found.values, found.counts)
    result = block(found.values, found.counts, ordered)
    if not result["n"]:
        return result, None
    ends, missing = percentile_intervals(found, ordered, z)
    return result | {"ci95": ends}, "; ".join(f"{name}: {why}" for name, why in missing.items()) or None


def why_undefined(run: Run, rows: Bools, metric: str) -> str:
    """Why `samples` has none to give, in words that say what to do where something can be done."""
    ok = rows & run.ok
    if not ok.any():
        return "no request succeeded"
    if metric in run.undefined:
        return run.undefined[metric]
    if metric in DUE_METRICS:
        return "closed loop: requests have no due time"
    if metric == "connect":
        return "no new connection was opened"
    if metric == "ttfat":
        return "no answer token came: all output was thinking"
    if metric in STREAM_METRICS and not (ok & run.streamed).any():
        return "the streams were only played back at their end, not streamed"
    if metric == "itl" and (unknown := int(np.sum(run.tokens_unknown & rows))):
        return why_itl_unknown(run, rows, unknown)
    if metric == "tpot" and (ok & run.where("tokens_source", "mismatch")).any():
        return "the server's usage contradicts the number of token events"
    return "no answer had more than one token event" if metric != "tpot" else "no answer had more than one token"


def why_itl_unknown(run: Run, rows: Bools, unknown: int) -> str:
    streams = int(np.sum(rows & run.streamed))
    return (
        f"{unknown} of {streams} streams have events that hold an unknown number of tokens: turn on running usage with "
        "--per-event-usage, or gate on gap or tpot"
    )


def _gap_samples(run: Run, chosen: "Bools | Ints | slice", per_token: bool) -> Samples:
    seconds = run.gaps.gap_ns[chosen] / 1e9
    if not per_token or run.events.one_each:
        return seconds, None
    tokens = run.events.tokens[run.gaps.end[chosen]].astype(np.int64)
    return (seconds, None) if bool(np.all(tokens == 1)) else (seconds / tokens, tokens)
