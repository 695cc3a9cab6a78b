"""Virtual time for asyncio: when every task waits, the loop jumps to the next timer instead of sleeping.

Nothing is guessed about who is blocked: the event loop itself says so, by asking its selector to wait. Sleeps, timeouts
and `VirtualClock` all follow the same time, which is exact to the nanosecond.
"""

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class JumpingSelector(selectors.BaseSelector):
    """A selector whose waiting moves `now_ns` and takes no time. Waiting for ever, for nothing, is an error."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if timeout is None and not ready:
            raise RuntimeError("every task waits, and no timer will wake one")
        if timeout and not ready:
            self.now_ns = round((self.now_ns / 1e9 + timeout) * 1e9)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual = JumpingSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now_ns / 1e9


class VirtualClock:
    """A `loadgen.clock.Clock` on the time of the running `VirtualLoop`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self._origin_ns = loop.virtual.now_ns
        self.started = asyncio.Event()

    def start(self, in_ns: int) -> None:
        self._origin_ns = self._loop.virtual.now_ns + in_ns
        self.started.set()

    def now_ns(self) -> int:
        return self._loop.virtual.now_ns - self._origin_ns

    async def sleep_until(self, t_ns: int) -> None:
        await self.started.wait()
        await asyncio.sleep(max(0, t_ns - self.now_ns()) / 1e9)

    def block(self, ns: int) -> None:
        """Holds the loop up: time passes, and nobody runs."""
        self._loop.virtual.now_ns += ns


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
