"""What is known of a run while it lasts: its numbers by hand, and where they are shown."""

import asyncio
import gc
import io
import pickle
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from analysis.record import RequestRecord
from loadgen.drive import Live
from loadgen.progress import SPAN_S, Progress, Recent, Speeds
from loadgen.tally import Tally
from tests.loadgen.plans import main_stage, warmup
from tests.loadgen.virtual import VirtualClock, run_virtual
from workloads.schedule import Stage

MS = 1_000_000


def record(
    *arrivals_ms: float,
    n_tokens: list[int] | None = None,
    completion: int | None = None,
    outcome: str = "ok",
    stage: str = "main",
    choices: int = 1,
) -> RequestRecord:
    """A request sent at 0 whose token events came at these times."""
    made = RequestRecord("r", outcome=outcome, stage=stage, sent_ns=0, completion_tokens=completion, choices=choices)
    made.arrival_ns = array("q", [round(ms * MS) for ms in arrivals_ms])
    made.n_tokens = array("i", n_tokens or [-1] * len(arrivals_ms))
    return made


def plan(*stages: Stage, requests: int | None = None) -> Any:
    stall = SimpleNamespace(floor=0.2, factor=5.0)
    workload = SimpleNamespace(name="mixed", stall=stall)
    return SimpleNamespace(stages=stages, requests=requests, loop="open", workload=workload)


def terminal(is_terminal: bool = True) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=is_terminal, width=100, color_system=None), out


def panel(schedule: Any, at_ms: float, records: list[RequestRecord], live: Live | None = None) -> str:
    """The panel as text, all records having ended at `at_ms`."""

    async def main() -> str:
        clock = VirtualClock()
        clock.start(0)
        await clock.sleep_until(round(at_ms * MS))
        console, out = terminal()
        progress = Progress(schedule, clock, live or Live(), console=console)
        for made in records:
            progress.add(made)
        console.print(progress.panel())
        return out.getvalue()

    return run_virtual(main())


def test_the_panel_tells_how_the_run_stands() -> None:
    records = [
        *(record(100, 120, 140, 160, completion=4) for _ in range(8)),
        record(400, 420, 440, 900, completion=4),
        record(outcome="rate_limited"),
        record(outcome="rate_limited"),
        record(outcome="broken"),
        record(outcome="skipped"),
    ]
    live = Live(sent=17, in_flight=5, open_ns=dict.fromkeys("abcdefg", 0))
    text = panel(plan(main_stage(60_000)), 4000, records, live)
    assert "loadgen: mixed" in text
    assert "main  0:04 of 1:00, 0:56 left" in text
    assert "19 due   17 sent   5 in flight   9 ok   9 tok/s   3 failed   2 rate_limited   1 broken" in text
    assert "TTFT  p50  100 ms  p95  400 ms" in text
    assert "ITL   p50 20.0 ms  p99  460 ms" in text
    assert "ended 3.00/s" in text
    assert "1 stall so far" in text


def test_what_is_not_known_yet_is_a_dash() -> None:
    text = panel(plan(main_stage(60_000)), 0, [])
    assert "0 due   0 sent   0 in flight   0 ok   0 failed" in text
    assert "tok/s" not in text
    assert "TTFT  p50       –  p95       –" in text
    assert "0 stalls" in text


def test_itl_stays_unknown_where_the_tokens_of_an_event_are() -> None:
    text = panel(plan(main_stage(60_000)), 900, [record(500, 530, 560, completion=41)])
    assert "TTFT  p50  500 ms  p95  500 ms" in text
    assert "ITL   p50       –  p99       –" in text


