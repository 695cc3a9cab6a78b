import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from analysis.record import RequestRecord
from analysis.rundir import RunWriter
from loadgen import recorder
from loadgen.recorder import Recorder


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
        keeper = Recorder(cast(RunWriter, writer), lambda reason: None)
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


def test_a_disk_that_takes_nothing_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_S", 0.001)

    class FullDisk(SlowWriter):
        def append(self, records: Sequence[RequestRecord]) -> None:
            self.began.set()
            raise OSError("no space left")

    async def run() -> None:
        writer = FullDisk()
        keeper = Recorder(cast(RunWriter, writer), lambda reason: None)
        keeper.start()
        keeper.add(RequestRecord("first", outcome="ok"))
        await asyncio.to_thread(writer.began.wait, 10)
        await keeper.close()

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(run())


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
        keeper = Recorder(cast(RunWriter, SlowWriter()), reasons.append)
        for number in range(12):
            keeper.add(RequestRecord(str(number), **fields))
        return reasons

    reasons = asyncio.run(run())
    assert len(reasons) == gives_up
    assert all(str(fields["error"]) in reason for reason in reasons)
