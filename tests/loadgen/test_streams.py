"""Which of the open streams stand still."""

import asyncio
from array import array
from pathlib import Path
from typing import Any

import pytest

from analysis.record import RequestRecord
from loadgen.clock import RunClock
from loadgen.drive import Live, Stop
from loadgen.fleet import Fleet, LocalWorker
from loadgen.streams import Stalled, Streams
from tests.loadgen.scripted import DONE, HANG, RESET, ScriptedServer, Step, answer, content, finish, role, usage
from tests.loadgen.test_openai_http import request
from tests.loadgen.test_worker import share
from workloads.spec import Stall

MS = 1_000_000


class Heard:
    """What of a connection is looked at."""

    def __init__(self, at_ms: float) -> None:
        self.arrival_ns = round(at_ms * MS)


def streams(*arrivals_ms: float, heard_ms: float | None = None, end_ms: float | None = None) -> Streams:
    record = RequestRecord("r", arrival_ns=array("q", [round(ms * MS) for ms in arrivals_ms]))
    record.end_ns = None if end_ms is None else round(end_ms * MS)
    heard: Any = Heard(arrivals_ms[-1] if heard_ms is None else heard_ms)
    return Streams({"r": (record, heard)}, known=True)


@pytest.mark.parametrize(
    ("open_", "silent_ms"),
    [
        (streams(0, 20, 40), [960]),  # at 1,000 ms
        (streams(0, 20, 40, heard_ms=800), []),  # 200 ms is the floor: tokens that are not read yet count
        (streams(0, 20, 40, heard_ms=799), [201]),
        (streams(0, 200, 400, heard_ms=0), []),  # 1,000 ms is five times the gap
        (streams(0, 199, 398, heard_ms=0), [1000]),
        (streams(0, 500, *range(510, 600, 10), heard_ms=700), [300]),  # by its latest tokens
        (streams(0, 10, 20, *range(320, 3020, 300), heard_ms=0), []),
        (streams(40), [960]),
        (streams(0, 20, 40, end_ms=40), []),  # over, but for the end of its body
        (streams(heard_ms=0), []),  # waits for its first token: that is TTFT
        (Streams(known=True), []),
    ],
)
def test_silences(open_: Streams, silent_ms: list[int]) -> None:
    stalled = open_.stalled(1000 * MS, Stall())
    assert stalled.streams == len(silent_ms)
    assert stalled.longest_ns(1000 * MS) == max(silent_ms, default=0) * MS


def test_what_other_processes_tell_is_added_and_lasts_until_they_tell_anew() -> None:
    watched, stall = streams(0, 20, 40), Stall()
    watched.hear([Stalled(3, 500 * MS), Stalled(), Stalled(2, 700 * MS)])
    assert watched.stalled(1000 * MS, stall) == Stalled(6, 40 * MS)
    watched.open = {}
    assert watched.stalled(1000 * MS, stall) == watched.stalled(9000 * MS, stall) == Stalled(5, 500 * MS)
    watched.hear([Stalled(), Stalled(2, 700 * MS), Stalled()])
    assert watched.stalled(1000 * MS, stall) == Stalled(2, 700 * MS)
    assert watched.known


@pytest.mark.parametrize("transport", ["fast", "httpx"])
@pytest.mark.parametrize("last", [(finish(), usage(5, 2), DONE), (RESET,)])
def test_an_engine_says_which_streams_are_open(last: tuple[Step, ...], transport: str) -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        played = answer(role(), content("a"), content("b"), finish(), usage(5, 2), DONE)
        steps = [*played[:3], go_on, *(played[3:] if DONE in last else last)]
        async with ScriptedServer(steps) as server:
            watched, engine = Streams(), share(url=server.url, transport=transport).engine(RunClock())
            watched.watch(engine)
            async with engine:
                task = asyncio.create_task(engine.send(request()))
                while not list(watched.decoding()):
                    await asyncio.sleep(0)
                (record, heard), *others = watched.decoding()
                assert not others
                assert heard.arrival_ns >= record.arrival_ns[-1]
                assert watched.stalled(heard.arrival_ns + 200 * MS, Stall()) == Stalled()
                assert watched.stalled(heard.arrival_ns + 10**12, Stall()) == Stalled(1, heard.arrival_ns)
                go_on.set()
                assert await task is record
        assert watched.known
        assert not watched.open

    asyncio.run(main())


def test_workers_tell_what_stands_still(tmp_path: Path) -> None:
    """Two streams each, all of which freeze after two tokens."""

    async def main() -> Stalled:
        frozen = answer(role(), content("a"), content("b"), HANG)
        stop, heard = Stop(), Streams()
        async with ScriptedServer(frozen) as server:
            asked = share(concurrency=4, url=server.url)
            workers = [LocalWorker(asked.part(i, 2), 2, tmp_path) for i in range(2)]
            fleet = Fleet(workers, asked.schedule.stages, RunClock(), stop, Live(), heard, lambda _: None, print)
            carrying = asyncio.create_task(fleet.carry())
            while heard.told.streams < 4:
                await asyncio.sleep(0.01)
            told = heard.told
            stop.set("seen", at_once=True)
            await carrying
        assert heard.told == Stalled()
        return told

    told = asyncio.run(asyncio.wait_for(main(), 60))
    assert told.streams == 4
    assert 0 < (told.since_ns or 0) < 60_000 * MS
