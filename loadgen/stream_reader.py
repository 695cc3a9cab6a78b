"""What both kinds of stream have in common: usage, ends, errors, odd fields, and the shape of a reader. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from analysis.record import RequestRecord
from loadgen.error_text import error_message, one_line

MAX_REASON_CHARS = 60

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number of tokens. What cannot be one is dropped, like a field of an unexpected type."""

StructT = TypeVar("StructT", bound=msgspec.Struct)


class StreamReader(Protocol):
    """Reads the events of one answer into `record`."""

    done: bool
    """The server said that the answer is over ([DONE], or its kind's last event)."""
    failed: bool
    """The server sent an error inside the stream; it is in the record."""

    reads_batches: bool
    """Whether `read_plain` is worth calling."""

    def read(self, name: bytes, data: bytes, arrival_ns: int, read_id: int) -> None: ...

    def read_plain(self, events: list[tuple[bytes, int, int]]) -> int:
        """Read those of (bytes as sent, arrival, read) at the head that are one piece of the answer each and nothing
        else; how many there were."""

    def text(self) -> str | None:
        """The answer in words, if it was to be kept."""

    def unsaid_text(self) -> str | None:
        """Everything else that was generated, thoughts and tool calls, if the text was to be kept."""


class Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
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


def note_finish(record: RequestRecord, reason: str) -> None:
    """The first reason counts; one without a printable character is none."""
    record.finish_reason = record.finish_reason or one_line(reason)[:MAX_REASON_CHARS] or None


def note_failure(record: RequestRecord, error: object) -> None:
    if record.error is None:
        record.error = error_message(error) or "an error without words"


# --- fields of unexpected types ---------------------------------------------------------------------------------------


def lenient(kind: type[StructT], data: bytes) -> StructT | None:
    """A JSON object in which fields do not fit: these are left at their defaults, the others count. None if `data` is
    no JSON object."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _struct(kind, raw) if isinstance(raw, dict) else None


def _struct(kind: type[StructT], raw: object) -> StructT:
    if not isinstance(raw, Mapping):
        return kind()
    values = {name: _value(name, hint, raw[name]) for name, hint in kind.__annotations__.items() if name in raw}
    return kind(**{name: value for name, value in values.items() if value is not None})


def _value(name: str, hint: Any, raw: object) -> Any:
    try:
        return msgspec.convert(raw, hint)
    except msgspec.ValidationError:
        pass
    if (inner := _struct_in(hint)) is not None and isinstance(raw, Mapping):
        return _struct(inner, raw)
    if (inner := _struct_in(*map(_element, get_args(hint)))) is not None and isinstance(raw, list):
        return [_struct(inner, part) for part in raw]
    return _as_text(name, raw)


def _struct_in(*hints: Any) -> type[msgspec.Struct] | None:
    """The struct that one of the hints, or of the types that it joins, names."""
    kinds = [kind for hint in hints for kind in (hint, *get_args(hint))]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)


def _element(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is list else None


def _as_text(name: str, raw: object) -> str | None:
    """Content as a list of parts, or a reason to finish that is a number: text all the same."""
    if name in ("content", "text", "reasoning", "reasoning_content") and isinstance(raw, list):
        texts = [part.get("text") for part in raw if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return str(raw) if name == "finish_reason" and isinstance(raw, int) else None
