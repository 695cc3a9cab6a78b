"""Carries finished records from the event loop into the journal, off the loop and in batches."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from analysis.record import NEVER_SENT, RequestRecord
from analysis.rundir import RunJournal

FLUSH_S = 0.5
"""A kill -9 loses at most what ended since the last flush."""
FLUSH_REQUESTS = 50
"""Written before that time is over: what a thousand need at once would hold up what is to be sent and read."""
EARLY_STOP_REQUESTS = 10
LASTING_STATUS = frozenset({400, 401, 403, 404})
LASTING_OUTCOMES = frozenset({"connect_failed", "tls_failed"})


Sample = dict[str, float | int | None]


class GiveUp(Protocol):
    def __call__(self, reason: str, at_once: bool = False, /) -> None: ...


class Recorder:
    """Takes each record as it is finished, writes batches from a worker thread, and tells when to give up early.

    Args:
        count_tokens: How many tokens a text has, asked where the server states no usage; None: nobody knows.
        give_up: Called with the reason when the first requests have all failed in a way that will not go away, and when
            a batch cannot be written: then with `at_once`, as whatever still comes in could not be kept.

    Attributes:
        unwritten: Why the journal cannot have everything; None as long as it can.
    """

    def __init__(self, journal: RunJournal, give_up: GiveUp, count_tokens: Callable[[str], int] | None = None) -> None:
        self.unwritten: str | None = None
        self._journal = journal
        self._give_up = give_up
        self._count_tokens = count_tokens
        self._batch: list[RequestRecord] = []
        self._samples: list[Sample] = []
        self._ended = 0
        self._lasting: Counter[str] = Counter()
        self._closing = False
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._flush_until_closed())

    def add(self, record: RequestRecord) -> None:
        self._batch.append(record)
        if len(self._batch) >= FLUSH_REQUESTS:
            self._due.set()
        if self._ended < EARLY_STOP_REQUESTS and record.outcome not in NEVER_SENT:
            self._watch(record)

    def add_client_sample(self, sample: Sample) -> None:
        self._samples.append(sample)

    async def close(self) -> None:
        """Write what is left, after what is being written; what did not go through before is tried once more."""
        self._closing = True
        self._due.set()
        if self._task is not None:
            await self._task
        await self._flush()

    def _watch(self, record: RequestRecord) -> None:
        self._ended += 1
        if record.status in LASTING_STATUS or record.outcome in LASTING_OUTCOMES:
            self._lasting[record.error or record.outcome] += 1
        if self._ended == EARLY_STOP_REQUESTS and self._lasting.total() == EARLY_STOP_REQUESTS:
            message, count = self._lasting.most_common(1)[0]
            self._give_up(f"the first {EARLY_STOP_REQUESTS} requests all failed ({count}x: {message})")

    async def _flush_until_closed(self) -> None:
        while not self._closing and self.unwritten is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), FLUSH_S)
            self._due.clear()
            await self._flush()

    async def _flush(self) -> None:
        batch, samples = self._batch, self._samples
        self._batch, self._samples = [], []
        if not batch and not samples:
            return
        try:
            await asyncio.to_thread(self._write, batch, samples)
        except Exception as problem:  # whatever it is, what was measured until then is kept, and the user is told now
            self._batch, self._samples = batch + self._batch, samples + self._samples
            if self.unwritten is None:
                self.unwritten = " ".join(str(problem).split()) or type(problem).__name__
                self._give_up(self.unwritten, True)

    def _write(self, batch: list[RequestRecord], samples: list[Sample]) -> None:
        """Empties both lists as far as it gets."""
        if self._count_tokens is not None:
            for record in batch:
                if record.completion_tokens is None and record.text is not None:
                    record.tokenizer_tokens = self._count_tokens((record.unsaid_text or "") + record.text)
        at_a_time = len(batch) if self.unwritten is None else 1  # where a batch found no room, a record still may
        while batch:
            self._journal.append(batch[:at_a_time])
            del batch[:at_a_time]
        while samples:
            self._journal.append_client(samples[0])
            del samples[0]
