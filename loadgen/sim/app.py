"""The simulated engine as an ASGI application: the OpenAI API, as vLLM serves it.

POST /v1/chat/completions, /v1/completions, /v1/responses, /tokenize; GET /v1/models, /health, /metrics.

Streamed answers are written past ASGI: an `await send` for every token would cost more than all else together. So the
application needs the connection's transport, as `scope["extensions"]["loadgen.transport"]`; the server puts it there.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from loadgen.sim.answers import Completion, Form
from loadgen.sim.books import Books
from loadgen.sim.config import ClusterConfig
from loadgen.sim.errors import ApiError
from loadgen.sim.inject import Fault, faults_of
from loadgen.sim.kv import BLOCK_TOKENS
from loadgen.sim.metrics import EngineCollector, exposition
from loadgen.sim.options import Behaviour
from loadgen.sim.prompts import block_hashes, token_ids
from loadgen.sim.prose import text_of
from loadgen.sim.realtime import Engine
from loadgen.sim.reply import Reply, injected_error
from loadgen.sim.responses import ResponseForm, as_chat
from loadgen.sim.script import Script, script_of
from loadgen.sim.tokens import SimRequest
from loadgen.sim.wire import (
    Ask,
    Kind,
    Limits,
    checked_prompt,
    parse_ask,
    parse_body,
    safe_id,
)

TRANSPORT = "loadgen.transport"
HASH_BLOCKS = 64
"""Blocks that are hashed at a stretch: a long prompt must not make the streams of others late."""

_KINDS: Mapping[str, Kind] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
}


class ClientLeftError(Exception):
    """The client closed the connection before its request was whole."""


class App:
    """Tokens go through a plain ASGI callable; everything that is not about tokens, through starlette."""

    def __init__(self, config: ClusterConfig, behaviour: Behaviour, books: Books | None = None) -> None:
        self.engine = Engine(config)
        self.books = books or Books()
        self.model, self.hardware = behaviour.limits.model, behaviour.hardware
        self._behaviour = behaviour
        self._prefix_cache = config.replica.prefix_cache
        self._others = _control_app(self, behaviour.limits)
        self._pausing = False
        self._ids: set[str] = set()
        self._numbers = itertools.count(1)
        self.engine.after_pass = self.settle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = _KINDS.get(scope.get("path", ""))
        if kind is None or scope["method"] != "POST":
            await self._others(scope, receive, send)
            return
        try:
            await self._generate(kind, scope, receive, send)
        except ApiError as error:
            await _refusal(error)(scope, receive, send)
        except ClientLeftError:
            pass

    async def _generate(self, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        raw = await _read_body(receive)
        request_id = self._claimed_id(safe_id(headers.get("x-request-id")))
        try:
            faults = {} if "x-loadgen-probe" in headers else faults_of(self._behaviour.faults, request_id)
            if "reject" in faults:
                raise faults["reject"].refusal()
            body = parse_body(raw)
            body = as_chat(body) if kind == "responses" else body
            ask = parse_ask(kind, body, headers, self._behaviour.limits)
            await self._answer(ask, request_id, faults, scope["extensions"][TRANSPORT], receive, send)
        finally:
            self._ids.discard(request_id)

    def _claimed_id(self, wanted: str | None) -> str:
        """`wanted`, or another where that is None or belongs to a request that has not ended."""
        name = wanted
        while name is None or name in self._ids:
            name = f"{time.time_ns():x}-{next(self._numbers):x}"
        self._ids.add(name)
        return name

    async def _answer(
        self,
        ask: Ask,
        request_id: str,
        faults: Mapping[str, Fault],
        transport: asyncio.WriteTransport,
        receive: Receive,
        send: Send,
    ) -> None:
        if not self.engine.core.fits(ask.prompt_tokens, ask.output_tokens):
            raise ApiError(400, "prompt and answer together need more than the whole KV cache; ask for fewer tokens")
        scripts = [script_of(ask, request_id, i) for i in range(ask.n)]
        blocks = await _hashed(ask.prompt) if self._prefix_cache else []
        form = self._form(ask, request_id)
        reply = Reply(form, request_id, scripts, transport, self.books.notes, faults)
        watch = asyncio.ensure_future(receive())
        watch.add_done_callback(lambda _: reply.lost())
        try:
            if "slow-headers" in faults:
                self._submit(reply, blocks)
                await asyncio.sleep(faults["slow-headers"].for_ns / 1e9)
            await (self._stream if ask.stream else self._whole)(reply, blocks, send)
        finally:
            watch.cancel()
            self._close(reply)

    def _form(self, ask: Ask, request_id: str) -> Form:
        created_s, model = int(time.time()), self._behaviour.limits.model
        if ask.kind == "responses":
            return ResponseForm(ask, request_id, created_s, model)
        return Completion(ask, request_id, created_s, model, self._behaviour.thinking_field)

    async def _stream(self, reply: Reply, blocks: list[int], send: Send) -> None:
        await send(_start([(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]))
        if reply.gate is not None:
            reply.gate.open(time.monotonic_ns())
        else:
            self._submit(reply, blocks)
        if await reply.ended == "whole":
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _whole(self, reply: Reply, blocks: list[int], send: Send) -> None:
        if not reply.sinks[0].opened_ns:
            self._submit(reply, blocks)
        ending = await reply.ended
        if ending == "error":
            raise injected_error()
        if ending == "whole":
            body = reply.body()
            await send(_start([(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]))
            await send({"type": "http.response.body", "body": body, "more_body": False})

    def _submit(self, reply: Reply, blocks: list[int]) -> None:
        ask, requests = reply.form.ask, []
        for sink in reply.sinks:
            script = sink.voice.script
            known = _with_answer(ask, blocks, script) if self._prefix_cache else blocks
            requests.append((SimRequest(sink.request_id, ask.prompt_tokens, script.tokens, known), sink))
        now_ns = self.engine.attach(*requests)
        for sink in reply.sinks:
            sink.opened_ns = now_ns
        self._begin_pauses()

    def _close(self, reply: Reply) -> None:
        for sink in reply.sinks:
            if not sink.closed and self.engine.close(sink):
                self.books.ends.cut(reply.failed)
        reply.sinks.clear()

    def settle(self) -> None:
        """Counts what has left since the last time."""
        self.books.digest(lambda: self.engine.core.totals)

    def _begin_pauses(self) -> None:
        """Pauses are counted from the first request on."""
        if not self._pausing:
            self._pausing = True
            for fault in self._behaviour.faults:
                if fault.kind == "pause":
                    self._pause_later(fault, 1, asyncio.get_running_loop().time())

    def _pause_later(self, fault: Fault, number: int, start_s: float) -> None:
        asyncio.get_running_loop().call_at(start_s + number * fault.every_ns / 1e9, self._pause, fault, number, start_s)

    def _pause(self, fault: Fault, number: int, start_s: float) -> None:
        if fault.hits(str(number)):
            self.engine.pause(fault.for_ns)
        self._pause_later(fault, number + 1, start_s)


async def _hashed(prompt: Sequence[str] | Sequence[int]) -> list[int]:
    blocks: list[int] = []
    step = HASH_BLOCKS * BLOCK_TOKENS
    for start in range(0, len(prompt), step):
        if start:
            await asyncio.sleep(0)
        blocks += block_hashes(prompt[start : start + step], blocks[-1] if blocks else 0)
    return blocks


def _with_answer(ask: Ask, blocks: list[int], script: Script) -> list[int]:
    """The blocks of the prompt, and those that it fills together with an answer that the next prompt may repeat."""
    if script.thinking or script.calls or script.shown < script.tokens or isinstance(ask.prompt[0], int):
        return blocks
    rest = ask.prompt[len(blocks) * BLOCK_TOKENS :]
    answer = text_of(script.offset, 1, script.tokens).split()
    return blocks + block_hashes([*rest, *answer], blocks[-1] if blocks else 0)


async def _read_body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _start(headers: list[tuple[bytes, bytes]]) -> dict[str, object]:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _control_app(app: App, limits: Limits) -> Starlette:
    started_s = int(time.time())
    collector = EngineCollector(app.engine.core, app.books.histograms, app.books.ends, limits.model)

    async def models(_: Request) -> Response:
        entry = {"id": limits.model, "object": "model", "created": started_s, "owned_by": "loadgen"}
        return JSONResponse({"object": "list", "data": [{**entry, "max_model_len": limits.context_tokens}]})

    async def health(_: Request) -> Response:
        return Response()

    async def metrics(_: Request) -> Response:
        app.settle()
        return Response(exposition(collector), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def tokenize(request: Request) -> Response:
        try:
            prompt = checked_prompt(parse_body(await request.body()), limits)
        except ApiError as error:
            return _refusal(error)
        about = {"count": len(prompt), "max_model_len": limits.context_tokens}
        return JSONResponse({**about, "tokens": token_ids(prompt), "token_strs": None})

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
    return Response(error.body(), error.status, error.headers, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    kind = "NotFoundError" if error.status_code == 404 else "BadRequestError"
    return _refusal(ApiError(error.status_code, message, kind=kind))
