"""The core on an event loop: passes take as long as the model says, and their tokens go to open streams."""

import asyncio
import itertools
import select
import selectors
import sys
import time
from collections.abc import Callable

from loadgen.sim.core import SimConfig, SimRequest, Simulator, StepResult, Token

CATCH_UP_NS = 2_000_000
"""A delivery no later than this does not move the passes behind it: small delays do not add up. A larger one does."""

SPIN_NS = 200_000
SPIN_SHARE = 32
"""At most this time, and this part of a pass, is spent waiting in a busy loop: some 3 % of a core."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are good to about 0.1 ms; on Linux, asyncio's own round up to whole milliseconds."""
    return asyncio.SelectorEventLoop(_FineSelector() if sys.platform == "linux" else selectors.DefaultSelector())


if sys.platform == "linux":

    class _FineSelector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            # epoll_wait counts in milliseconds. An epoll descriptor can itself be waited for, and select counts in µs.
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)


class Stream:
    """What one request sends, on its way from the core to the one task that writes it.

    `encode` turns a token into what leaves with it. It is called while the pass still lasts, so that nothing but
    writing is left to do at its end.
    """

    __slots__ = ("_ready", "_wakeup", "closed", "encode", "finished", "request_id")

    def __init__(self, request_id: str, encode: Callable[[Token], list[bytes]]) -> None:
        self.request_id = request_id
        self.encode = encode
        self.finished = self.closed = False
        self._ready: list[bytes] = []
        self._wakeup: asyncio.Future[None] | None = None

    def push(self, events: list[bytes], last: bool) -> None:
        self._ready += events
        self.finished = last
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    async def take(self) -> list[bytes]:
        """What is ready, waiting for it; nothing when all has been taken, or the stream was closed."""
        while not (self._ready or self.finished or self.closed):
            self._wakeup = asyncio.get_running_loop().create_future()
            await self._wakeup
        taken, self._ready = self._ready, []
        return [] if self.closed else taken

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class Engine:
    """Runs passes for as long as there is work, in a task that ends when there is none.

    Args:
        now_ns: The monotonic clock that the event loop's timers follow.
        spin_ns: At most how much of a pass is spent in a busy loop, as timers are late; 0: none.

    Attributes:
        passes, late_ns, late_max_ns: Our own lateness: how long after the end of a pass its tokens were handed out.
    """

    def __init__(
        self, config: SimConfig, now_ns: Callable[[], int] = time.monotonic_ns, spin_ns: int = SPIN_NS
    ) -> None:
        self.core = Simulator(config)
        self.passes = self.late_ns = self.late_max_ns = 0
        self._now_ns = now_ns
        self._spin_ns = spin_ns
        self._streams: dict[str, Stream] = {}
        self._task: asyncio.Task[None] | None = None
        self._names = itertools.count(1)
        self._opened_ns = 0

    def free_id(self, wanted: str | None) -> str:
        """`wanted`, or another where that is None or the id of an open stream."""
        if wanted is not None and wanted not in self._streams:
            return wanted
        return f"{self._now_ns():x}-{next(self._names):x}"

    def open(self, request: SimRequest, encode: Callable[[Token], list[bytes]]) -> Stream:
        """Submits a request under an id that is free."""
        self._opened_ns = self._now_ns()
        self.core.submit(self._opened_ns, request)
        stream = self._streams[request.request_id] = Stream(request.request_id, encode)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run_passes())
            self._task.add_done_callback(self._end_all_if_broken)
        return stream

    def close(self, stream: Stream) -> None:
        """Ends a stream. Where tokens are still to come, they are cancelled."""
        if self._streams.get(stream.request_id) is stream:
            del self._streams[stream.request_id]
            self.core.cancel(stream.request_id)
        stream.close()

    async def _run_passes(self) -> None:
        start_ns = self._now_ns()
        while (result := self.core.step(start_ns)) is not None:
            ready = self._encode(result)
            await self._sleep_through(result)
            late_ns = self._note_lateness(result.end_ns)
            self._hand_out(ready)
            # The streams write before the next pass is computed.
            await asyncio.sleep(0)
            start_ns = max(result.end_ns, self._opened_ns) if late_ns <= CATCH_UP_NS else self._now_ns()

    def _end_all_if_broken(self, task: asyncio.Task[None]) -> None:
        """So that nobody waits for what will not come. The exception itself is for the event loop to report."""
        for stream in list(self._streams.values()) if task.cancelled() or task.exception() else ():
            self.close(stream)
        if not task.cancelled():
            task.result()

    def _encode(self, result: StepResult) -> list[tuple[Stream, list[bytes], bool]]:
        streams = ((self._streams.get(token.request_id), token) for token in result.tokens)
        return [(stream, stream.encode(token), token.last) for stream, token in streams if stream is not None]

    async def _sleep_through(self, result: StepResult) -> None:
        """Sleeps until shortly before the end of the pass and burns the rest, as timers are 0.1 to 0.3 ms late."""
        spin_ns = min(self._spin_ns, (result.end_ns - result.start_ns) // SPIN_SHARE)
        await asyncio.sleep(max(0, result.end_ns - spin_ns - self._now_ns()) / 1e9)
        while spin_ns and self._now_ns() < result.end_ns:
            pass

    def _note_lateness(self, due_ns: int) -> int:
        late_ns = max(0, self._now_ns() - due_ns)
        self.passes += 1
        self.late_ns += late_ns
        self.late_max_ns = max(self.late_max_ns, late_ns)
        return late_ns

    def _hand_out(self, ready: list[tuple[Stream, list[bytes], bool]]) -> None:
        for stream, events, last in ready:
            if last and self._streams.get(stream.request_id) is stream:
                del self._streams[stream.request_id]
            stream.push(events, last)
