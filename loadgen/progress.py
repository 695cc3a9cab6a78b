"""What is known of a run while it lasts, and who shows it: a panel on a terminal, a line now and then in a log.

What is said of speed comes from requests that are over; what stands still is seen at once.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from rich.console import Console
from rich.live import Live as Display
from rich.panel import Panel

from analysis.record import NEVER_SENT, RequestRecord
from loadgen.clock import Clock
from loadgen.drive import Live, stage_at
from loadgen.screen import Standing, line_of, panel_of
from loadgen.streams import Stalled, Streams
from loadgen.tally import Tally, Times
from workloads.schedule import Schedule, Stage

__all__ = ["Progress", "Tally"]

REFRESH_S = 0.25
LEAST_IDLE = 50
"""Drawing rests for so many times as long as it took: it never takes more than a fiftieth of a core."""

LINE_EVERY_S = 10
RATE_WINDOW_NS = 10_000_000_000
SPAN_S = 60


@dataclass
class Speeds:
    """TTFT and ITL of the requests of one stage."""

    ttft: Times = field(default_factory=Times)
    itl: Times = field(default_factory=Times)


class Second(NamedTuple):
    """Of the requests that ended in a second: how many, and the 95th percentiles of their TTFT and ITL."""

    number: int
    ended: int
    ttft_ns: int | None
    itl_ns: int | None


@dataclass
class Recent:
    """The last SPAN_S seconds, one by one. A second that is over is two numbers, the one that runs is all its times."""

    past: deque[Second] = field(default_factory=lambda: deque(maxlen=SPAN_S))
    number: int = 0
    ended: int = 0
    ttft: Times = field(default_factory=Times)
    itl: Times = field(default_factory=Times)

    def add(self, number: int, tally: Tally) -> None:
        self._turn_to(number)
        self.ended += sum(count for (_, outcome), count in tally.ended.items() if outcome not in NEVER_SENT)
        for into, found in ((self.ttft, tally.ttft), (self.itl, tally.itl)):
            for times in found.values():
                into.update(times)

    def seconds(self, number: int) -> list[Second | None]:
        """The last SPAN_S seconds up to this one, oldest first; None for one in which nothing ended."""
        self._turn_to(number)
        known = {each.number: each for each in (*self.past, self._now())}
        return [known.get(each) for each in range(number - SPAN_S + 1, number + 1)]

    def _now(self) -> Second:
        return Second(self.number, self.ended, self.ttft.quantile_ns(0.95), self.itl.quantile_ns(0.95))

    def _turn_to(self, number: int) -> None:
        if number > self.number:
            self.past.append(self._now())
            self.number, self.ended, self.ttft, self.itl = number, 0, Times(), Times()


class Progress:
    """Counts finished requests and, in an `async with` block, shows how the run stands.

    Args:
        enabled: False shows nothing.
        console: Where it is shown; stderr by default. A terminal gets a panel, anything else a line every 10 seconds.

    Attributes:
        on_tally: Called with all that ends too, shown or not.
        streams: Those that are open, where they can be watched.
    """

    def __init__(
        self, schedule: Schedule, clock: Clock, live: Live, *, enabled: bool = True, console: Console | None = None
    ) -> None:
        self.schedule = schedule
        self.clock = clock
        self.live = live
        self.console = console or Console(stderr=True)
        self.enabled = enabled
        self.on_tally: Callable[[Tally], None] | None = None
        self.streams = Streams()
        self.outcomes: Counter[str] = Counter()
        self.measured = 0
        self.stalls = 0
        self.error: tuple[str, str, str] | None = None
        self.speeds: dict[str, Speeds] = {}
        self.recent = Recent()
        self.note = ""
        self._tokens: deque[tuple[int, int, int]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, record: RequestRecord) -> None:
        if self.enabled or self.on_tally is not None:
            one = Tally()
            one.add(record, self.schedule)
            self.merge(one)

    def show(self, note: str) -> None:
        """Something to say in the panel's last line, until there is something else."""
        self.note = note

    def merge(self, tally: Tally) -> None:
        """Adds what has ended, here or in another process."""
        if self.on_tally is not None:
            self.on_tally(tally)
        if not self.enabled:
            return
        for (_, outcome), count in tally.ended.items():
            self.outcomes[outcome] += count
        self.measured += tally.measured
        self.stalls += tally.stalls.total()
        self.error = tally.error or self.error
        for (stage, name), ttft in tally.ttft.items():
            speeds = self.speeds.setdefault(stage, Speeds())
            speeds.ttft.update(ttft)
            speeds.itl.update(tally.itl[stage, name])
        now_ns = self.clock.now_ns()
        self.recent.add(max(0, now_ns) // 1_000_000_000, tally)
        sent = sum(count for (_, outcome), count in tally.ended.items() if outcome not in NEVER_SENT)
        self._tokens.append((now_ns, tally.output_tokens.total(), sent))

    async def __aenter__(self) -> Self:
        if self.enabled:
            on_screen = self.console.is_terminal and not self.console.is_dumb_terminal
            self._task = asyncio.create_task(self._show() if on_screen else self._say())
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _show(self) -> None:
        # Without a thread of its own: two threads would fight for the interpreter lock.
        with Display(
            console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=self.console.stderr
        ) as display:
            try:
                while True:
                    begun_s = time.perf_counter()
                    display.update(self.panel(), refresh=True)
                    await asyncio.sleep(max(REFRESH_S, LEAST_IDLE * (time.perf_counter() - begun_s)))
            finally:
                display.update(self.panel(), refresh=True)

    async def _say(self) -> None:
        """Counted from the start of the run."""
        said = 0
        while True:
            said += 1
            await self.clock.sleep_until(said * LINE_EVERY_S * 1_000_000_000)
            print(self.line(), file=self.console.file, flush=True)

    def tokens_per_s(self, now_ns: int) -> float | None:
        """Output tokens of the requests that ended in the last seconds; None before there was time for any."""
        return self._per_s(now_ns, 1)

    def ended_per_s(self, now_ns: int) -> float | None:
        return self._per_s(now_ns, 2)

    def _per_s(self, now_ns: int, column: int) -> float | None:
        while self._tokens and self._tokens[0][0] <= now_ns - RATE_WINDOW_NS:
            self._tokens.popleft()
        span_ns = min(now_ns, RATE_WINDOW_NS)
        return sum(each[column] for each in self._tokens) * 1e9 / span_ns if span_ns > 0 else None

    def panel(self) -> Panel:
        return panel_of(self._standing(), self.console)

    def line(self) -> str:
        return line_of(self._standing())

    def stalled(self, now_ns: int) -> Stalled | None:
        """The streams that are in a stall; None where that is not known."""
        return self.streams.stalled(now_ns, self.schedule.workload.stall) if self.streams.known else None

    def waiting(self) -> int | None:
        """Requests that are due and not sent; None where nobody is waited for, or other processes send."""
        told = self.live.open_ns or not self.live.in_flight
        return len(self.live.open_ns) - self.live.in_flight if told and self.schedule.loop == "open" else None

    def _standing(self) -> Standing:
        now_ns = max(0, self.clock.now_ns())
        stage = stage_at(self.schedule.stages, now_ns)
        speeds = self._speeds(stage)
        return Standing(
            name=self.schedule.workload.name,
            now_ns=now_ns,
            stage=stage,
            end_ns=self.schedule.stages[-1].end_ns,
            requests=self.schedule.requests if stage.measured else None,
            measured=self.measured,
            sent=self.live.sent,
            in_flight=self.live.in_flight,
            waiting=self.waiting(),
            outcomes=self.outcomes,
            error=self.error,
            ttft_ns=(speeds.ttft.quantile_ns(0.5), speeds.ttft.quantile_ns(0.95)),
            itl_ns=(speeds.itl.quantile_ns(0.5), speeds.itl.quantile_ns(0.99)),
            seconds=self.recent.seconds(now_ns // 1_000_000_000),
            tokens_per_s=self.tokens_per_s(now_ns),
            ended_per_s=self.ended_per_s(now_ns),
            stalled=self.stalled(now_ns),
            stalls=self.stalls,
            note=self.note,
        )

    def _speeds(self, stage: Stage) -> Speeds:
        """Of the stage, or of the one before while nothing of it has ended."""
        begun = [s.name for s in self.schedule.stages if s.start_ns <= stage.start_ns]
        return next((self.speeds[name] for name in reversed(begun) if name in self.speeds), Speeds())
