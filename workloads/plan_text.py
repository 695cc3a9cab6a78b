"""What a run would send, as numbers and as a page of text."""

import math
from array import array
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from workloads.load_spec import Trace
from workloads.request import Session, Turn, turn_count
from workloads.schedule import Schedule, Stage
from workloads.shapes import is_own
from workloads.trace_formats import TraceReport

SAMPLE_SESSIONS = 1_000
"""How many sessions of a plan without an end are looked at."""

SKETCHED = 5
RATE_BINS = 60
LENGTH_BINS = 16
BARS = "▁▂▃▄▅▆▇█"


def plan(schedule: Schedule) -> dict[str, Any]:
    """The plan as JSON data: sessions, requests and tokens by class, warm-up included; durations in seconds.

    Prompt tokens count the whole prompt of each request, history included. `prefill_share` and `decode_share` are a
    class's part of all prompt tokens and of all output tokens. `arrivals` counts the sessions that begin in each bin of
    the run. Of a closed loop, whose length hangs on the server, `totals` and `arrivals` are null and the classes'
    shapes come from its first sessions; `counted` says how many.
    """
    endless = schedule.loop == "closed"
    due = array("q")
    first: list[dict[str, Any]] = []
    tallies = {name: _Tally() for name in schedule.workload.classes}
    for session in islice(schedule.sessions(), SAMPLE_SESSIONS) if endless else schedule.sessions():
        tallies[session.class_name].add(session)
        due.append(session.due_ns or 0)
        if len(first) < SKETCHED:
            first.append(_sketch(session))
    totals = {key: sum(tally.sums()[key] for tally in tallies.values()) for key in _Tally().sums()}
    trace = schedule.workload.trace
    return {
        "name": schedule.workload.name,
        "seed": schedule.seed,
        "loop": schedule.loop,
        "concurrency": schedule.concurrency,
        "requests": schedule.requests,
        "duration_s": _length_s(schedule.stages),
        "drain_s": schedule.drain_ns / 1e9,
        "stages": [_stage(stage) for stage in schedule.stages],
        "primers": sum(1 for _ in schedule.primers()),
        "trace": trace and schedule.trace_report and _trace(trace, schedule.trace_report),
        "counted": len(due),
        "totals": None if endless else totals,
        "arrivals": None if endless else _arrivals(due, schedule.stages),
        "classes": {name: _class(tally, totals) for name, tally in tallies.items()},
        "first_sessions": first,
    }


def render_plan(plan: dict[str, Any], more: Sequence[str] = ()) -> str:
    """The plan as text of at most about 100 columns, ending in a newline; `more` are lines after its tables."""
    parts = (_head(plan), _trace_lines(plan), _class_table(plan), _length_table(plan), more, _session_lines(plan))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "measured": stage.measured,
        "start_s": stage.start_ns / 1e9,
        "end_s": None if stage.end_ns is None else stage.end_ns / 1e9,
        "offered_rps": stage.offered_rps,
    }


def _trace(trace: Trace, report: TraceReport) -> dict[str, Any]:
    return {
        "file": trace.file,
        "format": trace.format,
        "rows": report.rows,
        "used": report.used,
        "left_out": report.rows - report.used - report.n_dropped,
        "reordered": report.reordered,
        "dropped": [
            {"reason": reason, "count": count, "first_lines": lines}
            for reason, (count, lines) in sorted(report.dropped.items(), key=lambda item: -item[1][0])
        ],
    }


def _arrivals(due_ns: Sequence[int], stages: Sequence[Stage]) -> dict[str, Any] | None:
    """Sessions that begin in each of `RATE_BINS` equal parts of the run; None without sessions."""
    if not due_ns:
        return None
    end_s = _length_s(stages) or (due_ns[-1] + 1) / 1e9
    counts, _ = np.histogram(np.asarray(due_ns) / 1e9, bins=RATE_BINS, range=(0, end_s))
    return {"bin_s": end_s / RATE_BINS, "sessions": counts.tolist()}


def _length_s(stages: Sequence[Stage]) -> float | None:
    end_ns = stages[-1].end_ns
    return None if end_ns is None else end_ns / 1e9


