"""The run's timeline: integer nanoseconds from the start of the run, on the monotonic clock."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

STEP_NS = 1_000_000
"""A larger jump of the wall clock between two readings was set by someone; a smaller one is drift."""

BRACKETS = 7


class Clock(Protocol):
    def start(self, in_ns: int) -> None:
        """Sets the start of the run `in_ns` from now."""

    def now_ns(self) -> int:
        """Nanoseconds since the start of the run, negative before it."""

    async def sleep_until(self, t_ns: int) -> None:
        """Returns at `t_ns` or later, never before, and never before the start has been set.

        Lets other tasks run even when `t_ns` has passed.
        """


class RunClock:
    """The real clock. Until `start`, time counts from the making of the clock; a second start changes nothing.

    Args:
        origin_ns: CLOCK_MONOTONIC reading of the run's start, where several processes share it: the clock is started.
        monotonic_ns, realtime_ns: The two clocks of the machine.

    Attributes:
        realtime_base_ns: Subtract it from a CLOCK_REALTIME stamp of the kernel to get run time.
        stepped_ns: Sum of the sizes of all steps of CLOCK_REALTIME that `refresh` has met, without their signs.
    """

    def __init__(
        self,
        origin_ns: int | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        realtime_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._realtime_ns = realtime_ns
        self._started = asyncio.Event()
        self._offset_ns, _ = self._realtime_offset()
        self.stepped_ns = 0
        self._set_origin(monotonic_ns() if origin_ns is None else origin_ns)
        if origin_ns is not None:
            self._started.set()

    def _set_origin(self, origin_ns: int) -> None:
        self.origin_ns = origin_ns
        self.realtime_base_ns = origin_ns + self._offset_ns
        self.epoch_ns_at_start = self.realtime_base_ns

    def start(self, in_ns: int = 0) -> None:
        if self._started.is_set():
            return
        self._offset_ns, _ = self._realtime_offset()
        self._set_origin(self._monotonic_ns() + in_ns)
        self._started.set()

    def now_ns(self) -> int:
        return self._monotonic_ns() - self.origin_ns

    async def sleep_until(self, t_ns: int) -> None:
        if not self._started.is_set():
            await self._started.wait()
        await asyncio.sleep(max(0, t_ns - self.now_ns()) / 1e9)
        # Timers may fire up to the loop's own resolution early.
        while (left_ns := t_ns - self.now_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)

    def refresh(self) -> None:
        """Measures the wall clock against the monotonic one again: kernel stamps keep their place after a step."""
        offset_ns, error_ns = self._realtime_offset()
        moved_ns = offset_ns - self._offset_ns
        if abs(moved_ns) <= error_ns:
            return
        if abs(moved_ns) > STEP_NS:
            self.stepped_ns += abs(moved_ns)
        self._offset_ns = offset_ns
        self.realtime_base_ns = self.origin_ns + offset_ns

    def _realtime_offset(self) -> tuple[int, int]:
        """CLOCK_REALTIME minus CLOCK_MONOTONIC, and the most by which that can be wrong."""
        return min((self._bracket() for _ in range(BRACKETS)), key=lambda reading: reading[1])

    def _bracket(self) -> tuple[int, int]:
        before_ns = self._monotonic_ns()
        real_ns = self._realtime_ns()
        after_ns = self._monotonic_ns()
        return real_ns - (before_ns + after_ns) // 2, (after_ns - before_ns + 1) // 2


@asynccontextmanager
async def refreshed(clock: RunClock) -> AsyncIterator[None]:
    """Measures the wall clock anew once a second while the block lasts."""

    async def refresh() -> None:
        while True:
            await asyncio.sleep(1.0)
            clock.refresh()

    task = asyncio.create_task(refresh())
    try:
        yield
    finally:
        task.cancel()
