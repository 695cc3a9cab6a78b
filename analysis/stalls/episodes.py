"""Stalls counted, and the episodes in which streams froze together, with their causes and the evidence for each."""

from typing import Any

import numpy as np

from analysis.quantiles import Bools, Ints
from analysis.run import Run
from analysis.stalls.causes import Episodes, diagnose
from analysis.stalls.evidence import evidence
from analysis.stalls.frozen import FACTOR, FLOOR_S, Stalls, find, settings
from analysis.stalls.interference import prompt_tokens

__all__ = ["FACTOR", "FLOOR_S", "MOST_EPISODES", "Stalls", "episodes", "find", "listed", "settings", "totals"]

MOST_EPISODES = 1000


def totals(run: Run, found: Stalls, rows: Bools) -> dict[str, Any]:
    """Counts over the requests in the mask `rows`; all None where no stream was seen that could have stalled."""
    streams = rows & run.streamed & ("stalls" not in run.undefined)
    mine = found.take(streams[found.row])
    output = run.column("output_tokens")[streams]
    tokens = float(np.where(np.isnan(output), run.events.per_request[streams], output).sum())
    decode_s = float(np.nansum(run.column("e2e_s")[streams] - run.column("ttft_s")[streams]))
    seen, total_s = bool(streams.any()), float(mine.stalled_s.sum())
    hit = len(np.unique(mine.row))
    length_s = (mine.end_ns - mine.start_ns) / 1e9
    return {
        "count": len(mine.row) if seen else None,
        "requests": hit if seen else None,
        "share_of_requests": hit / streams.sum() if seen else None,
        "per_1k_tokens": 1000 * len(mine.row) / tokens if tokens else None,
        "longest_s": float(length_s.max()) if len(length_s) else None,
        "total_s": total_s if seen else None,
        "share_of_decode_time": total_s / decode_s if decode_s else None,
        "worst": _worst(run, mine),
        **({"undefined": run.undefined["stalls"]} if "stalls" in run.undefined else {}),
    }


def episodes(run: Run, found: Stalls, rows: Bools) -> list[dict[str, Any]]:
    """Stalls that overlap in time, as one episode each, in order of start (the longest ones if there are very many).

    `bystanders` are the streams that were not hit though they had tokens over at least half of the episode.
    """
    known = diagnose(run, found, rows)
    return listed(run, known, np.sort(np.argsort(known.start_ns - known.end_ns, kind="stable")[:MOST_EPISODES]))


def listed(run: Run, known: Episodes, chosen: Ints) -> list[dict[str, Any]]:
    """Some of the episodes, in the order given, as plain JSON values."""
    return [_episode(run, known, int(i), told) for i, told in zip(chosen, evidence(run, known, chosen), strict=True)]


def _worst(run: Run, mine: Stalls) -> dict[str, Any] | None:
    """The stream with the longest gap."""
    if not len(mine.row):
        return None
    at = int(np.argmax(mine.end_ns - mine.start_ns))
    row = int(mine.row[at])
    return {
        "request_id": run.value("request_id", row),
        "class": run.value("class", row),
        "longest_gap_s": float(mine.end_ns[at] - mine.start_ns[at]) / 1e9,
        "at_s": float(mine.start_ns[at]) / 1e9,
    }


def _episode(run: Run, known: Episodes, i: int, told: dict[str, Any]) -> dict[str, Any]:
    start, end, culprit = int(known.start_ns[i]), int(known.end_ns[i]), int(known.culprit[i])
    hit = np.unique(known.stalls.row[known.starts[i] : known.starts[i + 1]])
    return {
        "start_s": start / 1e9,
        "end_s": end / 1e9,
        "duration_s": (end - start) / 1e9,
        "requests": len(hit),
        "bystanders": _bystanders(run, start, end, hit),
        "cause": str(known.cause[i]),
        "culprit_request_id": None if culprit < 0 else run.value("request_id", culprit),
        "culprit_prompt_tokens": None if culprit < 0 else prompt_tokens(run, culprit),
        "evidence": told,
    }


def _bystanders(run: Run, start_ns: int, end_ns: int, hit: Ints) -> int:
    first, last = run.column("first_token_ns"), run.column("last_token_ns")
    decoding = np.minimum(last, end_ns) - np.maximum(first, start_ns) >= (end_ns - start_ns) / 2
    decoding[hit] = False
    return int(decoding.sum())
