"""One request on the wire and the answer to it, up to the outcome; knows no sockets.

The connection (or any other transport) tells an Exchange what arrives; the Exchange turns it into the request's record.
"""

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import cycle

from analysis.record import RequestRecord
from loadgen.clock import Clock
from loadgen.error_text import error_message, one_line
from loadgen.inflate import Inflater
from loadgen.sse import EventTooLargeError, SseParser
from loadgen.stream_reader import StreamReader

MAX_BODY_BYTES = 65_536  # of an answer that is no stream: enough for the server's own words
LATE_NS = 20_000_000  # a timer this late was held up by our own loop
DONE_GRACE_S = 0.05  # after [DONE] the end of the body should follow at once; then the connection can be used again
EVENT_FIELDS = (b"data", b"event", b"id", b"retry", b":", b"\xef\xbb\xbf")
SNIFF_BYTES = 64
AT_ONCE = 64  # events read in one go once tokens flow
_first_batches = cycle(range(16, AT_ONCE + 1))  # streams that began together shall not all come to it together
SMALL_BYTES = 4096  # a larger piece is read at once: what is put off must not fill the memory
MAX_ANSWER_BYTES = 256 * 1024 * 1024  # a million tokens at the size of a usual event: what is kept of them is bounded


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a request may take, in seconds; None is no limit. `first_token_s` and `total_s` count from the send,
    `idle_s` from the last event (comment lines are none)."""

    connect_s: float | None = 10.0
    first_token_s: float | None = None
    idle_s: float | None = None
    total_s: float | None = None


class Exchange:
    """Collects one answer. `finished` is done when there is nothing more to wait for."""

    __slots__ = (
        "_batch",
        "_begin_ns",
        "_body",
        "_check_ns",
        "_clock",
        "_content_type",
        "_events",
        "_inflate",
        "_last_event_ns",
        "_later",
        "_limits",
        "_loop",
        "_reader",
        "_size",
        "_sse",
        "_steady",
        "_timer",
        "complete",
        "finished",
        "location",
        "record",
    )

    def __init__(self, record: RequestRecord, reader: StreamReader, clock: Clock, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._check_ns = 0
        self._sse = SseParser()
        self._reader = reader
        self._events: bool | None = None  # does the body hold events? None: its first bytes will tell
        self._body = bytearray()
        self._inflate: Inflater | None = None
        self._content_type = b""
        self._last_event_ns: int | None = None
        self._steady = False  # tokens flow: whole events may be read some at a time
        self._later: list[tuple[bytes, int, int]] = []
        self._batch = next(_first_batches)
        self._size = 0
        self._begin_ns = clock.now_ns()
        self.record = record
        self.location: str | None = None
        self.complete = False
        self.finished: asyncio.Future[None] = self._loop.create_future()
        self._arm()

    # --- what arrives ----------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[bytes, bytes], arrival_ns: int) -> None:
        record = self.record
        record.status = status
        record.headers_ns = arrival_ns
        self._content_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if not 200 <= status < 300:
            self._events = False
            self.location = headers.get(b"location", b"").decode("latin-1") or None
            record.retry_after_s = _retry_after_s(headers.get(b"retry-after"))
        elif self._content_type == b"text/event-stream":
            self._events = True
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"identity", b""):
            self._decode(encoding)

    def on_body(self, data: bytes, arrival_ns: int, read_id: int) -> None:
        """The hot path: a whole event of a stream that flows is put aside with its time, and read with others."""
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            self.on_lost("malformed", f"an answer of more than {MAX_ANSWER_BYTES} bytes", arrival_ns)
            return
        if self._steady and len(data) < SMALL_BYTES and data[:6] == b"data: " and data[-2:] == b"\n\n":
            self._last_event_ns = arrival_ns
            self._later.append((data, arrival_ns, read_id))
            if len(self._later) >= self._batch or data.endswith(b"[DONE]\n\n"):
                self._catch_up()
                self._steady = not self._reader.done
            return
        self._catch_up()
        if self._inflate is None:
            self._on_text(data, arrival_ns, read_id)
        else:
            self._on_compressed(data, arrival_ns, read_id)

    def on_complete(self, arrival_ns: int) -> None:
        """The proper end of the body."""
        self._catch_up()
        self.complete = True
        if self.finished.done():
            return
        if self._events:
            self._read_rest(arrival_ns)
        self._conclude(arrival_ns)

    def on_lost(self, outcome: str, message: str, arrival_ns: int) -> None:
        if self.finished.done():
            return
        self._catch_up()
        record = self.record
        if record.status is not None and not 200 <= record.status < 300:
            self._conclude(arrival_ns)  # the server had refused already: that it also hung up changes nothing
        elif self._properly_ended() or self._reader.failed:
            self._conclude(arrival_ns)
        else:
            self._end(outcome, message, arrival_ns)

    def _on_compressed(self, data: bytes, arrival_ns: int, read_id: int) -> None:
        assert self._inflate is not None
        try:
            for piece in self._inflate.feed(data):
                self._size += len(piece)
                self._on_text(piece, arrival_ns, read_id)
                if self.finished.done():
                    return
        except zlib.error as problem:
            self.on_lost("malformed", f"the compressed answer is broken: {problem}", arrival_ns)

    def _on_text(self, data: bytes, arrival_ns: int, read_id: int) -> None:
        if self._events is None:
            data = self._sniff(data)
        if not self._events:
            self._keep(data)
            return
        try:
            events = self._sse.feed(data)
        except EventTooLargeError as problem:
            self._end("malformed", f"the server sent {problem}", arrival_ns)
            return
        if events:
            self._last_event_ns = arrival_ns
            for name, payload in events:
                if self._reader.done:
                    break  # what follows [DONE] is no part of the answer
                self._reader.read(name, payload, arrival_ns, read_id)
            if self._reader.done:
                self._on_done(arrival_ns)
        elif self._last_event_ns is None:
            self._keep(data)  # an error page under the wrong content type is told in its own words
        self._steady = self._may_put_off()

    def _may_put_off(self) -> bool:
        """Once tokens flow, events are read some at a time: that costs half as much, and their times are known. The
        first token is read at once, as limits wait for it, and so is the end."""
        plain = self._sse.clean and self._inflate is None and bool(self.record.arrival_ns)
        return plain and self._reader.reads_batches and not self._reader.done

    def _catch_up(self) -> None:
        """Read the events that were put off."""
        if not self._later:
            return
        later, self._later, self._batch = self._later, [], AT_ONCE
        done = self._reader.read_plain(later)
        for data, arrival_ns, read_id in later[done:]:
            self._on_text(data, arrival_ns, read_id)

    def _on_done(self, arrival_ns: int) -> None:
        """The answer is over; the body should be within a moment, and then the connection can be used again."""
        if self.record.end_ns is None:
            self.record.end_ns = arrival_ns
            self._disarm()
            self._timer = self._loop.call_later(DONE_GRACE_S, self._conclude, arrival_ns)

    def _read_rest(self, arrival_ns: int) -> None:
        """The last event, where the body ended without its blank line."""
        try:
            events = self._sse.close()
        except EventTooLargeError as problem:
            self._end("malformed", f"the server sent {problem}", arrival_ns)
            return
        for name, data in events:
            if not self._reader.done:
                self._reader.read(name, data, arrival_ns, self.record.read_id[-1] if self.record.read_id else 0)

    def _sniff(self, data: bytes) -> bytes:
        """Tell by its first bytes whether the body holds events. Returns what there is to read: nothing, as long as
        those that came could begin with either."""
        data = bytes(self._body) + data
        head = data[:SNIFF_BYTES].lstrip()
        if len(data) < SNIFF_BYTES and any(field.startswith(head) for field in EVENT_FIELDS):
            self._body = bytearray(data)
            return b""
        self._body.clear()
        self._events = head.startswith(EVENT_FIELDS)
        return data

    def _keep(self, data: bytes) -> None:
        self._body += data[: max(0, MAX_BODY_BYTES - len(self._body))]

    def _decode(self, encoding: bytes) -> None:
        if encoding in (b"gzip", b"x-gzip", b"deflate"):
            self._inflate = Inflater(encoding)
        else:
            self._end("malformed", f"the answer is compressed with {encoding.decode('latin-1')}", self._clock.now_ns())

    # --- limits ----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """One timer a request, moved only when it fires: renewing it with each token would cost more than the token."""
        due_ns = [due for due, _, _ in self._deadlines()]
        if not self.record.arrival_ns and self._limits.idle_s is not None:
            due_ns.append(self._clock.now_ns() + _ns(self._limits.idle_s))  # look again: it may have begun by then
        if due_ns:
            self._check_at(min(due_ns))

    def _check_at(self, due_ns: int, excused: bool = False) -> None:
        self._check_ns = due_ns
        delay_s = max(0.0, (due_ns - self._clock.now_ns()) / 1e9)
        self._timer = self._loop.call_later(delay_s, self._check, excused)

    def _deadlines(self) -> list[tuple[int, str, str]]:
        limits, begin_ns = self._limits, self.record.sent_ns or self._begin_ns
        found: list[tuple[int, str, str]] = []
        if limits.total_s is not None:
            found.append((begin_ns + _ns(limits.total_s), "timeout_total", f"not over after {limits.total_s:g} s"))
        if not self.record.arrival_ns:
            if limits.first_token_s is not None:
                text = f"no token after {limits.first_token_s:g} s"
                found.append((begin_ns + _ns(limits.first_token_s), "timeout_first_token", text))
        elif limits.idle_s is not None:
            text = f"silent for {limits.idle_s:g} s in mid-stream"
            found.append(((self._last_event_ns or begin_ns) + _ns(limits.idle_s), "timeout_idle", text))
        return found

    def _check(self, excused: bool) -> None:
        now_ns = self._clock.now_ns()
        late_ns = now_ns - self._check_ns
        if late_ns > LATE_NS and not excused:
            self._check_at(now_ns + late_ns, excused=True)  # what arrived meanwhile is still to be read
            return
        for due_ns, outcome, message in self._deadlines():
            if due_ns <= now_ns:
                self.on_lost(outcome, message, now_ns)
                return
        self._arm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the end ---------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cut by us: what had come stays in the record."""
        self._catch_up()
        if not self.finished.done():
            self._end("cancelled", None, self._clock.now_ns())

    def _properly_ended(self) -> bool:
        return bool(self.record.arrival_ns) and (self._reader.done or self.record.finish_reason is not None)

    def _conclude(self, arrival_ns: int) -> None:
        record = self.record
        status = record.status or 0
        if not 200 <= status < 300:
            self._refused(status, arrival_ns)
        elif self._reader.failed:
            self._end("stream_error", record.error, arrival_ns)
        elif not self._events:
            self._not_a_stream(arrival_ns)
        elif self._properly_ended():
            self._end("ok", None, arrival_ns)
        elif record.arrival_ns:
            self._end("truncated", "the stream ended without finish_reason and [DONE]", arrival_ns)
        elif record.events_dropped:
            self._end("malformed", f"none of {record.events_dropped} events could be read", arrival_ns)
        elif self._reader.done or record.finish_reason is not None:
            self._end("empty", "the answer has no token", arrival_ns)
        elif self._last_event_ns is None and self._body.lstrip().startswith((b"{", b"<")):
            self._not_a_stream(arrival_ns)
        else:
            self._end("truncated", "the stream ended before a token, finish_reason or [DONE]", arrival_ns)

    def _refused(self, status: int, arrival_ns: int) -> None:
        words = error_message(bytes(self._body)) or (HTTPStatus(status).phrase if status in _STATUSES else "")
        if 300 <= status < 400:
            words = f"redirected to {self.location or 'nowhere'}; give that URL as --target"
        self._end("rate_limited" if status == 429 else "http_error", words or f"HTTP {status}", arrival_ns)

    def _not_a_stream(self, arrival_ns: int) -> None:
        body = bytes(self._body).strip()
        words = error_message(body) if body else "an empty body"
        if body.startswith(b"{") and b'"error"' in body and b'"choices"' not in body:
            self._end("stream_error", words, arrival_ns)
        elif body.startswith(b"{") and (b"choices" in body or b"output" in body):
            self._end("not_streamed", "the server sent one JSON body where a stream was asked for", arrival_ns)
        else:
            kind = self._content_type.decode("latin-1") or "no content type"
            self._end("malformed", f"not an event stream ({kind}): {words}", arrival_ns)

    def _end(self, outcome: str, message: str | None, arrival_ns: int) -> None:
        if self.finished.done():
            return
        self._disarm()
        record = self.record
        record.outcome = outcome
        record.error = None if message is None else one_line(message)
        if record.end_ns is None:
            record.end_ns = arrival_ns
        self._events = False  # what may still come is not read
        self.finished.set_result(None)


_STATUSES = frozenset(int(status) for status in HTTPStatus)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _retry_after_s(value: bytes | None) -> float | None:
    """The seconds of a Retry-After header; a date is left out (its clock is not ours)."""
    try:
        seconds = float(value) if value else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < 1e6 else None
