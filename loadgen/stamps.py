"""The kernel's receive stamps (SO_TIMESTAMPNS), and how several arrivals that wait on one socket keep their own.

A read is stamped with the arrival of its last segment. A client that comes late to a socket would so give the time of
the last token to all that wait there. Linux joins waiting segments where it can; within a machine it mostly keeps two
or three apart (seen with 6.18): read up to the end of each, they show their own times.
"""

import platform
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

SO_TIMESTAMPNS = 35 if platform.system() == "Linux" else None
"""Linux' number for it, on every architecture but SPARC and PA-RISC; Python's socket module has no name for it."""
_TIMESPEC = struct.Struct("qq")
CONTROL_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
_unpack_timespec = _TIMESPEC.unpack

FIRST_STAMP_WAIT_S = 0.25
"""How long to wait for a kernel that is asked for stamps; on a busy machine 11 ms were seen."""

MOST_PIECES = 64
"""More have hardly come apart: a server that sends nothing but blank lines shall not hold up the loop."""
_TLS_DATA = b"\x17\x03\x03"
_TLS_HEAD_BYTES = 5


def stamp_in_kernel(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what this socket receives; whether it will."""
    if SO_TIMESTAMPNS is None or not CONTROL_BYTES or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def stamp_ns(control: list[tuple[int, int, bytes]]) -> int:
    """CLOCK_REALTIME of the stamp beside a read."""
    seconds, nanoseconds = _unpack_timespec(control[0][2])
    return seconds * 1_000_000_000 + nanoseconds  # type: ignore[no-any-return]


def keep_stamping() -> socket.socket:
    """A socket that keeps the kernel stamping for as long as it is open, from now on.

    Linux begins some milliseconds after the first socket asks, and what arrives until then has no stamp. So this waits
    until a datagram to itself has a stamp from its sending; where it gets none in time, the answers tell.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if stamp_in_kernel(sock):
        with suppress(OSError):  # a loopback that is down
            sock.setblocking(False)
            sock.bind(("127.0.0.1", 0))
            sock.connect(sock.getsockname())
            give_up_s = time.monotonic() + FIRST_STAMP_WAIT_S
            while not _stamps_arrivals(sock) and time.monotonic() < give_up_s:
                time.sleep(0.0005)
    return sock


def _stamps_arrivals(sock: socket.socket) -> bool:
    """Whether what this socket sends itself is stamped as it arrives: the kernel stamps what it has to when it is
    read."""
    sock.send(b"?")
    sent_ns = time.time_ns()
    try:
        _, control, _, _ = sock.recvmsg(1, CONTROL_BYTES)
    except BlockingIOError:
        return False
    return bool(control) and stamp_ns(control) <= sent_ns


def ends_within(data: bytes) -> list[int]:
    """Where a piece ends that may have arrived by itself, an event or a record of TLS, and another follows. An end in
    the wrong place would cost a read, and change no byte; at most MOST_PIECES behind a header."""
    if data.startswith(_TLS_DATA):
        return [end for end in islice(_tls_ends(data), MOST_PIECES) if end < len(data)]
    if data.startswith(b"HTTP/"):
        end = data.find(b"\r\n\r\n") + 4
        return [end, *_event_ends(data, end)] if 4 <= end < len(data) else []
    return _event_ends(data, 0)


def _event_ends(data: bytes, begin: int) -> list[int]:
    """The blank lines behind events, each with the end of the chunk if that is where the event ends."""
    blank = b"\n\n"
    at = data.find(blank, begin)
    if at < 0:
        blank = b"\r\n\r\n"
        at = data.find(blank, begin)
    ends: list[int] = []
    while at >= 0 and len(ends) < MOST_PIECES:
        end = at + len(blank)
        if data.startswith(b"\r\n", end):
            end += 2
        if end >= len(data):
            break
        ends.append(end)
        at = data.find(blank, end)
    return ends


def _tls_ends(data: bytes) -> Iterator[int]:
    end = 0
    while data.startswith(_TLS_DATA, end) and len(data) >= end + _TLS_HEAD_BYTES:
        end += _TLS_HEAD_BYTES + int.from_bytes(data[end + 3 : end + _TLS_HEAD_BYTES])
        yield end
