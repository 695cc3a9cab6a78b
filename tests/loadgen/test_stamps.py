"""What waits on a socket together, and keeps its own times."""

import asyncio
import platform
import socket
import struct
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import stamps
from loadgen.connection import Connection
from loadgen.stamps import CONTROL_BYTES, MOST_PIECES, ends_within, keep_stamping, stamp_in_kernel

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def record(body: bytes) -> bytes:
    """A TLS record of application data."""
    return b"\x17\x03\x03" + len(body).to_bytes(2) + body


PIECES = {
    "nothing": [],
    "one event": [b"data: a\n\n"],
    "events of a body without length": [b"data: a\n\n", b"data: b\n\n", b"data: [DONE]\n\n"],
    "events in chunks": [chunk(b"data: a\n\n"), chunk(b"data: bcd\n\n"), LAST],
    "lines that end as Windows' do": [chunk(b"data: a\r\n\r\n"), chunk(b"data: b\r\n\r\n")],
    "a header and its first event": [HEAD, chunk(b"data: a\n\n")],
    "a header and events with lines that end as Windows' do": [HEAD, b"data: a\r\n\r\n", b"data: b\r\n\r\n"],
    "a header alone": [HEAD],
    "half a header": [HEAD[:30]],
    "an event and the beginning of the next": [chunk(b"data: a\n\n"), b"c\r\ndata:"],
    "no events": [b"x" * 500],
    "records of TLS": [record(b"abc"), record(b""), record(b"\n\n" * 200)],
    "a record of TLS and the beginning of the next": [record(b"abc"), record(b"defghi")[:7]],
    "a record of TLS and less than a header": [record(b"abc"), b"\x17\x03"],
}


@pytest.mark.parametrize("case", PIECES)
def test_where_pieces_end(case: str) -> None:
    pieces = PIECES[case]
    ends = [sum(map(len, pieces[:n])) for n in range(1, len(pieces))]
    assert ends_within(b"".join(pieces)) == ends


def test_blank_lines_without_end_are_few_pieces() -> None:
    assert len(ends_within(b"\n\n" * 8000)) == MOST_PIECES


class Segments:
    """A socket as the kernel has it: a read is stamped with the time of the last segment that it touches."""

    def __init__(self, *segments: tuple[int, bytes]) -> None:
        self.waiting = [(stamp, bytes(data)) for stamp, data in segments]
        self.reads = 0

    def fileno(self) -> int:
        return -1

    def recvmsg(self, size: int, _: int, flags: int = 0) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        self.reads += 1
        data, stamp, left = b"", None, []
        for at, segment in self.waiting:
            taken = segment[: size - len(data)]
            if taken:
                data, stamp = data + taken, at
            if segment[len(taken) :]:
                left.append((at, segment[len(taken) :]))
        if not flags & socket.MSG_PEEK:
            self.waiting = left
        timespec = b"" if stamp is None else struct.pack("qq", *divmod(stamp, 10**9))
        return data, [(1, 35, timespec)] if timespec else [], 0, None

    def recv(self, size: int, flags: int = 0) -> bytes:
        return self.recvmsg(size, 0, flags)[0]

    def close(self) -> None:
        pass


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[bytes, int, int]] = []
        self.ended_ns: int | None = None
        self.lost: tuple[str, str] | None = None

    def on_head(self, status: int, headers: Mapping[bytes, bytes], arrival_ns: int) -> None:
        pass

    def on_body(self, data: bytes, arrival_ns: int, read_id: int) -> None:
        self.events.append((data, arrival_ns, read_id))

    def on_complete(self, arrival_ns: int) -> None:
        self.ended_ns = arrival_ns

    def on_lost(self, outcome: str, message: str, arrival_ns: int) -> None:
        self.lost = (outcome, message)


def heard(sock: Segments, late: bool) -> Heard:
    """What a listener is told by a connection whose socket is read until nothing waits there."""

    async def main() -> Heard:
        readers: list[Callable[[], None]] = []
        poller: Any = SimpleNamespace(late=late, add=lambda _, reader: readers.append(reader), remove=lambda _: None)
        clock: Any = SimpleNamespace(realtime_base_ns=0, now_ns=lambda: 10**15)
        connection = Connection(sock, poller, clock, None, kernel_stamps=True)  # type: ignore[arg-type]
        listener = Heard()
        await connection.send(b"", listener)
        while sock.waiting and not connection.closed:
            readers[0]()
        return listener

    return asyncio.run(main())


FIRST, SECOND, THIRD = (chunk(b"data: %b\n\n" % word) for word in (b"one", b"second", b"3"))


