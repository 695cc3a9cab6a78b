"""A window of a run as lanes: one stream each, cut into waiting or prefill, decode, and freezes."""

from typing import Any

import numpy as np

from analysis.quantiles import Ints
from analysis.run import Run
from analysis.stalls.causes import Episodes

MOST_LANES = 20
BESIDE = 0.5
"""The window around an episode is so many times longer on each side."""


def worst_window(known: Episodes) -> tuple[float, float] | None:
    """Start and end in seconds, around the episode that froze streams the longest; None without episodes."""
    if not len(known):
        return None
    worst = int(np.argmax(known.frozen_s))
    start_s, end_s = float(known.start_ns[worst]) / 1e9, float(known.end_ns[worst]) / 1e9
    beside_s = BESIDE * (end_s - start_s)
    return max(0.0, start_s - beside_s), end_s + beside_s


def lanes(run: Run, known: Episodes, window_s: tuple[float, float], most: int = MOST_LANES) -> dict[str, Any]:
    """What each stream did in a window, as plain JSON values.

    Args:
        run: The run.
        known: Its episodes.
        window_s: Start and end in seconds on the run's timeline.
        most: Lanes at most: culprits first, then the streams that were frozen the longest, then the others.

    Returns:
        `{start_s, end_s, lanes: [{request_id, class, prompt_tokens, culprit, segments: [{phase, start_s, end_s}]}],
        left_out, episodes: [{start_s, end_s, cause}]}`; a segment's phase is prefill (from sent to the first token, the
        queue included), decode, or frozen.
    """
    start_ns, end_ns = (round(each * 1e9) for each in window_s)
    sent, last = run.column("sent_ns"), run.column("last_token_ns")
    there = np.flatnonzero((sent < end_ns) & (last > start_ns))
    inside = np.flatnonzero((known.start_ns < end_ns) & (known.end_ns > start_ns))
    culprits = np.unique(known.culprit[inside][known.culprit[inside] >= 0])
    order = _by_interest(known, there, culprits, start_ns, end_ns)
    return {
        "start_s": window_s[0],
        "end_s": window_s[1],
        "lanes": [_lane(run, known, int(row), row in culprits, start_ns, end_ns) for row in order[:most]],
        "left_out": max(0, len(order) - most),
        "episodes": [
            {"start_s": known.start_ns[i] / 1e9, "end_s": known.end_ns[i] / 1e9, "cause": str(known.cause[i])}
            for i in inside
        ],
    }


def _by_interest(known: Episodes, there: Ints, culprits: Ints, start_ns: int, end_ns: int) -> Ints:
    stalls = known.stalls
    frozen = np.maximum(np.minimum(stalls.end_ns, end_ns) - np.maximum(stalls.start_ns, start_ns), 0)
    count = max(there.max(initial=-1), stalls.row.max(initial=-1)) + 1
    by_row = np.bincount(stalls.row, weights=frozen, minlength=count)
    return there[np.lexsort((there, -by_row[there], ~np.isin(there, culprits)))]


def _lane(run: Run, known: Episodes, row: int, culprit: bool, start_ns: int, end_ns: int) -> dict[str, Any]:
    sent, first, last = (run.column(name)[row] for name in ("sent_ns", "first_token_ns", "last_token_ns"))
    mine = known.stalls.row == row
    starts, ends = known.stalls.start_ns[mine], known.stalls.end_ns[mine]
    order = np.argsort(starts)
    cuts = [("prefill", sent, first)]
    at = first
    for start, end in zip(starts[order], ends[order], strict=True):
        cuts += [("decode", at, start), ("frozen", start, end)]
        at = end
    cuts.append(("decode", at, last))
    shown = ((phase, max(a, start_ns), min(b, end_ns)) for phase, a, b in cuts)
    request = run.requests.iloc[row]
    tokens = run.column("prompt_tokens")[row]
    return {
        "request_id": str(request["request_id"]),
        "class": None if request["class"] is None else str(request["class"]),
        "prompt_tokens": None if np.isnan(tokens) else int(tokens),
        "culprit": bool(culprit),
        "segments": [{"phase": phase, "start_s": a / 1e9, "end_s": b / 1e9} for phase, a, b in shown if b > a],
    }


def timeline(run: Run, known: Episodes, request_id: str) -> dict[str, Any]:
    """What happened to one stream, as plain JSON values: its instants in order, and its freezes with their causes.

    ValueError (one line) for a request that the run does not have.
    """
    ids = run.requests["request_id"].astype("object").to_numpy()
    found = np.flatnonzero(ids == request_id)
    if not len(found):
        raise ValueError(
            f"no request {request_id!r} in this run; the first is {ids[0]!r}" if len(ids) else "no request"
        )
    row = int(found[0])
    request = run.requests.iloc[row]
    instants = ("due_ns", "sent_ns", "headers_ns", "first_token_ns", "first_answer_ns", "last_token_ns", "end_ns")
    at = {name.removesuffix("_ns"): run.column(name)[row] for name in instants}
    tokens = run.column("prompt_tokens")[row], run.column("output_tokens")[row]
    return {
        "request_id": request_id,
        "class": None if request["class"] is None else str(request["class"]),
        "outcome": str(request["outcome"]),
        "prompt_tokens": None if np.isnan(tokens[0]) else int(tokens[0]),
        "output_tokens": None if np.isnan(tokens[1]) else int(tokens[1]),
        "at_s": {name: None if np.isnan(value) else float(value) / 1e9 for name, value in at.items()},
        "freezes": _freezes(run, known, row),
    }


def _freezes(run: Run, known: Episodes, row: int) -> list[dict[str, Any]]:
    mine = np.flatnonzero(known.stalls.row == row)
    mine = mine[np.argsort(known.stalls.start_ns[mine], kind="stable")]
    before = run.events.number(known.stalls.end[mine])
    episode = known.of[mine]
    culprit = known.culprit[episode]
    ids = run.requests["request_id"]
    return [
        {
            "start_s": known.stalls.start_ns[s] / 1e9,
            "end_s": known.stalls.end_ns[s] / 1e9,
            "events_before": int(events),
            "cause": str(known.cause[e]),
            "culprit_request_id": str(ids.iloc[c]) if c >= 0 else None,
        }
        for s, events, e, c in zip(mine, before, episode, culprit, strict=True)
    ]
