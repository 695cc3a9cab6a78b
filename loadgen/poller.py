"""Readiness of many sockets for the price of one: the innermost loop of the hot path.

asyncio makes a handle, a queue entry and a context switch of every event of every socket: about 3 µs a token, as much
as the rest of what Python does for it. Here the sockets are in an epoll of their own, whose descriptor is the one that
the event loop watches; when it is readable, their readers are called straight from the list that the kernel returns.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable

BATCH = 256
"""Readers called before the event loop has its turn again: timers and sends must not wait for all streams."""


class Poller:
    """Calls a function whenever its socket is readable. Without epoll, the event loop's own way is taken."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._readers: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            self._loop.add_reader(self._epoll.fileno(), self._dispatch)

    def add(self, fd: int, reader: Callable[[], None]) -> None:
        if self._epoll is None:
            self._loop.add_reader(fd, reader)
        else:
            self._epoll.register(fd, select.EPOLLIN)
            self._readers[fd] = reader

    def remove(self, fd: int) -> None:
        if self._epoll is None:
            self._loop.remove_reader(fd)
        elif self._readers.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def close(self) -> None:
        if self._epoll is not None and not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _dispatch(self) -> None:
        assert self._epoll is not None
        readers = self._readers
        for fd, _ in self._epoll.poll(0, BATCH):
            reader = readers.get(fd)
            if reader is not None:  # an earlier reader of this round may have closed it
                reader()
