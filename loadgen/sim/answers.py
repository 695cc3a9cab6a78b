"""What the simulated server writes: chat completions and completions, as events or in one piece, as vLLM has them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from loadgen.sim.errors import ApiError
from loadgen.sim.prose import ENCODED
from loadgen.sim.script import Piece, Script
from loadgen.sim.tokens import Token
from loadgen.sim.wire import Ask, request_of

ThinkingField = Literal["reasoning_content", "reasoning"]
DONE = b"data: [DONE]\n\n"
_END = b"}\n\n"
_json = msgspec.json.encode


class Voice(Protocol):
    """One choice: what leaves with each core event, which is one token, or with speculation several. Has no state."""

    script: Script
    index: int

    def events(self, token: Token) -> bytes: ...


class Form(Protocol):
    """The form of one answer: what opens and closes it as a stream, and what it is in one piece."""

    ask: Ask

    def voice(self, script: Script, index: int) -> Voice: ...

    def opening(self) -> bytes: ...

    def closing(self, scripts: Sequence[Script], cached_tokens: int) -> bytes: ...

    def failure(self, error: ApiError) -> bytes:
        """What ends a stream that was begun and fails."""

    def whole(self, scripts: Sequence[Script], cached_tokens: int) -> bytes: ...


class Completion:
    """The form of chat completions and completions. What all events share is encoded once."""

    __slots__ = ("about", "ask", "head", "name", "thinking_field")

    def __init__(
        self, ask: Ask, request_id: str, created: int, model: str, thinking_field: ThinkingField = "reasoning_content"
    ) -> None:
        chat = ask.kind == "chat"
        kind = ("chat.completion" + ".chunk" * ask.stream) if chat else "text_completion"
        self.ask = ask
        self.thinking_field = thinking_field
        self.name = f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"
        self.about = {"id": self.name, "object": kind, "created": created, "model": model}
        self.head = b"data: " + _json(self.about)[:-1] + b',"choices":['

    def voice(self, script: Script, index: int = 0) -> "Choice":
        return Choice(self, script, index)

    def opening(self) -> bytes:
        """The roles: an event a choice, without text."""
        if self.ask.kind != "chat":
            return b""
        delta = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        usage = self.running(0)
        return b"".join(b'%b{"index":%d,%b%b%b' % (self.head, i, delta, usage, _END) for i in range(self.ask.n))

    def closing(self, scripts: Sequence[Script], cached_tokens: int) -> bytes:
        if not self.ask.final_usage:
            return DONE
        return self.head + b'],"usage":' + _json(self.usage(scripts, cached_tokens)) + _END + DONE

    def failure(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n" + DONE

    def usage(self, scripts: Sequence[Script], cached_tokens: int) -> dict[str, Any]:
        """Tokens of all choices together; the prompt counts once."""
        prompt, output = self.ask.prompt_tokens, sum(script.tokens for script in scripts)
        thinking = sum(script.thinking for script in scripts)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": thinking} if thinking else None,
        }

    def whole(self, scripts: Sequence[Script], cached_tokens: int) -> bytes:
        choices = [self.voice(script, i).whole() for i, script in enumerate(scripts)]
        return _json({**self.about, "choices": choices, "usage": self.usage(scripts, cached_tokens)})

    def running(self, tokens: int) -> bytes:
        """What running usage adds to an event behind so many tokens of its choice."""
        if not self.ask.running_usage:
            return b""
        prompt = self.ask.prompt_tokens
        counts = (prompt, prompt + tokens, tokens)
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % counts


class Choice:
    """One choice of a completion. What stays the same from event to event is encoded once."""

    __slots__ = ("_after", "_before", "_form", "_plain_from", "_plain_to", "index", "script")

    def __init__(self, form: Completion, script: Script, index: int) -> None:
        self.script = script
        self.index = index
        self._form = form
        ask = form.ask
        opening = b'"delta":{"content":"' if ask.kind == "chat" else b'"text":"'
        self._before = b'%b{"index":%d,%b' % (form.head, index, opening)
        self._after = (b'"}' if ask.kind == "chat" else b'"') + b',"logprobs":null,"finish_reason":null}]'
        special = bool(script.calls) or ask.logprobs or ask.causes
        self._plain_from = script.thinking + 1
        self._plain_to = 0 if special else min(script.shown, script.tokens - 1)

    def events(self, token: Token) -> bytes:
        number = token.number
        if self._plain_from <= number <= self._plain_to and token.count == 1:
            word = ENCODED[(self.script.offset + number) % len(ENCODED)]
            return b"".join((self._before, word, self._after, self._form.running(number), _END))
        pieces = list(self.script.pieces(number - token.count + 1, number))
        return b"".join(self._event(piece, token, piece is pieces[-1]) for piece in pieces)

    def whole(self) -> dict[str, Any]:
        script, ask = self.script, self._form.ask
        about: dict[str, Any] = {"index": self.index, "logprobs": None, "finish_reason": script.finish}
        if ask.logprobs:
            pieces = script.pieces(script.thinking + 1, script.tokens)
            about["logprobs"] = self._logprobs([text for piece in pieces for text in piece.texts])
        about["stop_reason"] = script.stop_string
        if ask.kind == "completions":
            return {**about, "text": script.text()}
        message: dict[str, Any] = {"role": "assistant", "content": None if script.calls else script.text()}
        message[self._form.thinking_field] = script.thought() or None
        if script.calls:
            calls = ((self._call_id(c.index), c.function.name, script.arguments(c)) for c in script.calls)
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in calls
            ]
        return {**about, "message": message}

    def _event(self, piece: Piece, token: Token, closes: bool) -> bytes:
        ask, last = self._form.ask, closes and token.last
        fields: dict[str, Any] = {"index": self.index}
        fields.update({"text": piece.text} if ask.kind == "completions" else {"delta": self._delta(piece)})
        fields["logprobs"] = self._logprobs(piece.texts) if ask.logprobs else None
        finishes = last and not self.script.calls
        fields.update(self._finish() if finishes else {"finish_reason": None})
        event = self._form.head + _json(fields) + b"]" + self._form.running(piece.last_token)
        if ask.causes:
            event += b',"loadgen":' + _json(told_cause(token))
        return event + _END + (self._finish_event() if last and not finishes else b"")

    def _delta(self, piece: Piece) -> dict[str, Any]:
        call, text = piece.call, piece.text
        if call is None:
            return {self._form.thinking_field if piece.channel == "thinking" else "content": text}
        if piece.channel == "arguments":
            return {"tool_calls": [{"index": call.index, "function": {"arguments": text}}]}
        begun = {"id": self._call_id(call.index), "type": "function", "index": call.index}
        return {"tool_calls": [{**begun, "function": {"name": text, "arguments": ""}}]}

    def _finish(self) -> dict[str, Any]:
        return {"finish_reason": self.script.finish, "stop_reason": self.script.stop_string}

    def _finish_event(self) -> bytes:
        """Calls end in an event of its own, as vLLM has it."""
        fields = {"index": self.index, "delta": {}, "logprobs": None, **self._finish()}
        return self._form.head + _json(fields) + b"]" + self._form.running(self.script.tokens) + _END

    def _logprobs(self, texts: Sequence[str]) -> dict[str, Any]:
        """One entry a token; the words are certain: the simulated model has no other."""
        if self._form.ask.kind == "completions":
            return {"tokens": texts, "token_logprobs": [0.0] * len(texts), "top_logprobs": None, "text_offset": []}
        return {"content": [{"token": text, "logprob": 0.0, "bytes": None, "top_logprobs": []} for text in texts]}

    def _call_id(self, index: int) -> str:
        return f"{self._form.name}-tool-{self.index}-{index}"


def told_cause(token: Token) -> Mapping[str, Any]:
    """What an event tells of its token's delay, to those who ask."""
    culprit = None if token.culprit is None else request_of(token.culprit)
    return {"cause": token.cause, "culprit": culprit, "delay_ns": token.delay_ns}
