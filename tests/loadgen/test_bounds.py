"""What a server can make us hold or wait for is bounded: each case has its bound, and the outcome of the request.

The answers are endless (or far beyond the bound); how much of each was taken is counted.
"""

import asyncio
import gzip
import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pytest

from analysis.record import RequestRecord
from loadgen import tries
from loadgen.clock import RunClock
from loadgen.connection import MAX_HEAD_BYTES, Connection
from loadgen.exchange import MAX_ANSWER_BYTES
from loadgen.inflate import MAX_INFLATED_BYTES
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions
from loadgen.openai_httpx import HttpxEngine
from loadgen.poller import Poller
from loadgen.sse import MAX_EVENT_BYTES, MAX_IDLE_LINES
from loadgen.target import parse_target
from loadgen.tries import MAX_REDIRECTS, MAX_RETRY_AFTER_S, backoff_s
from tests.loadgen.scripted import DONE, ScriptedServer, answer, content, finish, head, json_answer
from tests.loadgen.test_hostile import cut, exchange_for, fixed_clock
from workloads.request import Message, Request

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = STREAM + b"transfer-encoding: chunked\r\n\r\n"
UNTIL_CLOSE = STREAM + b"\r\n"
GZIPPED = STREAM + b"content-encoding: gzip\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
BLOCK = 16_384  # what is in flight when the limit is met; the connection is read in pieces of 64 KiB at most
SLACK = 16 * BLOCK


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def filled(piece: bytes) -> bytes:
    """As many of a piece as a block holds."""
    return piece * max(1, BLOCK // len(piece))


def bomb() -> bytes:
    """64 MiB in 64 KiB."""
    return gzip.compress(b"data: " + b"a" * (64 * 1024 * 1024), mtime=0)


def endless_gzip() -> Iterator[bytes]:
    """Every piece unpacks to little, all of them to more than an answer may have."""
    packer = zlib.compressobj(wbits=31)
    while True:
        yield packer.compress((b'data: {"choices":[]}' + b" " * 500_000 + b"\n\n") * 2) + packer.flush(
            zlib.Z_SYNC_FLUSH
        )


@dataclass(frozen=True)
class Case:
    """`first`, then pieces like `then` for ever: at most `most` bytes of them are taken, and `outcome` follows."""

    first: bytes
    then: Any
    most: float
    outcome: str
    error: str


CASES = {
    "header lines without end": Case(
        b"HTTP/1.1 200 OK\r\n", filled(b"x-a: b\r\n"), MAX_HEAD_BYTES, "malformed", "a header of more than"),
    "one header line without end": Case(
        b"HTTP/1.1 200 OK\r\nx-a: ", b"a" * BLOCK, MAX_HEAD_BYTES, "malformed", "a header of more than"),
    "interim answers without end": Case(
        b"", filled(b"HTTP/1.1 100 Continue\r\n\r\n"), MAX_HEAD_BYTES, "malformed", "a header of more than"),
    "trailers without end": Case(
        CHUNKED + chunk(TOKEN) + b"0\r\n", filled(b"x-a: b\r\n"), MAX_HEAD_BYTES, "malformed", "a header of more than"),
    "an extension of a chunk without end": Case(
        CHUNKED + b"5;a=", b"a" * BLOCK, MAX_HEAD_BYTES, "malformed", "a header of more than"),
    "an event without end": Case(
        UNTIL_CLOSE, filled(b"data: aaaaaaaa\n"), 8 * MAX_EVENT_BYTES, "malformed", "an event of more than"),
    "a line without end": Case(
        UNTIL_CLOSE + b"data: ", b"a" * BLOCK, MAX_EVENT_BYTES, "malformed", "a line of more than"),
    "a comment without end": Case(
        UNTIL_CLOSE + b":", b"a" * BLOCK, MAX_EVENT_BYTES, "malformed", "a line of more than"),
    "comment lines without end": Case(
        UNTIL_CLOSE, filled(b": ping\n"), 8 * MAX_IDLE_LINES, "malformed", "lines without an event"),
    "blank lines without end": Case(
        UNTIL_CLOSE + TOKEN, b"\n" * BLOCK, MAX_IDLE_LINES, "malformed", "lines without an event"),
    "a bomb in gzip": Case(
        GZIPPED, bomb(), MAX_INFLATED_BYTES, "malformed", "compressed answer is broken"),
    "tokens without end": Case(UNTIL_CLOSE, filled(TOKEN), MAX_ANSWER_BYTES, "malformed", "an answer of more than"),
    "events that hold nothing, without end": Case(
        UNTIL_CLOSE, filled(b"data: {}\n\n"), MAX_ANSWER_BYTES, "malformed", "an answer of more than"),
    "packed events without end": Case(
        GZIPPED, endless_gzip(), MAX_ANSWER_BYTES, "malformed", "an answer of more than"),
    "an error page without end": Case(
        b"HTTP/1.1 500 No\r\n\r\nbroken", b"a" * BLOCK, MAX_ANSWER_BYTES, "http_error", "broken"),
}  # fmt: skip


async def fed(pieces: Iterator[bytes]) -> RequestRecord:
    """The record of a request that is answered with these, until it ends."""
    poller = Poller(gather=True)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, poller, fixed_clock(), None, kernel_stamps=False)
    exchange = exchange_for("chat")
    with theirs:
        await connection.send(b"request", exchange)
        for piece in pieces:
            for part in cut(piece, range(BLOCK, len(piece), BLOCK)):
                if not exchange.finished.done():
                    theirs.sendall(part)
                for _ in range(3):  # turns of the loop: one to poll, one to read, one to spare
                    await asyncio.sleep(0)
            if exchange.finished.done():
                break
    connection.close()
    poller.close()
    return exchange.record


