"""Stalls: gaps in which a stream froze, and the episodes in which streams froze together.

A stall is a gap longer than max(floor, factor x median gap of the same request).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.causes import cause_of
from analysis.quantiles import Bools, Floats, Ints, segment_quantile
from analysis.run import Run
from analysis.units import seconds

FLOOR_S, FACTOR = 0.2, 5.0
MOST_EPISODES = 1000


@dataclass(frozen=True)
class Stalls:
    """Every stall of a run's streams, in order of request.

    Attributes:
        row: Position of the request in `Run.requests`.
        end: Position of the event that ended it, in `Run.events`.
        start_ns, end_ns: Instants on the run's timeline.
        stalled_s: What it was longer than the median gap of its request.
    """

    row: Ints
    end: Ints
    start_ns: Ints
    end_ns: Ints
    stalled_s: Floats

    def take(self, chosen: Bools | Ints) -> "Stalls":
        return Stalls(
            self.row[chosen], self.end[chosen], self.start_ns[chosen], self.end_ns[chosen], self.stalled_s[chosen]
        )


def settings(meta: Mapping[str, Any]) -> tuple[float, float]:
    """Floor in seconds and factor, from the workload of a run. ValueError if they are no numbers."""
    workload = meta.get("workload")
    given = (workload.get("stall") if isinstance(workload, Mapping) else None) or {}
    return seconds(given.get("floor") or FLOOR_S), float(given.get("factor") or FACTOR)


def find(run: Run) -> Stalls:
    """The stalls of all requests that succeeded and were streamed."""
    floor_s, factor = settings(run.meta)
    gaps = run.gaps
    median_ns = segment_quantile(gaps.ordered_ns, gaps.starts, 0.5)
    limit_ns = np.where(run.streamed, np.maximum(floor_s * 1e9, factor * median_ns), np.inf)
    at = np.flatnonzero(gaps.gap_ns > limit_ns[gaps.row])
    row, end, gap_ns = gaps.row[at], gaps.end[at], gaps.gap_ns[at]
    end_ns = run.events.arrival_ns[end]
    return Stalls(row, end, end_ns - gap_ns, end_ns, (gap_ns - median_ns[row]) / 1e9)


def totals(run: Run, found: Stalls, rows: Bools) -> dict[str, Any]:
    """Counts over the requests in the mask `rows`; shares and rates are None where there was nothing to stall."""
    streams = rows & run.streamed
    mine = found.take(streams[found.row])
    output = run.column("output_tokens")[streams]
    tokens = float(np.where(np.isnan(output), run.events.per_request[streams], output).sum())
    decode_s = float(np.nansum(run.column("e2e_s")[streams] - run.column("ttft_s")[streams]))
    hit, total_s = len(np.unique(mine.row)), float(mine.stalled_s.sum())
    length_s = (mine.end_ns - mine.start_ns) / 1e9
    return {
        "count": len(mine.row),
        "requests": hit,
        "share_of_requests": hit / streams.sum() if streams.any() else None,
        "per_1k_tokens": 1000 * len(mine.row) / tokens if tokens else None,
        "longest_s": float(length_s.max()) if len(length_s) else None,
        "total_s": total_s,
        "share_of_decode_time": total_s / decode_s if decode_s else None,
        "worst": _worst(run, mine),
    }


def episodes(run: Run, found: Stalls, rows: Bools) -> list[dict[str, Any]]:
    """Stalls that overlap in time, as one episode each, in order of start (the longest ones if there are very many).

    `bystanders` are the streams that were not hit though they had tokens over at least half of the episode.
    """
    mine = found.take(rows[found.row])
    mine = mine.take(np.argsort(mine.start_ns, kind="stable"))
    if not len(mine.row):
        return []
    reach = np.maximum.accumulate(mine.end_ns)
    begins = np.flatnonzero(np.concatenate([[True], mine.start_ns[1:] >= reach[:-1]]))
    ends = np.concatenate([begins[1:], [len(mine.row)]])
    duration = reach[ends - 1] - mine.start_ns[begins]
    kept = np.sort(np.argsort(-duration, kind="stable")[:MOST_EPISODES])
    return [_episode(run, mine.take(np.arange(begins[i], ends[i]))) for i in kept]


def _worst(run: Run, mine: Stalls) -> dict[str, Any] | None:
    """The stream with the longest gap."""
    if not len(mine.row):
        return None
    at = int(np.argmax(mine.end_ns - mine.start_ns))
    request = run.requests.iloc[int(mine.row[at])]
    return {
        "request_id": request["request_id"],
        "class": request["class"],
        "longest_gap_s": float(mine.end_ns[at] - mine.start_ns[at]) / 1e9,
        "at_s": float(mine.start_ns[at]) / 1e9,
    }


def _episode(run: Run, hits: Stalls) -> dict[str, Any]:
    start, end = int(hits.start_ns.min()), int(hits.end_ns.max())
    first, last = run.column("first_token_ns"), run.column("last_token_ns")
    overlap = np.minimum(last, end) - np.maximum(first, start)
    decoding = overlap >= (end - start) / 2
    hit = np.unique(hits.row)
    decoding[hit] = False
    bystanders = int(decoding.sum())
    return {
        "start_s": start / 1e9,
        "end_s": end / 1e9,
        "duration_s": (end - start) / 1e9,
        "requests": len(hit),
        "bystanders": bystanders,
        "cause": cause_of(run, hits.row, hits.end, start, end, bystanders),
        "culprit_request_id": None,
        "culprit_prompt_tokens": None,
        "evidence": {},
    }