class _Tally:
    """The lengths of a class's sessions, in little memory: a trace may have millions."""

    def __init__(self) -> None:
        self.turns, self.inputs, self.outputs, self.thoughts = (array("q") for _ in range(4))
        self.fresh_tokens = self.held_token_steps = 0
        self._shared: set[tuple[int, ...]] = set()

    def add(self, session: Session) -> None:
        self.turns.append(turn_count(session))
        for turn in (turn for this in session.rounds for turn in this.turns):
            self.inputs.append(turn.input_tokens)
            self.outputs.append(turn.output_tokens)
            self.fresh_tokens += self._fresh(turn)
            self.held_token_steps += turn.output_tokens * (turn.input_tokens + turn.output_tokens // 2)
            if turn.thinking_tokens:
                self.thoughts.append(turn.thinking_tokens)

    def _fresh(self, turn: Turn) -> int:
        """Tokens of the prompt that no earlier one had: its own, and of what prompts share the first use of each."""
        new = [p for p in (*turn.passages, *turn.tools) if is_own(p) or p.key not in self._shared]
        self._shared.update(p.key for p in new if not is_own(p))
        return sum(p.tokens for p in new)

    def sums(self) -> dict[str, int]:
        """`fresh_prompt_tokens` are those left to compute if a prefix cache had all the others; `held_token_steps` sums
        up, over every output token, what its sequence holds in the KV cache."""
        return {
            "sessions": len(self.turns),
            "requests": len(self.inputs),
            "prompt_tokens": sum(self.inputs),
            "fresh_prompt_tokens": self.fresh_tokens,
            "output_tokens": sum(self.outputs),
            "held_token_steps": self.held_token_steps,
        }


def _class(tally: _Tally, totals: dict[str, int]) -> dict[str, Any]:
    sums = tally.sums()
    return sums | {
        "prefill_share": _share(sums["prompt_tokens"], totals["prompt_tokens"]),
        "decode_share": _share(sums["output_tokens"], totals["output_tokens"]),
        "turns_per_session": _spread(tally.turns),
        "input": _spread(tally.inputs),
        "output": _spread(tally.outputs),
        "thinking": _spread(tally.thoughts),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _spread(values: Sequence[int]) -> dict[str, Any] | None:
    """None where there is nothing to describe."""
    if not values:
        return None
    p50, p95 = np.quantile(values, [0.5, 0.95]).tolist()
    return {
        "mean": float(np.mean(values)),
        "p50": p50,
        "p95": p95,
        "max": float(max(values)),
        "histogram": _histogram(values),
    }


def _histogram(values: Sequence[int]) -> dict[str, Any]:
    """Counts in bins of one where the values lie close together, else in bins of equal width on a logarithmic scale."""
    low, high = min(values), max(values)
    if high - low < LENGTH_BINS:
        edges = np.arange(low, high + 2, dtype=np.float64)
    else:
        edges = np.geomspace(low, high, LENGTH_BINS + 1)
        edges[0], edges[-1] = low, high  # which it may miss by a rounding error
    return {"edges": edges.tolist(), "counts": np.histogram(values, bins=edges)[0].tolist()}


def _sketch(session: Session) -> dict[str, Any]:
    return {
        "number": session.number,
        "class": session.class_name,
        "due_s": None if session.due_ns is None else session.due_ns / 1e9,
        "rounds": [
            {"turns": [[t.input_tokens, t.output_tokens] for t in this.turns], "pause_s": this.pause_ns / 1e9}
            for this in session.rounds
        ],
    }


def _head(plan: dict[str, Any]) -> list[str]:
    lines = [f"{plan['name']}: {_load(plan)}, seed {plan['seed']}"]
    lines += [f"  {_stage_line(stage)}" for stage in plan["stages"]]
    totals = plan["totals"]
    if totals:
        lines.append(
            f"  {totals['sessions']:,} sessions, {totals['requests']:,} requests: "
            f"{totals['prompt_tokens']:,} prompt tokens, {totals['output_tokens']:,} output tokens"
        )
    elif plan["requests"] is None:
        lines.append("  how many requests there will be depends on the server: a user sends when the answer is there")
    else:
        lines.append(f"  {plan['requests']:,} measured requests; how long they take depends on the server")
    if plan["primers"]:
        lines.append(f"  warming the prefix cache before the clock starts: {plan['primers']:,} prompts")
    return [*lines, *_rate_lines(plan["arrivals"])]


def _rate_lines(arrivals: dict[str, Any] | None) -> list[str]:
    if arrivals is None:
        return []
    counts, bin_s = arrivals["sessions"], arrivals["bin_s"]
    mean, peak = sum(counts) / len(counts) / bin_s, max(counts) / bin_s
    return [f"  {bars(counts)}  new sessions/s: mean {mean:.3g}, peak {peak:.3g}"]


def bars(counts: Sequence[int]) -> str:
    """A line of bars as high as the counts are beside the largest; nothing is a space."""
    top = max(counts, default=0)
    return "".join(BARS[math.ceil(count / top * len(BARS)) - 1] if count else " " for count in counts)


def _trace_lines(plan: dict[str, Any]) -> list[str]:
    """What became of the rows of a trace."""
    trace = plan["trace"]
    if not trace:
        return []
    lines = [f"{trace['format']} trace {trace['file']}: {trace['rows']:,} rows read, {trace['used']:,} used"]
    if trace["left_out"]:
        lines.append(f"  {trace['left_out']:,} outside the window, the run or the sample")
    if trace["reordered"]:
        lines.append(f"  {trace['reordered']:,} put in order of time")
    for drop in trace["dropped"]:
        where = ", ".join(map(str, drop["first_lines"])) + (", …" if drop["count"] > len(drop["first_lines"]) else "")
        lines.append(f"  {drop['count']:,} dropped: {drop['reason']} (line {where})")
    return lines


def _load(plan: dict[str, Any]) -> str:
    if plan["loop"] == "open":
        return "open loop (requests leave when due)"
    users = plan["concurrency"]
    return f"closed loop, {users} user{'s' if users != 1 else ''} at a time"


def _stage_line(stage: dict[str, Any]) -> str:
    end = "until its requests are done" if stage["end_s"] is None else f"to {stage['end_s']:g} s"
    rate = "" if stage["offered_rps"] is None else f", {stage['offered_rps']:.3g} requests/s"
    return f"{stage['name']}: from {stage['start_s']:g} s {end}{rate}{'' if stage['measured'] else ' (not measured)'}"


def _class_table(plan: dict[str, Any]) -> list[str]:
    note = "" if plan["totals"] else f" (of the first {plan['counted']:,} sessions)"
    rows = [["class" + note, "sessions", "requests", "prompt tokens", "of prefill", "output tokens", "of decode"]]
    for name, each in plan["classes"].items():
        sessions, requests, prompts, outputs = (
            f"{each[key]:,}" for key in ("sessions", "requests", "prompt_tokens", "output_tokens")
        )
        shares = ["" if each[key] is None else f"{each[key]:.0%}" for key in ("prefill_share", "decode_share")]
        rows.append([name, sessions, requests, prompts, shares[0], outputs, shares[1]])
    return _aligned(rows)


def _length_table(plan: dict[str, Any]) -> list[str]:
    rows = [["tokens", "mean", "p50", "p95", "max", "min", "shape"]]
    for name, each in plan["classes"].items():
        for what, key in (("prompt", "input"), ("output", "output"), ("of it thinking", "thinking")):
            if each[key]:
                rows.append(_length_row(f"{name} {what}", each[key], ",.0f"))
        turns = each["turns_per_session"]
        if turns and turns["max"] > 1:
            rows.append(_length_row(f"{name} turns", turns, ",.3g"))
    return _aligned(rows, left=(0, len(rows[0]) - 1))


def _length_row(label: str, spread: dict[str, Any], form: str) -> list[str]:
    histogram = spread["histogram"]
    numbers = [*(spread[key] for key in ("mean", "p50", "p95", "max")), histogram["edges"][0]]
    return [label, *(format(number, form) for number in numbers), bars(histogram["counts"])]


def _session_lines(plan: dict[str, Any]) -> list[str]:
    lines = ["first sessions, prompt>output tokens:"]
    for session in plan["first_sessions"]:
        due = "" if session["due_s"] is None else f"{session['due_s']:9.3f} s  "
        lines.append(f"  {due}{session['class']}: {_rounds(session['rounds'])}")
    return lines


def _rounds(rounds: Sequence[dict[str, Any]]) -> str:
    """`449>135, pause 2.5 s, 700>80 | 700>95, … 3 more`: at most four rounds, no pause after the last."""
    shown = rounds[:4]
    parts = []
    for i, this in enumerate(shown, 1):
        parts.append(" | ".join(f"{prompt}>{output}" for prompt, output in this["turns"]))
        if this["pause_s"] and i < len(shown):
            parts.append(f"pause {this['pause_s']:.1f} s")
    return ", ".join(parts) + (f", … {len(rounds) - 4} more" if len(rounds) > 4 else "")


def _aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Rows in columns, numbers to the right and those in `left` to the left."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