def test_tokens_that_the_kernel_keeps_apart_have_their_own_times() -> None:
    arrivals = ((10, HEAD), (20, FIRST), (30, SECOND), (40, THIRD + LAST))
    listener = heard(Segments(*arrivals), late=True)
    assert [(at, read) for _, at, read in listener.events] == [(20, 2), (30, 3), (40, 4)]
    assert listener.ended_ns == 40
    at_once = heard(Segments(*arrivals), late=False)
    assert [(at, read) for _, at, read in at_once.events] == [(40, 1)] * 3


def test_tokens_that_the_kernel_has_joined_are_one_read_with_the_time_of_the_last() -> None:
    sock = Segments((10, HEAD), (20, FIRST), (50, SECOND + THIRD + FIRST + SECOND + LAST))
    listener = heard(sock, late=True)
    assert [(at, read) for _, at, read in listener.events] == [(20, 2)] + [(50, 3)] * 4
    assert sock.reads == 5  # a look, three of its pieces, and the rest at once


def test_one_token_costs_a_look_and_a_read() -> None:
    sock = Segments((10, HEAD + FIRST))
    sock.waiting = [(10, b"data: x\n\n")]
    heard(sock, late=True)
    assert sock.reads == 2


def test_what_follows_an_answer_ends_the_connection_and_is_not_read() -> None:
    sock = Segments((10, HEAD + FIRST + LAST), (20, HEAD + FIRST), (30, SECOND), (40, THIRD))
    listener = heard(sock, late=True)
    assert ([at for _, at, _ in listener.events], listener.lost) == ([10], None)
    assert sock.waiting


@given(
    words=st.lists(st.binary(min_size=1, max_size=40).filter(lambda word: b"\n" not in word), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 400), max_size=12),
)
def test_however_it_waits_the_same_is_read_and_in_order(words: list[bytes], cuts: list[int]) -> None:
    answer = HEAD + b"".join(chunk(b"data: " + word + b"\n\n") for word in words) + LAST
    bounds = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
    segments = [(10 * n, answer[a:b]) for n, (a, b) in enumerate(pairwise(bounds), 1)]
    listener, plain = heard(Segments(*segments), late=True), heard(Segments(*segments), late=False)
    assert b"".join(data for data, _, _ in listener.events) == b"".join(data for data, _, _ in plain.events)
    assert listener.ended_ns == plain.ended_ns == 10 * len(segments)
    times = [at for _, at, _ in listener.events]
    assert times == sorted(times)
    place = answer.index(b"data: ")
    for data, at, _ in listener.events:  # never before all of its bytes were there
        place = answer.index(data, place) + len(data)
        there = next(stamp for stamp, b in zip((s for s, _ in segments), bounds[1:], strict=True) if b >= place)
        assert at >= there


@pytest.mark.parametrize(
    ("stamped_ns", "arrives", "found"),
    [(90, True, True), (100, True, True), (101, True, False), (None, True, False), (None, False, False)],
    ids=["while it was sent", "as it was sent", "when it was read", "not at all", "not there yet"],
)
def test_a_stamp_from_the_reading_is_told_from_one_of_the_arrival(
    monkeypatch: pytest.MonkeyPatch, stamped_ns: int | None, arrives: bool, found: bool
) -> None:
    def recvmsg(*_: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        if not arrives:
            raise BlockingIOError
        control = [] if stamped_ns is None else [(0, 0, struct.pack("qq", 0, stamped_ns))]
        return b"?", control, 0, None

    sock: Any = SimpleNamespace(send=len, recvmsg=recvmsg)
    monkeypatch.setattr(stamps.time, "time_ns", lambda: 100)
    assert stamps._stamps_arrivals(sock) is found


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux has receive stamps")
@pytest.mark.parametrize(("begins_at_s", "waited_s"), [(0.0, 0.0), (0.011, 0.011), (9.0, stamps.FIRST_STAMP_WAIT_S)])
def test_the_first_answers_wait_for_the_kernel_to_begin_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, begins_at_s: float, waited_s: float
) -> None:
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(stamps.time, "monotonic", lambda: now.s)
    monkeypatch.setattr(stamps.time, "sleep", lambda s: setattr(now, "s", now.s + s))
    monkeypatch.setattr(stamps, "_stamps_arrivals", lambda _: now.s >= begins_at_s)
    keep_stamping().close()
    assert now.s == pytest.approx(waited_s, abs=0.001)


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux has receive stamps")
def test_what_arrives_behind_it_is_stamped() -> None:
    with (
        keep_stamping(),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        assert stamp_in_kernel(receiver)
        sender.send(b"x")
        assert receiver.recvmsg(1, CONTROL_BYTES)[1]


def test_without_a_loopback_it_asks_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(_: socket.socket) -> bool:
        raise OSError("network is unreachable")

    monkeypatch.setattr(stamps, "_stamps_arrivals", down)
    with keep_stamping() as sock:
        assert sock.fileno() >= 0
