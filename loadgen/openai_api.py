"""The OpenAI dialects, pure: the body of a request, and who reads the answer, for each kind of endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.chunk_reader import ChunkReader
from loadgen.typed_reader import TypedReader
from workloads.request import Message, Request


@dataclass(frozen=True)
class BodyOptions:
    """What every request body of a run shares."""

    model: str
    endpoint: str = "chat"
    max_tokens_field: str = "max_tokens"
    include_usage: bool = True
    per_event_usage: bool = False
    ignore_eos: bool = True
    min_tokens: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)


def request_body(request: Request, options: BodyOptions) -> dict[str, Any]:
    """The JSON body for one request. The class's own fields come last but for the user's, which win; a mapping is laid
    over a mapping, and a field set to None is left out."""
    body: dict[str, Any] = {"model": options.model, "stream": True}
    if options.endpoint == "responses":
        body["input"] = [_wire_message(message) for message in request.messages]
        body["max_output_tokens"] = request.output_tokens
    else:
        if options.endpoint == "chat":
            body["messages"] = [_wire_message(message) for message in request.messages]
        else:
            body["prompt"] = "\n".join(message.content for message in request.messages)
        body[options.max_tokens_field] = request.output_tokens
        if options.include_usage:
            body["stream_options"] = {"include_usage": True}
        if options.per_event_usage:
            body.setdefault("stream_options", {})["continuous_usage_stats"] = True
        if options.ignore_eos:
            body["ignore_eos"] = True
        if options.min_tokens:
            body["min_tokens"] = request.output_tokens
    if not request.body and not options.extra:
        return body
    return _present(laid_over(laid_over(body, request.body), options.extra))


def laid_over(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`change` over `base`, mapping by mapping."""
    merged = dict(base)
    for name, value in change.items():
        below = merged.get(name)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[name] = laid_over(below, value)
        else:
            merged[name] = value
    return merged


def _present(body: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that are None."""
    kept = {name: value for name, value in body.items() if value is not None}
    return {name: _present(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


def _wire_message(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content, **message.extra}


READERS: dict[str, type[ChunkReader] | type[TypedReader]] = {
    "chat": ChunkReader,
    "completions": ChunkReader,
    "responses": TypedReader,
}
