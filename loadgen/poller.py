"""Readiness of many sockets for the price of one: the innermost loop of the hot path.

asyncio makes a handle, a queue entry and a context switch of every event of every socket, and a turn of its loop for
every wake-up: together more than all else that Python does for a token. Here the sockets are in an epoll of their own,
whose descriptor is the one that the event loop watches; when it is readable, their readers are called straight from the
list that the kernel returns.

Under a heavy load the next token is there some 20 µs after the last, and waking up for each costs more than reading it.
Then, and only where the kernel has stamped each arrival already, tokens are left to gather for a moment.
"""

import asyncio
import contextlib
import select
import time
from collections.abc import Callable

BATCH = 512
"""Readers called before the event loop has its turn again: timers and sends must not wait for all streams."""
BUSY = 64
"""Sockets that were readable at once from which reading comes before all that can wait."""
WINDOW_S = 0.005
"""The load is judged anew that often."""
HEAVY_RPS = 5_000.0
"""Reads per second from which gathering pays."""
CALM_RPS = 100.0
"""Reads per second of one stream up to which two of them hardly come within one gathering: only then is it done."""
GATHER_S = 0.001
LEAST_LATE_S, MOST_LATE_S = 0.002, 0.01
"""Bounds of `late_after_s`."""


class Poller:
    """Calls a function whenever its socket is readable. Without epoll, the event loop's own way is taken.

    Args:
        gather: Whether reads may be put off a little under a heavy load; only where the kernel stamps arrivals.

    `busy` says whether many sockets had something to read at the last look. While readers are called, `late` says
    whether more than one token of a stream may be waiting: nobody looked for a while, be it that this program was busy
    or that nothing came.
    """

    def __init__(self, gather: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._readers: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._gather = gather
        self._heavy = False
        self.busy = self.late = False
        self._late_after_s = LEAST_LATE_S
        self._since_s = self._empty_s = time.monotonic()
        self._reads = 0
        self._next_look: asyncio.TimerHandle | None = None
        self._watch()

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
            self._unwatch()
            if self._next_look is not None:
                self._next_look.cancel()
            self._epoll.close()

    def _watch(self) -> None:
        if self._epoll is not None:
            self._loop.add_reader(self._epoll.fileno(), self._dispatch)

    def _unwatch(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())

    def _dispatch(self) -> None:
        self._read_batch()
        self._judge()
        if self._heavy:
            self._unwatch()
            self._look_later()

    def _look_later(self) -> None:
        self._next_look = self._loop.call_later(GATHER_S, self._look)

    def _look(self) -> None:
        """While tokens gather, a timer takes the place of waking up: the loop can sleep, and sends are in time."""
        self._read_batch()
        self._judge()
        if self._heavy:
            self._look_later()
        else:
            self._next_look = None
            self._watch()

    def _read_batch(self) -> None:
        assert self._epoll is not None
        readers = self._readers
        now_s = time.monotonic()
        events = self._epoll.poll(0, BATCH)
        self.late = now_s - self._empty_s > self._late_after_s
        self.busy = len(events) >= BUSY
        if len(events) < BATCH:
            self._empty_s = now_s
        self._reads += len(events)
        for fd, _ in events:
            reader = readers.get(fd)
            if reader is not None:  # an earlier reader of this round may have closed it
                reader()

    def _judge(self) -> None:
        """Look at the load of the last moments."""
        now_s = time.monotonic()
        if self._gather and now_s - self._since_s >= WINDOW_S:
            load = self._reads, now_s - self._since_s, len(self._readers)
            self._heavy, self._late_after_s = is_heavy(*load), late_after_s(*load)
            self._since_s, self._reads = now_s, 0


def is_heavy(reads: int, seconds: float, streams: int) -> bool:
    """Whether gathering pays (many reads) and is safe (few of each stream)."""
    return HEAVY_RPS <= reads / seconds <= CALM_RPS * streams


def late_after_s(reads: int, seconds: float, streams: int) -> float:
    """How long all sockets may go unread before some are likely to hold two tokens: half the usual gap of a stream."""
    gap_s = seconds * streams / max(reads, 1)
    return min(max(gap_s / 2, LEAST_LATE_S), MOST_LATE_S)
