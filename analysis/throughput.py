"""Windows of the load's stages, and rates over them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from analysis.quantiles import Bools, Floats
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


def throughput(run: Run, rows: Bools, spans: list[Window]) -> dict[str, Any]:
    """Rates of the requests in the mask `rows`: requests by start, prompts by first token, tokens by arrival.

    Tokens of requests that failed or were cut count as well. An event of an unknown number of tokens counts N / events.
    """
    duration_s = length_s(spans)
    if not duration_s:
        return dict.fromkeys(("requests_per_s", "prompt_tokens_per_s", "output_tokens_per_s"))
    started = rows & _inside(run.column("sent_ns"), spans)
    prefilled = rows & _inside(run.column("first_token_ns"), spans)
    prompts = run.column("prompt_tokens")[prefilled]
    counted = rows[run.events.row] & _inside(run.events.arrival_ns.astype(np.float64), spans)
    tokens = np.bincount(run.events.row[counted], weights=_event_tokens(run)[counted]).sum()
    return {
        "requests_per_s": float(started.sum()) / duration_s,
        "prompt_tokens_per_s": float(np.nansum(prompts)) / duration_s if not np.isnan(prompts).all() else None,
        "output_tokens_per_s": float(tokens) / duration_s,
    }


def _event_tokens(run: Run) -> Floats:
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


def _inside(at_ns: Floats, spans: list[Window]) -> Bools:
    inside = np.zeros(len(at_ns), dtype=bool)
    for start, end in spans:
        inside |= (at_ns >= start) & (at_ns < end)
    return inside
