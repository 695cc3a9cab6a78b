"""What a run would send, as numbers and as a page of text."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from workloads.request import Session, Turn
from workloads.schedule import Schedule, Stage

SAMPLE_SESSIONS = 1_000
"""How many sessions of a plan without an end are looked at."""

SKETCHED = 5


def plan(schedule: Schedule) -> dict[str, Any]:
    """The plan as JSON data: sessions, requests and tokens by class, warm-up included; durations in seconds.

    Prompt tokens count the whole prompt of each request, history included. Of a closed loop, whose length hangs on the
    server, `totals` is null and the classes' shapes come from its first sessions; `counted` says how many.
    """
    endless = schedule.loop == "closed"
    sessions = list(islice(schedule.sessions(), SAMPLE_SESSIONS) if endless else schedule.sessions())
    by_class: dict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        by_class[session.class_name].append(session)
    return {
        "name": schedule.workload.name,
        "seed": schedule.seed,
        "loop": schedule.loop,
        "concurrency": schedule.concurrency,
        "requests": schedule.requests,
        "duration_s": _length_s(schedule.stages),
        "drain_s": schedule.drain_ns / 1e9,
        "stages": [_stage(stage) for stage in schedule.stages],
        "counted": len(sessions),
        "totals": None if endless else _sums(sessions),
        "classes": {name: _class(by_class[name]) for name in schedule.workload.classes},
        "first_sessions": [_sketch(session) for session in sessions[:SKETCHED]],
    }


def render_plan(plan: dict[str, Any]) -> str:
    """The plan as text of at most about 100 columns, ending in a newline."""
    return (
        "\n".join([*_head(plan), "", *_class_table(plan), "", *_length_table(plan), "", *_session_lines(plan)]) + "\n"
    )


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "measured": stage.measured,
        "start_s": stage.start_ns / 1e9,
        "end_s": None if stage.end_ns is None else stage.end_ns / 1e9,
        "offered_rps": stage.offered_rps,
    }


def _length_s(stages: Sequence[Stage]) -> float | None:
    end_ns = stages[-1].end_ns
    return None if end_ns is None else end_ns / 1e9


def _turns(sessions: Iterable[Session]) -> Iterator[Turn]:
    return (turn for session in sessions for this in session.rounds for turn in this.turns)


def _sums(sessions: Sequence[Session]) -> dict[str, int]:
    turns = list(_turns(sessions))
    return {
        "sessions": len(sessions),
        "requests": len(turns),
        "prompt_tokens": sum(turn.input_tokens for turn in turns),
        "output_tokens": sum(turn.output_tokens for turn in turns),
    }


def _class(sessions: Sequence[Session]) -> dict[str, Any]:
    turns = list(_turns(sessions))
    thinking = [turn.thinking_tokens for turn in turns if turn.thinking_tokens]
    return _sums(sessions) | {
        "turns_per_session": _spread([sum(len(r.turns) for r in session.rounds) for session in sessions]),
        "input": _spread([turn.input_tokens for turn in turns]),
        "output": _spread([turn.output_tokens for turn in turns]),
        "thinking": _spread(thinking) if thinking else None,
    }


def _spread(values: Sequence[int]) -> dict[str, float] | None:
    """None where there is nothing to describe."""
    if not values:
        return None
    p50, p95 = np.quantile(values, [0.5, 0.95]).tolist()
    return {"mean": float(np.mean(values)), "p50": p50, "p95": p95, "max": float(max(values))}


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
    rows = [["class" + note, "sessions", "requests", "prompt tokens", "output tokens"]]
    for name, each in plan["classes"].items():
        counts = [each[key] for key in ("sessions", "requests", "prompt_tokens", "output_tokens")]
        rows.append([name, *(f"{count:,}" for count in counts)])
    return _aligned(rows)


def _length_table(plan: dict[str, Any]) -> list[str]:
    rows = [["tokens", "mean", "p50", "p95", "max"]]
    for name, each in plan["classes"].items():
        for what, key in (("prompt", "input"), ("output", "output"), ("of it thinking", "thinking")):
            if each[key]:
                rows.append([f"{name} {what}", *(f"{each[key][k]:,.0f}" for k in ("mean", "p50", "p95", "max"))])
        turns = each["turns_per_session"]
        if turns and turns["max"] > 1:
            rows.append([f"{name} turns", *(f"{turns[k]:,.3g}" for k in ("mean", "p50", "p95", "max"))])
    return _aligned(rows)


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


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    ]
