"""The engine that sends a request over HTTP/1.1 and times every token of the answer: the upper half of the hot path.

send() never raises: whatever happens to a request is its outcome. Connections are reused, and opened as soon as none is
free, so that no request waits for another.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import msgspec

from analysis.record import RequestRecord
from loadgen.access import redactor
from loadgen.clock import RunClock
from loadgen.connection import Connection, OpenError
from loadgen.dial import Dialer
from loadgen.error_text import fault, one_line
from loadgen.exchange import Exchange, Limits
from loadgen.openai_api import READERS, BodyOptions, request_body
from loadgen.target import Target
from loadgen.tries import MAX_REDIRECTS, backoff_s, forget_try, redirected_to, tries_again
from loadgen.turns import Turns
from workloads.request import Request

IDLE_S = 4.0
"""An idle connection older than this is not used again, unless the server promised more: uvicorn closes after five
seconds, and a request that meets the closing would fail for no fault of the server's."""
STALE_S = 0.01


@dataclass(frozen=True)
class HttpOptions:
    """How the requests of a run go out. `headers` and `api_key` are secrets: they are never shown or stored."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    retries: int = 0
    tls: ssl.SSLContext | None = None
    proxy: Target | None = None
    kernel_stamps: bool = True
    save_text: bool = False


class HttpEngine:
    """Sends requests to one target. One instance a run and process; close it when the run is over."""

    def __init__(self, target: Target, body: BodyOptions, options: HttpOptions, clock: RunClock) -> None:
        self._target = target
        self._body = body
        self._options = options
        self._clock = clock
        self.open: dict[str, tuple[RequestRecord, Connection]] = {}
        self._idle: list[Connection] = []
        self._dialer = Dialer(target, options.proxy, options.tls, clock, options.kernel_stamps)
        self._turns = Turns(lambda: self._dialer.busy)
        self._path = target.path
        self._kernel_reads = 0
        self._user_reads = 0
        self._redact = redactor(options.api_key, options.headers)
        self._head = _head_lines(target, options)

    @property
    def timestamp_source(self) -> str:
        """Where arrival times came from so far: "kernel" if (all but a stray read) so, else "user"."""
        return "kernel" if self._kernel_reads and self._user_reads <= self._kernel_reads // 1000 else "user"

    async def send(self, request: Request) -> RequestRecord:
        """Send one request and read the answer to its end; the record has what the wire showed.

        Cancelling the awaiting task cuts the request: the record then says `cancelled` and keeps what had come.
        """
        record = RequestRecord(request.request_id)
        record.asked_input_tokens = request.input_tokens
        record.asked_output_tokens = request.output_tokens
        try:
            await self._send_with_retries(request, record)
        except asyncio.CancelledError:
            record.outcome, record.error = "cancelled", None
            record.end_ns = self._clock.now_ns()
        except OpenError as problem:
            record.outcome, record.error = problem.outcome, one_line(f"{self._target.origin}: {problem}")
            record.end_ns = self._clock.now_ns()
        except Exception as problem:  # whatever it is, the other requests go on
            record.outcome, record.error = "client_error", one_line(fault(problem))
            record.end_ns = self._clock.now_ns()
        else:  # hundreds of streams that end together (they began so) take turns, like those that begin
            with suppress(asyncio.CancelledError):  # it had ended before it was cut
                await self._turns.take()
        _settle_send(record)
        if record.error is not None:
            record.error = self._redact(record.error)
        if record.text is not None:
            record.text = self._redact(record.text)
        if record.finish_reason is not None:
            record.finish_reason = self._redact(record.finish_reason)
        return record

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for connection in self._idle:
            self._retire(connection)
        self._idle.clear()
        self._dialer.close()

    # --- tries -----------------------------------------------------------------------------------------------------

    async def _send_with_retries(self, request: Request, record: RequestRecord) -> None:
        await self._turns.take()
        body = msgspec.json.encode(request_body(request, self._body))
        length = b"content-length: %d\r\n\r\n" % len(body)
        message = b"".join([self._head, _lines(request_headers(request)), length, body])
        first_sent_ns: int | None = None
        while True:
            record.tries += 1
            try:
                await self._follow_redirects(request, record, message)
            except OpenError as problem:
                if not tries_again(record, problem.outcome, self._options.retries):
                    raise
            first_sent_ns = record.sent_ns if first_sent_ns is None else first_sent_ns
            if not tries_again(record, record.outcome, self._options.retries):
                break
            await asyncio.sleep(backoff_s(record))
            forget_try(record)
        record.sent_ns = first_sent_ns  # latency counts from the first try

    async def _follow_redirects(self, request: Request, record: RequestRecord, message: bytes) -> None:
        path = self._path
        exchange = await self._try(request, record, path, message)
        for _ in range(MAX_REDIRECTS):
            moved = redirected_to(exchange, self._target)
            if moved is None:
                break
            path = moved
            forget_try(record)
            exchange = await self._try(request, record, path, message)
        if record.outcome == "ok":
            self._path = path  # if the server moved, later requests go there at once

    async def _try(self, request: Request, record: RequestRecord, path: str, message: bytes) -> Exchange:
        """Send once. A reused connection that the server was closing just then is replaced, once: it is gone within a
        round trip of the send, so the server never took the request."""
        connection = await self._connection(record)
        exchange = await self._exchange(connection, request, record, path, message)
        if record.reused_connection and connection.lost_unanswered and _age_s(record) < STALE_S:
            forget_try(record)
            connection = await self._connection(record, new=True)
            exchange = await self._exchange(connection, request, record, path, message)
        return exchange

    async def _exchange(
        self, connection: Connection, request: Request, record: RequestRecord, path: str, message: bytes
    ) -> Exchange:
        reader = READERS[self._body.endpoint](record, request.keep_text or self._options.save_text)
        exchange = Exchange(record, reader, self._clock, self._options.limits)
        self.open[record.request_id] = record, connection
        try:
            sent_ns = await connection.send(self._request_line(path) + message, exchange)
            if sent_ns is not None:
                record.sent_ns = sent_ns
            await exchange.finished
        finally:
            del self.open[record.request_id]
            exchange.cancel()
            if connection.mixed_stamps:
                level_arrivals(record)
            self._put_back(connection, exchange)
        record.text, record.unsaid_text = reader.text(), reader.unsaid_text()
        return exchange

    def _request_line(self, path: str) -> bytes:
        proxied = self._options.proxy is not None and self._target.scheme == "http"
        return f"POST {self._target.origin if proxied else ''}{path} HTTP/1.1\r\n".encode()

    # --- connections -----------------------------------------------------------------------------------------------

    async def _connection(self, record: RequestRecord, new: bool = False) -> Connection:
        """An idle connection, or a new one. Raises OpenError."""
        now_ns = self._clock.now_ns()
        while self._idle and not new:
            connection = self._idle.pop()
            allowed_s = IDLE_S if connection.keep_alive_s is None else max(0.0, connection.keep_alive_s - 1)
            if now_ns - connection.idle_since_ns <= allowed_s * 1e9 and connection.is_reusable():
                record.reused_connection = True
                record.connect_s = record.dns_s = record.tls_s = None  # of a try before, it may be
                return connection
            self._retire(connection)
        record.reused_connection = False
        try:
            async with asyncio.timeout(self._options.limits.connect_s):
                connection = await self._dialer.open()
        except TimeoutError:
            limit_s = self._options.limits.connect_s or 0.0
            raise OpenError("timeout_connect", f"no connection after {limit_s:g} s") from None
        record.connect_s, record.dns_s, record.tls_s = connection.connect_s, connection.dns_s, connection.tls_s
        return connection

    def _put_back(self, connection: Connection, exchange: Exchange) -> None:
        served = (
            exchange.record.status is not None and exchange.record.status < 300
        )  # some servers close after an error
        if exchange.complete and served and not connection.closed:
            connection.idle_since_ns = self._clock.now_ns()
            self._idle.append(connection)
        else:
            self._retire(connection)

    def _retire(self, connection: Connection) -> None:
        connection.close()
        self._user_reads += connection.user_reads
        self._kernel_reads += connection.read_id - connection.user_reads


def _head_lines(target: Target, options: HttpOptions) -> bytes:
    """The header lines that all requests share; the user's own replace ours."""
    headers = {
        "host": target.authority,
        "user-agent": "loadgen",
        "accept": "text/event-stream, application/json",
        "content-type": "application/json",
    }
    if options.api_key:
        headers["authorization"] = f"Bearer {options.api_key}"
    headers |= {name.lower(): value for name, value in options.headers.items()}
    return _lines(headers)


