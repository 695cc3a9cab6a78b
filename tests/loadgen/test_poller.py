import asyncio
import os
from collections.abc import Callable
from functools import partial

import pytest

from loadgen import poller as poller_module
from loadgen.poller import Poller, is_heavy, late_after_s

LOADS = {
    "800 streams of 50 tokens/s": ((200, 0.005, 800), True),
    "ten streams of 50 tokens/s": ((3, 0.005, 10), False),
    "60 streams of 100 tokens/s": ((30, 0.005, 60), True),
    "eight streams of 1,000 tokens/s: two of one would come within one gathering": ((40, 0.005, 8), False),
    "nothing": ((0, 0.005, 0), False),
}


@pytest.mark.parametrize("case", LOADS)
def test_when_reads_gather(case: str) -> None:
    (reads, seconds, streams), heavy = LOADS[case]
    assert is_heavy(reads, seconds, streams) is heavy


LATE = {
    "800 streams of 50 tokens/s": ((200, 0.005, 800), 0.01),
    "800 streams of 100 tokens/s": ((400, 0.005, 800), 0.005),
    "eight streams of 1,000 tokens/s": ((40, 0.005, 8), 0.002),
    "ten streams of a token a second": ((1, 0.1, 10), 0.01),
    "nothing": ((0, 0.005, 5), 0.01),
}


@pytest.mark.parametrize("case", LATE)
def test_when_two_tokens_may_be_waiting(case: str) -> None:
    load, after_s = LATE[case]
    assert late_after_s(*load) == pytest.approx(after_s)


def run(act: Callable[[Poller, list[int]], list[int]]) -> list[int]:
    """Which readers were called, after a few turns of the loop, of three pipes that all have something to read."""

    async def turns() -> list[int]:
        pipes = [os.pipe() for _ in range(3)]
        poller = Poller(gather=False)
        called = act(poller, [read for read, _ in pipes])
        for _, write in pipes:
            os.write(write, b"x")
        for _ in range(3):
            await asyncio.sleep(0)
        poller.close()
        for ends in pipes:
            for end in ends:
                os.close(end)
        return called

    return asyncio.run(turns())


def test_every_readable_socket_is_read_once_a_turn_until_it_is_empty() -> None:
    def act(poller: Poller, ends: list[int]) -> list[int]:
        called: list[int] = []

        def read(number: int, end: int) -> None:
            called.append(number)
            os.read(end, 1)

        for number, end in enumerate(ends):
            poller.add(end, partial(read, number, end))
        return called

    assert sorted(run(act)) == [0, 1, 2]


def test_a_reader_that_another_one_removed_is_not_called() -> None:
    def act(poller: Poller, ends: list[int]) -> list[int]:
        called: list[int] = []

        def only_one(number: int) -> None:
            called.append(number)
            for end in ends:
                poller.remove(end)

        for number, end in enumerate(ends):
            poller.add(end, partial(only_one, number))
        return called

    assert len(run(act)) == 1


def test_removing_twice_and_closing_twice_do_no_harm() -> None:
    def act(poller: Poller, ends: list[int]) -> list[int]:
        poller.add(ends[0], lambda: None)
        poller.remove(ends[0])
        poller.remove(ends[0])
        poller.close()
        poller.close()
        return []

    assert run(act) == []


def test_sockets_are_read_while_tokens_gather_and_when_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = iter([True, True, True])
    monkeypatch.setattr(poller_module, "is_heavy", lambda *_: next(heavy, False))
    monkeypatch.setattr(poller_module, "WINDOW_S", 0.0)

    async def main() -> list[bytes]:
        read_end, write_end = os.pipe()
        poller, came, heard = Poller(gather=True), asyncio.Event(), []

        def read() -> None:
            heard.append(os.read(read_end, 1))
            came.set()

        poller.add(read_end, read)
        for letter in (b"a", b"b", b"c", b"d", b"e", b"f"):
            came.clear()
            os.write(write_end, letter)
            async with asyncio.timeout(10):
                await came.wait()
        poller.close()
        os.close(read_end)
        os.close(write_end)
        return heard

    assert b"".join(asyncio.run(main())) == b"abcdef"
    assert next(heavy, None) is None
