"""Incremental parser of server-sent events (WHATWG HTML, section 9.2.6). Pure: bytes in, events out."""

from typing import TypeAlias

Event: TypeAlias = tuple[bytes, bytes]
"""(name, data): name is empty for a plain event; several data lines are joined by a line feed."""

MAX_EVENT_BYTES = 64 * 1024 * 1024
MAX_IDLE_LINES = 65_536
"""Comments and blank lines between two events: a server that pings five times a second needs two hours for them."""
LINE_BYTES = 64
"""What a line of data takes in memory beside its bytes, counted with them: an event of empty lines is large too."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLargeError(ValueError):
    """An event or line grew past its limit without an end, or lines that are no event came without end."""


class SseParser:
    """Splits a byte stream into events, however the network cut it.

    A line ends with LF, CR or CRLF. An event is complete with its blank line; a CR completes it at once, and the LF
    that may follow in a later read is skipped.
    """

    __slots__ = ("_data", "_idle_lines", "_max_bytes", "_name", "_partial", "_size", "_skip_lf", "clean")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._partial = bytearray()  # grows in place: a large event may come in many small reads
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0
        self._idle_lines = -1  # since the last event; negative before the first line
        self._skip_lf = False
        self.clean = True  # nothing of an earlier read is waiting for its end
        self._max_bytes = max_event_bytes

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes.

        Raises:
            EventTooLargeError: an event is larger than the limit; the parser is of no more use then.
        """
        size = len(data)
        if (  # one line, then the blank line: what most servers send in one write
            self.clean
            and data[:6] == b"data: "
            and data.find(b"\n") == size - 2
            and data[size - 1 :] == b"\n"
            and b"\r" not in data
        ):
            self._idle_lines = 0
            return [(b"", data[6:-2])]
        return self._feed_lines(data)

    def close(self) -> list[Event]:
        """The event that lacks only its blank line when the stream ends; some servers leave it out after [DONE]."""
        events: list[Event] = []
        if self._partial:
            self._line(self._take_partial(), events)
        self._line(b"", events)
        return events

    def _feed_lines(self, data: bytes) -> list[Event]:
        if self._skip_lf and data:
            self._skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        events: list[Event] = []
        for piece in data.splitlines(keepends=True):
            if not piece.endswith((b"\n", b"\r")):
                self._extend(piece)
            elif self._partial:
                self._extend(piece)
                self._line(self._take_partial().rstrip(b"\r\n"), events)
            else:
                self._line(piece.rstrip(b"\r\n"), events)
        self._skip_lf = self._skip_lf or data.endswith(b"\r")
        self.clean = not (self._partial or self._data or self._name or self._skip_lf)
        return events

    def _extend(self, piece: bytes) -> None:
        if len(self._partial) + len(piece) > self._max_bytes:
            raise EventTooLargeError(f"a line of more than {self._max_bytes} bytes")
        self._partial += piece

    def _take_partial(self) -> bytes:
        line = bytes(self._partial)
        self._partial.clear()
        return line

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._idle_lines < 0:
            self._idle_lines = 0
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line and self._data:
            self._dispatch(events)
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + LINE_BYTES
            if self._size > self._max_bytes:
                raise EventTooLargeError(f"an event of more than {self._max_bytes} bytes")
            self._data.append(value)
            return
        if name == b"event" or not line:
            self._name = value
        self._idle_lines += 1
        if self._idle_lines > MAX_IDLE_LINES:
            raise EventTooLargeError(f"more than {MAX_IDLE_LINES} lines without an event")

    def _dispatch(self, events: list[Event]) -> None:
        events.append((self._name, self._data[0] if len(self._data) == 1 else b"\n".join(self._data)))
        self._data = []
        self._name = b""
        self._size = self._idle_lines = 0
