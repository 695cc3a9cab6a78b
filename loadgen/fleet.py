"""A run on several workers: here they are started, told what to do, and heard.

Nothing is shared but the instant of the start and the run directory, where each has a journal of its own. A worker that
dies costs the rest of its share, and nothing else. `LocalWorker` is one on this machine; see `loadgen.worker`.
"""

import asyncio
import contextlib
import math
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from loadgen.clock import RunClock
from loadgen.drive import Driven, Live, Stop
from loadgen.host import HostError
from loadgen.progress import Tally
from loadgen.share import Carried, Share
from loadgen.streams import Stalled, Streams
from loadgen.worker import Wire
from workloads.request import Session
from workloads.schedule import Schedule, Stage

TOKENS_PER_S = 25_000
"""What one process on one core is trusted to receive; three times as many have been measured on a quiet machine."""

SAMPLE_SESSIONS = 1_000
LOCAL_START_NS, REMOTE_START_NS = 100_000_000, 1_000_000_000
"""From the word to start to the start of the run: time for the word to reach all."""

KILL_S = 5.0
"""How long a worker may take to end when it was told to end at once, or after its last word."""
WRITE_S = 20.0
"""How long after the drain: one that has very many open streams to write down is not frozen."""


def worker_count(schedule: Schedule, asked: int | None, max_in_flight: int | None, cores: int) -> int:
    """How many processes are to carry a run: as many as were `asked` for, but none without a user or a slot.

    None asks for as many as the planned rate of tokens needs, and never for more than there are cores. A closed loop,
    whose rate nobody has planned, then has one.
    """
    if asked is None:
        asked = min(cores, math.ceil(planned_tokens_per_s(schedule) / TOKENS_PER_S))
    most = [limit for limit in (schedule.concurrency, max_in_flight) if limit is not None]
    return max(1, min([asked, *most]))


def planned_tokens_per_s(schedule: Schedule) -> float:
    """Output tokens per second that the busiest stage asks for; 0 in a closed loop."""
    rate_rps = max((stage.offered_rps or 0.0 for stage in schedule.stages), default=0.0)
    if not rate_rps:
        return 0.0
    asked = [tokens for session in islice(schedule.sessions(), SAMPLE_SESSIONS) for tokens in _output_tokens(session)]
    return rate_rps * sum(asked) / len(asked) if asked else 0.0


def _output_tokens(session: Session) -> list[int]:
    return [turn.output_tokens for one in session.rounds for turn in one.turns]


class Worker(Protocol):
    """One worker, wherever it runs, as a fleet deals with it."""

    name: str

    async def launch(self) -> None:
        """Returns when it can be told and heard. Raises HostError."""

    def start(self, origin_ns: int) -> None:
        """Sets the start of the run to a reading of our CLOCK_MONOTONIC."""

    def send(self, *message: Any) -> None:
        """Never waits, and drops the message if nobody is there."""

    async def receive(self) -> tuple[Any, ...] | None:
        """What it says next; None when it will say nothing more."""

    def last_words(self) -> str:
        """Why it is over, as far as it said; empty if it did not."""

    async def fate(self) -> str:
        """What became of it, once it has fallen silent."""

    def kill(self) -> None: ...

    async def end(self) -> None:
        """Lets it end by itself, as it has said its last word or was killed, and sees to it that it is over."""


@dataclass
class _State:
    """What is known of a worker."""

    live: Live = field(default_factory=Live)
    stalled: Stalled = field(default_factory=Stalled)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False
    carried: Carried | None = None


