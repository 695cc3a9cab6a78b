"""The panel on the terminal while a run lasts. What it shows of speed comes from requests that are over."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray
from rich.console import Console
from rich.live import Live as Display
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.record import NEVER_SENT, RequestRecord
from loadgen.clock import Clock
from loadgen.drive import Live, stage_at
from workloads.schedule import Schedule, Stage

REFRESH_S = 0.25
RATE_WINDOW_NS = 10_000_000_000
UNIT_NS = 100_000
"""Resolution of the live percentiles. Coarse, for speed: a request's gaps fall on few distinct values."""

LONGEST = 36_000_000
"""An hour in that unit."""

WIDTH = 78


class Speeds:
    """TTFT and ITL of the requests of one stage."""

    def __init__(self) -> None:
        self.ttft = HdrHistogram(1, LONGEST, 3)
        self.itl = HdrHistogram(1, LONGEST, 3)

    def add(self, ttft: Mapping[int, int], itl: Mapping[int, int]) -> None:
        """Each value, in UNIT_NS, as often as it is said to have come."""
        for histogram, values in ((self.ttft, ttft), (self.itl, itl)):
            for value, count in values.items():
                histogram.record_value(min(max(1, value), LONGEST), count)


@dataclass
class Tally:
    """What has ended since it was last told; can be sent to another process.

    Attributes:
        ttft, itl: By stage, how often each value (in UNIT_NS) came.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    stalls: int = 0
    tokens: int = 0
    ttft: dict[str, Counter[int]] = field(default_factory=dict)
    itl: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, record: RequestRecord, schedule: Schedule) -> None:
        self.outcomes[record.outcome] += 1
        self.measured += any(stage.measured and stage.name == record.stage for stage in schedule.stages)
        if record.outcome in NEVER_SENT:
            return
        stall = schedule.workload.stall
        self.stalls += stalls(record, round(stall.floor * 1e9), stall.factor)
        self.tokens += record.completion_tokens or len(record.arrival_ns)
        if record.outcome == "ok" and record.sent_ns is not None and record.arrival_ns:
            self._time(record, record.arrival_ns[0] - record.sent_ns)

    def _time(self, record: RequestRecord, ttft_ns: int) -> None:
        self.ttft.setdefault(record.stage, Counter())[ttft_ns // UNIT_NS] += 1
        per_token_ns, tokens = token_gaps(record)
        values, where = np.unique(per_token_ns // UNIT_NS, return_inverse=True)
        # One entry per distinct value: a request of a thousand tokens must not hold up the loop.
        itl = self.itl.setdefault(record.stage, Counter())
        for value, count in zip(values.tolist(), np.bincount(where, tokens).tolist(), strict=True):
            itl[value] += int(count)


def token_gaps(record: RequestRecord) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each gap between token events, nanoseconds per token and how many tokens it counts for.

    Both are empty if it is not known how many tokens each event carried.
    """
    gaps_ns = _gaps_ns(record)
    tokens = np.array(record.n_tokens, dtype=np.int64)[1:]
    if record.completion_tokens in (None, len(record.arrival_ns)):
        tokens = np.where(tokens < 0, 1, tokens)
    if record.choices > 1 or (tokens < 1).any():
        return gaps_ns[:0], tokens[:0]
    return gaps_ns // tokens, tokens


def _gaps_ns(record: RequestRecord) -> NDArray[np.int64]:
    arrival_ns = np.array(record.arrival_ns, dtype=np.int64)
    return arrival_ns[1:] - arrival_ns[:-1]


def stalls(record: RequestRecord, floor_ns: int, factor: float) -> int:
    """Gaps longer than `floor_ns` and than `factor` times the median gap of the request."""
    gaps_ns = _gaps_ns(record)
    if record.outcome != "ok" or not gaps_ns.size or gaps_ns.max() <= floor_ns:
        return 0
    return int(np.count_nonzero(gaps_ns > max(floor_ns, factor * float(np.median(gaps_ns)))))


