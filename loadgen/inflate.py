"""Streaming gzip and deflate. Pure."""

import zlib
from collections.abc import Iterator

INFLATE_BYTES = 1_048_576
MAX_INFLATED_BYTES = 4 * INFLATE_BYTES  # of one read (16 KiB): JSON of a stream packs some 30 times, a bomb 1,000 times


class Inflater:
    """Unpacks gzip and deflate, in pieces of bounded size whatever a hostile server packs."""

    def __init__(self, encoding: bytes) -> None:
        self._first = b"" if encoding == b"deflate" else None  # held until it shows whether a zlib header begins it
        self._wbits = 47
        self._stream = zlib.decompressobj(self._wbits)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The plain pieces, one at a time. Raises zlib.error."""
        if self._first is not None:
            data = self._first + data
            if len(data) < 2:
                self._first = data
                return
            self._first = None
            if not _has_zlib_header(data):  # as some servers send it
                self._wbits = -15
                self._stream = zlib.decompressobj(self._wbits)
        yield from self._inflate(data)

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        size = 0
        piece = b""
        while data or len(piece) == INFLATE_BYTES:
            piece = self._stream.decompress(data, INFLATE_BYTES)
            data = self._stream.unconsumed_tail
            if self._stream.eof:  # what follows is packed on its own
                data = self._stream.unused_data
                self._stream = zlib.decompressobj(self._wbits)
            size += len(piece)
            if size > MAX_INFLATED_BYTES:
                raise zlib.error(f"one read unpacks to more than {MAX_INFLATED_BYTES} bytes")
            if piece:
                yield piece


def _has_zlib_header(data: bytes) -> bool:
    return data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0
