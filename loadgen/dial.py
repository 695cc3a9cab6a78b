"""Opening connections: the name, the socket, a tunnel through a proxy, the TLS handshake; each timed apart."""

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
import time
from typing import TypeAlias

from loadgen.clock import RunClock
from loadgen.connection import Connection, OpenError, reason
from loadgen.poller import Poller
from loadgen.stamps import keep_stamping, stamp_in_kernel
from loadgen.target import Target
from loadgen.tls_pipe import TlsPipe

Address: TypeAlias = "tuple[int, tuple[object, ...] | str]"


class Dialer:
    """Opens connections to one target, for as long as a run lasts."""

    def __init__(
        self, target: Target, proxy: Target | None, tls: ssl.SSLContext | None, clock: RunClock, kernel_stamps: bool
    ) -> None:
        self._target = target
        self._peer = proxy or target
        self._tunnel = proxy is not None and target.scheme == "https"
        self._tls = (tls or ssl.create_default_context()) if target.scheme == "https" else None
        self._clock = clock
        self._kernel_stamps = kernel_stamps
        self._addresses: list[Address] = []
        self._next_address = 0
        self._lookup: asyncio.Task[list[Address]] | None = None
        self._poller = Poller(gather=kernel_stamps)
        self._stamper = keep_stamping() if kernel_stamps else None

    @property
    def busy(self) -> bool:
        """Whether many of its connections had something to read at the last look."""
        return self._poller.busy

    def close(self) -> None:
        self._poller.close()
        if self._stamper is not None:
            self._stamper.close()

    async def open(self) -> Connection:
        """A new connection. Raises OpenError."""
        begin = time.perf_counter()
        dns_s = await self._resolve()
        sock = await self._connect()
        try:
            kernel_stamps = self._kernel_stamps and stamp_in_kernel(sock)
            if self._tunnel:
                await _open_tunnel(sock, self._target)
            tls, tls_s = await self._handshake(sock)
        except BaseException:
            sock.close()
            raise
        connection = Connection(sock, self._poller, self._clock, tls, kernel_stamps)
        connection.connect_s, connection.dns_s, connection.tls_s = time.perf_counter() - begin, dns_s, tls_s
        return connection

    async def _resolve(self) -> float | None:
        """Look the name up, once a run however many connections wait for it; how long that took if it was now."""
        if self._addresses:
            return None
        begin = time.perf_counter()
        if self._lookup is None:
            self._lookup = asyncio.create_task(_addresses(self._peer))
        try:
            self._addresses = await asyncio.shield(self._lookup)
        except OSError as problem:
            self._lookup = None  # the next connection asks again
            text = f"the name {self._peer.host} is not known: {reason(problem)}"
            raise OpenError("connect_failed", text) from None
        return time.perf_counter() - begin

    async def _connect(self) -> socket.socket:
        """A socket to the next address that answers: several addresses share the load, as DNS meant them to."""
        last: OpenError | None = None
        for offset in range(len(self._addresses)):
            index = (self._next_address + offset) % len(self._addresses)
            family, address = self._addresses[index]
            try:
                sock = await _open_socket(address, family)
            except OpenError as problem:
                last = problem
                continue
            self._next_address = (index + 1) % len(self._addresses)
            return sock
        raise last or OpenError("connect_failed", "the name has no address")

    async def _handshake(self, sock: socket.socket) -> tuple[TlsPipe | None, float | None]:
        if self._tls is None:
            return None, None
        begin = time.perf_counter()
        try:
            tls = TlsPipe(self._tls, self._target.host)
            await tls.handshake(sock)
        except (ssl.SSLError, OSError, ValueError) as problem:
            raise OpenError("tls_failed", reason(problem)) from None
        return tls, time.perf_counter() - begin


async def _addresses(peer: Target) -> list[Address]:
    """Raises OSError where the name is not known."""
    if peer.unix_path:
        return [(socket.AF_UNIX, peer.unix_path)]
    try:
        literal = ipaddress.ip_address(peer.host)
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]
    return [(socket.AF_INET if literal.version == 4 else socket.AF_INET6, (peer.host, peer.port))]


async def _open_tunnel(sock: socket.socket, target: Target) -> None:
    """CONNECT through an HTTP proxy. Raises OpenError."""
    loop = asyncio.get_running_loop()
    host = f"[{target.host}]" if ":" in target.host else target.host
    try:
        authority = f"{host}:{target.port}"
        await loop.sock_sendall(sock, f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < 65_536:
            data = await loop.sock_recv(sock, 4096)
            if not data:
                raise OpenError("connect_failed", "the proxy closed the connection")
            answer += data
    except OSError as problem:
        raise OpenError("connect_failed", f"the proxy: {reason(problem)}") from None
    status = answer.split(b"\r\n")[0].decode("latin-1")
    if not status.partition(" ")[2].startswith("2"):
        raise OpenError("connect_failed", f"the proxy refused: {status}")


async def _open_socket(address: tuple[object, ...] | str, family: int) -> socket.socket:
    """A connected non-blocking socket. Raises OpenError."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as problem:
        outcome = "client_error" if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM) else "connect_failed"
        raise OpenError(outcome, f"no socket could be made: {reason(problem)}") from None
    try:
        sock.setblocking(False)
        if family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await _connect(sock, address)
    except OSError as problem:
        sock.close()
        local = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
        outcome = "client_error" if problem.errno in local else "connect_failed"
        raise OpenError(outcome, reason(problem)) from None
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect(sock: socket.socket, address: tuple[object, ...] | str) -> None:
    """Within a machine a connection is there as soon as it is asked for: then the event loop need not wait for it."""
    status = sock.connect_ex(address)
    if status == errno.EINPROGRESS:
        status = sock.connect_ex(address)
    if status in (errno.EINPROGRESS, errno.EALREADY, errno.EAGAIN):
        await asyncio.get_running_loop().sock_connect(sock, address)
    elif status not in (0, errno.EISCONN):
        raise OSError(status, os.strerror(status))
