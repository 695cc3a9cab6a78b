"""The responses endpoint: its request in the terms of a chat, and its answer as events that name their type.

An answer is a list of items: at most one of thoughts, then a message or calls of functions. What is stored, looked up
again or run by the server (`store`, `previous_response_id`, built-in tools) is not simulated.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.sim.answers import told_cause
from loadgen.sim.errors import ApiError
from loadgen.sim.fields import mapping
from loadgen.sim.script import Piece, Script
from loadgen.sim.tokens import Token
from loadgen.sim.tools import Call
from loadgen.sim.wire import Ask

_KEPT = ("model", "stream", "ignore_eos", "min_tokens", "parallel_tool_calls", "chat_template_kwargs")
_EVENTS_A_TOKEN = 16
"""Sequence numbers that are kept free for the events of one token: they need only grow."""


def as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat completion that asks for the same. Raises ApiError for an input of another kind."""
    tools = [_nested(tool) for tool in _objects(body, "tools")]
    choice = body.get("tool_choice")
    chat = {name: body[name] for name in _KEPT if name in body}
    chat["messages"] = _messages(body)
    chat["max_tokens"] = body.get("max_output_tokens")
    chat["reasoning_effort"] = mapping(body, "reasoning").get("effort")
    return chat | {"tools": tools or None, "tool_choice": _nested(choice) if isinstance(choice, dict) else choice}


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = body.get("input")
    instructions = body.get("instructions")
    head = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(said, str):
        return [*head, {"role": "user", "content": said}]
    return [*head, *(_message(item) for item in _objects(body, "input"))]


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        return {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    return {"role": item.get("role", "user"), "content": item.get("content")}


def _objects(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = body.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ApiError(400, f"{name} must be a list of objects", name)
    return values


def _nested(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function as chat completions have it: under a key of its own."""
    return {"type": tool.get("type"), "function": {key: value for key, value in tool.items() if key != "type"}}


class ResponseForm:
    """The form of a response."""

    __slots__ = ("_about", "ask", "name")

    def __init__(self, ask: Ask, request_id: str, created: int, model: str) -> None:
        self.ask = ask
        self.name = request_id
        self._about = {"id": f"resp_{request_id}", "object": "response", "created_at": created, "model": model}

    def voice(self, script: Script, index: int) -> "Speech":
        return Speech(self, script, index)

    def opening(self) -> bytes:
        begun = {**self._about, "status": "in_progress", "output": [], "usage": None}
        kinds = ("response.created", "response.in_progress")
        return b"".join(_event(kind, i, response=begun) for i, kind in enumerate(kinds))

    def closing(self, scripts: Sequence[Script], cached_tokens: int) -> bytes:
        response = self._whole(scripts[0], cached_tokens)
        return _event(f"response.{response['status']}", (scripts[0].tokens + 1) * _EVENTS_A_TOKEN, response=response)

    def failure(self, error: ApiError) -> bytes:
        return _event("error", self.ask.output_tokens * _EVENTS_A_TOKEN, code=error.kind, message=error.message)

    def whole(self, scripts: Sequence[Script], cached_tokens: int) -> bytes:
        return msgspec.json.encode(self._whole(scripts[0], cached_tokens))

    def _whole(self, script: Script, cached_tokens: int) -> dict[str, Any]:
        cut = script.finish == "length"
        output = [item for _, _, item in Speech(self, script, 0).items()]
        prompt = self.ask.prompt_tokens
        return {
            **self._about,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached_tokens},
                "output_tokens": script.tokens,
                "output_tokens_details": {"reasoning_tokens": script.thinking},
                "total_tokens": prompt + script.tokens,
            },
        }


class Speech:
    """The items of a response."""

    __slots__ = ("_form", "_items", "index", "script")

    def __init__(self, form: ResponseForm, script: Script, index: int) -> None:
        self.script = script
        self.index = index
        self._form = form
        self._items = list(self.items())

    def items(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Each item when it is whole, with its first and last token."""
        script, name = self.script, self._form.name
        if script.thinking:
            thought = {"type": "reasoning_text", "text": script.thought()}
            yield 1, script.thinking, {"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": [thought]}
        for call in script.calls:
            yield call.first, call.last, self._call(call)
        if script.tokens > script.thinking and not script.calls:
            part = {"type": "output_text", "text": script.text(), "annotations": [], "logprobs": []}
            about = {"id": f"msg_{name}", "type": "message", "status": "completed", "role": "assistant"}
            yield script.thinking + 1, script.tokens, {**about, "content": [part]}

    def events(self, token: Token) -> bytes:
        first = token.number - token.count + 1
        pieces = self.script.pieces(first, token.number)
        events = [event for piece in pieces for event in self._of_piece(piece, token)]
        numbered = enumerate(events, first * _EVENTS_A_TOKEN)
        return b"".join(_event(kind, i, **fields) for i, (kind, fields) in numbered)

    def _of_piece(self, piece: Piece, token: Token) -> Iterator[tuple[str, dict[str, Any]]]:
        begin = piece.last_token - len(piece.texts) + 1
        n, (first, last, item) = next((n, each) for n, each in enumerate(self._items) if each[0] <= begin <= each[1])
        at = {"item_id": item["id"], "output_index": n}
        where = at if item["type"] == "function_call" else {**at, "content_index": 0}
        kind = {"reasoning": "reasoning_text", "message": "output_text", "function_call": "function_call_arguments"}
        name = f"response.{kind[item['type']]}"
        if begin == first:
            yield from _begin(item, where, n)
        if piece.channel != "call":
            causes = {"loadgen": told_cause(token)} if self._form.ask.causes else {}
            yield f"{name}.delta", {**where, "delta": piece.text, **causes}
        if piece.last_token == last:
            yield from _end(name, item, where, n)

    def _call(self, call: Call) -> dict[str, Any]:
        name = f"{self._form.name}_{call.index}"
        about = {"id": f"fc_{name}", "type": "function_call", "status": "completed", "call_id": f"call_{name}"}
        return {**about, "name": call.function.name, "arguments": self.script.arguments(call)}


def _begin(item: Mapping[str, Any], where: Mapping[str, Any], n: int) -> Iterator[tuple[str, dict[str, Any]]]:
    empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    begun = {**item, **empty, "status": "in_progress"}
    yield "response.output_item.added", {"output_index": n, "item": begun}
    if item["type"] == "message":
        yield "response.content_part.added", {**where, "part": {**item["content"][0], "text": ""}}


def _end(name: str, item: Mapping[str, Any], where: Mapping[str, Any], n: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if item["type"] == "function_call":
        yield f"{name}.done", {**where, "name": item["name"], "arguments": item["arguments"]}
    else:
        yield f"{name}.done", {**where, "text": item["content"][0]["text"]}
    if item["type"] == "message":
        yield "response.content_part.done", {**where, "part": item["content"][0]}
    yield "response.output_item.done", {"output_index": n, "item": item}


def _event(kind: str, number: int, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (
        kind.encode(),
        msgspec.json.encode({"type": kind, "sequence_number": number, **fields}),
    )
