"""The journal of a run that is still going on: an append-only file that survives a killed process.

A frame is a length and a CRC-32 (both little-endian uint32), then a msgpack array: its kind and its content. A batch of
requests is a list of rows in the order of `columns.ROW_FIELDS`, token events as the raw bytes of their arrays. Whatever
follows the last whole frame is dropped on reading: the process died while writing it.
"""

import struct
import sys
import threading
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from analysis.columns import ROW_FIELDS, rows_of
from analysis.record import RequestRecord

MAGIC = b"loadgen journal 1 " + sys.byteorder.encode() + b"\n"
_FRAME = struct.Struct("<II")
_ROWS_PER_FRAME = 1000
_TEXT = ROW_FIELDS.index("text")


class JournalError(ValueError):
    """The file is not a journal of this format; the message says why in one line."""


class Journal:
    """Appends frames, each with one write that reaches the kernel before the call returns. OSError if it cannot."""

    def __init__(self, path: Path, keep_text: bool) -> None:
        self._file = path.open("xb", buffering=0)
        self._keep_text = keep_text
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_raw)
        self._lock = threading.Lock()
        self._file.write(MAGIC)

    def append_records(self, records: Sequence[RequestRecord]) -> None:
        for start in range(0, len(records), _ROWS_PER_FRAME):
            rows = rows_of(records[start : start + _ROWS_PER_FRAME])
            self.append("requests", rows if self._keep_text else [_without_text(row) for row in rows])

    def append(self, kind: str, content: Any) -> None:
        payload = self._encoder.encode((kind, content))
        frame = memoryview(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
        with self._lock:
            while frame:
                frame = frame[self._file.write(frame) :]

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> Iterator[tuple[str, Any]]:
    """Kind and content of every whole frame. JournalError if the file is something else; OSError if unreadable."""
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
        if not MAGIC.startswith(head):
            raise JournalError("not a journal of this format and byte order")
        while payload := _next_payload(file):
            yield _decoded(payload)


def _next_payload(file: Any) -> bytes | None:
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(head)
    payload: bytes = file.read(length)
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else None


def _decoded(payload: bytes) -> tuple[str, Any]:
    try:
        kind, content = msgspec.msgpack.decode(payload, type=tuple[str, list[Any] | dict[str, Any]])
    except msgspec.MsgspecError as problem:
        raise JournalError(f"unreadable frame: {problem}") from None
    if kind == "requests" and any(len(row) != len(ROW_FIELDS) for row in content):
        raise JournalError("written by another version of loadgen")
    return kind, content


def _without_text(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:_TEXT], None, *row[_TEXT + 1 :])


def _raw(value: Any) -> Any:
    if isinstance(value, array):
        return memoryview(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a journal")
