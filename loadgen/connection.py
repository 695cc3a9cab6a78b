"""One HTTP/1.1 connection with kernel receive stamps: the lower half of the hot path.

Measuring token arrival is what this program exists for, so the socket is read here and nowhere else: a non-blocking
socket on the event loop's selector, `recvmsg` with the kernel's receive stamp beside the data, llhttp for the framing.
Nothing is awaited, logged or allocated per token beyond what the bytes themselves need. TLS runs over the same reads
(`ssl.MemoryBIO`), so encrypted streams get kernel stamps too.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Protocol

import httptools

from loadgen.clock import RunClock
from loadgen.error_text import fault
from loadgen.poller import Poller
from loadgen.stamps import CONTROL_BYTES, ends_within, stamp_ns
from loadgen.tls_pipe import READ_BYTES, TlsPipe

MAX_HEAD_BYTES = 262_144


class Listener(Protocol):
    """Who is told what a connection reads: the exchange that it carries."""

    def on_head(self, status: int, headers: Mapping[bytes, bytes], arrival_ns: int) -> None: ...
    def on_body(self, data: bytes, arrival_ns: int, read_id: int) -> None: ...
    def on_complete(self, arrival_ns: int) -> None: ...
    def on_lost(self, outcome: str, message: str, arrival_ns: int) -> None: ...


class OpenError(Exception):
    """A connection could not be opened: the outcome that the request gets, and why."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Connection:
    """A connection that carries one exchange at a time.

    `kernel_reads` and `user_reads` count the reads by where their arrival time came from. `idle_since_ns` is set while
    it waits in a pool; `keep_alive_s` is how long the server said that it keeps an idle connection.
    """

    __slots__ = (
        "_answering",
        "_bare_bytes",
        "_clock",
        "_headers",
        "_keep_alive",
        "_kernel_stamps",
        "_listener",
        "_loop",
        "_parser",
        "_poller",
        "_sent",
        "_sent_ns",
        "_sock",
        "_tls",
        "_unsent",
        "_until_close",
        "arrival_ns",
        "closed",
        "connect_s",
        "dns_s",
        "idle_since_ns",
        "keep_alive_s",
        "lost_unanswered",
        "read_id",
        "requests",
        "tls_s",
        "user_reads",
    )

    def __init__(
        self, sock: socket.socket, poller: Poller, clock: RunClock, tls: TlsPipe | None, kernel_stamps: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._poller = poller
        self._clock = clock
        self._tls = tls
        self._parser: httptools.HttpResponseParser | None = None
        self._listener: Listener | None = None
        self._unsent = memoryview(b"")
        self._sent: asyncio.Future[None] | None = None
        self._sent_ns = 0
        self._headers: dict[bytes, bytes] = {}
        self._until_close = False
        self._answering = False  # the header of the answer is over
        self._bare_bytes = 0  # what came since the last piece of body: headers, trailers, sizes of chunks
        self._keep_alive = False
        self._kernel_stamps = kernel_stamps
        self.arrival_ns = 0
        self.read_id = 0
        self.user_reads = 0
        self.requests = 0
        self.closed = False
        self.lost_unanswered = False  # the connection was gone before a byte of the answer
        self.idle_since_ns = 0
        self.keep_alive_s: float | None = None
        self.connect_s: float | None = None
        self.dns_s: float | None = None
        self.tls_s: float | None = None
        poller.add(sock.fileno(), self._readable)

    # --- sending ---------------------------------------------------------------------------------------------------

    async def send(self, data: bytes, listener: Listener) -> int | None:
        """Hand a whole request to the kernel: the instant at which its last bytes went, None if that failed.

        That instant is read before the system call, not after: on one machine the server may run, and answer, before
        the call returns.

        The listener hears of the loss and of whatever the server answers, also while the request is still going out.
        """
        self._listener = listener
        self._parser = httptools.HttpResponseParser(self)
        self._answering = False
        self._bare_bytes = 0
        self._keep_alive = False
        self.requests += 1
        self._unsent = memoryview(self._tls.encrypt(data) if self._tls else data)
        self._write()
        if self._unsent and not self.closed:
            self._sent = self._loop.create_future()
            self._loop.add_writer(self._sock, self._write)
            await self._sent
        return None if self._unsent else self._sent_ns

    def _write(self) -> None:
        try:
            while self._unsent:
                self._sent_ns = self._clock.now_ns()
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._lose("broken", f"the connection was lost while the request was sent: {reason(problem)}")
            return
        self._release_sender()

    def _release_sender(self) -> None:
        if self._sent is not None:
            self._loop.remove_writer(self._sock)
            if not self._sent.done():
                self._sent.set_result(None)
            self._sent = None

    # --- receiving -------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        """Read what is there. What is over the limit makes the selector call again."""
        try:
            if not self._kernel_stamps:
                self._take(self._sock.recv(READ_BYTES), None)
            elif self._poller.late:
                self._read_apart()
            else:
                data, control, _, _ = self._sock.recvmsg(READ_BYTES, CONTROL_BYTES)
                self._take(data, control)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self.arrival_ns = self._clock.now_ns()
            self._lose("broken", f"the connection was lost: {reason(problem)}")

    def _read_apart(self) -> None:
        """Read what may have gathered piece by piece, as long as the pieces have arrival times of their own."""
        data, last, _, _ = self._sock.recvmsg(READ_BYTES, CONTROL_BYTES, socket.MSG_PEEK)
        begin = 0
        for end in ends_within(data):
            piece, control, _, _ = self._sock.recvmsg(end - begin, CONTROL_BYTES)
            if control == last:
                self._take(piece + self._sock.recv(len(data) - end), last)
                return
            self._take(piece, control)
            if self.closed:
                return
            begin = end
        self._take(self._sock.recv(len(data) - begin) if data else data, last)

    def _take(self, data: bytes, control: list[tuple[int, int, bytes]] | None) -> None:
        """What a read brought, and its stamp."""
        if control:
            self.arrival_ns = stamp_ns(control) - self._clock.realtime_base_ns
        else:
            self.arrival_ns = self._clock.now_ns()
            if data:  # the end of the stream has no stamp
                self.user_reads += 1
        self.read_id += 1
        try:
            if not data:
                self._end_of_stream()
            elif self._tls is None:
                self._feed(data)
            else:
                self._feed_encrypted(data)
        except Exception as problem:
            self._fail(problem)

    def _fail(self, problem: Exception) -> None:
        """What went wrong with the bytes of a read ends this request, and no other."""
        if isinstance(problem, httptools.HttpParserUpgrade):
            self._lose("malformed", "the server switched to another protocol")
        elif isinstance(problem, httptools.HttpParserCallbackError):
            cause = problem.__context__  # what one of our own callbacks raised
            self._lose("client_error", fault(cause if isinstance(cause, Exception) else problem))
        elif isinstance(problem, httptools.HttpParserError):
            self._lose("malformed", f"not an HTTP answer: {problem}")
        else:
            self._lose("client_error", fault(problem))

    def _feed(self, data: bytes) -> None:
        if self._listener is None:
            self.close()  # bytes that nobody asked for: the connection cannot be trusted with another request
            return
        self._bare_bytes += len(data)
        self._parser.feed_data(data)  # type: ignore[union-attr]
        if self._bare_bytes > MAX_HEAD_BYTES:
            self._lose("malformed", f"a header of more than {MAX_HEAD_BYTES} bytes")

    def _feed_encrypted(self, data: bytes) -> None:
        tls = self._tls
        assert tls is not None
        try:
            for plain in tls.decrypt(data):
                self._feed(plain)
                if self.closed:
                    return
        except ssl.SSLError as problem:
            self._lose("broken", f"TLS failed inside the stream: {reason(problem)}")
            return
        if tls.closed:
            self._end_of_stream()

    def _end_of_stream(self) -> None:
        """The server closed: the proper end of a body without length, else a loss."""
        if self._until_close and self._listener is not None:
            self._keep_alive = False
            self._complete()
        else:
            where = "inside the answer" if self._answering else "before it answered"
            self._lose("broken", f"the server closed the connection {where}")

    # --- what llhttp calls -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = {}
        if self._listener is None:
            self.close()  # a second answer, right behind the end of the first

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._answering:  # else a trailer
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._listener is None or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 100:
            self._lose("malformed", f"an answer with status {status}")
        if status < 200:
            if not _has_no_length(self._headers):
                self._lose("malformed", f"an interim answer ({status}) with a body")
            return
        self._answering = True
        headers = self._headers
        self._keep_alive = self._parser.should_keep_alive()
        self._until_close = status not in (204, 304) and _has_no_length(headers)
        if b"keep-alive" in headers:
            self.keep_alive_s = _keep_alive_s(headers[b"keep-alive"])
        self._listener.on_head(status, headers, self.arrival_ns)

    def on_body(self, data: bytes) -> None:
        self._bare_bytes = 0
        if self._listener is not None:
            self._listener.on_body(data, self.arrival_ns, self.read_id)

    def on_message_complete(self) -> None:
        if self._answering:
            self._complete()

    # --- ends ------------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        listener, self._listener = self._listener, None
        if not self._keep_alive or self._unsent:
            self.close()
        if listener is not None:
            try:
                listener.on_complete(self.arrival_ns)
            except Exception as problem:
                listener.on_lost("client_error", fault(problem), self.arrival_ns)

    def _lose(self, outcome: str, message: str) -> None:
        listener, self._listener = self._listener, None
        self.lost_unanswered = not self._answering and self._bare_bytes == 0
        self.close()
        if listener is not None:
            listener.on_lost(outcome, message, self.arrival_ns)

    @property
    def mixed_stamps(self) -> bool:
        """Whether the kernel stamped some reads and left out others, as it does where it had to squeeze its buffers."""
        return self._kernel_stamps and self.user_reads > 0

    def is_reusable(self) -> bool:
        """Whether another request may go out: open, and nothing (an end, say) has come since the last one."""
        if self.closed:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            pass
        self.close()
        return False

    def close(self) -> None:
        """Close at once; the listener, if any, is not told."""
        if self.closed:
            return
        self.closed = True
        self._listener = None
        self._poller.remove(self._sock.fileno())
        self._release_sender()
        self._sock.close()
        self._parser = None  # it holds this connection: with garbage collection off, cycles must be cut by hand


def _has_no_length(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the body lasts until the connection closes."""
    encoding = headers.get(b"transfer-encoding")
    return b"content-length" not in headers if encoding is None else not encoding.lower().rstrip().endswith(b"chunked")


def _keep_alive_s(value: bytes) -> float | None:
    """The seconds of `Keep-Alive: timeout=5, max=100`."""
    for part in value.split(b","):
        name, _, number = part.strip().partition(b"=")
        if name.lower() == b"timeout" and number.strip().isdigit():
            return float(number)
    return None


def reason(problem: BaseException) -> str:
    """An operating-system or TLS error in words."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or str(problem)).replace("_", " ").lower()
    if isinstance(problem, OSError):
        return os.strerror(problem.errno) if problem.errno and problem.errno > 0 else str(problem)
    return str(problem) or type(problem).__name__
