"""Which of the open streams stand still."""

import asyncio
from array import array
from typing import Any

import pytest

from analysis.record import RequestRecord
from loadgen.clock import RunClock
from loadgen.connection import Connection
from loadgen.openai_httpx import HttpxEngine
from loadgen.streams import Streams
from tests.loadgen.scripted import DONE, RESET, ScriptedServer, Step, answer, content, finish, role, usage
from tests.loadgen.test_openai_http import request
from tests.loadgen.test_worker import share

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
    assert open_.silent_ns(1000 * MS, floor_ns=200 * MS, factor=5) == [ms * MS for ms in silent_ms]


@pytest.mark.parametrize("last", [(finish(), usage(5, 2), DONE), (RESET,)])
def test_an_engine_says_which_streams_are_open(last: tuple[Step, ...]) -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        played = answer(role(), content("a"), content("b"), finish(), usage(5, 2), DONE)
        steps = [*played[:3], go_on, *(played[3:] if DONE in last else last)]
        async with ScriptedServer(steps) as server:
            watched, engine = Streams(), share(url=server.url).engine(RunClock())
            watched.watch(engine)
            async with engine:
                task = asyncio.create_task(engine.send(request()))
                while not list(watched.decoding()):
                    await asyncio.sleep(0)
                (record, connection), *others = watched.decoding()
                assert not others
                assert isinstance(connection, Connection)
                assert connection.arrival_ns >= record.arrival_ns[-1]
                go_on.set()
                assert await task is record
        assert watched.known
        assert not watched.open

    asyncio.run(main())


def test_another_transport_says_nothing() -> None:
    async def main() -> None:
        watched, engine = Streams(), share(transport="httpx").engine(RunClock())
        assert isinstance(engine, HttpxEngine)
        watched.watch(engine)
        assert not watched.known
        await engine.close()

    asyncio.run(main())
