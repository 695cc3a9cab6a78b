"""Windows of the load's stages, and rates over them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.intervals import BLOCKS, FEWEST_BLOCKS, Labels, spread
from analysis.quantiles import Bools, Floats, Ints
from analysis.run import Run

Window = tuple[float, float]
"""Start and end in nanoseconds on the run's timeline."""


def windows(run: Run) -> dict[str, Window]:
    """The window of each stage, in order; one window "all" over the whole run where it names no stages.

    A stage without an end lasts n / rate in an open loop with a known rate, else until its last request ended. A run
    that was cut short ends with the last thing that happened in it.
    """
    stages = run.stages or [{"name": "all", "start_ns": 0, "end_ns": None}]
    found = {stage["name"]: _window(run, stage) for stage in stages}
    if run.meta.get("complete", True):
        return found
    last = _last_instant(run, np.ones(len(run.requests), dtype=bool))
    return {name: (start, max(start, min(end, last))) for name, (start, end) in found.items()}


def measured_windows(run: Run) -> list[Window]:
    unmeasured = {stage["name"] for stage in run.stages if not stage.get("measured", True)}
    return [window for name, window in windows(run).items() if name not in unmeasured]


def length_s(spans: Iterable[Window]) -> float:
    return sum(end - start for start, end in spans) / 1e9


@dataclass(frozen=True)
class Flow:
    """What happened in which block of time of some windows (equal lengths; -1 outside of them).

    Attributes:
        length_s: Of the windows together.
        due, sent, prefilled: By request: of its start, its send, its first token.
        row, block, tokens: Tokens that a request got in a block, for each pair that has any.
    """

    length_s: float
    due: Labels
    sent: Labels
    prefilled: Labels
    row: Ints
    block: Labels
    tokens: Floats


def flow(run: Run, spans: list[Window]) -> Flow:
    """Tokens count by arrival; an event of an unknown number of tokens counts N / events."""
    events = run.events
    block = time_blocks(events.arrival_ns, spans)
    changes = (np.diff(events.row) != 0) | (np.diff(block) != 0)
    at = np.flatnonzero(np.concatenate([np.ones(min(1, len(block)), dtype=bool), changes]))
    sums = np.add.reduceat(event_tokens(run), at) if len(at) else np.empty(0)
    due, sent, first = (time_blocks(each, spans) for each in (start_ns(run), *map(run.column, _INSTANTS)))
    inside = block[at] >= 0
    return Flow(length_s(spans), due, sent, first, events.row[at][inside], block[at][inside], sums[inside])


_INSTANTS = ("sent_ns", "first_token_ns")


def start_ns(run: Run) -> Floats:
    """When each request was due, or sent where it has no due time."""
    due, sent = run.column("due_ns"), run.column("sent_ns")
    return np.where(np.isnan(due), sent, due)


def time_blocks(at_ns: "Floats | Ints", spans: list[Window]) -> Labels:
    """The block of time, of equal lengths, that each instant falls into."""
    result = np.full(len(at_ns), -1, dtype=np.int8)
    scale, before = BLOCKS / max(length_s(spans) * 1e9, 1.0), 0.0
    for start, end in spans:
        inside = (at_ns >= start) & (at_ns < end)
        result[inside] = np.minimum((before + at_ns[inside] - start) * scale, BLOCKS - 1).astype(np.int8)
        before += end - start
    return result


def throughput(run: Run, rows: Bools, flowed: Flow) -> dict[str, Any]:
    """Rates of the requests in the mask `rows`: requests by start, prompts by first token, tokens by arrival.

    Tokens of requests that failed or were cut count as well. `ci95` holds the interval of each rate.
    """
    names = ("requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
    if not flowed.length_s:
        return dict.fromkeys(names) | {"ci95": dict.fromkeys(names)}
    prefilled = rows & (flowed.prefilled >= 0)
    prompts = run.column("prompt_tokens")[prefilled]
    mine = rows[flowed.row]
    sums = {
        "requests_per_s": per_block(flowed.sent[rows & (flowed.sent >= 0)]),
        "prompt_tokens_per_s": per_block(flowed.prefilled[prefilled], np.nan_to_num(prompts)),
        "output_tokens_per_s": per_block(flowed.block[mine], flowed.tokens[mine]),
    }
    rates: dict[str, Any] = {name: float(each.sum()) / flowed.length_s for name, each in sums.items()}
    enough = int(np.sum(rows & (flowed.sent >= 0))) >= FEWEST_BLOCKS
    ends = {name: rate_interval(each, flowed.length_s) if enough else None for name, each in sums.items()}
    if np.isnan(prompts).all():
        rates["prompt_tokens_per_s"] = ends["prompt_tokens_per_s"] = None
    return rates | {"ci95": ends}


def per_block(block: Labels, weights: Floats | None = None) -> Floats:
    return np.bincount(block, weights, BLOCKS).astype(np.float64)


def rate_interval(sums: Floats, duration_s: float) -> list[float]:
    """Of a sum over blocks of equal length per second."""
    half = spread([sums - sums.mean()]).half_width()
    return [max(0.0, float(sums.sum()) - half) / duration_s, (float(sums.sum()) + half) / duration_s]


def event_tokens(run: Run) -> Floats:
    events, output = run.events, run.column("output_tokens")
    evenly = np.where(np.isnan(output), 1.0, output / np.maximum(events.per_request, 1))
    return np.where(events.tokens > 0, events.tokens, evenly[events.row])


def _window(run: Run, stage: dict[str, Any]) -> Window:
    start = float(stage.get("start_ns") or 0)
    if stage.get("end_ns") is not None:
        return start, float(stage["end_ns"])
    mine = run.where("stage", stage["name"]) if run.stages else np.ones(len(run.requests), dtype=bool)
    rate = stage.get("offered_rps")
    if rate and run.meta.get("loop") == "open":
        return start, start + float(mine.sum()) / float(rate) * 1e9
    return start, max(start, _last_instant(run, mine))


def _last_instant(run: Run, rows: Bools) -> float:
    instants = [run.column(name)[rows] for name in ("sent_ns", "last_token_ns", "end_ns")]
    return float(np.nanmax(np.concatenate([*instants, np.zeros(1)])))
