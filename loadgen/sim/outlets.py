"""The way of tokens from the engine to the socket, and the faults that lie on it.

Each stage hands lists of parcels to the one behind it; what is in one list leaves in one write. The last is the `Wire`.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import NamedTuple, Protocol

from loadgen.sim.books import Note, Told
from loadgen.sim.inject import Fault
from loadgen.sim.tokens import Token


class Parcel(NamedTuple):
    """Bytes that belong together: those of one token, or of none (an error). `ready_ns` is when no fault holds them."""

    data: bytes
    sink: Told | None
    token: Token | None
    due_ns: int
    ready_ns: int
    held_by: str = ""


class Outlet(Protocol):
    def write(self, parcels: Sequence[Parcel]) -> None: ...

    def end(self) -> None:
        """Nothing more will come; what is held back leaves."""


class Wire:
    """Writes at once, and notes when. `ended` is called behind the last write."""

    def __init__(self, transport: asyncio.WriteTransport, notes: list[Note], ended: Callable[[], None]) -> None:
        self._transport, self._notes, self._ended = transport, notes, ended

    def write(self, parcels: Sequence[Parcel]) -> None:
        now_ns = monotonic_ns()
        self._transport.write(b"".join(parcel.data for parcel in parcels))
        for _, sink, token, due_ns, ready_ns, held_by in parcels:
            if sink is not None and token is not None:
                self._notes.append((sink, token, due_ns, ready_ns, now_ns, held_by))

    def end(self) -> None:
        self._ended()

    def reset(self) -> None:
        """Ends the connection with a RST; what the kernel has not sent yet is lost."""
        sock: socket.socket = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class Hold:
    """Keeps parcels back until their sizes come to `limit` (0: nothing is enough), or the end."""

    def __init__(self, behind: Outlet, kind: str, limit: int, size: Callable[[Parcel], int]) -> None:
        self._behind, self._kind, self._limit, self._size = behind, kind, limit, size
        self._held: list[Parcel] = []
        self._sum = 0

    def write(self, parcels: Sequence[Parcel]) -> None:
        self._held += parcels
        self._sum += sum(map(self._size, parcels))
        if self._limit and self._sum >= self._limit:
            self._release()

    def end(self) -> None:
        self._release()
        self._behind.end()

    def _release(self) -> None:
        held, self._held, self._sum = self._held, [], 0
        if held:
            self._behind.write(_held_until(held[-1].ready_ns, self._kind, held))


class Gate:
    """Keeps everything back until it is opened, an end included."""

    def __init__(self, behind: Outlet, kind: str) -> None:
        self._behind, self._kind = behind, kind
        self._held: list[Parcel] | None = []
        self._over = False

    def write(self, parcels: Sequence[Parcel]) -> None:
        if self._held is None:
            self._behind.write(parcels)
        else:
            self._held += parcels

    def end(self) -> None:
        self._over = True
        if self._held is None:
            self._behind.end()

    def open(self, now_ns: int) -> None:
        held, self._held = self._held, None
        if held:
            self._behind.write(_held_until(now_ns, self._kind, held))
        if self._over:
            self._behind.end()


class Freeze:
    """Behind `after` tokens everything comes later by `for_ns`: one silence, then the old pace."""

    def __init__(self, behind: Outlet, after: int, for_ns: int) -> None:
        self._behind, self._left, self._for_ns = behind, after, for_ns
        self._frozen = self._over = False
        self._queue: deque[Sequence[Parcel]] = deque()

    def write(self, parcels: Sequence[Parcel]) -> None:
        if self._left > 0:
            self._left -= sum(parcel.token.count for parcel in parcels if parcel.token is not None)
            self._behind.write(parcels)
            return
        shifted = [parcel._replace(ready_ns=parcel.ready_ns + self._for_ns) for parcel in parcels]
        if not self._frozen:
            self._frozen = True
            shifted[0] = shifted[0]._replace(held_by="freeze")
        self._queue.append(shifted)
        asyncio.get_running_loop().call_at(shifted[-1].ready_ns / 1e9, self._pass_on)

    def end(self) -> None:
        self._over = True
        if not self._queue:
            self._behind.end()

    def _pass_on(self) -> None:
        self._behind.write(self._queue.popleft())
        if self._over and not self._queue:
            self._behind.end()


def with_faults(wire: Outlet, faults: Mapping[str, Fault]) -> tuple[Outlet, Gate | None]:
    """The first stage of the way to the wire, and the gate where the head of the answer comes late."""
    first, gate = wire, None
    if "slow-headers" in faults:
        first = gate = Gate(first, "slow-headers")
    if "buffer" in faults:
        first = Hold(first, "buffer", faults["buffer"].bytes, lambda parcel: len(parcel.data))
    if "burst" in faults:
        first = Hold(first, "burst", faults["burst"].tokens, lambda parcel: parcel.token.count if parcel.token else 0)
    if "freeze" in faults:
        first = Freeze(first, faults["freeze"].after, faults["freeze"].for_ns)
    return first, gate


def _held_until(ready_ns: int, kind: str, parcels: Sequence[Parcel]) -> list[Parcel]:
    return [p._replace(ready_ns=ready_ns, held_by=kind) if p.ready_ns < ready_ns else p for p in parcels]
