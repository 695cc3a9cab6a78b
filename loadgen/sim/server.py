"""The simulated engine as a process: `python -m loadgen.sim.server` prints one JSON line when it listens.

The line is {"url", "pid", "model", "hardware"}. The process ends on SIGINT and SIGTERM with status 0, and with
--with-parent also when its standard input closes, so that it cannot outlive whoever started it.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from loadgen.access import ENGINE_HEADER
from loadgen.errors import UsageError
from loadgen.event_loop import new_event_loop
from loadgen.sim.app import TRANSPORT, App
from loadgen.sim.books import Books
from loadgen.sim.options import Options
from loadgen.sim.truth import TruthFile

Announce = Callable[[Mapping[str, str | int]], None]


def serve(options: Options, host: str, port: int, announce: Announce, with_parent: bool = False) -> None:
    """Serves until a signal comes; `announce` gets url, pid, model and hardware once connections are accepted.

    Port 0 is a free one. Raises UsageError where the options make no sense or the address cannot be had.
    """
    app = _app(options)
    try:
        listener = bind(host, port)
        _serve(app, listener, host, announce, with_parent)
    finally:
        app.settle()
        app.books.close()
    print(f"loadgen: {app.books.lateness_text()}", file=sys.stderr)


def _serve(app: App, listener: socket.socket, host: str, announce: Announce, with_parent: bool) -> None:
    shown_host = f"[{host}]" if ":" in host else host
    url = f"http://{shown_host}:{listener.getsockname()[1]}"
    where: dict[str, str | int] = {"url": url, "pid": os.getpid(), "model": app.model, "hardware": app.hardware}
    server = _Server(uvicorn_config(app), lambda: announce(where), with_parent)
    _raise_open_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        # A collection stops every stream at once. Cyclic garbage is a handful of objects a connection: it may stay.
        gc.freeze()
        gc.disable()
        runner.run(server.serve(sockets=[listener]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadgen.sim.server", description="A simulated LLM server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input closes")
    Options.add_flags(parser)
    flags = parser.parse_args(argv)
    try:
        serve(Options.from_flags(flags), flags.host, flags.port, _print_line, flags.with_parent)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _print_line(where: Mapping[str, str | int]) -> None:
    print(json.dumps(where), flush=True)


class _Server(uvicorn.Server):
    """uvicorn, but a signal is a normal end, not something to raise once more; and it says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], with_parent: bool) -> None:
        super().__init__(config)
        self._ready = ready
        self._with_parent = with_parent

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._stop)
        if self._with_parent:
            loop.add_reader(sys.stdin.fileno(), self._read_parent)
        try:
            yield
        finally:
            loop.remove_reader(sys.stdin.fileno())
            for number in signals:
                loop.remove_signal_handler(number)

    def _read_parent(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stop()

    def _stop(self) -> None:
        self.should_exit = True


def _app(options: Options) -> App:
    try:
        config, behaviour = options.config(), options.behaviour()
    except ValueError as error:
        raise UsageError(f"simulated engine: {error}") from None
    try:
        truth = TruthFile(Path(options.truth)) if options.truth else None
    except OSError as error:
        raise UsageError(f"--truth {options.truth}: {error.strerror or error}") from None
    return App(config, behaviour, Books(truth))


def bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise UsageError(f"cannot listen on {host}:{port}: ports go from 0 (a free one) to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=4096)
        # Accepted connections inherit it. asyncio sets it only on sockets made with IPPROTO_TCP: with Nagle's algorithm
        # a token would wait up to 40 ms for the acknowledgement of the one before.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise UsageError(f"cannot listen on {host}:{port}: {reason}; choose another port (0: a free one)") from None


class _Protocol(HttpToolsProtocol):
    """uvicorn's, but the application can write to the connection itself."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: self.transport}  # type: ignore[dict-item]


def uvicorn_config(app: App) -> uvicorn.Config:
    """No log, as standard output carries one line only. Idle connections outlive the pauses of a session."""
    return uvicorn.Config(
        app,
        headers=[(ENGINE_HEADER, app.hardware)],
        http=_Protocol,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        timeout_keep_alive=300,
        timeout_graceful_shutdown=0,
        backlog=4096,
    )


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