class Progress:
    """Counts finished requests and, in an `async with` block, shows them about four times a second.

    Args:
        enabled: False for no panel even on a terminal; without a terminal there is none anyway.
        console: Where the panel goes; stderr by default.
    """

    def __init__(
        self, schedule: Schedule, clock: Clock, live: Live, *, enabled: bool = True, console: Console | None = None
    ) -> None:
        self.schedule = schedule
        self.clock = clock
        self.live = live
        self.console = console or Console(stderr=True)
        self.enabled = enabled and self.console.is_terminal
        self.outcomes: Counter[str] = Counter()
        self.measured = 0
        self.stalls = 0
        self.speeds: dict[str, Speeds] = {}
        self.nothing = Speeds()
        self._tokens: deque[tuple[int, int]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, record: RequestRecord) -> None:
        if self.enabled:
            one = Tally()
            one.add(record, self.schedule)
            self.merge(one)

    def merge(self, tally: Tally) -> None:
        """Adds what has ended, here or in another process."""
        if not self.enabled:
            return
        self.outcomes += tally.outcomes
        self.measured += tally.measured
        self.stalls += tally.stalls
        for stage, ttft in tally.ttft.items():
            if stage not in self.speeds:  # 300 KB that refer to themselves: one too many would stay for the whole run
                self.speeds[stage] = Speeds()
            self.speeds[stage].add(ttft, tally.itl[stage])
        self._tokens.append((self.clock.now_ns(), tally.tokens))

    async def __aenter__(self) -> Self:
        if self.enabled:
            self._task = asyncio.create_task(self._show())
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _show(self) -> None:
        # Without a thread of its own: two threads would fight for the interpreter lock.
        with Display(console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as display:
            try:
                while True:
                    display.update(self.panel(), refresh=True)
                    await asyncio.sleep(REFRESH_S)
            finally:
                display.update(self.panel(), refresh=True)

    def tokens_per_s(self, now_ns: int) -> float | None:
        """Output tokens of the requests that ended in the last seconds; None before there was time for any."""
        while self._tokens and self._tokens[0][0] <= now_ns - RATE_WINDOW_NS:
            self._tokens.popleft()
        span_ns = min(now_ns, RATE_WINDOW_NS)
        return sum(tokens for _, tokens in self._tokens) * 1e9 / span_ns if span_ns > 0 else None

    def panel(self) -> Panel:
        now_ns = max(0, self.clock.now_ns())
        stage = stage_at(self.schedule.stages, now_ns)
        table = Table.grid(padding=(0, 2))
        table.add_row(self._stage_line(stage, now_ns), self._bar(stage, now_ns))
        grid = Table.grid()
        grid.add_row(table)
        grid.add_row(self._counts_line(now_ns))
        grid.add_row(self._speeds_line(stage))
        title = Text(f"loadgen: {self.schedule.workload.name}", style="bold")
        return Panel(grid, title=title, title_align="left", width=min(WIDTH, self.console.width))

    def _stage_line(self, stage: Stage, now_ns: int) -> Text:
        in_ns = now_ns - stage.start_ns
        if stage.end_ns is None:
            return Text(f"{stage.name}  {_clock_time(in_ns)}")
        if now_ns > stage.end_ns:
            return Text(f"{stage.name}  {_clock_time(in_ns)}, waiting for the last answers")
        return Text(f"{stage.name}  {_clock_time(in_ns)} of {_clock_time(stage.end_ns - stage.start_ns)}")

    def _bar(self, stage: Stage, now_ns: int) -> ProgressBar | Text:
        if self.schedule.requests is not None and stage.measured:
            return ProgressBar(total=self.schedule.requests, completed=self.measured, width=30)
        if stage.end_ns is None:
            return Text()
        return ProgressBar(total=stage.end_ns - stage.start_ns, completed=now_ns - stage.start_ns, width=30)

    def _counts_line(self, now_ns: int) -> Text:
        failures = self.outcomes.copy()
        for other in ("ok", "cancelled", *NEVER_SENT):
            failures.pop(other, None)
        failed = f"{failures.total()} failed"
        if failures:
            failed += f" ({failures.most_common(1)[0][0]})"
        line = Text(f"{self.live.sent} sent   {self.live.in_flight} in flight   ")
        line.append(f"{self.outcomes['ok']} ok", style="green" if self.outcomes["ok"] else "")
        line.append("   ")
        line.append(failed, style="bold red" if failures else "")
        rate = self.tokens_per_s(now_ns)
        line.append("" if rate is None else f"   {rate:,.0f} tok/s")
        return line

    def _speeds_line(self, stage: Stage) -> Text:
        """Of the stage, or of the one before while nothing of it has ended."""
        begun = [s.name for s in self.schedule.stages if s.start_ns <= stage.start_ns]
        speeds = next((self.speeds[name] for name in reversed(begun) if name in self.speeds), self.nothing)
        line = Text(f"TTFT p50 {_ms(speeds.ttft, 50)}, p95 {_ms(speeds.ttft, 95)}   ")
        line.append(f"ITL p50 {_ms(speeds.itl, 50)}, p99 {_ms(speeds.itl, 99)}   ")
        return line.append(f"{self.stalls} stall{'s' * (self.stalls != 1)}", style="yellow" if self.stalls else "")


def _ms(histogram: HdrHistogram, percentile: float) -> str:
    if not histogram.get_total_count():
        return "–"
    ms = histogram.get_value_at_percentile(percentile) * UNIT_NS / 1e6
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def _clock_time(ns: int) -> str:
    minutes, seconds = divmod(ns // 1_000_000_000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
