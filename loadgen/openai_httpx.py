"""The portable engine: the same exchange over httpx. For HTTP/2, SOCKS and odd proxies; its arrival times are later and
less exact than those of `openai_http`, and results say that it was used."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

import httpx

from analysis.record import RequestRecord
from loadgen.access import redactor
from loadgen.clock import RunClock
from loadgen.connection import reason
from loadgen.error_text import fault
from loadgen.exchange import Exchange
from loadgen.openai_api import READERS, BodyOptions, request_body
from loadgen.openai_http import HttpOptions, request_headers
from loadgen.target import Target
from loadgen.tries import MAX_REDIRECTS, backoff_s, forget_try, redirected_to, tries_again
from workloads.request import Request

OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (httpx.ConnectTimeout, "timeout_connect"),
    (httpx.ConnectError, "connect_failed"),
    (httpx.ProxyError, "connect_failed"),
    (httpx.RemoteProtocolError, "broken"),
    (httpx.TransportError, "broken"),
)


_CONNECTS = ("connect_tcp.started", "connect_unix_socket.started")
_CONNECTED = ("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")


@dataclass(slots=True)
class Reads:
    """What came over one connection: how many reads, and when the last."""

    count: int = 0
    arrival_ns: int = 0


class HttpxEngine:
    """Same contract as HttpEngine."""

    timestamp_source = "user"

    def __init__(self, target: Target, body: BodyOptions, options: HttpOptions, clock: RunClock) -> None:
        self._target = target
        self._body = body
        self._options = options
        self._clock = clock
        self._path = target.path
        self.open: dict[str, tuple[RequestRecord, Reads]] = {}
        self._redact = redactor(options.api_key, options.headers)
        headers = {"user-agent": "loadgen", "accept-encoding": "identity", **options.headers}
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
        first_sent_ns: int | None = None
        try:
            while True:
                record.tries += 1
                await self._follow_redirects(request, record)
                first_sent_ns = record.sent_ns if first_sent_ns is None else first_sent_ns
                if not tries_again(record, record.outcome, self._options.retries):
                    break
                await asyncio.sleep(backoff_s(record))
                forget_try(record)
        except asyncio.CancelledError:  # between two tries
            record.outcome, record.error, record.end_ns = "cancelled", None, self._clock.now_ns()
        record.sent_ns = record.sent_ns if first_sent_ns is None else first_sent_ns  # latency counts from the first try
        record.error = None if record.error is None else self._redact(record.error)
        record.text = None if record.text is None else self._redact(record.text)
        record.finish_reason = None if record.finish_reason is None else self._redact(record.finish_reason)
        return record

    async def _follow_redirects(self, request: Request, record: RequestRecord) -> None:
        path = self._path
        exchange = await self._try(request, record, path)
        for _ in range(MAX_REDIRECTS):
            moved = redirected_to(exchange, self._target)
            if moved is None:
                break
            path = moved
            forget_try(record)
            exchange = await self._try(request, record, path)
        if record.outcome == "ok":
            self._path = path  # if the server moved, later requests go there at once

    async def _try(self, request: Request, record: RequestRecord, path: str) -> Exchange:
        """One answer, to its end; the record says `cancelled` where this task was."""
        reader = READERS[self._body.endpoint](record, request.keep_text or self._options.save_text)
        exchange = Exchange(record, reader, self._clock, self._options.limits)
        self.open[record.request_id] = record, (reads := Reads())
        receiving = asyncio.ensure_future(self._receive(request, exchange, path, reads))
        try:
            await asyncio.wait([receiving, exchange.finished], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            del self.open[record.request_id]
            receiving.cancel()
            await asyncio.wait([receiving])
            exchange.cancel()
        record.text, record.unsaid_text = reader.text(), reader.unsaid_text()
        return exchange

    def _noting(self, record: RequestRecord) -> Callable[[str, Any], Awaitable[None]]:
        """Notes in the record what httpcore tells of its steps: opening a connection is no part of the send."""
        begun_ns = self._clock.now_ns()
        record.reused_connection, record.connect_s = True, None

        async def note(step: str, _: Any) -> None:
            nonlocal begun_ns
            now_ns = self._clock.now_ns()
            if step.endswith(_CONNECTS):
                begun_ns, record.reused_connection = now_ns, False
            elif step.endswith(_CONNECTED):
                record.connect_s = (now_ns - begun_ns) / 1e9
            elif step.endswith("send_request_body.complete"):
                record.sent_ns = now_ns

        return note

    async def _receive(self, request: Request, exchange: Exchange, path: str, reads: Reads) -> None:
        record = exchange.record
        base = "http://localhost" if self._target.unix_path else self._target.origin
        outgoing = self._client.build_request(
            "POST", f"{base}{path}", json=request_body(request, self._body),
            headers=request_headers(request), extensions={"trace": self._noting(record)},
        )  # fmt: skip
        try:
            answer = await self._client.send(outgoing, stream=True)
            try:
                headers = {name.lower(): value for name, value in answer.headers.raw}
                exchange.on_head(answer.status_code, headers, self._clock.now_ns())
                async for data in answer.aiter_raw():  # packed, if it is: what it unpacks to is bounded in the exchange
                    reads.count, reads.arrival_ns = reads.count + 1, self._clock.now_ns()
                    exchange.on_body(data, reads.arrival_ns, reads.count)
                exchange.on_complete(self._clock.now_ns())
            finally:
                await answer.aclose()
        except httpx.HTTPError as problem:
            outcome = next((name for kind, name in OUTCOMES if isinstance(problem, kind)), "client_error")
            exchange.on_lost(outcome, f"{self._target.origin}: {reason(problem)}", self._clock.now_ns())
        except Exception as problem:  # whatever it is, the other requests go on
            exchange.on_lost("client_error", fault(problem), self._clock.now_ns())
