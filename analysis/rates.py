"""Intervals of what happens so often among requests or tokens: failures and stalls."""

from typing import Any

import numpy as np

from analysis.intervals import Labels, ratio_interval, share_interval
from analysis.looks import z_of
from analysis.pooled import run_count
from analysis.quantiles import Bools
from analysis.run import Run
from analysis.stalls.frozen import Stalls
from analysis.throughput import per_block


def error_interval(run: Run, rows: Bools, blocks: Labels) -> list[float] | None:
    """Of failed / sent among the requests in the mask `rows`."""
    sent = rows & run.sent
    failed = sent & ~run.where("outcome", "ok", "cancelled")
    hits, trials = (per_block(blocks[each], runs=run_count(run)) for each in (failed, sent))
    ends = share_interval([(hits, trials)], z_of(run))
    return ends and list(ends)


def stall_intervals(run: Run, found: Stalls, rows: Bools, blocks: Labels) -> dict[str, Any]:
    """Of stalls per 1,000 tokens and of the share of streams hit; no rate can be told where there was no stall."""
    streams = rows & run.streamed & ("stalls" not in run.undefined)
    output = run.column("output_tokens")
    tokens = np.where(np.isnan(output), run.events.per_request, output)
    hits = found.row[streams[found.row]]
    runs, z = run_count(run), z_of(run)
    stalls, hit_streams, all_streams = (per_block(blocks[each], runs=runs) for each in (hits, np.unique(hits), streams))
    per_token = ratio_interval([(stalls, per_block(blocks[streams], tokens[streams], runs))], z)
    hit = share_interval([(hit_streams, all_streams)], z)
    return {
        "per_1k_tokens": per_token and [1000 * end for end in per_token],
        "share_of_requests": hit and list(hit),
    }
