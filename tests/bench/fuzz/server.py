"""The hostile server: a process of its own that plays the plan of whatever case asks, over raw sockets."""

import asyncio
import gc
import mmap
import os
import resource
import socket
import struct

from tests.bench.fuzz.mutate import Action, Plan, Repeat, plan

UNREAD, SERVED, EXPOSED = range(3)
"""What the server notes of a case. EXPOSED: its connection had carried a spoilt answer in several writes, so stray
bytes of that one may have come in between, which no client can tell from the answer."""

PATHS = (b"/v1/chat/completions", b"/v1/responses")
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


def start(seed: int, notes: mmap.mmap) -> tuple[int, int]:
    """(process id, port) of a forked server."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    port = listening.getsockname()[1]
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(_serve(listening, seed, notes))
        finally:
            os._exit(1)
    listening.close()
    return pid, port


async def _serve(listening: socket.socket, seed: int, notes: mmap.mmap) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listening.setblocking(False)
    gc.freeze()
    tasks: set[asyncio.Task[None]] = set()
    while True:
        sock, _ = await asyncio.get_running_loop().sock_accept(listening)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        task = asyncio.create_task(_Wire(sock, seed, notes).serve())
        tasks.add(task)
        task.add_done_callback(tasks.discard)


class _Wire:
    def __init__(self, sock: socket.socket, seed: int, notes: mmap.mmap) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._seed = seed
        self._notes = notes
        self._buffer = b""
        self._loose = False

    async def serve(self) -> None:
        try:
            while True:
                await self._one()
        except (OSError, EOFError):
            pass
        finally:
            self._sock.close()

    async def _one(self) -> None:
        """Read one request and play its plan. Raises EOFError where the connection is over."""
        head = await self._until_blank_line()
        path = head.split(b" ", 2)[1]
        case, length = int(_header(head, b"x-request-id")), int(_header(head, b"content-length"))
        asked = plan(self._seed, case)
        if not asked.early:
            await self._skip(length)
        if path not in PATHS and asked.expected is not None:
            await self._loop.sock_sendall(self._sock, NOT_FOUND)  # someone else's redirect has moved this request
            return
        self._notes[case] = EXPOSED if self._loose else SERVED
        await self._play(asked)
        self._loose = self._loose or (asked.expected is None and not asked.one_write)
        if asked.early:
            await self._skip(length)

    async def _play(self, asked: Plan) -> None:
        for step in asked.steps:
            data, times = (step.data, step.times) if isinstance(step, Repeat) else (step, 1)
            for _ in range(times):
                await self._loop.sock_sendall(self._sock, data)
                await asyncio.sleep(0)
        if asked.action is Action.HANG:
            while await self._loop.sock_recv(self._sock, 65_536):
                pass
        if asked.action is Action.RESET:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if asked.action is not Action.KEEP:
            raise EOFError

    async def _until_blank_line(self) -> bytes:
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += await self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head

    async def _skip(self, length: int) -> None:
        while len(self._buffer) < length:
            length -= len(self._buffer)
            self._buffer = await self._more()
        self._buffer = self._buffer[length:]

    async def _more(self) -> bytes:
        data = await self._loop.sock_recv(self._sock, 65_536)
        if not data:
            raise EOFError
        return data


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    raise EOFError