class Fleet:
    """Carries a run on workers that have a share each.

    Args:
        stages: As planned.
        clock: Not started yet; it tells the workers when the run starts.
        stop: Reaches all workers; one that gives up sets it.
        live, streams: Are kept up to date, once a second.
        on_tally: Called with what has ended in a worker since it last told.
        tell: Called with a line for the user.
        start_ahead_ns: How long the word to start may take to reach all.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        stages: Sequence[Stage],
        clock: RunClock,
        stop: Stop,
        live: Live,
        streams: Streams,
        on_tally: Callable[[Tally], None],
        tell: Callable[[str], None],
        start_ahead_ns: int = LOCAL_START_NS,
    ) -> None:
        self._workers = {worker: _State() for worker in workers}
        self._stages = stages
        self._clock = clock
        self._stop = stop
        self._live = live
        self._streams = streams
        self._on_tally = on_tally
        self._tell = tell
        self._start_ahead_ns = start_ahead_ns
        self._losses: list[str] = []
        self._begun = False

    async def carry(self) -> tuple[Carried, list[str]]:
        """What came of all shares together, and what befell the workers that did not come to their end.

        Raises HostError where a worker does not get as far as the start, though nobody has stopped the run.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            await asyncio.gather(*(worker.launch() for worker in self._workers))
            heard = [asyncio.create_task(self._hear(worker, state)) for worker, state in self._workers.items()]
            tasks = [*heard, asyncio.create_task(self._pass_on_stop())]
            await asyncio.gather(*(state.ready.wait() for state in self._workers.values()))
            await self._start()
            await asyncio.gather(*heard)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*(self._end(worker, state) for worker, state in self._workers.items()))
        return self._together(), self._losses

    async def _start(self) -> None:
        for worker, state in self._workers.items():
            if state.gone and state.carried is None and self._stop.reason is None:
                fate = await worker.fate()
                words = worker.last_words()
                raise HostError(
                    f"{worker.name} did not start: {words}" if words else f"{worker.name} {fate} before the start"
                )
        self._begun = True
        self._clock.start(self._start_ahead_ns)
        for worker in self._workers:
            worker.start(self._clock.origin_ns)

    def _send(self, *message: Any) -> None:
        for worker in self._workers:
            worker.send(*message)

    async def _pass_on_stop(self) -> None:
        await self._stop.wait()
        self._send("stop", self._stop.reason, False)
        await self._stop.wait(at_once=True)
        self._send("stop", self._stop.reason, True)

    async def _hear(self, worker: Worker, state: _State) -> None:
        """Everything that a worker says, to its end."""
        while (message := await worker.receive()) is not None:
            match message:
                case ("ready",):
                    state.ready.set()
                case ("tick", tally, sent, in_flight, stalled):
                    state.live, state.stalled = Live(sent, in_flight), stalled
                    self._on_tally(tally)
                    self._sum_up()
                case ("stop", reason, at_once):
                    self._stop.set(reason, at_once)
                case ("done", carried):
                    state.carried = carried
        state.gone = True
        state.ready.set()
        if self._begun and state.carried is None:
            await self._lose(worker, state)

    def _sum_up(self) -> None:
        self._live.sent = sum(state.live.sent for state in self._workers.values())
        self._live.in_flight = sum(state.live.in_flight for state in self._workers.values())
        self._streams.hear(state.stalled for state in self._workers.values())

    async def _lose(self, worker: Worker, state: _State) -> None:
        state.live, state.stalled = Live(state.live.sent, 0), Stalled()
        self._sum_up()
        after_s = max(0, self._clock.now_ns()) / 1e9
        what = f"{worker.name} {await worker.fate()} after {after_s:.1f} s: the rest of its share is missing"
        self._losses.append(what)
        self._tell(what)

    async def _end(self, worker: Worker, state: _State) -> None:
        if state.carried is None:
            worker.kill()
        await worker.end()

    def _together(self) -> Carried:
        """As if one process had carried everything."""
        parts = [state.carried for state in self._workers.values() if state.carried is not None]
        now_ns = max(0, self._clock.now_ns())
        driven = [part.driven for part in parts] or [Driven(_closed(self._stages, now_ns), now_ns, None)]
        reasons = [self._stop.reason, *(each.interrupted_by for each in driven), *self._losses]
        return Carried(
            Driven(_stages(driven), max(each.ended_ns for each in driven), next(filter(None, reasons), None)),
            "kernel" if parts and all(part.timestamp_source == "kernel" for part in parts) else "user",
            max((part.stepped_ns for part in parts), default=0),
            next((part.unwritten for part in parts if part.unwritten), None),
        )