def request_headers(request: Request) -> dict[str, str]:
    """The request's id for the server's log, and a W3C trace context made from it, so that both can be joined; and how
    much of the answer is meant to be thought, which the simulated engine heeds."""
    digest = hashlib.blake2b(request.request_id.encode(), digest_size=24).hexdigest()
    headers = {"x-request-id": request.request_id, "traceparent": f"00-{digest[:32]}-{digest[32:]}-01"}
    if request.thinking_tokens:
        headers["x-loadgen-thinking-tokens"] = str(request.thinking_tokens)
    return headers


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


def level_arrivals(record: RequestRecord) -> None:
    """Lower arrivals that our own late clock gave to the next one that the kernel stamped: bytes come in order."""
    assert record.end_ns is not None
    latest_ns = record.end_ns
    for number in reversed(range(len(record.arrival_ns))):
        latest_ns = record.arrival_ns[number] = min(record.arrival_ns[number], latest_ns)
    if record.headers_ns is not None:
        record.headers_ns = min(record.headers_ns, latest_ns)


def _settle_send(record: RequestRecord) -> None:
    """No answer comes before its request; a server that answers while the request still goes out only seems to."""
    heard_ns = record.headers_ns if record.headers_ns is not None else record.end_ns
    if record.sent_ns is not None and heard_ns is not None and heard_ns < record.sent_ns:
        record.sent_ns = heard_ns
    if record.sent_ns is None and record.outcome == "ok":
        record.outcome, record.error = "malformed", "the answer was over before the request had been sent"


def _age_s(record: RequestRecord) -> float:
    """From the send to the end; 0 where it was not even sent."""
    return 0.0 if record.sent_ns is None or record.end_ns is None else (record.end_ns - record.sent_ns) / 1e9
