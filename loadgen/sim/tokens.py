"""What goes into the simulated engine, and what comes out of it one event at a time."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Literal, NamedTuple

Cause = Literal["queue", "prefill", "prefill_interference", "preemption", "transfer", "injected", "decode"]
"""What most delayed a token since the one before (for the first: since the request came).

`queue`: the time before admission; `prefill`: from admission to the first token; `prefill_interference`: how much
longer passes took, or how long the stream had to stand aside, for prompts of others; `preemption`: the time since the
blocks were taken away; `transfer`: the way of the KV cache to the replica that decodes; `injected`: a pause from
outside; `decode`: no delay.
"""


class SimRequest(NamedTuple):
    """One request.

    Attributes:
        output_tokens: The length that the answer will have.
        blocks: Hashes of the full blocks of the prompt, each standing for everything up to its end: equal hashes are
            equal prefixes. It may go on with the blocks that the prompt and its answer will fill together: then a
            later prompt that repeats both finds them in the cache.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()


class Token(NamedTuple):
    """One event of a stream.

    Attributes:
        number: That of its last token, from 1.
        culprit: For `prefill_interference`, the request whose prompt took most.
        count: How many tokens leave with it: several where drafts were accepted.
        cached_tokens: On the first event, the prompt tokens found in the prefix cache.
    """

    request_id: str
    number: int
    last: bool
    cause: Cause
    culprit: str | None
    delay_ns: int
    count: int = 1  # type: ignore[assignment]  # the tuple's method of that name is not missed
    cached_tokens: int = 0


class StepResult(NamedTuple):
    """One pass of one replica. All its tokens leave at `end_ns`."""

    start_ns: int
    end_ns: int
    tokens: list[Token]
    prefill_tokens: int
    decode_tokens: int
    preempted: list[str]
    replica: int = 0


@dataclass(slots=True)
class Totals:
    """Counters since the start, as an engine exports them. Prefix tokens: looked up in the cache, and found there."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    cancelled: int = 0
    first_tokens: int = 0
    queue_ns: int = 0
    prefill_ns: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))
