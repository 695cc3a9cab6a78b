"""The portable engine: the same exchange over httpx. For HTTP/2, SOCKS and odd proxies; its arrival times are later and
less exact than those of `openai_http`, and results say that it was used."""

import asyncio
from typing import Self

import httpx

from analysis.record import RequestRecord
from loadgen.clock import RunClock
from loadgen.connection import reason
from loadgen.exchange import Exchange
from loadgen.openai_api import READERS, BodyOptions, request_body
from loadgen.openai_http import HttpOptions, request_headers
from loadgen.target import Target
from workloads.request import Request

OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (httpx.ConnectTimeout, "timeout_connect"),
    (httpx.ConnectError, "connect_failed"),
    (httpx.ProxyError, "connect_failed"),
    (httpx.RemoteProtocolError, "broken"),
    (httpx.TransportError, "broken"),
    (httpx.DecodingError, "malformed"),
)


class HttpxEngine:
    """Same contract as HttpEngine."""

    timestamp_source = "user"

    def __init__(self, target: Target, body: BodyOptions, options: HttpOptions, clock: RunClock) -> None:
        self._target = target
        self._body = body
        self._options = options
        self._clock = clock
        headers = {"user-agent": "loadgen", **options.headers}
        if options.api_key:
            headers.setdefault("authorization", f"Bearer {options.api_key}")
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4.0)
        transport = httpx.AsyncHTTPTransport(uds=target.unix_path, limits=unlimited) if target.unix_path else None
        self._client = httpx.AsyncClient(
            headers=headers,
            verify=options.tls or True,
            proxy=options.proxy.origin if options.proxy else None,
            trust_env=False,
            limits=unlimited,
            timeout=httpx.Timeout(None, connect=options.limits.connect_s),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, request: Request) -> RequestRecord:
        record = RequestRecord(request.request_id)
        record.asked_input_tokens, record.asked_output_tokens = request.input_tokens, request.output_tokens
        record.tries = 1
        reader = READERS[self._body.endpoint](record, request.keep_text or self._options.save_text)
        exchange = Exchange(record, reader, self._clock, self._options.limits)
        receiving = asyncio.ensure_future(self._receive(request, exchange))
        try:
            await asyncio.wait([receiving, exchange.finished], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            receiving.cancel()
            await asyncio.wait([receiving])
            exchange.cancel()
        record.text, record.unsaid_text = reader.text(), reader.unsaid_text()
        return record

    async def _receive(self, request: Request, exchange: Exchange) -> None:
        record = exchange.record
        base = "http://localhost" if self._target.unix_path else self._target.origin
        outgoing = self._client.build_request(
            "POST", f"{base}{self._target.path}", json=request_body(request, self._body),
            headers=request_headers(request),
        )  # fmt: skip
        reads = 0
        try:
            record.sent_ns = self._clock.now_ns()  # httpx does not tell when the last byte went
            answer = await self._client.send(outgoing, stream=True)
            try:
                exchange.on_head(answer.status_code, dict(_plain_headers(answer)), self._clock.now_ns())
                async for data in answer.aiter_bytes():
                    reads += 1
                    exchange.on_body(data, self._clock.now_ns(), reads)
                exchange.on_complete(self._clock.now_ns())
            finally:
                await answer.aclose()
        except httpx.HTTPError as problem:
            outcome = next((name for kind, name in OUTCOMES if isinstance(problem, kind)), "client_error")
            exchange.on_lost(outcome, f"{self._target.origin}: {reason(problem)}", self._clock.now_ns())


def _plain_headers(answer: httpx.Response) -> list[tuple[bytes, bytes]]:
    """Header names in lower case, without the encoding that httpx has undone already."""
    lower = [(name.lower(), value) for name, value in answer.headers.raw]
    return [(name, value) for name, value in lower if name != b"content-encoding"]