@pytest.mark.parametrize(
    ("at_ms", "stage_line", "ttft"),
    [
        (1000, "warmup  0:01 of 0:02, 1:01 left", "TTFT  p50  500 ms"),
        (2500, "main  0:00 of 1:00", "TTFT  p50  100 ms"),
        (62_500, "main  1:00, waiting for the last answers", "TTFT  p50  100 ms"),
    ],
)
def test_speeds_are_those_of_the_stage(at_ms: float, stage_line: str, ttft: str) -> None:
    stages = warmup(2000), main_stage(62_000, start_ms=2000)
    text = panel(plan(*stages), at_ms, [record(500, stage="warmup"), record(100)])
    assert stage_line in text
    assert ttft in text


def test_a_new_stage_shows_the_speeds_of_the_last_until_it_has_its_own() -> None:
    stages = warmup(2000), main_stage(None, start_ms=2000)
    assert "TTFT  p50  500 ms" in panel(plan(*stages), 2500, [record(500, stage="warmup")])


def test_the_token_rate_is_that_of_the_last_ten_seconds() -> None:
    async def main() -> list[float | None]:
        clock = VirtualClock()
        clock.start(0)
        progress = Progress(plan(main_stage(None)), clock, Live(), console=terminal()[0])
        rates = [progress.tokens_per_s(clock.now_ns())]
        for at_s, tokens in ((4, 100), (9, 100), (13, 300)):
            await clock.sleep_until(at_s * 1000 * MS)
            progress.add(record(1, completion=tokens))
            rates.append(progress.tokens_per_s(clock.now_ns()))
        await clock.sleep_until(20_000 * MS)
        return [*rates, progress.tokens_per_s(clock.now_ns())]

    assert run_virtual(main()) == [None, 25, pytest.approx(200 / 9), 50, 30]


def shown(is_terminal: bool, enabled: bool = True) -> tuple[str, int]:
    """What a run of two seconds leaves on stderr, and how many records were counted."""

    async def main() -> tuple[str, int]:
        clock, (console, out) = VirtualClock(), terminal(is_terminal)
        clock.start(0)
        async with Progress(plan(main_stage(2000)), clock, Live(), enabled=enabled, console=console) as progress:
            await asyncio.sleep(1)
            progress.add(record(100))
            await asyncio.sleep(0.9999)
            progress.add(record(100))
        return out.getvalue(), progress.outcomes.total()

    return run_virtual(main())


def test_the_last_panel_stands_and_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.progress.time.perf_counter", lambda: 0.0)  # drawing takes no time
    text, counted = shown(is_terminal=True)
    assert counted == 2
    assert 8 <= text.count("sent") <= 10
    assert text[text.rindex("loadgen: mixed") :].count("2 ok") == 1


@pytest.mark.parametrize("is_terminal", [False, True])
def test_silent_when_told(is_terminal: bool) -> None:
    assert shown(is_terminal, enabled=False) == ("", 0)


def test_without_a_terminal_a_line_every_ten_seconds() -> None:
    async def main() -> str:
        clock, (console, out) = VirtualClock(), terminal(False)
        clock.start(0)
        live = Live(sent=3, in_flight=1, open_ns={"a": 0})
        async with Progress(plan(main_stage(60_000)), clock, live, console=console) as progress:
            await asyncio.sleep(9)
            progress.add(record(100, 120, 140, 160, completion=4))
            progress.add(record(outcome="broken"))
            await asyncio.sleep(12)
        return out.getvalue()

    first, second = run_virtual(main()).splitlines()
    assert first == (
        "loadgen: main  0:10 of 1:00, 0:50 left: 3 due, 3 sent, 1 in flight, 1 ok, 0 tok/s, 1 failed (1 broken); "
        "TTFT p50 100 ms p95 100 ms, ITL p50 20.0 ms p99 20.0 ms; 0 stalls; last failure: broken"
    )
    assert second.startswith("loadgen: main  0:20 of 1:00, 0:40 left: ")


