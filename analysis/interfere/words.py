"""What the experiment on interference says, for text and page alike."""

from collections.abc import Mapping
from typing import Any

from analysis.interfere.verdict import BLOCKED, CHUNKED, ISOLATED
from analysis.report.wording import interval, seconds

Part = Mapping[str, Any]

KINDS = {
    BLOCKED: "Long prompts block decode",
    CHUNKED: "Freezes are bounded by chunks",
    ISOLATED: "Decode is isolated from prefill",
}


def rounded(tokens: float) -> str:
    """Two significant digits: the estimate is no better."""
    return f"{float(f'{tokens:.2g}'):,.0f}"


def ends(ci95: list[float] | None) -> str:
    """An interval of a freeze; empty where there is none."""
    return interval("freeze", None, ci95)


def counted(injections: Part) -> str:
    """How many injections count, and why the others do not."""
    left_out = [f"{n} {why.replace('_', ' ')}" for why, n in injections["left_out"].items() if n]
    tail = f"; left out: {', '.join(left_out)}" if left_out else ""
    return f"{injections['used']} of {injections['sent']} injections count{tail}"


def whose(result: Part) -> str:
    """Of which streams the figures are; empty where of all."""
    if not result["several_engines"]:
        return ""
    return "the streams are on several engines: the figures are of those on the engine that read the prompt"


def nothing_to_do(kind: str) -> str:
    """Why there is no advice."""
    return "Smaller chunks would gain nothing." if kind == ISOLATED else "Nothing: the freezes are short enough."


def remedies(kind: str, advice: Part) -> list[tuple[str, str, str]]:
    """What helps, what it brings, and at what price."""
    first = "Prefill in chunks" if kind == BLOCKED else "Smaller chunks"
    return [
        (
            f"{first}: {advice['budget_tokens']:,} tokens a pass (vLLM: --max-num-batched-tokens)",
            f"each piece of b tokens takes about b x {seconds(advice['s_per_1k_tokens'])} / 1,000, so the longest gap "
            f"becomes about {seconds(advice['expected_freeze_s'])}",
            f"the longest prompt takes {advice['passes']:,} passes, {seconds(advice['ttft_extra_s'])} more of decode "
            "in its TTFT",
        ),
        ("A pool of their own for long prompts", "short requests are never behind one", "GPUs set apart"),
        ("Prefill and decode on servers of their own", "no prefill stops a stream", "the KV cache has to be sent over"),
    ]
