"""Sends the cases, many at once, and holds what comes back against what must be."""

import asyncio
import mmap
import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.record import RequestRecord
from loadgen.clock import RunClock
from loadgen.exchange import Limits
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions
from loadgen.target import parse_target
from tests.bench.fuzz import check, server
from tests.bench.fuzz.mutate import LARGE_PROMPT_WORDS, Plan, is_large, plan
from workloads.request import Message, Request

LIMITS = Limits(connect_s=2.0, first_token_s=1.0, idle_s=1.0, total_s=3.0)
TRIES = 4  # a redirect is followed three times, and each has its own limits
LONGEST_S = (2.0 + 3.0) * TRIES + 1.0  # connecting and the total of each, and a second: longer is a hang
TICK_S = 0.05
MAX_BLOCK_S = 3.0  # CPU time between two ticks: what a bomb may unpack to in one read takes up to one, and several meet
CANCEL_EVERY = 97
UNHEARD = frozenset({"broken", "timeout_first_token"})
SHOWN = 20  # of each kind of violation


@dataclass
class Result:
    """`running` holds, for each case under way, the tick at which it began."""

    outcomes: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    exposed: int = 0
    raced: int = 0
    slow: list[int] = field(default_factory=list)
    longest_block_s: float = 0.0
    rss_start_mb: float | None = None
    rss_peak_mb: float = 0.0
    ticks: int = 0
    running: dict[int, int] = field(default_factory=dict)

    def violation(self, kind: str, text: str) -> None:
        self.violations[kind] += 1
        if self.violations[kind] <= SHOWN:
            print(f"{kind}: {text}", flush=True)

    @property
    def rss_growth_mb(self) -> float:
        return self.rss_peak_mb - (self.rss_start_mb or self.rss_peak_mb)


class Runner:
    def __init__(self, seed: int, port: int, notes: mmap.mmap) -> None:
        self._seed = seed
        self._notes = notes
        self._patient = True
        self.result = Result()
        clock, options = RunClock(), HttpOptions(limits=LIMITS)
        clock.start()
        target = f"http://127.0.0.1:{port}"
        self._engines = {
            name: HttpEngine(parse_target(target, name), BodyOptions("m", name), options, clock)
            for name in ("chat", "responses")
        }

    async def run(self, cases: Iterator[int], concurrency: int) -> RequestRecord | None:
        """Send all cases; the record of the last."""
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.result.violation("escapes", _told(context))
        )
        watch = asyncio.create_task(self._watch())
        record = None

        async def work() -> None:
            nonlocal record
            for case in cases:
                record = await self.case(case)

        working = asyncio.gather(*(work() for _ in range(concurrency)))
        both: list[asyncio.Future[Any]] = [watch, working]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            return None
        working.result()
        self._patient = False
        for case in self.result.slow:
            await self.case(case)
        watch.cancel()
        for engine in self._engines.values():
            await engine.close()
        return record

    async def case(self, case: int) -> RequestRecord | None:
        result, asked = self.result, plan(self._seed, case)
        words = "word " * LARGE_PROMPT_WORDS if is_large(case) else "hi"
        request = Request(str(case), (Message("user", words),), 1, 2, keep_text=case % 2 == 0)
        began = result.running[case] = result.ticks
        sending = asyncio.ensure_future(self._engines[asked.endpoint].send(request))
        if case % CANCEL_EVERY == 0:
            asyncio.get_running_loop().call_later(random.Random(case).random() / 20, sending.cancel)
        try:
            record = await sending
        except Exception as problem:
            result.violation("escapes", f"case {case} ({asked.name}): send() raised {problem!r}")
            return None
        finally:
            del result.running[case]
        seconds = (result.ticks - began) * TICK_S
        if seconds > LONGEST_S:
            result.violation("hangs", f"case {case} ({asked.name}): {seconds:g} s")
        self._judge(case, asked, record)
        return record

    def _judge(self, case: int, asked: Plan, record: RequestRecord) -> None:
        result = self.result
        result.outcomes[record.outcome] += 1
        for text in check.faults(record):
            result.violation("faults", f"case {case} ({asked.name}): {text}")
        if record.outcome == "cancelled":
            if case % CANCEL_EVERY:
                result.violation("faults", f"case {case} ({asked.name}): cancelled by nobody")
            return
        if asked.expected is None:
            return
        note = self._notes[case]
        result.exposed += note == server.EXPOSED
        wrong = check.disturbed(record, asked.expected)
        if wrong and note == server.UNREAD and record.reused_connection and record.outcome in UNHEARD:
            result.raced += 1  # the server was hanging up, or silent for good: it never saw the request
        elif wrong and record.outcome.startswith("timeout_") and self._patient:
            result.slow.append(case)  # on a busy machine: sent again at the end, when nothing else goes on
        elif wrong and note != server.EXPOSED:
            result.violation("disturbed", f"case {case}: {wrong}")

    async def _watch(self) -> None:
        """Counts time in ticks of the loop, so that a machine that is busy elsewhere looks like no hang."""
        result = self.result
        while True:
            before_s = time.process_time()
            await asyncio.sleep(TICK_S)
            block_s = time.process_time() - before_s
            result.longest_block_s = max(result.longest_block_s, block_s)
            if block_s > MAX_BLOCK_S:
                result.violation("blocks", f"{block_s:.2f} s of CPU between two ticks; under way: {self._named()}")
            result.ticks += 1
            self._weigh()
            for case, began in list(result.running.items()):
                if (result.ticks - began) * TICK_S > 3 * LONGEST_S:
                    result.violation("hangs", f"case {case} never ends")
                    return

    def _named(self) -> str:
        names = Counter(plan(self._seed, case).name for case in self.result.running)
        return ", ".join(sorted(name for name in names if not name.startswith("clean")))

    def _weigh(self) -> None:
        """The growth counts from when every connection has been opened once."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        rss_mb = pages * resource.getpagesize() / 1e6
        self.result.rss_peak_mb = max(self.result.rss_peak_mb, rss_mb)
        if self.result.rss_start_mb is None:
            self.result.rss_start_mb = rss_mb


def _told(context: dict[str, Any]) -> str:
    problem = context.get("exception")
    lines = traceback.format_exception(problem) if problem else []
    return f"{context.get('message')}\n{''.join(lines[-4:])}"
