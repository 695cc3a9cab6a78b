"""The run's clock, on two clocks of the machine that a test moves by hand; one check against the real ones."""

import asyncio
import time
from dataclasses import dataclass

import pytest

from loadgen.clock import BRACKETS, RunClock
from tests.loadgen.virtual import VirtualClock, run_virtual

S = 1_000_000_000
EPOCH_NS = 1_700_000_000 * S


@dataclass
class Machine:
    """CLOCK_MONOTONIC and CLOCK_REALTIME; reading the latter takes `read_ns`."""

    monotonic: int = 50 * S
    offset: int = EPOCH_NS
    read_ns: int = 0

    def monotonic_ns(self) -> int:
        return self.monotonic

    def realtime_ns(self) -> int:
        self.monotonic += self.read_ns
        now_ns = self.monotonic + self.offset
        self.monotonic += self.read_ns
        return now_ns

    def clock(self, origin_ns: int | None = None) -> RunClock:
        return RunClock(origin_ns, self.monotonic_ns, self.realtime_ns)


def test_time_runs_from_the_start_and_is_negative_before_it() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.monotonic = 60 * S
    clock.start(in_ns=2 * S)
    assert clock.now_ns() == -2 * S
    machine.monotonic += 5 * S + 1
    assert clock.now_ns() == 3 * S + 1


def test_a_second_start_changes_nothing() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.start(in_ns=S)
    clock.start(in_ns=9 * S)
    assert clock.now_ns() == -1 * S


def test_who_sleeps_before_the_start_sleeps_on_the_time_after_it() -> None:
    async def main() -> tuple[bool, float]:
        machine_ns = VirtualClock().now_ns
        clock = RunClock(None, machine_ns, lambda: 0)
        sleeper = asyncio.ensure_future(clock.sleep_until(-S))
        await asyncio.sleep(3)  # by the clock's making, that instant is long over
        asleep = not sleeper.done()
        clock.start(in_ns=2 * S)
        await sleeper
        return asleep, machine_ns() / S

    assert run_virtual(main()) == (True, 4)


def test_a_shared_start_stays_where_it_is() -> None:
    machine = Machine()
    clock = machine.clock(origin_ns=51 * S)
    clock.start(in_ns=7 * S)
    assert clock.now_ns() == -1 * S
    assert clock.epoch_ns_at_start == EPOCH_NS + 51 * S


def test_kernel_stamps_become_run_time() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.start(in_ns=S)
    assert clock.epoch_ns_at_start == EPOCH_NS + 51 * S
    stamp_ns = EPOCH_NS + 53 * S + 17
    assert stamp_ns - clock.realtime_base_ns == 2 * S + 17


@pytest.mark.parametrize(
    ("moves_ns", "stepped_ns"),
    [
        ([], 0),
        ([400_000], 0),  # drift
        ([400_000, 400_000, 400_000], 0),  # drift that adds up is still drift
        ([1_000_001], 1_000_001),
        ([2 * S, -S], 3 * S),  # a step there and half the way back are two
        ([-3 * S, 900_000], 3 * S),
    ],
)
def test_refresh_follows_the_wall_clock(moves_ns: list[int], stepped_ns: int) -> None:
    machine = Machine()
    clock = machine.clock()
    clock.start(in_ns=0)
    for move_ns in moves_ns:
        machine.offset += move_ns
        clock.refresh()
    machine.monotonic += 9 * S
    assert clock.stepped_ns == stepped_ns
    assert machine.realtime_ns() - clock.realtime_base_ns == clock.now_ns()
    assert clock.epoch_ns_at_start == EPOCH_NS + 50 * S


def test_a_move_within_the_error_of_reading_is_none() -> None:
    machine = Machine(read_ns=500)
    clock = machine.clock()
    base_ns = clock.realtime_base_ns
    machine.offset += 400
    clock.refresh()
    assert clock.realtime_base_ns == base_ns
    machine.offset += 200
    clock.refresh()
    assert clock.realtime_base_ns == base_ns + 600


def test_the_tightest_of_several_readings_counts() -> None:
    """All but one reading are held up between the first clock and the second, which would look like an offset."""
    delays_ns = iter([90_000] * (BRACKETS - 2) + [100, 80_000] + [0] * BRACKETS)
    now_ns = 0

    def realtime_ns() -> int:
        nonlocal now_ns
        now_ns += next(delays_ns)
        return EPOCH_NS + now_ns

    clock = RunClock(0, lambda: now_ns, realtime_ns)
    assert clock.realtime_base_ns == EPOCH_NS + 50


def test_sleep_until_is_never_early_and_lets_others_run_when_late() -> None:
    async def main() -> list[str]:
        loop_clock = VirtualClock()
        clock = RunClock(0, lambda: loop_clock.now_ns() - 3, lambda: 0)  # runs 3 ns behind the loop's timers
        order = []

        async def sleeper(name: str, t_ns: int) -> None:
            await clock.sleep_until(t_ns)
            assert clock.now_ns() >= t_ns
            order.append(name)

        async def late() -> None:
            await clock.sleep_until(-5)
            order.append("late")

        first = asyncio.ensure_future(late())
        order.append("begun")
        await asyncio.gather(first, sleeper("b", 2 * S), sleeper("a", S), sleeper("now", 0))
        return order

    assert run_virtual(main()) == ["begun", "late", "now", "a", "b"]


def test_a_late_sleeper_does_not_hold_the_loop() -> None:
    async def main() -> int:
        clock, turns = RunClock(), 0
        clock.start()

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(10):
            await clock.sleep_until(-1)
        task.cancel()
        return turns

    assert asyncio.run(main()) >= 9


def test_the_real_clocks_agree() -> None:
    clock = RunClock()
    clock.start(in_ns=0)
    before_ns = clock.now_ns()
    run_ns = time.time_ns() - clock.realtime_base_ns
    assert before_ns - 1_000_000 <= run_ns <= clock.now_ns() + 1_000_000
