"""The stream of the responses endpoint, pure: events that name their type; `response.completed` is the last."""

from typing import Any

import msgspec

from analysis.record import ANSWER, REFUSAL, THINKING, TOOL, UNKNOWN, RequestRecord
from loadgen.stream_reader import Count, Details, Usage, lenient, note_failure, note_finish, note_usage


class _ResponseUsage(msgspec.Struct, gc=False):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    usage: _ResponseUsage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


class _Item(msgspec.Struct, gc=False):
    type: str | None = None
    name: str | None = None


class _Typed(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None
    item: _Item | None = None
    response: _Response | None = None
    error: Any = None
    message: str | None = None


_decode_typed = msgspec.json.Decoder(_Typed).decode
RESPONSE_CHANNELS = {
    "response.output_text.delta": ANSWER,
    "response.reasoning_text.delta": THINKING,
    "response.reasoning_summary_text.delta": THINKING,
    "response.refusal.delta": REFUSAL,
    "response.function_call_arguments.delta": TOOL,
    "response.mcp_call_arguments.delta": TOOL,
    "response.custom_tool_call_input.delta": TOOL,
    "response.code_interpreter_call_code.delta": TOOL,
}


class TypedReader:
    """The responses endpoint: events that name their type; `response.completed` is the last."""

    __slots__ = ("_parts", "_unsaid", "done", "failed", "record")

    def __init__(self, record: RequestRecord, keep_text: bool = False) -> None:
        self.record = record
        self.done = False
        self.failed = False
        self._parts: list[str] | None = [] if keep_text else None
        self._unsaid: list[str] = []

    def read(self, name: bytes, data: bytes, arrival_ns: int, read_id: int) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event: _Typed | None = _decode_typed(data)
        except (msgspec.DecodeError, RecursionError):
            event = lenient(_Typed, data)
        if event is None:
            if name == b"error":
                self._fail(data)
            else:
                self.record.events_dropped += 1
            return
        kind = event.type or name.decode("latin-1")
        if (channel := RESPONSE_CHANNELS.get(kind)) is not None:
            self._token(channel, event.delta if isinstance(event.delta, str) else "", arrival_ns, read_id)
        elif kind == "response.output_item.added" and event.item is not None and event.item.name:
            self._token(TOOL, event.item.name, arrival_ns, read_id)
        elif kind in ("response.completed", "response.incomplete"):
            self._end(kind, event.response or _Response())
        elif kind in ("error", "response.failed", "response.error") or event.error:
            self._fail(event.error or (event.response.error if event.response else None) or event.message or data)

    reads_batches = False

    def read_plain(self, events: list[tuple[bytes, int, int]]) -> int:  # noqa: ARG002 - one event at a time here
        return 0

    def text(self) -> str | None:
        return None if self._parts is None else "".join(self._parts)

    def unsaid_text(self) -> str | None:
        return None if self._parts is None else "".join(self._unsaid)

    def _token(self, channel: int, text: str, arrival_ns: int, read_id: int) -> None:
        if not text:
            return
        if self._parts is not None:
            (self._parts if channel == ANSWER else self._unsaid).append(text)
        record = self.record
        record.arrival_ns.append(arrival_ns)
        record.n_tokens.append(UNKNOWN)
        record.kind.append(channel)
        record.chars.append(len(text))
        record.read_id.append(read_id)

    def _end(self, kind: str, response: _Response) -> None:
        self.done = True
        incomplete = response.incomplete_details
        why = (incomplete.reason if incomplete else None) or "incomplete"
        note_finish(self.record, "stop" if kind == "response.completed" else why.replace("max_output_tokens", "length"))
        if response.usage is not None:
            usage = response.usage
            renamed = Usage(
                usage.input_tokens, usage.output_tokens, usage.input_tokens_details, usage.output_tokens_details
            )
            note_usage(self.record, renamed)

    def _fail(self, error: object) -> None:
        note_failure(self.record, error)
        self.failed = True
