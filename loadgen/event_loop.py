"""An event loop whose timers are good to about 0.1 ms: what is due leaves when it is due. asyncio's own come up to a
millisecond late on Linux, because epoll_wait counts in whole ones."""

import asyncio
import select
import selectors
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_MOST_FD = 1023
"""select takes no higher descriptors."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def new_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(_FineSelector() if sys.platform == "linux" else selectors.DefaultSelector())


if sys.platform == "linux":

    class _FineSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """Waits whole milliseconds while many are left: mostly something comes meanwhile, at the usual price. An
            epoll descriptor can itself be waited for, and select counts in µs: so it waits the rest."""
            if timeout is None or timeout <= 0 or self.fileno() > _MOST_FD:
                return super().select(timeout)
            end_s = time.monotonic() + timeout
            whole_ms = int(timeout * 1e3) - 1  # the conversions on the way to the kernel may round up by one
            if whole_ms > 0 and (found := super().select((whole_ms - 0.5) * 1e-3)):
                return found
            select.select([self.fileno()], [], [], max(0.0, end_s - time.monotonic()))
            return super().select(0)