@pytest.mark.parametrize("name", CASES)
def test_what_a_server_sends_without_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, taken = CASES[name], 0
    most = SMALL_ANSWER if case.most == MAX_ANSWER_BYTES else case.most
    if most == SMALL_ANSWER:
        monkeypatch.setattr("loadgen.exchange.MAX_ANSWER_BYTES", SMALL_ANSWER)

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        yield case.first
        for piece in repeat(case.then) if isinstance(case.then, bytes) else case.then:
            taken += len(piece)
            yield piece

    record = asyncio.run(asyncio.wait_for(fed(pieces()), 60))
    assert (record.outcome, case.error in (record.error or "")) == (case.outcome, True), record.error
    assert taken <= most + SLACK
    assert len(record.error or "") < 1000


SMALL_ANSWER = 3_000_000
"""The bound on an answer is 256 MiB: too much for a test of a second."""


# --- over TCP, by either transport ------------------------------------------------------------------------------------

WHOLE = answer(content("a"), finish(), DONE)
MOVED = [head(307, {"location": "/other/path", "content-length": "0"})]
CIRCLE = [head(308, {"location": "/v1/chat/completions", "content-length": "0"})]


@pytest.fixture(params=[HttpEngine, HttpxEngine])
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param


def asked(transport: Any, *answers: Any, times: int = 1, **options: Any) -> tuple[list[RequestRecord], list[str]]:
    """The records of some requests, one after the other, and the paths that the server saw."""

    async def run() -> tuple[list[RequestRecord], list[str]]:
        async with ScriptedServer(*answers) as server:
            made = transport(parse_target(server.url, "chat"), BodyOptions("m"), HttpOptions(**options), RunClock())
            async with made as engine:
                request = Request("r", (Message("user", "hi"),), 1, 2)
                records = [await engine.send(request) for _ in range(times)]
        return records, [one.path for one in server.requests]

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_a_redirect_is_followed_and_remembered(transport: Any) -> None:
    records, paths = asked(transport, MOVED, WHOLE, times=2)
    assert [record.outcome for record in records] == ["ok", "ok"]
    assert paths == ["/v1/chat/completions", "/other/path", "/other/path"]


def test_a_circle_of_redirects_ends(transport: Any) -> None:
    (record,), paths = asked(transport, CIRCLE)
    assert (record.outcome, len(paths)) == ("http_error", 1 + MAX_REDIRECTS)


def test_retries_count_from_the_first_try_and_end(transport: Any) -> None:
    busy = json_answer({"error": "busy"}, 429, {"retry-after": "0"})
    (record,), paths = asked(transport, busy, busy, WHOLE, retries=2)
    assert (record.outcome, record.tries, record.error) == ("ok", 3, None)
    assert record.sent_ns is not None
    assert record.headers_ns is not None
    assert record.sent_ns < record.headers_ns
    (record,), paths = asked(transport, busy, retries=2)
    assert (record.outcome, record.tries, len(paths)) == ("rate_limited", 3, 3)


def packed(body: bytes) -> list[Any]:
    return [head(200, {"content-type": "text/event-stream", "content-encoding": "gzip",
                       "content-length": str(len(body))}), body]  # fmt: skip


def test_packed_answers_are_unpacked_by_us(transport: Any) -> None:
    (record,), _ = asked(transport, packed(gzip.compress(TOKEN + b"data: [DONE]\n\n", mtime=0)))
    assert (record.outcome, list(record.chars)) == ("ok", [1])


def test_a_bomb_is_no_answer(transport: Any) -> None:
    (record,), _ = asked(transport, packed(bomb()))
    assert record.outcome == "malformed"


WAITS = [
    (None, 1, tries.FIRST_BACKOFF_S),
    (None, 20, tries.MAX_BACKOFF_S),
    (0.0, 1, 0.0),
    (7.5, 1, 7.5),
    (86_400.0, 1, MAX_RETRY_AFTER_S),  # a day
]


@pytest.mark.parametrize(("asked_s", "number", "most_s"), WAITS)
def test_no_retry_waits_longer_than_a_bound(asked_s: float | None, number: int, most_s: float) -> None:
    waited_s = backoff_s(RequestRecord("r", retry_after_s=asked_s, tries=number))
    assert waited_s == most_s if asked_s is not None else most_s / 2 <= waited_s <= most_s