def test_a_second_that_is_over_stays_as_it_was() -> None:
    recent, schedule = Recent(), plan(main_stage(None))
    for second, made in ((3, record(100, 120)), (3, record(300, 340)), (5, record(outcome="broken")), (5, MIXED[-1])):
        tally = Tally()
        tally.add(made, schedule)
        recent.add(second, tally)
    seconds = recent.seconds(6)
    assert len(seconds) == SPAN_S
    assert [each and each[1:] for each in seconds[-5:]] == [
        None,
        (2, 300 * MS, 40 * MS),
        None,
        (1, None, None),
        (0, None, None),
    ]
    assert [each and each[1:] for each in recent.seconds(6 + SPAN_S)[:-1]] == [None] * (SPAN_S - 1)


def test_all_that_ends_is_passed_on_even_where_nothing_is_shown() -> None:
    async def main() -> list[Tally]:
        told: list[Tally] = []
        progress = Progress(plan(main_stage(None)), VirtualClock(), Live(), enabled=False)
        progress.on_tally = told.append
        progress.add(record(100, 120, completion=2))
        progress.merge(Tally(measured=3))
        return told

    first, second = run_virtual(main())
    assert (first.ended.total(), second.measured) == (1, 3)


MIXED = [
    *(record(100 + i, 120 + i, 141 + i, 900 + i, completion=4) for i in range(20)),
    *(record(400, 420, 440, completion=3, stage="warmup") for _ in range(3)),
    record(outcome="broken"),
    record(outcome="skipped"),
]


def percentiles(speeds: Speeds) -> list[int | None]:
    return [each.quantile_ns(q) for each in (speeds.ttft, speeds.itl) for q in (0, 0.5, 0.95, 0.99, 1)]


def test_what_workers_have_counted_adds_up_to_what_one_process_would_have() -> None:
    async def main() -> None:
        schedule, clock = plan(warmup(100), main_stage(1000, start_ms=100)), VirtualClock()
        alone, together = (Progress(schedule, clock, Live(), console=terminal()[0]) for _ in range(2))
        workers = [Tally(), Tally(), Tally()]
        for number, made in enumerate(MIXED):
            alone.add(made)
            workers[number % 3].add(made, schedule)
            if number % 5 == 4:  # now and then they tell, and start anew
                for worker in workers:
                    together.merge(pickle.loads(pickle.dumps(worker)))
                workers = [Tally(), Tally(), Tally()]
        for worker in workers:
            together.merge(worker)
        assert (together.outcomes, together.measured) == (alone.outcomes, alone.measured)
        assert together.stalls == alone.stalls == 20
        assert together.tokens_per_s(10**9) == alone.tokens_per_s(10**9)
        assert together.speeds.keys() == alone.speeds.keys() == {"main", "warmup"}
        for stage in alone.speeds:
            assert percentiles(together.speeds[stage]) == percentiles(alone.speeds[stage])

    run_virtual(main())


def test_counting_leaves_nothing_for_the_garbage_collector() -> None:
    """It is off while a run lasts."""

    async def main() -> int:
        progress = Progress(plan(main_stage(1000)), VirtualClock(), Live(), console=terminal()[0])
        progress.add(MIXED[0])
        gc.collect()
        gc.disable()
        for made in MIXED:
            progress.add(made)
            progress.console.print(progress.panel())
        return gc.collect()

    try:
        assert run_virtual(main()) < 5
    finally:
        gc.enable()


def test_the_panel_of_several_processes_is_fed_by_what_they_tell() -> None:
    async def main() -> str:
        clock = VirtualClock()
        clock.start(0)
        await clock.sleep_until(4000 * MS)
        console, out = terminal()
        schedule = plan(main_stage(60_000))
        progress = Progress(schedule, clock, Live(sent=9, in_flight=1), console=console)
        for _ in range(2):
            tally = Tally()
            tally.add(record(100, 120, 140, 160, completion=4), schedule)
            progress.merge(tally)
        console.print(progress.panel())
        return out.getvalue()

    text = run_virtual(main())
    assert "│ 9 sent   1 in flight   2 ok   2 tok/s   0 failed" in text
    assert "TTFT  p50  100 ms" in text
