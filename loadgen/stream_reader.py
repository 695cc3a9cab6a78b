"""What both kinds of stream have in common: usage, errors, and the shape of a reader."""

from typing import Protocol

import msgspec

from analysis.record import RequestRecord
from loadgen.error_text import error_message


class StreamReader(Protocol):
    """Reads the events of one answer into `record`."""

    done: bool
    """The server said that the answer is over ([DONE], or its kind's last event)."""
    failed: bool
    """The server sent an error inside the stream; it is in the record."""

    def read(self, name: bytes, data: bytes, arrival_ns: int, read_id: int) -> None: ...

    def text(self) -> str | None: ...


class Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None


def note_usage(record: RequestRecord, usage: Usage) -> None:
    """Usage is a running total: the last one counts."""
    if usage.prompt_tokens is not None:
        record.prompt_tokens = usage.prompt_tokens
    if usage.completion_tokens is not None:
        record.completion_tokens = usage.completion_tokens
    if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
        record.cached_tokens = usage.prompt_tokens_details.cached_tokens
    details = usage.completion_tokens_details
    if details is not None and details.reasoning_tokens is not None:
        record.reasoning_tokens = details.reasoning_tokens


def note_failure(record: RequestRecord, error: object) -> None:
    if record.error is None:
        record.error = error_message(error)
