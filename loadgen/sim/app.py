"""The simulated engine as an ASGI application: the OpenAI API, as vLLM serves it.

POST /v1/chat/completions, /v1/completions, /tokenize; GET /v1/models, /health, /metrics.
"""

import asyncio
import time
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from loadgen.sim.core import SimConfig, SimRequest
from loadgen.sim.realtime import Engine, Stream
from loadgen.sim.wire import (
    Answer,
    ApiError,
    Kind,
    Limits,
    parse_ask,
    parse_body,
    prompt_length,
    safe_id,
    token_ids,
)

_KINDS: Mapping[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}


class ClientLeftError(Exception):
    """The client closed the connection before its request was whole."""


def build_app(config: SimConfig, stop_early_tokens: int = 0) -> ASGIApp:
    """Tokens go through a plain ASGI callable; everything that is not about tokens, through starlette."""
    model = config.roofline.model
    engine = Engine(config)
    limits = Limits(model.name, model.context_tokens, stop_early_tokens)
    others = _control_app(engine, limits)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kind = _KINDS.get(scope.get("path", ""))
        if kind is None or scope["method"] != "POST":
            await others(scope, receive, send)
            return
        try:
            await _generate(kind, engine, limits, scope, receive, send)
        except ApiError as error:
            await _refusal(error)(scope, receive, send)
        except ClientLeftError:
            pass

    return app


async def _generate(kind: Kind, engine: Engine, limits: Limits, scope: Scope, receive: Receive, send: Send) -> None:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    ask = parse_ask(kind, parse_body(await _read_body(receive)), headers, limits)
    if not engine.core.fits(ask.prompt_tokens, ask.output_tokens):
        raise ApiError(400, "prompt and answer together need more than the whole KV cache; ask for fewer tokens")
    request_id = engine.free_id(safe_id(headers.get("x-request-id")))
    answer = Answer(ask, request_id, int(time.time()), limits.model)
    request = SimRequest(request_id, ask.prompt_tokens, ask.output_tokens)
    stream = engine.open(request, answer.events if ask.stream else answer.whole)
    watch = asyncio.ensure_future(receive())
    watch.add_done_callback(lambda _: engine.close(stream))
    try:
        await (_send_stream if ask.stream else _send_whole)(stream, send)
    finally:
        watch.cancel()
        engine.close(stream)


async def _read_body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _send_stream(stream: Stream, send: Send) -> None:
    await send(_start([(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]))
    while events := await stream.take():
        for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    if not stream.closed:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_whole(stream: Stream, send: Send) -> None:
    for body in await stream.take():
        await send(_start([(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]))
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _start(headers: list[tuple[bytes, bytes]]) -> dict[str, object]:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _control_app(engine: Engine, limits: Limits) -> Starlette:
    started_s = int(time.time())

    async def models(_: Request) -> Response:
        entry = {"id": limits.model, "object": "model", "created": started_s, "owned_by": "loadgen"}
        return JSONResponse({"object": "list", "data": [{**entry, "max_model_len": limits.context_tokens}]})

    async def health(_: Request) -> Response:
        return Response()

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(exposition(engine, limits.model), media_type="text/plain; version=0.0.4")

    async def tokenize(request: Request) -> Response:
        try:
            body = parse_body(await request.body())
            count = prompt_length(body, limits)
        except ApiError as error:
            return _refusal(error)
        ids = token_ids(body, count)
        return JSONResponse({"count": count, "max_model_len": limits.context_tokens, "tokens": ids, "token_strs": None})

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/tokenize", tokenize, methods=["POST"]),
            *(Route(path, health, methods=["POST"]) for path in _KINDS),  # never called: they make a GET a 405
        ],
        exception_handlers={HTTPException: _http_error},
    )


def _refusal(error: ApiError) -> Response:
    return Response(error.body(), error.status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    kind = "NotFoundError" if error.status_code == 404 else "BadRequestError"
    return _refusal(ApiError(error.status_code, message, kind=kind))


def exposition(engine: Engine, model: str) -> str:
    """Prometheus text under vLLM's names; histograms have no buckets but the last. Our own lateness is added."""
    core, totals, labels = engine.core, engine.core.totals, f'{{model_name="{model}"}}'
    gauges = {
        "vllm:num_requests_running": core.running,
        "vllm:num_requests_waiting": core.waiting,
        "vllm:kv_cache_usage_perc": core.pool.used_share,
        "loadgen_sim:pass_lateness_seconds_max": engine.late_max_ns / 1e9,
    }
    counters = {
        "vllm:num_preemptions_total": totals.preemptions,
        "vllm:prompt_tokens_total": totals.prompt_tokens,
        "vllm:generation_tokens_total": totals.generation_tokens,
    }
    histograms = {
        "vllm:request_queue_time_seconds": (totals.queue_ns, totals.first_tokens),
        "vllm:request_prefill_time_seconds": (totals.prefill_ns, totals.first_tokens),
        "loadgen_sim:pass_lateness_seconds": (engine.late_ns, engine.passes),
    }
    lines = [f"# TYPE {name} gauge\n{name}{labels} {value}" for name, value in gauges.items()]
    lines += [f"# TYPE {name} counter\n{name}{labels} {value}" for name, value in counters.items()]
    lines += [_histogram(name, model, sum_ns / 1e9, count) for name, (sum_ns, count) in histograms.items()]
    lines += [_outcomes(model, totals.finished, totals.cancelled)]
    return "\n".join(lines) + "\n"


def _histogram(name: str, model: str, total: float, count: int) -> str:
    labels = f'model_name="{model}"'
    return (
        f'# TYPE {name} histogram\n{name}_bucket{{{labels},le="+Inf"}} {count}\n'
        f"{name}_sum{{{labels}}} {total}\n{name}_count{{{labels}}} {count}"
    )


def _outcomes(model: str, finished: int, cancelled: int) -> str:
    name = "vllm:request_success_total"
    return (
        f'# TYPE {name} counter\n{name}{{finished_reason="length",model_name="{model}"}} {finished}\n'
        f'{name}{{finished_reason="abort",model_name="{model}"}} {cancelled}'
    )
