"""What the experiment says: do prefills block decode, are they cut into chunks, or do they leave it alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.checks import interruption, saturation
from analysis.interfere.streams import INJECTED
from analysis.report.wording import seconds
from analysis.run import Run
from analysis.stalls.remedies import budget_tokens

BLOCKED, CHUNKED, ISOLATED = "blocked", "chunked", "isolated"
Part = Mapping[str, Any]

FEWEST = 2
"""Injections that a length needs."""
WHOLE = 1.5
"""A prompt in fewer pieces than this was read as one."""
WHOLE_SHARE = 0.7
"""So was one that stopped the streams for more than this share of its TTFT."""
STEPS = 1.5
"""A gap below so many usual ones is no freeze."""
SLOWED, FEWEST_DUE = 1 - 1 / STEPS, 10
"""Streams that lost this share of their tokens had passes that long; of fewer tokens nothing can be told."""
FULL_STEPS, FULL_S = 20, 0.5
"""A one-token prompt that waits longer than both of these finds the batch full."""
DEFAULT_TARGET_S = 0.1


def of(run: Run, result: Part, max_freeze_s: float | None) -> dict[str, Any]:
    """`verdict`, `gate` and `advice` for what `interfere` has found."""
    reason = doubt(run, result)
    verdict = {"kind": None, "chunk_tokens": None, "reason": reason} if reason else _verdict(result)
    return {
        "verdict": verdict,
        "gate": _gate(result, verdict, max_freeze_s),
        "advice": _advice(result, verdict, max_freeze_s),
    }


def exit_status(result: Part) -> int:
    """0: a verdict, and within the limit if one was given; 1: a freeze above it; 3: neither can be told."""
    if result["verdict"]["kind"] is None or result["gate"]["verdict"] == "no_verdict":
        return 3
    return int(result["gate"]["verdict"] == "fail")


def doubt(run: Run, result: Part) -> str | None:
    """Why there is no verdict, if so."""
    return (
        interruption(run)
        or _nothing_succeeded(run, result)
        or _streams_ended(result)
        or _few(result)
        or saturation(run, run.measured, [])
        or _full(result)
    )


def _nothing_succeeded(run: Run, result: Part) -> str | None:
    counted = result["injections"]
    if counted["left_out"]["failed"] < counted["sent"]:
        return None
    failed = run.where("class", INJECTED) & run.sent & ~run.ok
    errors = run.requests["error"][failed].dropna()
    return f"no injected prompt was answered{f': {errors.iloc[0]}' if len(errors) else ''}"


def _streams_ended(result: Part) -> str | None:
    counted = result["injections"]
    changed = counted["left_out"]["streams_changed"]
    if 2 * changed <= counted["sent"]:
        return None
    return (
        f"streams began or ended in {changed} of {counted['sent']} windows: the server ends answers early or its "
        "context is short: lower --lengths, or see whether it heeds ignore_eos"
    )


def _few(result: Part) -> str | None:
    longest = result["rungs"][-1] if result["rungs"] else {"n": 0, "tokens": 0}
    if longest["n"] >= FEWEST:
        return None
    left_out = result["injections"]["left_out"]
    why = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in left_out.items() if n)
    what = "choose another --seed" if left_out["cached"] else "raise --repeats"
    return (
        f"too few injections: {longest['n']} of {longest['tokens']:,} tokens count, {FEWEST} are needed"
        f"{f' (left out: {why})' if why else ''}: {what}"
    )


def _full(result: Part) -> str | None:
    wait_s, step_s = result["one_token"]["ttft_s"]["median"], result["decode"]["step_s"]
    if wait_s is None or step_s is None or wait_s <= max(FULL_S, FULL_STEPS * step_s):
        return None
    return (
        f"the batch was full: a one-token prompt waited {seconds(wait_s)}, {wait_s / step_s:.0f} steps of the streams: "
        "lower --streams, or take other load off the server"
    )


def _verdict(result: Part) -> dict[str, Any]:
    """By the longest prompt, which tells the most: its last piece, in part, weighs the least."""
    longest, step_s = result["rungs"][-1], result["decode"]["step_s"]
    stands_out, lost, freeze_s = frozen(longest, step_s), _lost(longest, step_s), longest["freeze_s"]["median"]
    longer = freeze_s > STEPS * max(step_s, longest["control"]["median_s"] or 0.0)
    if not stands_out and not longer and lost < SLOWED:
        return {"kind": ISOLATED, "chunk_tokens": None, "reason": None}
    if _in_pieces(result, longest):
        return {"kind": CHUNKED, "chunk_tokens": longest["prompt_tokens"] / pieces(result, longest), "reason": None}
    if stands_out:
        return {"kind": BLOCKED, "chunk_tokens": None, "reason": None}
    reason = (
        f"beside the longest prompt streams stood still for {seconds(freeze_s)} and lost {lost:.0%} of their tokens, "
        f"but without any prompt they stand still for up to {seconds(longest['control']['high_s'] or 0.0)}: take other "
        "load off the server and this machine"
    )
    return {"kind": None, "chunk_tokens": None, "reason": reason}


def _lost(rung: Part, step_s: float | None) -> float:
    """The share of their tokens that streams did not get while prompts of a length were computed; 0 where too few were
    due to tell. A busy machine can hide freezes among its own, but not that."""
    due = rung["ttft_s"]["median"] / step_s if step_s and rung["ttft_s"]["median"] else 0.0
    got = rung["tokens_meanwhile"]
    return max(0.0, 1 - (got + 1) / due) if due >= FEWEST_DUE and got is not None else 0.0


def pieces(result: Part, rung: Part) -> float:
    """In how many pieces prompts of a length were read.

    Where no gap stands out, from the tokens that streams got meanwhile, one a pass, less those that they got while a
    one-token prompt was on its way and in the queue.
    """
    if rung["chunks"] is not None:
        return float(rung["chunks"])
    on_the_way = (result["one_token"]["tokens_meanwhile"] or 1.0) - 1
    return max(1.0, float(rung["tokens_meanwhile"]) - on_the_way)


def _in_pieces(result: Part, rung: Part) -> bool:
    """Whether the prompts of a length stopped the streams several times, each time for much less than their TTFT."""
    short = bool(rung["freeze_s"]["median"] < WHOLE_SHARE * rung["ttft_s"]["median"])
    return short and pieces(result, rung) >= WHOLE


def frozen(rung: Part, step_s: float) -> bool:
    """Whether the freezes of a length are out of the range of those without any prompt, by their interval too."""
    freeze, control = rung["freeze_s"], rung["control"]
    low_s = freeze["ci95"][0] if freeze["ci95"] else freeze["median"]
    stands_out = freeze["median"] > max(STEPS * step_s, control["high_s"] or 0.0)
    return bool(stands_out and low_s > (control["median_s"] or 0.0))


def _gate(result: Part, verdict: Part, max_freeze_s: float | None) -> dict[str, Any]:
    """The longest of the lengths' median freezes against the limit; no verdict where its interval straddles it."""
    known = [rung for rung in result["rungs"] if rung["n"] >= FEWEST]
    worst = max(known, key=lambda rung: rung["freeze_s"]["median"], default=None)
    gate = {
        "max_freeze_s": max_freeze_s,
        "value_s": worst and worst["freeze_s"]["median"],
        "ci95": worst and worst["freeze_s"]["ci95"],
        "tokens": worst and worst["tokens"],
        "verdict": None,
        "reason": None,
    }
    if max_freeze_s is None:
        return gate
    outcome, reason = ("no_verdict", verdict["reason"]) if worst is None or verdict["reason"] else _judged(gate, worst)
    return gate | {"verdict": outcome, "reason": reason}


