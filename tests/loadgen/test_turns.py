import asyncio

import pytest

from loadgen import turns as turns_module
from loadgen.turns import Turns


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "EACH_TURN", 3)
    monkeypatch.setattr(turns_module, "EACH_BUSY_TURN", 1)


def passed_by_turn(arrivals: list[int], busy: bool = False) -> list[list[int]]:
    """Who had passed after each turn of the loop, when `arrivals[t]` more come in turn t."""

    async def run() -> list[list[int]]:
        turns, passed, seen = Turns(lambda: busy), [], []
        tasks = []

        async def come(number: int) -> None:
            await turns.take()
            passed.append(number)

        for count in [*arrivals, *[0] * 12]:
            tasks += [asyncio.create_task(come(len(tasks) + extra)) for extra in range(count)]
            await asyncio.sleep(0)
            seen.append(list(passed))
        await asyncio.gather(*tasks)
        return seen

    return asyncio.run(run())


def test_a_burst_passes_a_few_at_a_turn_in_order() -> None:
    for busy, most in ((False, 3), (True, 1)):
        seen = passed_by_turn([10], busy)
        steps = [len(after) - len(before) for before, after in zip([[], *seen], seen, strict=False)]
        assert max(steps) == most
        assert seen[-1] == list(range(10))


def test_few_pass_at_once() -> None:
    assert passed_by_turn([2, 2, 2])[2] == [0, 1, 2, 3, 4, 5]


def test_one_that_was_cut_takes_no_turn() -> None:
    async def run() -> list[str]:
        turns, passed = Turns(lambda: True), []

        async def come(name: str) -> None:
            await turns.take()
            passed.append(name)

        first, cut, last = (asyncio.create_task(come(name)) for name in ("first", "cut", "last"))
        await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([first, cut, last])
        return passed

    assert asyncio.run(run()) == ["first", "last"]
