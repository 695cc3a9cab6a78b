"""When a drive is over: the sending first, then the waiting for answers."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from loadgen.clock import Clock

T = TypeVar("T")


class Stop:
    """A wish to end the run early, from a signal handler or from whoever watches the records."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._asked = asyncio.Event()
        self._at_once = asyncio.Event()

    def set(self, reason: str, at_once: bool = False) -> None:
        """Nothing is sent from now on. The first reason stays; `at_once` also cuts the requests in flight."""
        self.reason = self.reason or reason
        self._asked.set()
        if at_once:
            self._at_once.set()

    async def wait(self, at_once: bool = False) -> None:
        await (self._at_once if at_once else self._asked).wait()


class Ending:
    """Wakes the tasks of a drive when their time is over, by cancelling them.

    Two sets of tasks say what a cancellation would hit: those that wait to start something, woken when the sending is
    over, and those that wait for an answer, woken when the drain is.

    Args:
        end_ns: End of the last stage. None: it ends when its requests are done, and only a stop cuts them.
        cutoff: Nothing starts after `end_ns`.
        drain_ns: How long to wait for answers after the end, or after the last start where that is later.

    Attributes:
        all_started: To be set when nothing is left to start.
        closed_ns: When the sending ended; None while it goes on.
        stopped_ns: The same, if it was a stop that ended it.
    """

    def __init__(self, clock: Clock, stop: Stop, end_ns: int | None, cutoff: bool, drain_ns: int) -> None:
        self._clock = clock
        self._stop = stop
        self._end_ns = end_ns
        self._cutoff_ns = end_ns if cutoff else None
        self._drain_ns = drain_ns
        self._waiting: set[asyncio.Task[Any]] = set()
        self._sending: set[asyncio.Task[Any]] = set()
        self.all_started = asyncio.Event()
        self.closed_ns: int | None = None
        self.stopped_ns: int | None = None

    async def keep_time(self) -> None:
        """Ends the sending, then the drain. To be cancelled when there is nothing left to end."""
        ends: list[Coroutine[Any, Any, object]] = [self._stop.wait()]
        if self._end_ns is not None:
            ends.append(self.all_started.wait())
        if self._cutoff_ns is not None:
            ends.append(self._clock.sleep_until(self._cutoff_ns))
        await _first_of(*ends)
        self._close()
        drained_ns = max(self._clock.now_ns(), self._end_ns or 0) + self._drain_ns
        await _first_of(self._stop.wait(), self._clock.sleep_until(drained_ns))
        # A stop, now or just then, starts a drain of its own, if that is the shorter.
        drained_ns = min(drained_ns, self._clock.now_ns() + self._drain_ns)
        await _first_of(self._stop.wait(at_once=True), self._clock.sleep_until(drained_ns))
        for task in self._sending:
            task.cancel()

    def _close(self) -> None:
        self.closed_ns = self._clock.now_ns()
        self.stopped_ns = self.closed_ns if self._stop.reason else None
        for task in self._waiting:
            task.cancel()

    def comes_before(self, t_ns: int) -> bool:
        """Whether what is due at `t_ns` is too late by plan."""
        return self._cutoff_ns is not None and t_ns >= self._cutoff_ns

    def includes(self, t_ns: int) -> bool:
        """Whether what was due at `t_ns` was due while requests were being sent."""
        return not self.comes_before(t_ns) and (self.closed_ns is None or t_ns <= self.closed_ns)

    async def sleep_until(self, t_ns: int) -> bool:
        """Whether that instant came before the end of the sending."""
        return await self.unless_closed(lambda: self._clock.sleep_until(t_ns))

    async def unless_closed(self, wait: Callable[[], Awaitable[Any]]) -> bool:
        """Whether the wait was over before the sending was."""
        task = this_task()
        if self.closed_ns is None:
            self._waiting.add(task)
            try:
                await wait()
            except asyncio.CancelledError:
                if self.closed_ns is None:
                    raise
            finally:
                self._waiting.discard(task)
        return self.closed_ns is None

    async def unless_drained(self, answer: Awaitable[T]) -> T:
        """Waits for an answer; cancelled when the drain is over.

        Raises:
            CancelledError: For every cancellation from elsewhere as well, even if `answer` swallowed it.
        """
        task = this_task()
        self._sending.add(task)
        try:
            result = await answer
        finally:
            self._sending.discard(task)
        if task.cancelling() and self.closed_ns is None:
            raise asyncio.CancelledError
        return result


def this_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@contextmanager
def handled_signals(on_signal: Callable[[signal.Signals], object]) -> Iterator[None]:
    """SIGINT and SIGTERM go to `on_signal`, on the event loop, while the block lasts."""
    loop, handled = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for one in handled:
        loop.add_signal_handler(one, on_signal, one)
    try:
        yield
    finally:
        for one in handled:
            loop.remove_signal_handler(one)
