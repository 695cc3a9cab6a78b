"""Checks on what the server did: lengths, speeds, and whether its streams were streams."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.counts import asked_output_tokens
from analysis.quantiles import Bools
from analysis.run import Run
from analysis.steady import unsteady

Text = str | None
_FASTEST_TOKENS_PER_S = 1000.0


def all_of(run: Run, rows: Bools, summary: Mapping[str, Any]) -> dict[str, Text]:
    """Text by code for the requests in the mask `rows`; None where there is nothing to warn of."""
    ok = rows & run.ok
    return {
        "cached_prompts": _cached_prompts(run, ok),
        "prompt_length": _prompt_length(run, ok),
        "output_length": _output_length(run, ok),
        "usage_mismatch": _usage_mismatch(run, ok),
        "tokens_estimated": _tokens_estimated(run, ok),
        "tokens_per_event": _tokens_per_event(run, rows, summary),
        "not_streamed": _not_streamed(run, ok),
        "buffering": _buffering(summary),
        "events_per_read": _events_per_read(summary),
        "implausible_speed": _implausible_speed(run, rows),
        "events_dropped": _events_dropped(run, rows),
        "reused_connection_step": _reused_connection_step(run, ok),
        "warmup_short": unsteady(run, ok),
        "few_samples": _few_samples(summary),
    }


def _cached_prompts(run: Run, ok: Bools) -> Text:
    fresh = ok & _meant_fresh(run)
    cached, prompt = run.column("cached_tokens")[fresh], run.column("prompt_tokens")[fresh]
    total = np.nansum(prompt[~np.isnan(cached)])
    if not total or np.nansum(cached) <= 0.01 * total:
        return None
    return (
        f"{np.nansum(cached) / total:.1%} of the prompt tokens came from the server's prefix cache though the prompts "
        "were meant to be fresh: TTFT is flattered; restart the server, change --seed, or turn prefix caching off"
    )


def _meant_fresh(run: Run) -> Bools:
    """Requests of classes whose prompts share nothing on purpose: no system prompt, no documents, one turn."""
    workload = run.meta.get("workload")
    classes = workload.get("classes") if isinstance(workload, Mapping) else None
    fresh = np.zeros(run.size, dtype=bool)
    for name, spec in (classes or {}).items():
        shape = spec.get("shape", "chat") if isinstance(spec, Mapping) else None
        if shape in ("chat", "reasoning") and not spec.get("system_tokens"):
            mine = run.classes.get(name, fresh)
            fresh = fresh | (mine if np.nanmax(run.column("turn")[mine], initial=1) == 1 else False)
    return fresh


def _prompt_length(run: Run, ok: Bools) -> Text:
    # Later turns carry the model's own answers, which are not ours to plan.
    first = ok & (run.column("turn") == 1)
    asked, got = run.column("asked_input_tokens")[first], run.column("prompt_tokens")[first]
    both = ~np.isnan(asked) & ~np.isnan(got) & (asked > 0)
    if not both.any():
        return None
    off = float(got[both].sum() / asked[both].sum() - 1)
    if abs(off) <= 0.02 or abs(float((got[both] - asked[both]).mean())) <= 2:
        return None
    return (
        f"prompts are {off:+.1%} off the plan (mean {got[both].mean():.0f} prompt tokens by the server's count, "
        f"{asked[both].mean():.0f} asked): calibrate against this server (without --no-calibrate)"
    )


def _output_length(run: Run, ok: Bools) -> Text:
    asked, got = asked_output_tokens(run)[ok], run.column("output_tokens")[ok]
    both = ~np.isnan(asked) & ~np.isnan(got)
    off = got[both] != asked[both]
    if not both.any() or off.mean() <= 0.05 or run.meta.get("ignore_eos") is False:
        return None
    shorter, longer = int((got[both] < asked[both]).sum()), int((got[both] > asked[both]).sum())
    return (
        f"output length: {shorter} of {len(off)} answers were shorter and {longer} longer than asked "
        f"(mean {got[both].mean():.1f} tokens, {asked[both].mean():.1f} asked): the load is not the one planned; "
        "use --ignore-eos where the server knows it"
    )


def _usage_mismatch(run: Run, ok: Bools) -> Text:
    wrong = ok & run.where("tokens_source", "mismatch")
    if not wrong.any():
        return None
    names = ", ".join(run.requests["request_id"][wrong].head(3))
    return (
        f"the usage of {wrong.sum()} requests says fewer tokens than there were token events and is not believed "
        f"(first: {names}): their output length, tpot and itl are undefined; check the server's usage"
    )


def _tokens_estimated(run: Run, ok: Bools) -> Text:
    guessed = ok & run.where("tokens_source", "estimated") & np.isnan(run.column("tokenizer_tokens"))
    if not guessed.any():
        return None
    return (
        f"output tokens are estimated from the events for {guessed.sum()} of {ok.sum()} requests: the server "
        "sent no usage; turn on stream_options.include_usage there"
    )


def _tokens_per_event(run: Run, rows: Bools, summary: Mapping[str, Any]) -> Text:
    unknown = rows & run.tokens_unknown & (run.column("choices") == 1) & ~run.where("tokens_source", "mismatch")
    if not unknown.any():
        return None
    return (
        f"{unknown.sum()} streams have events of several tokens ({summary['tokens']['per_event']:.2f} tokens per "
        "event) and do not say how many: itl is undefined; turn on --per-event-usage, or gate on gap or tpot"
    )


def _not_streamed(run: Run, ok: Bools) -> Text:
    played_back = ok & ~run.streamed
    if not played_back.any():
        return None
    return (
        f"{played_back.sum()} of {ok.sum()} answers were not streamed: over 95 % of their time passed before "
        "the first token, then all came at once; look for a proxy that buffers, or a server that does not stream"
    )


def _buffering(summary: Mapping[str, Any]) -> Text:
    episodes = [each for each in summary["stalls"]["episodes"] if each["cause"] == "buffering"]
    if not episodes:
        return None
    longest_s = max(each["duration_s"] for each in episodes)
    return (
        f"{len(episodes)} stalls (longest {longest_s:.2f} s) ended in a burst of what had been missed: something "
        "between server and client buffers the stream; turn off response buffering and compression in the proxy"
    )


def _events_per_read(summary: Mapping[str, Any]) -> Text:
    per_read = summary["tokens"]["events_per_read"]
    if per_read is None or per_read <= 1.5:
        return None
    return (
        f"{per_read:.1f} events arrived per read as the rule: gaps between tokens show the network's "
        "bundling, not the engine's pace; look for a buffering proxy, or a client short of CPU"
    )


def _implausible_speed(run: Run, rows: Bools) -> Text:
    tpot_s = np.where(run.column("output_tokens") > 10, run.column("tpot_s"), np.nan)
    fast = rows & run.streamed & (tpot_s < 1 / _FASTEST_TOKENS_PER_S)
    if not fast.any():
        return None
    at = int(np.nanargmin(np.where(fast, tpot_s, np.nan)))
    speed = f"{1 / tpot_s[at]:,.0f} tokens/s" if tpot_s[at] else "all tokens at once"
    return (
        f"{fast.sum()} streams were faster than {_FASTEST_TOKENS_PER_S:,.0f} tokens/s (fastest "
        f"{speed}, {run.requests['request_id'].iloc[at]}): no model writes like that; look for a cache or a buffering "
        "proxy"
    )


def _events_dropped(run: Run, rows: Bools) -> Text:
    dropped = run.column("events_dropped")[rows]
    if not np.nansum(dropped):
        return None
    return (
        f"{np.nansum(dropped):.0f} events of {(dropped > 0).sum()} requests could not be read and were dropped: "
        "check what the server sends (loadgen probe)"
    )


def _reused_connection_step(run: Run, ok: Bools) -> Text:
    ttft_s, reused = run.column("ttft_s"), run.column("reused_connection")
    old, new = ttft_s[ok & (reused == 1)], ttft_s[ok & (reused == 0)]
    if min(len(old), len(new)) < 10:
        return None
    steps = np.quantile(old, [0.1, 0.5]) - np.quantile(new, [0.1, 0.5])
    if not bool(np.all((steps > 0.03) & (steps < 0.05))):
        return None
    return (
        f"requests on reused connections take a constant {steps[1] * 1e3:.0f} ms more to the first token: delayed "
        "acknowledgement against Nagle's algorithm; set TCP_NODELAY on the server or its proxy"
    )


def _few_samples(summary: Mapping[str, Any]) -> Text:
    printed = ("ttft_s", "itl_s", "gap_s", "tpot_s")
    few = [name for name in printed if 0 < summary["metrics"][name]["n"] < 20]
    if not few:
        return None
    told = ", ".join(f"{name.removesuffix('_s')} {summary['metrics'][name]['n']}" for name in few)
    return (
        f"few samples ({told}): a p95 of fewer than 20 is hardly less than their maximum, and a limit on it takes 200: "
        "send more --requests, or run longer"
    )
