"""Events that are put off: how many, and that none is lost."""

import asyncio
from itertools import pairwise

from analysis.record import RequestRecord
from loadgen.chunk_reader import ChunkReader
from loadgen.clock import RunClock
from loadgen.exchange import AT_ONCE, Exchange, Limits

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


def reads_of(streams: int, tokens: int) -> list[list[int]]:
    """For each of some streams, after which of its tokens what had come was in the record."""

    async def main() -> list[list[int]]:
        found = []
        for _ in range(streams):
            record = RequestRecord("r")
            exchange = Exchange(record, ChunkReader(record), RunClock(), Limits())
            exchange.on_head(200, {b"content-type": b"text/event-stream"}, 0)
            seen: list[int] = []
            for number in range(1, tokens + 1):
                exchange.on_body(TOKEN, number, number)
                if len(record.arrival_ns) == number:
                    seen.append(number)
            exchange.cancel()
            assert list(record.arrival_ns) == list(range(1, tokens + 1))
            found.append(seen)
        return found

    return asyncio.run(main())


def test_tokens_are_read_some_at_a_time_and_streams_that_began_together_take_turns() -> None:
    found = reads_of(49, 200)
    assert sorted(seen[1] for seen in found) == [1 + first for first in range(16, AT_ONCE + 1)]
    assert {seen[0] for seen in found} == {1}
    assert {after - before for seen in found for before, after in pairwise(seen[1:])} == {AT_ONCE}
