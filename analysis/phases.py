"""The two jobs of a request apart: prefill and decode; and decode of thinking models split once more."""

from typing import Any

import numpy as np

from analysis.latency import gap_samples
from analysis.quantiles import Bools, Floats, block
from analysis.record import KINDS, THINKING
from analysis.run import Run
from analysis.stalls.episodes import Stalls


def phases(run: Run, rows: Bools, part: dict[str, Any], found: Stalls) -> dict[str, Any]:
    """The `phases` of the summary, from the numbers of the whole run in `part`.

    `thinking` and `answer` are None where no request thought.
    """
    metrics, tokens, rates = part["metrics"], part["tokens"], part["throughput"]
    return {
        "prefill": {
            "ttft_s": metrics["ttft_s"],
            "ttft_due_s": metrics["ttft_due_s"],
            "prompt_tokens": tokens["prompt"],
            "cached_tokens": tokens["cached"],
            "prompt_tokens_per_s": rates["prompt_tokens_per_s"],
        },
        "decode": {
            "itl_s": metrics["itl_s"],
            "gap_s": metrics["gap_s"],
            "tpot_s": metrics["tpot_s"],
            "output_tokens_per_s": rates["output_tokens_per_s"],
            "stalls": {name: part["stalls"][name] for name in ("count", "requests", "per_1k_tokens", "longest_s")},
        },
        **_split(run, rows, found),
    }


def _split(run: Run, rows: Bools, found: Stalls) -> dict[str, Any]:
    streams = rows & run.streamed
    thinking = run.events.kind == THINKING
    if run.cells is not None or "gap" in run.undefined or not thinking[streams[run.events.row]].any():
        return {"thinking": None, "answer": None}
    kinds = np.arange(len(KINDS)) == THINKING
    answer = _phase(run, streams, ~kinds, found) | {"silence_s": block(_silence_s(run, streams))}
    return {"thinking": _phase(run, streams, kinds, found), "answer": answer}


def _silence_s(run: Run, streams: Bools) -> Floats:
    """From the last thought to the first word of the answer, of the streams that thought before they answered."""
    events = run.events
    answers = np.flatnonzero(streams[events.row] & (events.kind != THINKING))
    row, at = np.unique(events.row[answers], return_index=True)
    first = answers[at]
    before = np.maximum(first - 1, 0)
    thought = (first > 0) & (events.row[before] == row) & (events.kind[before] == THINKING)
    silence: Floats = (events.arrival_ns[first] - events.arrival_ns[before])[thought] / 1e9
    return silence


def _phase(run: Run, streams: Bools, kinds: Bools, found: Stalls) -> dict[str, Any]:
    """One channel's share of decode; its duration is from the event before its first one to its last one."""
    events = run.events
    mine = np.flatnonzero(streams[events.row] & kinds[events.kind])
    row, at, count = np.unique(events.row[mine], return_index=True, return_counts=True)
    first_ns, last_ns = events.arrival_ns[mine[at]], events.arrival_ns[mine[at + count - 1]]
    samples, _ = gap_samples(run, streams, kinds)
    decode_s = float(np.nansum((run.column("e2e_s") - run.column("ttft_s"))[streams]))
    stalled = streams[found.row] & kinds[events.kind[found.end]]
    return {
        "events": len(mine),
        "requests": len(row),
        "start_s": block((first_ns - run.column("sent_ns")[row]) / 1e9),
        "gap_s": block(samples),
        "tpot_s": block(_per_token_s(run, mine, at, count, (last_ns - first_ns) / 1e9)),
        "share_of_decode_time": float(samples.sum()) / decode_s if decode_s else None,
        "stalls": int(stalled.sum()),
    }


def _per_token_s(run: Run, mine: Any, at: Any, count: Any, duration_s: Floats) -> Floats:
    """Time per token of each request's phase after its first event; none where an event's tokens are unknown."""
    tokens = run.events.tokens[mine]
    further = np.add.reduceat(tokens, at) - tokens[at]
    known = (np.minimum.reduceat(tokens, at) > 0) & (count > 1)
    per_token: Floats = duration_s[known] / further[known]
    return per_token
