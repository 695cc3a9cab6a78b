"""The stream of chat completions and completions, pure: chunks with choices, then [DONE].

The reader writes what it sees straight into the request's record; METRICS section 1 says what a token event is.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec

from analysis.record import ANSWER, REFUSAL, THINKING, TOOL, UNKNOWN, RequestRecord
from loadgen.stream_reader import Usage, lenient, note_failure, note_finish, note_usage

# --- what a server may send -------------------------------------------------------------------------------------------


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Logprobs(msgspec.Struct, gc=False):
    content: list[msgspec.Raw] | None = None
    refusal: list[msgspec.Raw] | None = None
    tokens: list[msgspec.Raw] | None = None

    def count(self) -> int:
        return len(self.content or ()) + len(self.refusal or ()) + len(self.tokens or ())


class _Choice(msgspec.Struct, gc=False):
    index: Annotated[int, msgspec.Meta(ge=0, lt=4096)] = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_NOTHING = _Delta()
LAST_EVENTS = 3
"""What is seldom plain at the end of an answer: why it finished, its usage, [DONE]."""
FAILED_REASONS = frozenset({"error", "abort"})
"""Reasons to finish that say the server gave up: an answer that ends so is an error, not an answer."""


# --- what it sends nearly always: one piece of the answer and nothing else --------------------------------------------


class _PlainDelta(msgspec.Struct, gc=False):
    content: Annotated[str, msgspec.Meta(min_length=1)]
    reasoning_content: None = None
    reasoning: None = None
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class _PlainChoice(msgspec.Struct, gc=False):
    delta: _PlainDelta
    index: Literal[0] = 0
    finish_reason: None = None
    logprobs: None = None
    token_ids: None = None


class _PlainChunk(msgspec.Struct, gc=False):
    choices: Annotated[list[_PlainChoice], msgspec.Meta(min_length=1, max_length=1)]
    usage: None = None
    error: None = None


_decode_plain = msgspec.json.Decoder(_PlainChunk).decode
_decode_plains = msgspec.json.Decoder(list[_PlainChunk]).decode


_AT = re.compile(r"at `\$\[(\d+)\]")


def _plain_texts(events: list[bytes]) -> list[str]:
    """The texts of those at the head of `events` (JSON) that are plain."""
    try:
        chunks = _decode_plains(b"[%b]" % b",".join(events))
    except (msgspec.DecodeError, RecursionError) as problem:
        odd = _AT.search(str(problem))
        if odd is not None and int(odd[1]) < len(events):
            return _plain_texts(events[: int(odd[1])])
        chunks = []
    if len(chunks) != len(events):
        chunks = list(_plain_head(events))
    return [chunk.choices[0].delta.content for chunk in chunks]


def _plain_head(events: list[bytes]) -> Iterator[_PlainChunk]:
    for event in events:
        try:
            yield _decode_plain(event)
        except (msgspec.DecodeError, RecursionError):
            return


# --- reading ----------------------------------------------------------------------------------------------------------


class ChunkReader:
    """Chat completions and completions: chunks with choices, then [DONE]."""

    __slots__ = ("_parts", "_running", "_total", "_unsaid", "done", "failed", "record")

    def __init__(self, record: RequestRecord, keep_text: bool = False) -> None:
        self.record = record
        self.done = False
        self.failed = False
        self._parts: list[str] | None = [] if keep_text else None
        self._unsaid: list[str] = []
        self._running = False  # usage has come with a choice before
        self._total: int | None = 0  # tokens told so far by running usage; None: it skipped a token event

    def read(self, name: bytes, data: bytes, arrival_ns: int, read_id: int) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk: _Chunk | None = _decode_chunk(data)
        except (msgspec.DecodeError, RecursionError):
            chunk = lenient(_Chunk, data)
        if chunk is None:
            self._unreadable(name, data)
            return
        choices = chunk.choices
        if chunk.error or name == b"error":
            self._fail(chunk.error or data)
            return
        if choices:
            self._choices(choices, chunk.usage, arrival_ns, read_id)
        elif choices is None and chunk.usage is None and b'"object":"error"' in data.replace(b" ", b""):
            self._fail(data)
        if chunk.usage is not None:
            note_usage(self.record, chunk.usage)

    def text(self) -> str | None:
        return None if self._parts is None else "".join(self._parts)

    def unsaid_text(self) -> str | None:
        return None if self._parts is None else "".join(self._unsaid)

    reads_batches = True

    def read_plain(self, events: list[tuple[bytes, int, int]]) -> int:
        if events[-1][0].endswith(b"[DONE]\n\n"):
            events = events[:-LAST_EVENTS]
        texts = _plain_texts([data[6:-2] for data, _, _ in events])
        count = len(texts)
        if not count:
            return 0
        record = self.record
        record.arrival_ns.extend([arrival_ns for _, arrival_ns, _ in events[:count]])
        record.n_tokens.extend([UNKNOWN] * count)
        record.kind.extend([ANSWER] * count)
        record.chars.extend(map(len, texts))
        record.read_id.extend([read_id for _, _, read_id in events[:count]])
        self._total = None
        if self._parts is not None:
            self._parts.extend(texts)
        return count

    def _choices(self, choices: list[_Choice], usage: Usage | None, arrival_ns: int, read_id: int) -> None:
        record = self.record
        chars, kind, told = 0, UNKNOWN, 0
        for choice in choices:
            if choice.index >= record.choices:
                record.choices = choice.index + 1
            if choice.finish_reason:
                self._finish(choice.finish_reason)
            # A choice that is all thinking beside one that answers: the event begins the answer.
            found, length = self._channel(choice)
            if length:
                chars += length
                kind = max(kind, found)
            if choice.token_ids:
                told += len(choice.token_ids)
            elif choice.logprobs is not None:
                told += choice.logprobs.count()
        grown = self._grown(usage, bool(chars))
        if not chars and not told and grown <= 0:
            return
        record.arrival_ns.append(arrival_ns)
        record.n_tokens.append(grown if grown != UNKNOWN else told or UNKNOWN)
        record.kind.append(ANSWER if kind == UNKNOWN else kind)
        record.chars.append(chars)
        record.read_id.append(read_id)

    def _channel(self, choice: _Choice) -> tuple[int, int]:
        """(channel, characters) of the text in one choice; of several channels the one that answers."""
        delta = choice.delta or _NOTHING
        if self._parts is not None and delta is not _NOTHING:
            self._unsaid += (_thought(delta), *_tool_texts(delta))
        answer = delta.content or choice.text
        if answer:
            if self._parts is not None:
                self._parts.append(answer)
            return ANSWER, len(answer) + (len(_thought(delta)) if delta.reasoning or delta.reasoning_content else 0)
        if delta.reasoning or delta.reasoning_content:
            return THINKING, len(_thought(delta))
        if delta.tool_calls or delta.function_call:
            if self._parts is not None and choice.index == 0:
                _keep_calls(self.record, delta.tool_calls or ())
            return TOOL, _tool_chars(delta)
        return REFUSAL, len(delta.refusal or "")

    def _grown(self, usage: Usage | None, has_text: bool) -> int:
        """Tokens that running usage adds with this event, UNKNOWN where it does not say.

        The first usage beside a choice without text may be the final one: it counts only when usage runs already.
        """
        if usage is None or usage.completion_tokens is None:
            if has_text:
                self._total = None
            return UNKNOWN
        runs, self._running = self._running, True
        if self._total is None or not (has_text or runs):
            return UNKNOWN
        grown, self._total = usage.completion_tokens - self._total, usage.completion_tokens
        return grown if grown >= 0 else UNKNOWN

    def _finish(self, reason: str) -> None:
        note_finish(self.record, reason)
        if reason in FAILED_REASONS:
            self._fail(f"the server ended the answer with finish_reason {reason!r}")

    def _unreadable(self, name: bytes, data: bytes) -> None:
        if name == b"error":
            self._fail(data)
        else:
            self.record.events_dropped += 1

    def _fail(self, error: object) -> None:
        note_failure(self.record, error)
        self.failed = True


def _thought(delta: _Delta) -> str:
    """Thinking under either name; both with the same text are one."""
    first, second = delta.reasoning_content or "", delta.reasoning or ""
    return first if first == second else first + second


def _keep_calls(record: RequestRecord, pieces: Iterable[_ToolCall]) -> None:
    """Adds the pieces of calls to those of the record: the first of a call brings its id and name, the others more of
    its arguments."""
    calls = record.tool_calls = record.tool_calls or []
    for piece in pieces:
        function = piece.function or _Function()
        place = len(calls) - 1 if piece.index is None and not piece.id else piece.index
        if place is None or not 0 <= place < len(calls):
            made = {"name": function.name or "", "arguments": function.arguments or ""}
            calls.append({"id": piece.id or f"call_{len(calls)}", "type": "function", "function": made})
        else:
            known = calls[place]["function"]
            known["name"] += function.name or ""
            known["arguments"] += function.arguments or ""


def _tool_chars(delta: _Delta) -> int:
    return sum(map(len, _tool_texts(delta)))


def _tool_texts(delta: _Delta) -> list[str]:
    functions = [call.function for call in delta.tool_calls or ()] + [delta.function_call]
    return [text for one in functions if one is not None for text in (one.name or "", one.arguments or "")]
