import asyncio
import gc
import io
import threading
import time
import tracemalloc
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from analysis.record import RequestRecord
from analysis.rundir import RunDirError, RunWriter
from loadgen import recorder
from loadgen.clock import RunClock
from loadgen.drive import Live
from loadgen.progress import RATE_WINDOW_NS, Progress
from loadgen.recorder import Recorder
from tests.loadgen.plans import main_stage
from workloads.schedule import Schedule


class SlowWriter:
    """Takes as long to write its first batch as the test wants."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.began, self.may_end = threading.Event(), threading.Event()

    def append(self, records: Sequence[RequestRecord]) -> None:
        if not self.began.is_set():
            self.began.set()
            self.may_end.wait(10)
        self.written += [record.request_id for record in records]

    def append_client(self, sample: dict[str, Any]) -> None:
        self.written.append(f"sample {sample['t_ns']}")


def test_what_is_being_written_when_the_run_ends_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_S", 0.001)

    async def run() -> list[str]:
        writer = SlowWriter()
        keeper = Recorder(cast(RunWriter, writer), lambda reason, at_once=False: None)
        keeper.start()
        keeper.add(RequestRecord("first", outcome="ok"))
        await asyncio.to_thread(writer.began.wait, 10)
        keeper.add(RequestRecord("second", outcome="ok"))
        keeper.add_client_sample({"t_ns": 7})
        closing = asyncio.create_task(keeper.close())
        await asyncio.sleep(0)
        writer.may_end.set()
        await closing
        return writer.written

    assert asyncio.run(run()) == ["first", "second", "sample 7"]


def test_many_requests_are_written_before_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_S", 1000)

    async def run() -> list[str]:
        writer = SlowWriter()
        writer.may_end.set()
        keeper = Recorder(cast(RunWriter, writer), lambda reason, at_once=False: None)
        keeper.start()
        for number in range(recorder.FLUSH_REQUESTS):
            keeper.add(RequestRecord(str(number), outcome="ok"))
        assert await asyncio.to_thread(writer.began.wait, 30)
        keeper.add(RequestRecord("last", outcome="ok"))
        await keeper.close()
        return writer.written

    assert asyncio.run(run()) == [*map(str, range(recorder.FLUSH_REQUESTS)), "last"]


class FullDisk(SlowWriter):
    """Takes no batch of more than `room` records."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end.set()
        self.room = 0

    def append(self, records: Sequence[RequestRecord]) -> None:
        self.began.set()
        if len(records) > self.room:
            raise RunDirError("run: cannot write the journal: No space left on device")
        super().append(records)


def record_on(disk: FullDisk, room_later: int) -> tuple[Recorder, list[tuple[str, bool]]]:
    """Two records and a sample on a disk that is full, and has some room at the end."""

    async def run() -> tuple[Recorder, list[tuple[str, bool]]]:
        told: list[tuple[str, bool]] = []
        failed = asyncio.Event()

        def give_up(reason: str, at_once: bool = False) -> None:
            told.append((reason, at_once))
            failed.set()

        keeper = Recorder(cast(RunWriter, disk), give_up)
        keeper.start()
        keeper.add(RequestRecord("first", outcome="ok"))
        keeper.add_client_sample({"t_ns": 7})
        await asyncio.wait_for(failed.wait(), 10)
        keeper.add(RequestRecord("cut", outcome="cancelled"))
        disk.room = room_later
        await keeper.close()
        return keeper, told

    return asyncio.run(run())


def test_a_full_disk_is_told_at_once_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_S", 0.001)
    disk = FullDisk()
    keeper, told = record_on(disk, room_later=0)
    assert told == [("run: cannot write the journal: No space left on device", True)]
    assert keeper.unwritten == told[0][0]
    assert disk.written == []


def test_what_did_not_go_through_is_tried_once_more_at_the_end_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_S", 0.001)
    disk = FullDisk()
    keeper, told = record_on(disk, room_later=1)
    assert disk.written == ["first", "cut", "sample 7"]
    assert keeper.unwritten is not None
    assert len(told) == 1


def test_a_tokenizer_that_fails_is_no_traceback_but_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_S", 0.001)

    def fail(text: str) -> int:
        raise UnicodeError(f"cannot encode\n{text}")

    async def run() -> str | None:
        failed = asyncio.Event()
        keeper = Recorder(cast(RunWriter, SlowWriter()), lambda reason, at_once=False: failed.set(), fail)
        keeper.start()
        keeper.add(RequestRecord("first", outcome="ok", text="hi"))
        await asyncio.wait_for(failed.wait(), 10)
        await keeper.close()
        return keeper.unwritten

    assert asyncio.run(run()) == "cannot encode hi"


FAILURES = {
    "refused": ({"outcome": "connect_failed", "error": "refused"}, True),
    "not found": ({"outcome": "http_error", "status": 404, "error": "no such model"}, True),
    "overloaded": ({"outcome": "http_error", "status": 503, "error": "busy"}, False),
    "fine": ({"outcome": "ok", "status": 200}, False),
}


@pytest.mark.parametrize("case", FAILURES)
def test_ten_first_requests_that_all_fail_for_good_end_the_run(case: str) -> None:
    fields, gives_up = FAILURES[case]

    async def run() -> list[str]:
        reasons: list[str] = []
        keeper = Recorder(cast(RunWriter, SlowWriter()), lambda reason, at_once=False: reasons.append(reason))
        for number in range(12):
            keeper.add(RequestRecord(str(number), **fields))
        return reasons

    reasons = asyncio.run(run())
    assert len(reasons) == gives_up
    assert all(str(fields["error"]) in reason for reason in reasons)


def test_a_long_run_takes_no_more_memory_than_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the collector off, as in a run: what is recorded and shown must not stay, in circles or otherwise."""
    monkeypatch.setattr(recorder, "FLUSH_S", 0.001)
    held: list[int] = []
    written = array("b")

    class Counting:
        def __init__(self, writer: RunWriter) -> None:
            self.writer = writer

        def append(self, records: Sequence[RequestRecord]) -> None:
            self.writer.append(records)
            written.extend([1] * len(records))

    def one(number: int) -> RequestRecord:
        made = RequestRecord(str(number), outcome="ok", stage="main", sent_ns=0, end_ns=1, completion_tokens=50)
        made.arrival_ns = array("q", range(0, 50_000_000 * 50, 50_000_000))
        made.n_tokens = made.kind = made.chars = made.read_id = array("i", [1] * 50)
        return made

    async def run() -> None:
        stall = SimpleNamespace(floor=0.2, factor=5.0)
        schedule = SimpleNamespace(stages=(main_stage(),), workload=SimpleNamespace(stall=stall))
        console = Console(file=io.StringIO(), force_terminal=True)
        progress = Progress(cast(Schedule, schedule), RunClock(origin_ns=0), Live(), console=console)
        writer = RunWriter.create(tmp_path / "run", {})
        keeper = Recorder(Counting(writer), lambda reason, at_once=False: None)  # type: ignore[arg-type]
        keeper.start()
        for number in range(5_000):
            record = one(number)
            keeper.add(record)
            progress.add(record)
            if number % 1_000 == 999:
                while len(written) < number + 1:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.02)  # and the thread has let go of what it wrote
                progress.tokens_per_s(time.monotonic_ns() + RATE_WINDOW_NS)
                del record
                held.append(tracemalloc.get_traced_memory()[0])
        await keeper.close()
        writer.end()

    gc.disable()
    tracemalloc.start()
    try:
        asyncio.run(run())
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held[-1] - held[1] < 100_000, held  # 3,000 records would be 4 MB
