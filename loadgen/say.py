"""What a command prints, made safe once, as it starts: nothing that is said may cost a run.

stderr is for notes, and they are best effort: one that cannot be written is lost. stdout is for results: where it takes
nothing, one line says so. What a stream's encoding lacks is replaced, as the locale decides that and not the user.
"""

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from loadgen.errors import LoadgenError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Notes(io.FileIO):
    """Every write succeeds."""

    def write(self, data: "Buffer", /) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


class _Results(io.FileIO):
    """The first write that fails is told, and no other: what is left in the buffers comes here once more at the end."""

    lost = False

    def write(self, data: "Buffer", /) -> int:
        if self.lost:
            return memoryview(data).nbytes
        try:
            while (written := super().write(data)) is None:
                select.select([], [self], [])  # another process made it non-blocking
            return written
        except OSError as problem:
            self.lost = True
            raise UsageError(f"cannot write to stdout: {problem.strerror}") from None


@contextmanager
def safe_streams() -> Iterator[None]:
    """For the main function of a command. What ends it outside of its recipe is told here: stdout may take no help."""
    for descriptor in range(3):
        _hold(descriptor)
    sys.stdout = _text(_Results(1, "w", closefd=False), sys.stdout, "replace")
    sys.stderr = _text(_Notes(2, "w", closefd=False), sys.stderr, "backslashreplace")
    try:
        yield
    except KeyboardInterrupt:  # before or after the load, where no handler of ours is in place
        sys.exit(130)
    except LoadgenError as problem:
        print(f"loadgen: {problem}", file=sys.stderr)
        sys.exit(problem.exit_status)


def _hold(descriptor: int) -> None:
    """Where one of the first three is closed, the next file or socket would get its number, and what is printed."""
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDONLY)  # gets the lowest free number, this one; and takes nothing


def _text(raw: io.FileIO, like: TextIO | None, errors: str) -> TextIO:
    """A stream of text in the encoding of the one that Python made, which is None for a descriptor that was closed."""
    encoding = "utf-8" if like is None else like.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=True)
