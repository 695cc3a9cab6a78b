"""A server that plays scripts over real TCP or TLS, for tests of the HTTP engine.

    async with ScriptedServer(answer(role(), content("Hello"), finish(), usage(5, 1), DONE)) as server:
        record = await engine(server.url).send(request)
    assert server.requests[0].json["stream"]

An answer is a list of steps, played once its request has been read:

    bytes           sent by one write; the loop then turns a few times: a client in the same loop reads them alone
    asyncio.Event   wait until it is set
    CLOSE           close properly (FIN, after a TLS close_notify); bytes that were sent still arrive
    RESET           close with a RST
    HANG            say nothing more until the client closes

The connection stays open for the next request unless a step closes it. The n-th request that the server reads, on
whatever connection, gets the n-th answer; after the last one, the last again. An answer may also be a function of the
request.
"""

import asyncio
import json
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Self


class Action(Enum):
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"


CLOSE, RESET, HANG = Action

Step = bytes | asyncio.Event | Action

LOOP_TURNS = 3
"""Turns of the event loop after each write: one to poll, one for the client to read, one to spare for TLS."""


@dataclass(frozen=True)
class Received:
    """One request as it came; header names in lower case, `connection` counted from 0 in order of acceptance."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Sequence[Step] | Callable[[Received], Sequence[Step]]


# Events


def sse(data: str, event: str | None = None) -> bytes:
    """One server-sent event; every line of `data` becomes a data line."""
    name = "" if event is None else f"event: {event}\n"
    return (name + "".join(f"data: {line}\n" for line in data.split("\n")) + "\n").encode()


def chat(choices: Sequence[Mapping[str, Any]] | None, **fields: Any) -> bytes:
    """One chat.completion.chunk; further `fields` (usage, …) are added at the top level."""
    shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "scripted"}
    return sse(json.dumps(shape | {"choices": choices} | fields, ensure_ascii=False))


def delta(finish_reason: str | None = None, index: int = 0, **fields: Any) -> bytes:
    return chat([{"index": index, "delta": fields, "finish_reason": finish_reason}])


def role(index: int = 0) -> bytes:
    return delta(index=index, role="assistant", content="")


def content(text: str, index: int = 0) -> bytes:
    return delta(index=index, content=text)


def reasoning(text: str, field: str = "reasoning_content") -> bytes:
    """Servers disagree on the `field`: "reasoning_content" or "reasoning"."""
    return chat([{"index": 0, "delta": {field: text}, "finish_reason": None}])


def tool_call(arguments: str = "", name: str | None = None, call: int = 0) -> bytes:
    """With a name: the first event of the call numbered `call`; without: more of its arguments."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    start = {} if name is None else {"id": f"call_{call}", "type": "function"}
    return delta(tool_calls=[{"index": call, "function": function} | start])


def refusal(text: str) -> bytes:
    return delta(refusal=text)


def finish(reason: str = "stop", index: int = 0) -> bytes:
    return delta(finish_reason=reason, index=index)


def usage(prompt: int, completion: int, cached: int | None = None, thinking: int | None = None) -> bytes:
    """The usage-only event: `choices` is empty."""
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    counts["total_tokens"] = prompt + completion
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    if thinking is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": thinking}
    return chat([], usage=counts)


def error(message: str, code: int | str = 500, event: str | None = None) -> bytes:
    return sse(json.dumps({"error": {"message": message, "type": "server_error", "code": code}}), event)


def comment(text: str = "keep-alive") -> bytes:
    return f": {text}\n\n".encode()


DONE = sse("[DONE]")


def with_line_ends(stream: bytes, end: bytes) -> bytes:
    r"""The same events with another line end (`\r\n`, `\r`). Comes before the framing."""
    return stream.replace(b"\n", end)


# Framing

LAST_CHUNK = b"0\r\n\r\n"


