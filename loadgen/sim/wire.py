"""What the simulated server reads and writes: request bodies of the OpenAI API, and events in the form vLLM gives them.

Tokens are words: whatever stands between white space is one. A chat template adds `TEMPLATE_TOKENS` for the prompt and
`MESSAGE_TOKENS` for each message. Answers are words too, one an event.

Beyond the OpenAI API: `ignore_eos` and `min_tokens` as vLLM has them; the header `x-loadgen-thinking-tokens: n`, or
`chat_template_kwargs: {"thinking_tokens": n}`, makes the first n tokens of a chat answer thoughts, sent as
`reasoning_content`; the header `x-loadgen-causes: 1` adds to each token event what delayed the token: the truth that a
diagnosis can be checked against.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from loadgen.sim.core import Token

Kind = Literal["chat", "completions"]

MESSAGE_TOKENS = 4
TEMPLATE_TOKENS = 3

ANSWER_TOKENS = 256
"""Length of an answer for which no length was asked."""

_PROSE = (
    "The first token comes when the whole prompt has been read, and every later token needs one more pass over all "
    "the weights of the model. A long prompt keeps the arithmetic units busy, while a short answer waits for memory "
    "most of the time. When both share a device, the stream of one reader can stop because the prompt of another has "
    "arrived. Small pieces of the prompt let the others go on, at the price of a later start for the one who asked. "
)
_WORDS = [f" {word}" for word in _PROSE.split()]
_ENCODED = [word.encode() for word in _WORDS]

_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class ApiError(Exception):
    """An answer with an error object in it."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.kind = status, message, param, kind

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


@dataclass(frozen=True, slots=True)
class Limits:
    """The name of the model, its context length, and where answers end by themselves (0: nowhere)."""

    model: str
    context_tokens: int
    stop_early_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request body, understood."""

    kind: Kind
    stream: bool
    prompt_tokens: int
    output_tokens: int
    finish_reason: Literal["length", "stop"]
    thinking_tokens: int = 0
    final_usage: bool = False
    running_usage: bool = False
    causes: bool = False


def word(request_id: str, number: int) -> bytes:
    """The n-th token of an answer, the same each time."""
    return _ENCODED[(_offset(request_id) + number) % len(_ENCODED)]


def _offset(request_id: str) -> int:
    return zlib.crc32(request_id.encode())


def count_tokens(text: str) -> int:
    return len(text.split())


def safe_id(header: str | None) -> str | None:
    """The client's own id where it can stand in JSON and a header as it is."""
    return header if header is not None and _SAFE_ID.fullmatch(header) else None


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return body


def parse_ask(kind: Kind, body: Mapping[str, Any], headers: Mapping[str, str], limits: Limits) -> Ask:
    """Raises ApiError for what a server would refuse."""
    _check_model(body, limits)
    if body.get("n", 1) not in (1, None):
        raise ApiError(400, "n must be 1", "n")
    prompt_tokens = prompt_length(body, limits)
    output_tokens, finish_reason = _output_length(body, limits, limits.context_tokens - prompt_tokens)
    options = _mapping(body, "stream_options")
    return Ask(
        kind=kind,
        stream=body.get("stream") is True,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        finish_reason=finish_reason,
        thinking_tokens=min(_thinking(body, headers), output_tokens) if kind == "chat" else 0,
        final_usage=options.get("include_usage") is True,
        running_usage=options.get("continuous_usage_stats") is True,
        causes=headers.get("x-loadgen-causes") == "1",
    )


def prompt_length(body: Mapping[str, Any], limits: Limits) -> int:
    """Tokens of `messages` or `prompt`. Raises ApiError where there is none, or it is longer than the context."""
    tokens = _messages_length(body) if "messages" in body or "prompt" not in body else _text_length(body["prompt"])
    if tokens >= limits.context_tokens:
        raise ApiError(
            400,
            f"this model's maximum context length is {limits.context_tokens} tokens, but the prompt has {tokens}; "
            "shorten the prompt",
            "input_tokens",
        )
    return tokens


def token_ids(body: Mapping[str, Any], count: int) -> list[int]:
    """`count` numbers for a prompt that `prompt_length` has accepted: one a word, and small ones for the template."""
    prompt = body.get("prompt", "")
    if "messages" in body:
        prompt = " ".join(_content_text(message.get("content")) for message in body["messages"])
    if isinstance(prompt, list) and isinstance(prompt[0], str):
        prompt = prompt[0]
    ids = prompt if isinstance(prompt, list) else [1000 + zlib.crc32(word.encode()) % 31_000 for word in prompt.split()]
    return list(range(count - len(ids))) + ids


def _check_model(body: Mapping[str, Any], limits: Limits) -> None:
    name = body.get("model", limits.model)
    if name != limits.model:
        message = f"the model `{name}` does not exist; this server has `{limits.model}`"
        raise ApiError(404, message, "model", "NotFoundError")


def _messages_length(body: Mapping[str, Any]) -> int:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message", "messages")
    if not all(isinstance(message, dict) for message in messages):
        raise ApiError(400, "each message must be an object", "messages")
    words = sum(count_tokens(_content_text(message.get("content"))) for message in messages)
    return words + MESSAGE_TOKENS * len(messages) + TEMPLATE_TOKENS


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return " ".join(str(part.get("text", "")) for part in content)
    raise ApiError(400, "content must be a string or a list of parts", "messages")


