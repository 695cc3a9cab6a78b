"""Windows of the load's stages, and rates over them."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.intervals import BLOCKS, FEWEST_BLOCKS, Z95, Labels, spread
from analysis.looks import z_of
from analysis.pooled import run_count, run_numbers, starts_ns
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
    cut_ns = _cut_ns(run)
    if not cut_ns:
        return found
    starts = starts_ns(run)
    ends = {name: min(end, cut_ns.get(_run_at(starts, start), end)) for name, (start, end) in found.items()}
    return {name: (start, max(start, ends[name])) for name, (start, _) in found.items()}


def _cut_ns(run: Run) -> dict[int, float]:
    """The last thing that happened in a run that was cut short, by its number if it is one of several."""
    numbers, of = run_numbers(run), run.meta.get("pooled") or [run.meta]
    mine = (np.ones(run.size, dtype=bool) if numbers is None else numbers == i for i in range(len(of)))
    return {i: _last_instant(run, rows) for i, rows in enumerate(mine) if of[i].get("complete") is False}


def _run_at(starts: Sequence[float], start_ns: float) -> int:
    """The number of the run to which a window belongs, by its start."""
    return max(0, bisect_right(starts, start_ns) - 1)


def measured_windows(run: Run) -> list[Window]:
    unmeasured = {stage["name"] for stage in run.stages if not stage.get("measured", True)}
    return [window for name, window in windows(run).items() if name not in unmeasured]


def offered_rps(run: Run) -> float | None:
    """Requests per second that the measured stages plan on average; None where there is no such plan."""
    rates: list[float | None] = [stage.get("offered_rps") for stage in run.stages if stage.get("measured", True)]
    if len(set(rates)) <= 1:
        return rates[0] if rates else None
    parts = [length_s([span]) for span in measured_windows(run)]
    if None in rates or not sum(parts):
        return None
    return sum(rate * part for rate, part in zip(rates, parts, strict=True) if rate) / sum(parts)


def length_s(spans: Iterable[Window]) -> float:
    return sum(end - start for start, end in spans) / 1e9


@dataclass(frozen=True)
class Flow:
    """What happened in which block of time of some windows (equal lengths; -1 outside of them).

    Attributes:
        length_s: Of the windows together.
        block_s: Of each block.
        due, sent, prefilled: By request: of its start, its send, its first token.
        row, block, tokens: Tokens that a request got in a block, for each pair that has any.
    """

    length_s: float
    block_s: Floats
    due: Labels
    sent: Labels
    prefilled: Labels
    row: Ints
    block: Labels
    tokens: Floats


def flow(run: Run, spans: list[Window]) -> Flow:
    """Tokens count by arrival; an event of an unknown number of tokens counts N / events."""
    row, arrival_ns, tokens = token_arrivals(run)
    starts = starts_ns(run)
    block = time_blocks(arrival_ns, spans, starts)
    changes = (np.diff(row) != 0) | (np.diff(block) != 0)
    at = np.flatnonzero(np.concatenate([np.ones(min(1, len(block)), dtype=bool), changes]))
    sums = np.add.reduceat(tokens, at) if len(at) else np.empty(0)
    due, sent, first = (time_blocks(each, spans, starts) for each in (start_ns(run), *map(run.column, _INSTANTS)))
    inside = block[at] >= 0
    block_s = np.repeat([length_s(part) / BLOCKS for part in _by_run(spans, starts)], BLOCKS)
    return Flow(length_s(spans), block_s, due, sent, first, row[at][inside], block[at][inside], sums[inside])


_INSTANTS = ("sent_ns", "first_token_ns")


def start_ns(run: Run) -> Floats:
    """When each request was due, or sent where it has no due time."""
    due, sent = run.column("due_ns"), run.column("sent_ns")
    return np.where(np.isnan(due), sent, due)


def time_blocks(at_ns: "Floats | Ints", spans: list[Window], starts: Sequence[float] = (0.0,)) -> Labels:
    """The block of time that each instant falls into: those of one run have equal lengths. `starts` are of each run."""
    result = np.full(len(at_ns), -1, dtype=np.int16)
    for number, part in enumerate(_by_run(spans, starts)):
        scale, before = BLOCKS / max(length_s(part) * 1e9, 1.0), 0.0
        for start, end in part:
            inside = (at_ns >= start) & (at_ns < end)
            block = np.minimum((before + at_ns[inside] - start) * scale, BLOCKS - 1).astype(np.int16)
            result[inside] = number * BLOCKS + block
            before += end - start
    return result


def _by_run(spans: list[Window], starts: Sequence[float]) -> list[list[Window]]:
    """The windows of each run, by when it starts."""
    parts: list[list[Window]] = [[] for _ in starts]
    for span in spans:
        parts[_run_at(starts, span[0])].append(span)
    return parts


def throughput(run: Run, rows: Bools, kin: Bools, flowed: Flow) -> dict[str, Any]:
    """Rates in some windows: requests of the mask `rows` by start, prompts by first token, tokens by arrival.

    The server works in a stage for those too that began in the one before: prompts and tokens are of the requests in
    the mask `kin`, whatever stage they belong to. Tokens of requests that failed or were cut count as well. `ci95`
    holds the interval of each rate.
    """
    names = ("requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s")
    if not flowed.length_s:
        return dict.fromkeys(names) | {"ci95": dict.fromkeys(names)}
    prefilled = kin & (flowed.prefilled >= 0)
    prompts = run.column("prompt_tokens")[prefilled]
    mine, runs, z = kin[flowed.row], run_count(run), z_of(run)
    sums = {
        "requests_per_s": per_block(flowed.sent[rows & (flowed.sent >= 0)], runs=runs),
        "prompt_tokens_per_s": per_block(flowed.prefilled[prefilled], np.nan_to_num(prompts), runs),
        "output_tokens_per_s": per_block(flowed.block[mine], flowed.tokens[mine], runs),
    }
    rates: dict[str, Any] = {name: float(each.sum()) / flowed.length_s for name, each in sums.items()}
    enough = int(np.sum(rows & (flowed.sent >= 0))) >= FEWEST_BLOCKS
    ends = {name: rate_interval(each, flowed.block_s, z) if enough else None for name, each in sums.items()}
    if np.isnan(prompts).all():
        rates["prompt_tokens_per_s"] = ends["prompt_tokens_per_s"] = None
    return rates | {"ci95": ends}


def per_block(block: Labels, weights: Floats | None = None, runs: int = 1) -> Floats:
    return np.bincount(block, weights, BLOCKS * runs).astype(np.float64)


def rate_interval(sums: Floats, block_s: Floats, z: float = Z95) -> list[float]:
    """Of a sum over blocks of time per second."""
    total, duration_s = float(sums.sum()), float(block_s.sum())
    half = spread([sums - total * block_s / duration_s]).half_width(z)
    return [max(0.0, total - half) / duration_s, (total + half) / duration_s]


EVEN_STEPS = 64
"""Into how many steps the tokens of a request go whose events were not all kept."""


def token_arrivals(run: Run) -> tuple[Ints, Ints, Floats]:
    """Row, instant and number of the tokens that came; evenly over each answer where not all events were kept."""
    if run.cells is None:
        return run.events.row, run.events.arrival_ns, event_tokens(run)
    first, last, output = (run.column(name) for name in ("first_token_ns", "last_token_ns", "output_tokens"))
    tokens = np.where(np.isnan(output), run.events.per_request, output)
    began = np.flatnonzero(~np.isnan(last - first))
    part = np.linspace(0, 1, EVEN_STEPS)
    at_ns = first[began, None] + (last - first)[began, None] * part
    row, each = np.repeat(began, EVEN_STEPS), np.repeat(tokens[began], EVEN_STEPS) / EVEN_STEPS
    return row, at_ns.ravel().astype(np.int64), each


def event_tokens(run: Run) -> Floats:
    events, output = run.events, run.column("output_tokens")
    evenly = np.where(np.isnan(output), 1.0, output / np.maximum(events.per_request, 1))
    return np.where(events.tokens > 0, events.tokens, evenly[events.row])


def _window(run: Run, stage: dict[str, Any]) -> Window:
    start = float(stage.get("start_ns") or 0)
    if stage.get("end_ns") is not None:
        return start, float(stage["end_ns"])
    mine = run.where("stage", stage["name"]) if run.stages else np.ones(run.size, dtype=bool)
    rate = stage.get("offered_rps")
    if rate and run.meta.get("loop") == "open":
        return start, start + float(mine.sum()) / float(rate) * 1e9
    return start, max(start, _last_instant(run, mine))


def _last_instant(run: Run, rows: Bools) -> float:
    instants = [run.column(name)[rows] for name in ("sent_ns", "last_token_ns", "end_ns")]
    return float(np.nanmax(np.concatenate([*instants, np.zeros(1)])))