def head(status: int = 200, headers: Mapping[str, str] | None = None, media: str = "text/event-stream") -> bytes:
    """A response header; whatever says how the body ends is up to `headers`."""
    lines = {"content-type": media} | dict(headers or {})
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Scripted\r\n{text}\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(
    *body: Step, framing: str = "chunked", status: int = 200, headers: Mapping[str, str] | None = None
) -> list[Step]:
    """A whole response: the header by one write, then the steps of `body`, the bytes of each framed on their own.

    `framing` is "chunked", "length" (content-length) or "close" (the body lasts until the connection closes).
    """
    extra = dict(headers or {})
    if framing == "chunked":
        framed = [chunk(step) if isinstance(step, bytes) else step for step in body]
        return [head(status, extra | {"transfer-encoding": "chunked"}), *framed, LAST_CHUNK]
    if framing == "length":
        length = sum(len(step) for step in body if isinstance(step, bytes))
        return [head(status, extra | {"content-length": str(length)}), *body]
    if framing == "close":
        return [head(status, extra | {"connection": "close"}), *body, CLOSE]
    raise ValueError(f"no such framing: {framing}")


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> list[Step]:
    body = json.dumps(value).encode()
    length = {"content-length": str(len(body))}
    return [head(status, length | dict(headers or {}), media="application/json") + body]


def wire(steps: Sequence[Step]) -> bytes:
    """The bytes of an answer as one string, to be split elsewhere."""
    return b"".join(step for step in steps if isinstance(step, bytes))


def split(data: bytes, *offsets: int) -> list[bytes]:
    """The pieces of `data` between the offsets, in order; empty ones are left out."""
    marks = [0, *sorted(offsets), len(data)]
    return [data[low:high] for low, high in pairwise(marks) if low < high]


# The server


class ScriptedServer:
    """Serves on a free port of 127.0.0.1, in the running event loop, while its `async with` block lasts.

    Args:
        answers: See the head of this module.
        greeting: Steps played on every new connection before anything is read from it.
        tls: Serve TLS with this context (see `Certificate`).

    Attributes:
        requests: Everything received, in order.
        connections: How many were accepted.
        client_closed: Numbers of the connections that the client closed first.
    """

    def __init__(self, *answers: Answer, greeting: Sequence[Step] = (), tls: ssl.SSLContext | None = None) -> None:
        self.answers = answers
        self.greeting = greeting
        self.tls = tls
        self.requests: list[Received] = []
        self.connections = 0
        self.client_closed: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        failures = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        for failure in failures:
            if isinstance(failure, Exception):
                raise failure

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self._tasks.add(asyncio.create_task(self._serve(number, reader, writer)))

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _play(self.greeting, reader, writer)
            while not writer.is_closing():
                request = await _read_request(reader, number)
                if request.path == "/metrics":  # asked for by each run, beside the load that is scripted
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                self.requests.append(request)
                await _play(self._answer(request), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.client_closed.append(number)
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    def _answer(self, request: Received) -> Sequence[Step]:
        chosen = self.answers[min(len(self.requests), len(self.answers)) - 1]
        return chosen(request) if callable(chosen) else chosen


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Received:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body, connection)


async def _play(steps: Sequence[Step], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for step in steps:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
            for _ in range(LOOP_TURNS):
                await asyncio.sleep(0)
        elif isinstance(step, asyncio.Event):
            await step.wait()
        elif step is HANG:
            await reader.read(-1)
            raise ConnectionError
        elif step is RESET:
            on_close = struct.pack("ii", 1, 0)  # linger on, for no time: close() then sends a RST
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, on_close)
            writer.transport.abort()
        else:
            writer.close()


# Beside the server


def refused_url() -> str:
    """An address of this machine where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1 and localhost that is its own CA: clients trust it by `file`."""

    file: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Raises FileNotFoundError where there is no openssl command."""
        made = cls(folder / "cert.pem", folder / "key.pem")
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=scripted"
        extensions = ["subjectAltName=IP:127.0.0.1,DNS:localhost", "keyUsage=critical,digitalSignature,keyCertSign"]
        options = [word for extension in extensions for word in ("-addext", extension)]
        files = ["-out", str(made.file), "-keyout", str(made.key)]
        subprocess.run([*command.split(), *options, *files], check=True, capture_output=True)
        return made

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.file, self.key)
        return made
