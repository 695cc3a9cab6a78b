"""Intervals of what happens so often among requests or tokens: failures and stalls."""

from typing import Any

import numpy as np

from analysis.intervals import Labels, ratio_interval, share_interval
from analysis.quantiles import Bools
from analysis.run import Run
from analysis.stalls.frozen import Stalls
from analysis.throughput import per_block


def error_interval(run: Run, rows: Bools, blocks: Labels) -> list[float] | None:
    """Of failed / sent among the requests in the mask `rows`."""
    sent = rows & run.sent
    failed = sent & ~run.where("outcome", "ok", "cancelled")
    ends = share_interval([(per_block(blocks[failed]), per_block(blocks[sent]))])
    return ends and list(ends)


def stall_intervals(run: Run, found: Stalls, rows: Bools, blocks: Labels) -> dict[str, Any]:
    """Of stalls per 1,000 tokens and of the share of streams hit; no rate can be told where there was no stall."""
    streams = rows & run.streamed
    output = run.column("output_tokens")
    tokens = np.where(np.isnan(output), run.events.per_request, output)
    hits = found.row[streams[found.row]]
    per_token = ratio_interval([(per_block(blocks[hits]), per_block(blocks[streams], tokens[streams]))])
    hit = share_interval([(per_block(blocks[np.unique(hits)]), per_block(blocks[streams]))])
    return {
        "per_1k_tokens": per_token and [1000 * end for end in per_token],
        "share_of_requests": hit and list(hit),
    }
