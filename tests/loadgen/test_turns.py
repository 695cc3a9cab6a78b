import asyncio

from loadgen.turns import Turns


def passed_by_turn(arrivals: list[int], each_turn: int) -> list[list[int]]:
    """Who had passed after each turn of the loop, when `arrivals[t]` more come in turn t."""

    async def run() -> list[list[int]]:
        turns, passed, seen = Turns(each_turn), [], []
        tasks = []

        async def come(number: int) -> None:
            await turns.take()
            passed.append(number)

        for count in [*arrivals, *[0] * 8]:
            tasks += [asyncio.create_task(come(len(tasks) + extra)) for extra in range(count)]
            await asyncio.sleep(0)
            seen.append(list(passed))
        await asyncio.gather(*tasks)
        return seen

    return asyncio.run(run())


def test_a_burst_passes_a_few_at_a_turn_in_order() -> None:
    seen = passed_by_turn([10], 3)
    steps = [len(after) - len(before) for before, after in zip([[], *seen], seen, strict=False)]
    assert max(steps) == 3
    assert seen[-1] == list(range(10))


def test_few_pass_at_once() -> None:
    assert passed_by_turn([2, 2, 2], 3)[2] == [0, 1, 2, 3, 4, 5]


def test_one_that_was_cut_takes_no_turn() -> None:
    async def run() -> list[str]:
        turns, passed = Turns(1), []

        async def come(name: str) -> None:
            await turns.take()
            passed.append(name)

        first, cut, last = (asyncio.create_task(come(name)) for name in ("first", "cut", "last"))
        await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([first, cut, last])
        return passed

    assert asyncio.run(run()) == ["first", "last"]