def _text_length(prompt: Any) -> int:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt.strip():
        return count_tokens(prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt)
    raise ApiError(400, "prompt must be one non-empty string, or a list of token ids", "prompt")


def _output_length(body: Mapping[str, Any], limits: Limits, room: int) -> tuple[int, Literal["length", "stop"]]:
    asked = _count(body, "max_completion_tokens") or _count(body, "max_tokens")
    if asked is not None and asked > room:
        raise ApiError(400, f"max_tokens is {asked}, but the prompt leaves {room} tokens of context", "max_tokens")
    natural = limits.stop_early_tokens or (ANSWER_TOKENS if asked is None else 0)
    if natural == 0 or (body.get("ignore_eos") is True and asked is not None):
        return asked or room, "length"
    natural = max(natural, _count(body, "min_tokens", least=0) or 0)
    most = room if asked is None else asked
    return (natural, "stop") if natural < most else (most, "length")


def _count(body: Mapping[str, Any], name: str, least: int = 1) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise ApiError(400, f"{name} must be an integer of at least {least}, got {value!r}", name)
    return value


def _thinking(body: Mapping[str, Any], headers: Mapping[str, str]) -> int:
    header = headers.get("x-loadgen-thinking-tokens")
    if header is None:
        return _count(_mapping(body, "chat_template_kwargs"), "thinking_tokens", least=0) or 0
    if not header.isdecimal():
        raise ApiError(400, f"the header x-loadgen-thinking-tokens must be a number, got {header!r}")
    return int(header)


def _mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(400, f"{name} must be an object", name)
    return value


class Answer:
    """One answer on its way to the wire. What stays the same from event to event is encoded once."""

    __slots__ = ("_about", "_after", "_ask", "_before", "_head", "_offset", "_tail", "_thought")

    def __init__(self, ask: Ask, request_id: str, created: int, model: str) -> None:
        chat = ask.kind == "chat"
        name = "chat.completion.chunk" if chat else "text_completion"
        self._ask = ask
        self._about = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}", "created": created, "model": model}
        self._offset = _offset(request_id)
        self._head = b"data: " + msgspec.json.encode({**self._about, "object": name})[:-1] + b',"choices":['
        self._before = self._head + (b'{"index":0,"delta":{"content":"' if chat else b'{"index":0,"text":"')
        self._thought = self._head + b'{"index":0,"delta":{"reasoning_content":"'
        self._after = (b'"}' if chat else b'"') + b',"logprobs":null,"finish_reason":'
        self._tail = b"}\n\n"

    def events(self, token: Token) -> list[bytes]:
        """The events that leave together with one token."""
        events = [self._token_event(token)]
        if token.number == 1 and self._ask.kind == "chat":
            events.insert(0, self._role_event())
        if token.last:
            if self._ask.final_usage:
                events.append(self._head + b'],"usage":' + msgspec.json.encode(self.usage()) + self._tail)
            events.append(b"data: [DONE]\n\n")
        return events

    def _role_event(self) -> bytes:
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._head + choice + self._usage_so_far(0) + self._tail

    def _token_event(self, token: Token) -> bytes:
        before = self._thought if token.number <= self._ask.thinking_tokens else self._before
        word = _ENCODED[(self._offset + token.number) % len(_ENCODED)]
        finish = f'"{self._ask.finish_reason}","stop_reason":null}}]'.encode() if token.last else b"null}]"
        cause = _cause(token) if self._ask.causes else b""
        return b"".join((before, word, self._after, finish, self._usage_so_far(token.number), cause, self._tail))

    def _usage_so_far(self, tokens: int) -> bytes:
        if not self._ask.running_usage:
            return b""
        prompt = self._ask.prompt_tokens
        counts = (prompt, prompt + tokens, tokens)
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % counts

    def usage(self) -> dict[str, Any]:
        """Nothing is cached across requests, so nothing is said about cached tokens."""
        prompt, output, thinking = self._ask.prompt_tokens, self._ask.output_tokens, self._ask.thinking_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": None,
            "completion_tokens_details": {"reasoning_tokens": thinking} if thinking else None,
        }

    def whole(self, token: Token) -> list[bytes]:
        """The answer as one JSON document, which leaves with the last token; nothing before."""
        if not token.last:
            return []
        thinking, output = self._ask.thinking_tokens, self._ask.output_tokens
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self._ask.finish_reason}
        if self._ask.kind == "chat":
            thought = self._text(1, thinking) if thinking else None
            choice["message"] = {
                "role": "assistant",
                "content": self._text(thinking + 1, output),
                "reasoning_content": thought,
            }
        else:
            choice["text"] = self._text(1, output)
        name = "chat.completion" if self._ask.kind == "chat" else "text_completion"
        return [msgspec.json.encode({**self._about, "object": name, "choices": [choice], "usage": self.usage()})]

    def _text(self, first: int, last: int) -> str:
        return "".join(_WORDS[(self._offset + number) % len(_WORDS)] for number in range(first, last + 1))


def _cause(token: Token) -> bytes:
    known = {"cause": token.cause, "culprit": token.culprit, "delay_ns": token.delay_ns}
    return b',"loadgen":' + msgspec.json.encode(known)
