"""The plan of the experiment on interference: what is sent in which order, and how long it may take. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.interfere.result import NAME, ONE_TOKEN
from analysis.record import RequestRecord

VICTIM_PROMPT_TOKENS = 32
LEAST_SETTLE_S = 0.3
"""After the streams have begun, at least; they also get what twice their first tokens took."""
MARGIN = 1.5
"""Over the time that an injection is expected to take."""
SURE = 0.95
"""Of the time that a stream should last, as it may be faster than its baseline."""
WINDOWS_PER_STREAM = 4
"""A stream outlasts so many of the longest windows, if the context allows."""
LEAST_STREAM_TOKENS, MOST_CONTEXT_TOKENS = 2048, 1 << 20


@dataclass(frozen=True)
class Design:
    """What is asked of the experiment.

    Attributes:
        lengths: Of the injected prompts, in tokens as the server counts them.
        rest_s: From the end of an injection to the next.
        context_tokens: Of the model; None: nobody knows.
        max_freeze_s: What the result is judged by; None: nothing.
    """

    lengths: tuple[int, ...]
    streams: int = 4
    repeats: int = 3
    rest_s: float = 2.0
    seed: int = 0
    context_tokens: int | None = None
    max_freeze_s: float | None = None

    @property
    def fitting(self) -> tuple[int, ...]:
        """The lengths that leave room for one token of an answer, ascending."""
        room = (self.context_tokens or MOST_CONTEXT_TOKENS) - 1
        return tuple(sorted({length for length in self.lengths if length <= room}))

    @property
    def levels(self) -> list[int]:
        """Numbers of streams of the baseline: powers of two, and that of the experiment."""
        return sorted({*(1 << i for i in range(self.streams.bit_length())), self.streams})

    def workload(self, notes: Sequence[str]) -> dict[str, Any]:
        """What run.json says of the load."""
        return {
            "name": NAME,
            "streams": self.streams,
            "lengths": list(self.fitting),
            "repeats": self.repeats,
            "rest_s": self.rest_s,
            "max_freeze_s": self.max_freeze_s,
            "notes": list(notes),
        }


Trial = int | None
"""Tokens of the prompt; None: nothing is sent, for as long as the longest prompt would take."""


def trials(lengths: Sequence[int], repeats: int, seed: int) -> list[Trial]:
    """Every length, a one-token prompt and no prompt at all, once in each repeat, in an order drawn for each."""
    each: list[Trial] = [None, ONE_TOKEN, *lengths]
    rng = np.random.default_rng(seed)
    return [each[at] for _ in range(repeats) for at in rng.permutation(len(each)).tolist()]


@dataclass
class Known:
    """What has been measured so far, for planning.

    Attributes:
        ttft_s: The longest so far, by prompt length.
        itl_s: Time per token of all streams together; NaN before the baseline.
        first_s: The longest TTFT of a stream.
    """

    ttft_s: dict[int, float] = field(default_factory=dict)
    itl_s: float = math.nan
    first_s: float = 0.0

    def expected_s(self, trial: Trial) -> float:
        """How long a trial takes: what its length took, else in proportion to a longer prompt."""
        if trial in self.ttft_s:
            return self.ttft_s[trial]
        longest_s = max(self.ttft_s.values(), default=0.0)
        if trial is None:
            return longest_s
        return max((taken * min(1.0, trial / tokens) for tokens, taken in self.ttft_s.items()), default=0.0)

    def window_s(self, trial: Trial) -> float:
        """How long it may take."""
        return MARGIN * self.expected_s(trial) + self.itl_s

    def rest_of(self, left: Sequence[Trial], rest_s: float) -> float:
        """How long all of these take."""
        return sum(rest_s + self.expected_s(trial) for trial in left)

    @property
    def settle_s(self) -> float:
        return max(LEAST_SETTLE_S, 2 * self.first_s)

    def see(self, record: RequestRecord, tokens: int) -> None:
        """The answer to a prompt of so many tokens."""
        if record.arrival_ns and record.sent_ns is not None:
            seconds = (record.arrival_ns[0] - record.sent_ns) / 1e9
            self.ttft_s[tokens] = max(seconds, self.ttft_s.get(tokens, 0.0))


def stream_tokens(design: Design, known: Known, left_s: float) -> int:
    """Length of a new stream: to the end of the experiment, but no more than a few of the longest windows or the
    context. Where prompts freeze it, it lasts longer than that."""
    room = (design.context_tokens or max(design.fitting)) - VICTIM_PROMPT_TOKENS - 1
    most = max(LEAST_STREAM_TOKENS, WINDOWS_PER_STREAM * known.window_s(None) / known.itl_s)
    to_the_end_s = known.settle_s + left_s + known.window_s(None)
    return max(1, int(min(room, most, to_the_end_s / (SURE * known.itl_s) + 1)))


def outline(design: Design) -> str:
    """What will be sent, as far as it is known before anything is."""
    lengths = ", ".join(f"{length:,}" for length in (ONE_TOKEN, *design.fitting))
    tokens = design.repeats * sum((*design.fitting, ONE_TOKEN)) + max(design.fitting, default=0)
    count = design.repeats * (len(design.fitting) + 1) + 1
    return (
        f"will send {count} prompts of {lengths} tokens ({tokens:,} in all), one at a time, beside "
        f"{_streams(design.streams)} of {VICTIM_PROMPT_TOKENS}-token prompts, decoding without a pause"
    )


def forecast(design: Design, known: Known, order: Sequence[Trial]) -> str:
    """The load of the experiment itself, with what the baseline has taught of the server's speed."""
    seconds = known.rest_of(order, design.rest_s)
    prompts = [trial for trial in order if trial is not None]
    tokens = design.streams * seconds / known.itl_s
    streams = design.streams * math.ceil(seconds / (stream_tokens(design, known, seconds) * known.itl_s))
    return (
        f"the experiment takes about {seconds:.0f} s: {len(prompts)} prompts of {sum(prompts):,} tokens together, and "
        f"{_streams(streams)} that write up to {tokens:,.0f} tokens ({known.itl_s * 1e3:.1f} ms a token)"
    )


def _streams(count: int) -> str:
    return f"{count} stream{'s' if count > 1 else ''}"
