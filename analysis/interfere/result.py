"""The controlled experiment on interference: what one prompt of known length does to streams that decode.

A run of it has victims (streams that decode), injected prompts of a ladder of lengths, and stages that tell apart the
decode-only baseline (`baseline-<streams>`) and the experiment. Everything here follows from its run directory.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analysis.interfere import verdict as interfere_verdict
from analysis.interfere.apart import on_one_engine, several_engines
from analysis.interfere.fit import Line, spread_of, theil_sen
from analysis.interfere.streams import INJECTED, VICTIM, Injection, Streams, control_s
from analysis.quantiles import Bools, Floats
from analysis.record import UNKNOWN
from analysis.run import Run
from analysis.server import ratio

FORMAT_VERSION = 1
_RUN = ("id", "target", "engine", "model", "started_at", "seed", "complete")
NAME = "interfere"
"""Of the workload in run.json."""
EXPERIMENT, BASELINE = "experiment", "baseline-"
ONE_TOKEN = 1
"""The length of the control prompt; the template's tokens come on top."""
CACHED_SHARE = 0.05
CONTROL_QUANTILE = 0.975
LEAST_NOISE_S = 1e-6


def interfere(run: Run, max_freeze_s: float | None = None) -> dict[str, Any]:
    """The result of the experiment as plain JSON values; null where it cannot be told, with the reason.

    Args:
        max_freeze_s: The longest freeze that the gate allows; None takes the run's own, if it has one.

    Raises:
        ValueError: the run is no such experiment (one line).
    """
    design = _design(run)
    streams = Streams.of(run, design["streams"])
    rows = run.where("class", INJECTED) & run.where("stage", EXPERIMENT)
    used, left_out = injections(run, rows, streams)
    controls = _Controls(streams, list(streams.quiet(*_busy(run))))
    usual_s = (streams.step_s, controls.noise_s)
    if apart := several_engines(used, *usual_s):
        used, left_out["on_another_engine"] = on_one_engine(used, *usual_s)
    one_token, *rungs = _rungs(sorted({ONE_TOKEN, *design["lengths"], *(each.tokens for each in used)}), used, controls)
    result = {
        "format_version": FORMAT_VERSION,
        "run": {name: run.meta.get(name) for name in _RUN},
        "design": design,
        "several_engines": apart,
        "injections": {"sent": int((rows & run.sent).sum()), "used": len(used), "left_out": left_out},
        "rungs": rungs,
        "one_token": one_token,
        "control": controls.over(max((each.ttft_s for each in used), default=float("nan"))),
        "freeze": _line(used, "freeze_s"),
        "prefill": _line(used, "ttft_s"),
        "decode": _decode(run, streams),
    }
    limit_s = design["max_freeze_s"] if max_freeze_s is None else max_freeze_s
    return result | interfere_verdict.of(run, result, limit_s)


def _design(run: Run) -> dict[str, Any]:
    workload = run.meta.get("workload")
    if not isinstance(workload, Mapping) or workload.get("name") != NAME or "streams" not in workload:
        raise ValueError("not an experiment that `loadgen interfere` made")
    known = ("streams", "lengths", "repeats", "rest_s", "max_freeze_s", "notes")
    return {name: workload.get(name) for name in known} | {"lengths": sorted(workload.get("lengths") or [])}


def injections(run: Run, rows: Bools, streams: Streams) -> tuple[list[Injection], dict[str, int]]:
    """The injections among the requests in the mask `rows` that count, and how many are left out for which reason.

    `failed`: no answer. `cached`: over 5 % of the prompt came from the server's cache, beyond the template's part, as
    victims' short prompts show it. `streams_changed`: a victim began or ended in the window from the send to the first
    token, or one was missing.
    """
    found, left_out = [], Counter(dict.fromkeys(("failed", "cached", "streams_changed"), 0))
    sent, first = run.column("sent_ns"), run.column("first_token_ns")
    asked, told = run.column("asked_input_tokens"), run.column("prompt_tokens")
    template = np.nan_to_num(run.column("cached_tokens")[run.where("class", VICTIM)]).max(initial=0.0)
    cached = run.column("cached_tokens") - template > CACHED_SHARE * told
    for row in np.flatnonzero(rows & run.sent).tolist():
        # No answer comes before its question, whatever a file says.
        if not run.ok[row] or not first[row] >= sent[row] or np.isnan(asked[row]):
            left_out["failed"] += 1
        elif cached[row]:
            left_out["cached"] += 1
        elif (window := streams.window(float(sent[row]), float(first[row]))) is None:
            left_out["streams_changed"] += 1
        else:
            tokens = float(asked[row] if np.isnan(told[row]) else told[row])
            found.append(Injection(int(asked[row]), tokens, float(run.column("ttft_s")[row]), window))
    return found, dict(left_out)


def _busy(run: Run) -> tuple[Floats, Floats]:
    """From when until when injected prompts of any stage were under way."""
    rows = run.where("class", INJECTED) & ~np.isnan(run.column("sent_ns"))
    end = run.column("end_ns")[rows]
    return run.column("sent_ns")[rows], np.where(np.isnan(end), np.inf, end)


