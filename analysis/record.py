"""The record of one request: the contract between those who send (or simulate) and those who count.

A record holds what was planned, what the wire showed and what the server said, and no number derived from these:
durations, resolved token counts and the like are computed in one place, `analysis.run`.
"""

from array import array
from dataclasses import dataclass, field
from functools import partial
from typing import Any

THINKING, ANSWER, TOOL, REFUSAL = range(4)
KINDS = ("thinking", "answer", "tool", "refusal")
"""Channel of a token event, by its code."""

OUTCOMES = (
    "ok",
    "http_error",
    "rate_limited",
    "connect_failed",
    "tls_failed",
    "timeout_connect",
    "timeout_first_token",
    "timeout_idle",
    "timeout_total",
    "stream_error",
    "truncated",
    "broken",
    "empty",
    "not_streamed",
    "malformed",
    "cancelled",
    "skipped",
    "not_sent",
    "client_error",
)
"""Every way a planned request can end; each ends in exactly one."""

NEVER_SENT = frozenset({"skipped", "not_sent"})

UNKNOWN = -1
"""Stands for "not told" in the integer columns of token events."""


_longs = partial(array, "q")
_ints = partial(array, "i")
_bytes = partial(array, "b")


@dataclass(slots=True)
class RequestRecord:
    """One planned request: a row of requests.parquet and its rows of chunks.parquet.

    Instants (`…_ns`) are integer nanoseconds on the run's monotonic timeline, 0 = start of the run; None = not
    measured. The five arrays run parallel, one entry per token event in order of arrival; `n_tokens` is what the wire
    said of that event (running usage, token_ids or logprobs), else `UNKNOWN`.
    """

    request_id: str
    # The plan.
    session: int = 0
    turn: int = 1
    class_name: str = ""
    stage: str = ""
    worker: int = 0
    due_ns: int | None = None
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    # The wire.
    sent_ns: int | None = None
    headers_ns: int | None = None
    end_ns: int | None = None
    outcome: str = "not_sent"
    status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None
    tries: int = 0
    reused_connection: bool | None = None
    connect_s: float | None = None
    dns_s: float | None = None
    tls_s: float | None = None
    # What the server said.
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    tokenizer_tokens: int | None = None  # our own count of all its text, where a tokenizer was given and no usage came
    reasoning_tokens: int | None = None
    choices: int = 1
    # Token events.
    arrival_ns: "array[int]" = field(default_factory=_longs)
    n_tokens: "array[int]" = field(default_factory=_ints)
    kind: "array[int]" = field(default_factory=_bytes)
    chars: "array[int]" = field(default_factory=_ints)
    read_id: "array[int]" = field(default_factory=_ints)
    events_dropped: int = 0
    # Only where the plan or the user asked to keep it; the text is never written to disk unless the user did.
    text: str | None = None
    unsaid_text: str | None = None  # what was thought, and what tools were asked; never written to disk
    tool_calls: list[dict[str, Any]] | None = None  # as the API writes them, for the next turn; never written to disk
