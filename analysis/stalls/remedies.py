"""What to do about the freezes of a run, and at what price, computed from what it measured."""

from typing import Any

import numpy as np

from analysis.run import Run
from analysis.server import Server
from analysis.stalls.causes import Episodes, usual_step_ns
from analysis.stalls.frozen import settings
from analysis.stalls.interference import duration_s
from analysis.units import seconds

LEAST_BUDGET_TOKENS = 64
Remedy = dict[str, Any]


def remedies(run: Run, known: Episodes, told: dict[str, Any]) -> list[Remedy]:
    """What fits the causes found, the most harmful cause first; each with what it saves and its price, in numbers.

    `saves_s`: seconds frozen that would not have been, in this run. Nothing for a cause that was not found.

    Args:
        told: What `interference` says of the run.
    """
    frozen_s = {cause: float(known.frozen_s[known.cause == cause].sum()) for cause in np.unique(known.cause).tolist()}
    found: list[Remedy] = []
    for cause, saves_s in sorted(frozen_s.items(), key=lambda each: -each[1]):
        if cause == "prefill_interference" and told["slope"] is not None:
            found += _for_prefill(run, known, told, saves_s)
        elif cause in _PLAIN:
            remedy, price = _PLAIN[cause]
            found.append(_one(cause, cause, remedy, price, saves_s, **_numbers(run, known, cause)))
    return found


def _one(cause: str, name: str, remedy: str, price: str, saves_s: float, **numbers: float | None) -> Remedy:
    return {"cause": cause, "name": name, "remedy": remedy, "price": price, "saves_s": saves_s, **numbers}


def _for_prefill(run: Run, known: Episodes, told: dict[str, Any], frozen_s: float) -> list[Remedy]:
    slope_s = told["slope"]["s_per_1k_tokens"] / 1000
    tokens = float(np.median(known.match.tokens[known.interference & (known.match.tokens > 0)]))
    step_s, target_s = usual_step_ns(run) / 1e9, target_gap_s(run)
    budget = budget_tokens(slope_s, target_s)
    passes = int(np.ceil(tokens / budget))
    idle = 1 - _busy_share(known)
    prompts = known.waits.tokens[known.waits.from_ns == run.column("sent_ns")[known.waits.row]]
    long = prompts >= told["effect"]["long_prompt_tokens"]
    prompts_s, long_s = (
        slope_s * float(each.sum()) / max(duration_s(known), 1e-9) for each in (prompts, prompts[long])
    )
    cause, was_s = "prefill_interference", told["slope"]["longest_s"]
    chunked = _one(
        cause, "chunked_prefill",
        f"chunked prefill with a budget of {budget:,} tokens a pass: the longest freeze falls from {_s(was_s)} to "
        f"about {_s(budget * slope_s)}",
        f"a prompt of {tokens:,.0f} tokens takes {passes} passes, each with a decode step in it: its TTFT grows by "
        f"about {_s(passes * step_s)}",
        max(0.0, frozen_s * (1 - budget * slope_s / was_s)),
        budget_tokens=budget, expected_freeze_s=budget * slope_s, ttft_extra_s=passes * step_s,
    )  # fmt: skip
    first = _one(
        cause, "decode_first",
        "decode first: prompts run only in the time that decoding leaves",
        f"streams were decoding {1 - idle:.0%} of the time"
        + (f": a prompt takes about {1 / idle:.1f} times as long" if idle > 0.02 else ": long prompts would starve"),
        frozen_s, idle_share=idle,
    )  # fmt: skip
    pool = _one(
        cause, "long_prompts_apart",
        f"a pool of its own for prompts of {told['effect']['long_prompt_tokens']:,} tokens and more "
        f"({long.mean():.1%} of the requests)",
        f"their prefill alone keeps {long_s:.2f} such servers busy; inside that pool they still stop one another",
        frozen_s, servers_busy=long_s, share_of_requests=float(long.mean()),
    )  # fmt: skip
    apart = _one(
        cause, "disaggregation",
        "prefill and decode on servers of their own: no prefill stops a stream",
        f"all prompts together keep {prompts_s:.2f} prefill servers busy, and the KV cache of every prompt has to be "
        "sent over before its second token",
        frozen_s, servers_busy=prompts_s,
    )  # fmt: skip
    return [chunked, first, pool, apart]


def target_gap_s(run: Run) -> float:
    """The longest gap that the run's own limits allow; without any, half of what makes a stall."""
    workload = run.meta.get("workload")
    good = (workload.get("good") if isinstance(workload, dict) else None) or {}
    asked = [seconds(value) for name, value in good.items() if name.startswith("gap_")]
    return min([*asked, settings(run.meta)[0] / 2])


def budget_tokens(slope_s: float, target_s: float) -> int:
    """The largest power of two of prompt tokens that is read within the target."""
    fitting = target_s / slope_s if slope_s > 0 else LEAST_BUDGET_TOKENS
    return int(2 ** max(np.log2(LEAST_BUDGET_TOKENS), np.floor(np.log2(max(fitting, 1)))))


def _busy_share(known: Episodes) -> float:
    """The part of the run's time in which any stream was decoding and moved."""
    decoding = known.streams.decoding
    if len(decoding.at_ns) < 2:
        return 0.0
    length = np.diff(decoding.at_ns)
    any_ns = float(length[decoding.value[:-1] > 0].sum())
    stopped_ns = float(known.streams.stopped.area(decoding.at_ns[:1], decoding.at_ns[-1:])[0])
    return max(0.0, any_ns - stopped_ns) / float(length.sum())


_PLAIN = {
    "engine_pause": (
        "look at what the server did at these times: its log, garbage collection, checkpoints, a neighbour on the GPU; "
        "prompts of other clients stop streams too",
        "none before the reason is known",
    ),
    "preemption": (
        "fewer sequences at once (--max-num-seqs), or more memory for the KV cache",
        "requests wait in the queue instead of in mid-stream: TTFT grows",
    ),
    "one_stream": (
        "scrape the server's /metrics (--metrics) to tell preemption from a slow connection",
        "one small request a second",
    ),
    "buffering": (
        "no buffering and no compression of responses in the proxy (nginx: proxy_buffering off), and TCP_NODELAY",
        "more and smaller packets",
    ),
    "client": ("give the client a core of its own, or a lower load", "none for the server"),
}


def _numbers(run: Run, known: Episodes, cause: str) -> dict[str, float | None]:
    if cause != "preemption":
        return {}
    server, mine = Server.of(run), known.cause == cause
    if server is None:
        return {}
    return {"kv_usage_peak": float(np.nanmax(server.peak("kv_usage", known.start_ns[mine], known.end_ns[mine])))}


def _s(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.0f} ms"
