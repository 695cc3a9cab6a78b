"""Carries finished records from the event loop into the run directory, off the loop and in batches."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

from analysis.record import NEVER_SENT, RequestRecord
from analysis.rundir import RunWriter

FLUSH_S = 0.5
"""A kill -9 loses at most what ended since the last flush."""
EARLY_STOP_REQUESTS = 10
LASTING_STATUS = frozenset({400, 401, 403, 404})
LASTING_OUTCOMES = frozenset({"connect_failed", "tls_failed"})


class Recorder:
    """Takes each record as it is finished, writes batches from a worker thread, and tells when to give up early.

    Args:
        count_tokens: How many tokens a text has, asked where the server states no usage; None: nobody knows.
        give_up: Called once, with the reason, when the first requests have all failed in a way that will not go away.
    """

    def __init__(
        self, writer: RunWriter, give_up: Callable[[str], None], count_tokens: Callable[[str], int] | None = None
    ) -> None:
        self._writer = writer
        self._give_up = give_up
        self._count_tokens = count_tokens
        self._batch: list[RequestRecord] = []
        self._samples: list[dict[str, float | int | None]] = []
        self._ended = 0
        self._lasting: Counter[str] = Counter()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._flush_until_closed())

    def add(self, record: RequestRecord) -> None:
        self._batch.append(record)
        if self._ended < EARLY_STOP_REQUESTS and record.outcome not in NEVER_SENT:
            self._watch(record)

    def add_client_sample(self, sample: dict[str, float | int | None]) -> None:
        self._samples.append(sample)

    async def close(self) -> None:
        """Write what is left, after what is being written. Raises RunDirError where the disk does not take it."""
        self._closing.set()
        if self._task is not None:
            await self._task
        self._write(*self._take())

    def _watch(self, record: RequestRecord) -> None:
        self._ended += 1
        if record.status in LASTING_STATUS or record.outcome in LASTING_OUTCOMES:
            self._lasting[record.error or record.outcome] += 1
        if self._ended == EARLY_STOP_REQUESTS and self._lasting.total() == EARLY_STOP_REQUESTS:
            message, count = self._lasting.most_common(1)[0]
            self._give_up(f"the first {EARLY_STOP_REQUESTS} requests all failed ({count}x: {message})")

    async def _flush_until_closed(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), FLUSH_S)
            batch, samples = self._take()
            if batch or samples:
                await asyncio.to_thread(self._write, batch, samples)

    def _take(self) -> tuple[list[RequestRecord], list[dict[str, float | int | None]]]:
        taken = self._batch, self._samples
        self._batch, self._samples = [], []
        return taken

    def _write(self, batch: list[RequestRecord], samples: list[dict[str, float | int | None]]) -> None:
        if self._count_tokens is not None:
            for record in batch:
                if record.completion_tokens is None and record.text is not None:
                    record.tokenizer_tokens = self._count_tokens((record.unsaid_text or "") + record.text)
        if batch:
            self._writer.append(batch)
        for sample in samples:
            self._writer.append_client(sample)