def _judged(gate: Part, worst: Part) -> tuple[str, str | None]:
    limit_s = gate["max_freeze_s"]
    low_s, high_s = gate["ci95"] or (gate["value_s"], gate["value_s"])
    if high_s < limit_s:
        return "pass", None
    control_s = worst["control"]["high_s"]
    if control_s is not None and control_s >= limit_s:
        text = f"streams stand still for {seconds(control_s)} without any prompt too: something else slows the server"
        return "no_verdict", text
    if low_s < limit_s:
        return "no_verdict", "the interval straddles the limit: raise --repeats"
    return "fail", None


def _advice(result: Part, verdict: Part, max_freeze_s: float | None) -> dict[str, Any] | None:
    """A budget that keeps freezes within the limit (without one: 100 ms), and what it costs the longest prompt; None
    where they are within it already.

    A piece of b tokens holds the streams up for about b times the seconds per token that they lost.
    """
    target_s = max_freeze_s or DEFAULT_TARGET_S
    if verdict["kind"] not in (BLOCKED, CHUNKED) or result["rungs"][-1]["freeze_s"]["median"] <= target_s:
        return None
    longest, step_s = result["rungs"][-1], result["decode"]["step_s"]
    read_in = pieces(result, longest) if verdict["kind"] == CHUNKED else 1.0
    slope_s = (longest["freeze_s"]["median"] - step_s) * read_in / longest["prompt_tokens"]
    budget = budget_tokens(slope_s, max(0.0, target_s - step_s))
    passes = int(np.ceil(longest["prompt_tokens"] / budget))
    return {
        "target_s": target_s,
        "budget_tokens": budget,
        "s_per_1k_tokens": 1000 * slope_s,
        "expected_freeze_s": budget * slope_s + step_s,
        "passes": passes,
        "ttft_extra_s": max(0.0, passes - read_in) * step_s,
    }