class LocalWorker:
    """A worker on this machine, in a process of its own, which is killed if it does not end when it is told to.

    Args:
        share: A part of a run, as `Share.part` makes it.
        folder: Where its journal goes.
    """

    def __init__(self, share: Share, of: int, folder: Path) -> None:
        self.name = f"worker {share.worker + 1} of {of}"
        self._share = share
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._wire: Wire | None = None
        self._errors: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=1)
        self._deadlines: list[asyncio.TimerHandle] = []
        self._overdue = False

    async def launch(self) -> None:
        """A process in a session of its own: Ctrl-C reaches it from here, when we have made up our mind."""
        (from_us, to_it), (from_it, to_us) = os.pipe(), os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "loadgen.worker", str(from_us), str(to_us),
                pass_fds=(from_us, to_us),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(from_us)
            os.close(to_us)
        self._errors = asyncio.create_task(self._keep_last_words())
        self._wire = await Wire.over(from_it, to_it)
        self.send("carry", self._share, self._folder.absolute())

    def start(self, origin_ns: int) -> None:
        self.send("start", origin_ns)

    def send(self, *message: Any) -> None:
        if self._wire is not None:
            self._wire.send(*message)
        match message:
            case ("stop", _, at_once):
                patience_s = KILL_S if at_once else self._share.schedule.drain_ns / 1e9 + WRITE_S
                self._deadlines.append(asyncio.get_running_loop().call_later(patience_s, self._give_up))

    def _give_up(self) -> None:
        """It is frozen, or hangs."""
        self._overdue = True
        self.kill()

    async def receive(self) -> tuple[Any, ...] | None:
        return None if self._wire is None else await self._wire.receive()

    async def _keep_last_words(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(65_536):
            self._said.extend(line for line in data.decode(errors="replace").splitlines() if line.strip())

    def last_words(self) -> str:
        return self._said[-1] if self._said else ""

    async def fate(self) -> str:
        """What became of the process; it has fallen silent, and a moment later it should be over."""
        status = await self._wait()
        if self._overdue:
            return "did not end when it was told to, and was killed"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status} ({self.last_words() or 'it said nothing'})"

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def end(self) -> None:
        if self._process is None:
            return
        await self._wait()
        for deadline in self._deadlines:
            deadline.cancel()
        if self._wire is not None:
            await self._wire.close()

    async def _wait(self) -> int:
        """Exit status of the process; all that it said has been read."""
        assert self._process is not None
        assert self._errors is not None
        try:
            async with asyncio.timeout(KILL_S):
                status = await self._process.wait()
        except TimeoutError:
            self.kill()
            status = await self._process.wait()
        await asyncio.wait([self._errors])
        return status


def _stages(driven: Sequence[Driven]) -> tuple[Stage, ...]:
    """The stages as they were: one ends where the last worker ended it."""
    longest = max((each.stages for each in driven), key=len)
    ends_ns = [
        max(each.stages[at].end_ns or 0 for each in driven if at < len(each.stages)) for at in range(len(longest))
    ]
    return tuple(replace(stage, end_ns=end_ns) for stage, end_ns in zip(longest, ends_ns, strict=True))


def _closed(stages: Sequence[Stage], now_ns: int) -> tuple[Stage, ...]:
    """Those that had begun, ended now if not before."""
    begun = [stage for stage in stages if stage.start_ns <= now_ns] or stages[:1]
    return tuple(replace(stage, end_ns=min(now_ns, stage.end_ns or now_ns)) for stage in begun)
