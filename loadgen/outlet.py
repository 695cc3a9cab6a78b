"""Where a run's metrics can be read while it lasts: on a port of this machine, or in a file for the node exporter."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import UsageError
from loadgen.progress import Progress

if TYPE_CHECKING:
    from loadgen.exporter import Exporter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
WRITE_EVERY_S = 5.0
REQUEST_S, REQUEST_BYTES = 5.0, 16_384


@dataclass(frozen=True)
class Export:
    """Where a run's metrics go: a port of 127.0.0.1 (0: a free one), a file, or both."""

    port: int | None = None
    file: Path | None = None


@dataclass(frozen=True)
class Outlet:
    """An Export that is ready: the port is ours, and the file can be written."""

    listener: socket.socket | None = None
    file: Path | None = None


@contextlib.contextmanager
def opened(export: Export) -> Iterator[Outlet]:
    """Raises UsageError where the port is taken or the file cannot be written."""
    if export.file is not None:
        try:
            write(export.file, "")
        except OSError as problem:
            raise UsageError(f"--prometheus-file {export.file}: cannot be written: {problem.strerror}") from None
    if export.port is None:
        yield Outlet(None, export.file)
        return
    with _listener(export.port) as listener:
        yield Outlet(listener, export.file)


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise UsageError(f"--prometheus-port {port}: {why}: name a free port, or 0 for any") from None


def write(path: Path, text: str) -> None:
    """All of it or nothing: whoever reads the file meets no half of it. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # a name that the node exporter does not read
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def exported(progress: Progress, outlet: Outlet) -> AsyncIterator[None]:
    """Serves and writes what `progress` counts while the block lasts; the file keeps the last state."""
    if outlet == Outlet():
        yield
        return
    from loadgen.exporter import Exporter

    exporter = Exporter(progress)
    progress.on_tally = exporter.totals.add
    async with contextlib.AsyncExitStack() as stack:
        if outlet.file is not None:
            await stack.enter_async_context(_written(exporter, outlet.file))
        if outlet.listener is not None:
            await stack.enter_async_context(_served(exporter.text, outlet.listener))
        yield


@contextlib.asynccontextmanager
async def _written(exporter: "Exporter", path: Path) -> AsyncIterator[None]:
    async def keep() -> None:
        while True:
            await asyncio.to_thread(_try_to_write, path, exporter.text())
            await asyncio.sleep(WRITE_EVERY_S)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        exporter.running = False
        if problem := _try_to_write(path, exporter.text()):
            print(f"loadgen: --prometheus-file {path}: the last state is missing: {problem}", file=sys.stderr)


def _try_to_write(path: Path, text: str) -> str | None:
    """Why it failed, if it did: a run goes on without its metrics, and the next time may go well."""
    try:
        write(path, text)
    except OSError as problem:
        return problem.strerror or str(problem)
    return None


@contextlib.asynccontextmanager
async def _served(text: Callable[[], str], listener: socket.socket) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(response(head, text))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or no HTTP client
        finally:
            writer.close()

    server = await asyncio.start_server(answer, sock=listener.dup(), limit=REQUEST_BYTES)
    try:
        yield
    finally:
        server.close()


def response(head: bytes, text: Callable[[], str]) -> bytes:
    """The whole answer to a request for /metrics; 404 for anything else."""
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    found = method in (b"GET", b"HEAD") and path in (b"/metrics", b"/")
    body = text().encode() if found else b"GET /metrics\n"
    status, kind = ("200 OK", CONTENT_TYPE) if found else ("404 Not Found", "text/plain")
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", "connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if method == b"HEAD" else body)
