"""The journal of a run that is still going on: an append-only file that survives a killed process.

A run of several processes has one journal for each; `read_journals` makes one sequence of them.

A frame is a length and a CRC-32 (both little-endian uint32), then a msgpack array: its kind and its content. A batch of
requests is a list of rows in the order of `columns.ROW_FIELDS`, token events as the raw bytes of their arrays; where
not all events are kept, `thin.TAIL` comes behind. Whatever follows the last whole frame is dropped on reading: the
process died while writing it.
"""

import contextlib
import errno
import heapq
import os
import struct
import sys
import threading
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from analysis.columns import REQUESTS, ROW_FIELDS, Row, rows_of
from analysis.record import KINDS, RequestRecord
from analysis.thin import COUNTED, TAIL

MAGIC = b"loadgen journal 1 " + sys.byteorder.encode() + b"\n"
_FRAME = struct.Struct("<II")
_ROWS_PER_FRAME = 50  # encoding more at once would hold up the event loop, which wants to send
_TEXT = ROW_FIELDS.index("text")
_STARTS = tuple(map(ROW_FIELDS.index, ("due_ns", "sent_ns", "end_ns")))
_END = ROW_FIELDS.index("end_ns")
_KIND = ROW_FIELDS.index("kind")
_KIND_CODES = bytes(range(len(KINDS)))

_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]  # what 64 bits of nanoseconds may come to
_ANNOTATED: dict[Any, Any] = {
    int: _Int, int | None: _Int | None, float | None: _Seconds | None, "array[int]": bytes,
}  # fmt: skip
_DECLARED = {each.name: _ANNOTATED.get(each.type, each.type) for each in fields(RequestRecord)}
_HEAD = tuple(_DECLARED[name] for name in ROW_FIELDS)
_TOLD = {"Int64": _Int | None, "Float64": _Seconds | None, "boolean": bool | None, "category": str | None}
_TAIL = tuple(_TOLD[known[name]] if name in (known := REQUESTS | COUNTED) else bytes for name in TAIL)
_ROWS: dict[int, Any] = {len(types): list[tuple[types]] for types in (_HEAD, _HEAD + _TAIL)}  # type: ignore[valid-type]
"""What the rows of a batch are, by their length: whole ones, and those that keep few events."""
_SAMPLES = list[dict[str, _Int | float | bool | None]]


class JournalError(ValueError):
    """The file is not a journal of this format; the message says why in one line."""


class Journal:
    """Appends frames; all of a call have reached the kernel when it returns.

    A call that raises OSError has left nothing behind, so that it may be tried again. `thinned` makes rows that keep
    fewer events.
    """

    def __init__(
        self, path: Path, keep_text: bool, thinned: Callable[[Sequence[Row]], list[Row]] | None = None
    ) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._keep_text = keep_text
        self._thinned = thinned
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_raw)
        self._lock = threading.Lock()
        self._size = 0
        try:
            self._write([MAGIC])
        except OSError:
            self._file.close()
            raise

    def append_records(self, records: Sequence[RequestRecord]) -> None:
        batches = (records[start : start + _ROWS_PER_FRAME] for start in range(0, len(records), _ROWS_PER_FRAME))
        self._write(self._frame("requests", self._rows(batch)) for batch in batches)

    def append(self, kind: str, content: Any) -> None:
        self._write([self._frame(kind, content)])

    def close(self) -> None:
        self._file.close()

    def _rows(self, batch: Sequence[RequestRecord]) -> list[Row]:
        rows = rows_of(batch) if self._thinned is None else self._thinned(rows_of(batch))
        return rows if self._keep_text else [_without_text(row) for row in rows]

    def _frame(self, kind: str, content: Any) -> bytes:
        payload = self._encoder.encode((kind, content))
        return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload

    def _write(self, pieces: Iterable[bytes]) -> None:
        with self._lock:
            try:
                self._check_in_place()
                size = self._size + sum(self._put(memoryview(piece)) for piece in pieces)
            except OSError:
                with contextlib.suppress(OSError):  # what follows a torn frame would never be read
                    self._file.seek(self._size)
                    self._file.truncate()
                raise
            self._size = size

    def _put(self, piece: memoryview) -> int:
        left = piece
        while left:
            left = left[self._file.write(left) :]
        return len(piece)

    def _check_in_place(self) -> None:
        """A file that was removed takes all that is written, and loses it."""
        if not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def read_journal(path: Path) -> Iterator[tuple[str, Any]]:
    """Kind and content of every whole frame. JournalError if the file is something else; OSError if unreadable."""
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
        try:
            if not MAGIC.startswith(head):
                raise JournalError("not a journal of this format and byte order")
            while payload := _next_payload(file):
                yield _decoded(payload)
        except JournalError as problem:
            raise JournalError(f"{path.name}: {problem}") from None


def read_journals(paths: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    """One journal as it is; of several, the requests of all by due time, or by the time they left if they had none."""
    if len(paths) == 1:
        yield from read_journal(paths[0])
        return
    for path in paths:
        yield from ((kind, content) for kind, content in read_journal(path) if kind != "requests")
    yield from (("requests", [row]) for row in _merged(paths))


def _merged(paths: Sequence[Path]) -> Iterator[Row]:
    """The times are read first: then no more rows need to wait in memory than ended out of turn."""
    starts_ns = np.sort(np.fromiter((entry[0] for path in paths for entry in _timed(path)), dtype=np.int64))
    waiting: list[tuple[int, int, Row]] = []
    passed = 0
    for number, (start_ns, _, row) in enumerate(heapq.merge(*map(_timed, paths), key=itemgetter(1))):
        heapq.heappush(waiting, (start_ns, number, row))
        while waiting and waiting[0][0] == starts_ns[passed]:
            yield heapq.heappop(waiting)[2]
            passed += 1


def _timed(path: Path) -> Iterator[tuple[int, int, Row]]:
    """Start and end of every request with its row; one that was never sent has the times of the one before."""
    start_ns = end_ns = 0
    for kind, rows in read_journal(path):
        for row in rows if kind == "requests" else ():
            start_ns = next((row[at] for at in _STARTS if row[at] is not None), start_ns)
            end_ns = end_ns if row[_END] is None else row[_END]
            yield start_ns, end_ns, row


def _next_payload(file: Any) -> bytes | None:
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(head)
    payload: bytes = file.read(length)
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else None


def _decoded(payload: bytes) -> tuple[str, Any]:
    """A checksum says that a frame is as it was written, not by whom: its content is checked type by type."""
    try:
        kind, content = msgspec.msgpack.decode(payload, type=tuple[str, list[Any] | dict[str, Any]])
        if kind == "requests":
            return kind, _rows(content)
        return kind, msgspec.convert(content, _SAMPLES) if kind in ("client", "server") else content
    except msgspec.MsgspecError as problem:
        raise JournalError(f"unreadable frame: {problem}") from None


def _rows(content: Any) -> list[Row]:
    first = content[0] if isinstance(content, list) and content else ()
    length = len(first) if isinstance(first, list) else 0
    if content and length not in _ROWS:
        raise JournalError("written by another version of loadgen")
    rows: list[Row] = msgspec.convert(content, _ROWS.get(length, list[tuple[()]]))
    if any(row[_KIND].translate(None, _KIND_CODES) for row in rows):
        raise JournalError("unreadable frame: token events of an unknown kind")
    return rows


def _without_text(row: Row) -> Row:
    return (*row[:_TEXT], None, *row[_TEXT + 1 :])


def _raw(value: Any) -> Any:
    if isinstance(value, array):
        return memoryview(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a journal")