@dataclass(frozen=True)
class _Controls:
    """Freezes where nothing was injected."""

    streams: Streams
    quiet: list[tuple[float, float]]

    @cached_property
    def noise_s(self) -> float:
        """How long a gap may well be without any prompt, over a stretch of a second."""
        step_s = 0.0 if math.isnan(self.streams.step_s) else self.streams.step_s
        return max(self.over(1.0)["high_s"] or 0.0, step_s, LEAST_NOISE_S)

    def over(self, length_s: float) -> dict[str, Any]:
        """In windows of this length: their number, the median, and the upper end of the range of 95 %."""
        found = np.empty(0) if math.isnan(length_s) else control_s(self.streams, self.quiet, length_s)
        high = float(np.quantile(found, CONTROL_QUANTILE)) if len(found) else None
        return {"n": len(found), "median_s": float(np.median(found)) if len(found) else None, "high_s": high}


def _rungs(lengths: Sequence[int], used: Sequence[Injection], controls: _Controls) -> list[dict[str, Any]]:
    """One entry a length: what the injections of that length show, and the freezes of as long without one."""
    of = [[each for each in used if each.tokens == tokens] for tokens in lengths]
    freezes, ttfts = (spread_of(_samples(of, name), controls.noise_s) for name in ("freeze_s", "ttft_s"))
    return [
        {
            "tokens": tokens,
            "prompt_tokens": _median([each.prompt_tokens for each in group]),
            "n": len(group),
            "ttft_s": ttft,
            "freeze_s": freeze | {"max": _most([float(each.window.freeze_s.max()) for each in group])},
            "tokens_meanwhile": _median([float(np.median(each.window.tokens)) for each in group]),
            "chunks": _median([each.chunks for each in group]),
            "control": controls.over(ttft["median"] if group else float("nan")),
        }
        for tokens, group, ttft, freeze in zip(lengths, of, ttfts, freezes, strict=True)
    ]


def _samples(groups: Sequence[Sequence[Injection]], name: str) -> list[Floats]:
    return [np.array([getattr(each, name) for each in group], dtype=np.float64) for group in groups]


def _line(used: Sequence[Injection], name: str) -> dict[str, Any] | None:
    """Seconds over prompt tokens, from all injections; None without two lengths."""
    by_length: dict[int, list[float]] = {}
    for each in used:
        by_length.setdefault(each.tokens, []).append(each.prompt_tokens)
    tokens = np.array([float(np.median(by_length[each.tokens])) for each in used])
    line = theil_sen(tokens, np.array([getattr(each, name) for each in used]))
    return None if line is None else _told(line)


def _told(line: Line) -> dict[str, Any]:
    return {
        "at_zero_s": line.at_zero,
        "s_per_1k_tokens": 1000 * line.per_x,
        "ci95": None if line.ci95 is None else [1000 * end for end in line.ci95],
        "tokens_per_s": ratio(1.0, line.per_x),
    }


def _decode(run: Run, streams: Streams) -> dict[str, Any]:
    """ITL of the baseline by number of streams, and the power of that number with which it grows: 0 where a pass reads
    the weights whatever the number, 1 where each stream costs the same."""
    names = [str(name) for name in run.requests["stage"].dropna().unique() if str(name).startswith(BASELINE)]
    counts = [(int(name.removeprefix(BASELINE)), name) for name in names]
    levels = [{"streams": count, **_itl(run, run.where("stage", name))} for count, name in sorted(counts)]
    known = [(each["streams"], each["itl_s"]) for each in levels if each["itl_s"]]
    (few, least_s), (many, most_s) = (known[0], known[-1]) if known else ((1, None), (1, None))
    power = math.log(most_s / least_s) / math.log(many / few) if least_s and most_s and many > few else None
    return {"by_streams": levels, "power": power, "step_s": None if np.isnan(streams.step_s) else streams.step_s}


def _itl(run: Run, rows: Bools) -> dict[str, Any]:
    """Median time per token while all streams of one level decoded."""
    mine = rows & run.where("class", VICTIM) & run.ok
    if not mine.any():
        return {"itl_s": None, "n": 0}
    gaps, events = run.gaps, run.events
    from_ns, until_ns = run.column("first_token_ns")[mine].max(), run.column("last_token_ns")[mine].min()
    end_ns = events.arrival_ns[gaps.end]
    chosen = mine[gaps.row] & (end_ns - gaps.gap_ns >= from_ns) & (end_ns <= until_ns)
    chosen &= events.tokens[gaps.end] != UNKNOWN
    each_s = gaps.gap_ns[chosen] / np.maximum(events.tokens[gaps.end[chosen]], 1) / 1e9
    return {"itl_s": float(np.median(each_s)) if len(each_s) else None, "n": len(each_s)}


def _median(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known and 2 * len(known) > len(values) else None


def _most(values: Sequence[float]) -> float | None:
    return max(values, default=None)
