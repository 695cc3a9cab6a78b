"""An event loop in virtual time, for what runs on one and should take no real time."""

import asyncio
import selectors


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything is left to do, and then is the time of the next timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def now_ns(self) -> int:
        return round(self._jumping.now_s * 1e9)


class _JumpingSelector(selectors.DefaultSelector):
    """Skips what it should wait for. Without any timer it really waits: only another thread can wake the loop then."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now_s += max(0.0, timeout)
        return ready
