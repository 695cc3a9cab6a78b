"""A worker on another machine, as the fleet deals with it: told and heard through a `Post`, its journal fetched."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from loadgen.cluster.clocks import ClockFit, Reading, best, fit
from loadgen.cluster.parcel import Parcel, pieces
from loadgen.cluster.post import News
from loadgen.cluster.retime import retime
from loadgen.errors import LoadgenError
from loadgen.host import HostError

START_S = 120.0
"""How long a node may take to make room for an actor."""
END_ROUNDS, ROUNDS = 100, 10
"""Round trips of a reading: at the ends of the run, which bound its error, and in between."""
CLOCK_EVERY_S = 5.0
SILENT_S = 30.0
"""A node that leaves a poll unanswered for so long is lost. As long as a post goes on without one: see `ALONE_S`."""
LAST_S = 10.0
"""How long the rest of the journal of a worker that was killed may take to come."""


class LostError(Exception):
    """The node, or the actor on it, is no more, or cannot be reached; the message says what is known."""


class Handle(Protocol):
    """A `Post` on another machine."""

    node: str

    async def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns. Raises LostError, and LoadgenError where the method did."""

    def kill(self) -> None: ...


class RemoteWorker:
    """Worker i of n, on a node.

    Args:
        parcel: Made when it is needed.
        files: How many open files it needs.
        folder: Of the run, here.

    Attributes:
        clock: How the node's clock ran against ours; None before the end.
        about: What the node is.
    """

    def __init__(
        self,
        post: Handle,
        parcel: Callable[[], Parcel],
        i: int,
        n: int,
        files: int,
        folder: Path,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = f"worker {i + 1} of {n} on node {post.node}"
        self.worker = i
        self.node = post.node
        self.clock: ClockFit | None = None
        self.about: dict[str, Any] = {}
        self._post = post
        self._parcel = parcel
        self._files = files
        self._journal = folder / f"journal-{i}.bin"
        self._now_ns = now_ns
        self._inbox: asyncio.Queue[tuple[Any, ...] | None] = asyncio.Queue()
        self._readings: list[Reading] = []
        self._origin_ns = 0
        self._taken_ns: int | None = None
        self._kept_bytes = 0
        self._unwritten: str | None = None
        self._fate = ("is gone", "it said nothing")
        self._heard_ns = 0
        self._lost = False
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: set[asyncio.Task[None]] = set()

    # --- as a worker of a fleet ------------------------------------------------------------------------------------

    async def launch(self) -> None:
        try:
            async with asyncio.timeout(START_S):
                self.about = await self._post.call("about")
            self._check_version()
            for number, piece in enumerate(pieces(self._parcel())):
                await self._post.call("take", number, piece)
            await self._post.call("begin", self._files)
            await self._read_clock(END_ROUNDS)
        except TimeoutError:
            what = f"no room for it in {START_S:g} s: `ray status` shows whether a CPU is free there"
            raise HostError(f"{self.name} did not start: {what}") from None
        except (LostError, LoadgenError, OSError) as problem:
            raise HostError(f"{self.name} did not start: {problem}") from None
        self._tasks = [asyncio.create_task(self._fetch()), asyncio.create_task(self._watch_clock())]

    def start(self, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        self._taken_ns = round(self._fit().ahead_ns)
        self.send("start", origin_ns + self._taken_ns)

    def send(self, *message: Any) -> None:
        self._call_later("tell", *message)

    async def receive(self) -> tuple[Any, ...] | None:
        return await self._inbox.get()

    def last_words(self) -> str:
        return self._fate[1]

    async def fate(self) -> str:
        return self._fate[0]

    def kill(self) -> None:
        """Only the process: what it has written can still be fetched."""
        self._call_later("kill")

    async def end(self) -> None:
        if self._tasks:
            fetch, watch = self._tasks
            await asyncio.wait([fetch], timeout=LAST_S)
            watch.cancel()
            fetch.cancel()
        if not self._lost:
            await self._take_leave()
        self._post.kill()
        if self._taken_ns is not None:
            await self._place(self._taken_ns)

    async def _take_leave(self) -> None:
        with contextlib.suppress(LostError, LoadgenError, TimeoutError):
            async with asyncio.timeout(LAST_S):
                if self._taken_ns is not None:
                    await self._read_clock(END_ROUNDS)
                await self._post.call("close")

    def _call_later(self, method: str, *arguments: Any) -> None:
        async def call() -> None:
            with contextlib.suppress(LostError, LoadgenError):  # the poll meets it too, and tells
                await self._post.call(method, *arguments)

        task = asyncio.create_task(call())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    # --- what comes --------------------------------------------------------------------------------------------------

    def _check_version(self) -> None:
        ours = version("llm-loadgen")
        if (theirs := self.about["loadgen"]) != ours:
            raise HostError(f"loadgen {theirs} is installed there and {ours} here: install the same everywhere")

    async def _fetch(self) -> None:
        """Everything that is said and written there, to the end."""
        heard = 0
        try:
            while True:
                news = await self._poll(heard)
                heard += len(news.messages)
                self._heard_ns = self._now_ns()
                self._keep(news.journal)
                for message in news.messages:
                    self._hear(message)
                if news.over:
                    break
        except (LostError, LoadgenError) as problem:
            self._lost = True
            last_s = max(0, self._heard_ns - self._origin_ns) / 1e9
            self._fate = (f"was lost ({problem}; last heard of at {last_s:.1f} s)", str(problem))
        finally:
            self._inbox.put_nowait(None)

    async def _poll(self, heard: int) -> News:
        """Where a cable is cut, no error may come for minutes."""
        try:
            async with asyncio.timeout(SILENT_S):
                news: News = await self._post.call("poll", heard, self._kept_bytes)
                return news
        except TimeoutError:
            raise LostError(f"no answer in {SILENT_S:g} s") from None

    def _hear(self, message: tuple[Any, ...]) -> None:
        match message:
            case ("ended", fate, last_words):
                self._fate = (fate, last_words)
            case ("done", carried):
                self._inbox.put_nowait(("done", replace(carried, unwritten=self._unwritten or carried.unwritten)))
            case _:
                self._inbox.put_nowait(message)

    def _keep(self, piece: bytes) -> None:
        """Once something could not be written, nothing more is: what follows a gap would never be read."""
        self._kept_bytes += len(piece)
        if not piece or self._unwritten is not None:
            return
        try:
            with self._journal.open("ab") as file:
                file.write(piece)
        except OSError as problem:
            self._unwritten = f"{self._journal.parent}: cannot write the journal: {problem.strerror or problem}"
            self._inbox.put_nowait(("stop", self._unwritten, True))

    # --- the clock ---------------------------------------------------------------------------------------------------

    async def _read_clock(self, rounds: int) -> None:
        readings = [await self._round() for _ in range(rounds)]
        self._readings.append(best(readings))

    async def _round(self) -> Reading:
        sent_ns = self._now_ns()
        there_ns = await self._post.call("clock_ns")
        return Reading.of(sent_ns, there_ns, self._now_ns())

    async def _watch_clock(self) -> None:
        with contextlib.suppress(LostError, LoadgenError):
            while True:
                await asyncio.sleep(CLOCK_EVERY_S)
                await self._read_clock(ROUNDS)

    def _fit(self) -> ClockFit:
        """By all that is known so far, from the start of the run."""
        return fit([replace(each, at_ns=each.at_ns - self._origin_ns) for each in self._readings])

    async def _place(self, taken_ns: int) -> None:
        """Puts what came on the timeline of the run; where there is no room for that, its error is so much larger."""
        self.clock = clock = self._fit()
        try:
            if self._journal.exists():
                await asyncio.to_thread(retime, self._journal, lambda there_ns: clock.placed(there_ns, taken_ns))
        except (OSError, ValueError):
            ends_ns = np.array([0, self._now_ns() - self._origin_ns])
            off_ns = int(np.abs(clock.placed(ends_ns, taken_ns) - ends_ns).max())
            self.clock = replace(clock, error_ns=clock.error_ns + off_ns)


def facts(workers: Sequence[RemoteWorker]) -> list[dict[str, Any]]:
    """For run.json: what each worker ran on, and how its clock was placed."""
    return [
        {
            "worker": each.worker,
            "node": each.node,
            "host": each.about.get("host"),
            "clock": None if each.clock is None else each.clock.facts(),
        }
        for each in workers
    ]


def placement(workers: Sequence[RemoteWorker]) -> list[dict[str, str]]:
    """What a report must say of the timeline: nothing where all ran on this machine."""
    clocks = [each.clock for each in workers if each.clock is not None]
    if not clocks:
        return []
    error_ns, drift = max(each.error_ns for each in clocks), max(abs(each.drift) for each in clocks)
    taken_out = f", after a drift of up to {drift * 1e6:.2g} ppm was taken out" if drift else ""
    text = (
        f"the clocks of the nodes agree to within {error_ns / 1e6:.2g} ms{taken_out}: no latency depends on it, but "
        "which of two requests from different nodes came first does"
    )
    return [{"code": "clock_error", "text": text}]
