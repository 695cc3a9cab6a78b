"""Causes of freezes: against what a simulated engine did (virtual time, so the same every time), and by hand."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.quantiles import Ints
from analysis.record import RequestRecord
from analysis.run import Run
from analysis.stalls.causes import diagnose
from analysis.stalls.culprits import Prefill, Waits, match
from analysis.stalls.engines import engines_of
from analysis.stalls.frozen import find
from analysis.stalls.level import Level
from analysis.stalls.report import stalls_report
from analysis.stalls.text import render_stalls
from tests.analysis.any_records import any_records
from tests.analysis.ground_truth import CALM, SCENES, Verdicts, judge, simulate
from tests.analysis.records import every, meta, record, run_of

SHORT = {"whole prompts, busy": 40.0, "chunked, slow": 150.0, "pauses, whole prompts": 50.0, "pauses, chunked": 60.0,
         "held streams": 30.0, "late client": 30.0, "2 replicas": 50.0}  # fmt: skip


def check(verdicts: Verdicts) -> None:
    assert verdicts.clear >= 4
    assert verdicts.right >= 0.95, verdicts.wrong
    assert verdicts.culprits[False] <= 0.05 * verdicts.culprits.total(), verdicts.wrong


@pytest.mark.parametrize("name", SHORT)
def test_the_engine_that_did_it_agrees(name: str) -> None:
    check(judge(simulate(replace(SCENES[name], seconds=SHORT[name])), metrics=False))


def test_preemption_is_told_where_the_server_is_scraped() -> None:
    known = simulate(replace(SCENES["little cache"], seconds=60.0))
    check(judge(known, metrics=True))
    check(judge(replace(known, run=known.run.but(server=None)), metrics=False))


def test_nobody_is_blamed_where_no_prompt_can_have_done_it() -> None:
    verdicts = judge(simulate(replace(CALM, seconds=60.0)), metrics=False)
    assert verdicts.streams > 400
    assert {found for _, found in verdicts.pairs} == {"engine_pause", "one_stream"}


@settings(max_examples=25, deadline=None)
@given(any_records())
def test_whatever_was_measured_has_a_diagnosis(records: list[RequestRecord]) -> None:
    run = Run.from_records(meta(workload={"name": "w", "stall": {"floor": "1us", "factor": 1}}), records)
    report = stalls_report(run)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert sum(each["stalls"] for each in report["causes"]) == (report["stalls"]["count"] or 0)
    for width in (80, 120):
        assert max(map(len, render_stalls(report, width).splitlines())) <= width
    for name in run.requests["request_id"]:
        assert render_stalls(stalls_report(run, name))


# --- by hand: all times in ms ----------------------------------------------------------------------------------------


def frozen(name: str, pauses: list[tuple[float, float]], start: float = 0.0, class_name: str = "chat") -> RequestRecord:
    """A token every 20 from `start` + 100, 400 in all, except in the pauses: each comes as late as they make it."""
    at = every(20, 400, start + 100)
    for since, until in pauses:
        at = [each if each <= since else each + until - since for each in at]
    return record(name, [each - start for each in at], sent=start, usage=400, class_name=class_name)


def long_prompt(name: str, sent: float, first: float, tokens: int) -> RequestRecord:
    at = every(20, 20, first - sent)
    return record(name, at, sent=sent, usage=20, prompt_tokens=tokens, class_name="rag")


def causes(*records: RequestRecord) -> list[tuple[str, str | None]]:
    run = run_of(*records)
    known = diagnose(run, find(run), run.measured)
    ids = run.requests["request_id"]
    return [(str(cause), ids[at] if at >= 0 else None) for cause, at in zip(known.cause, known.culprit, strict=True)]


FREEZE = [frozen(f"s{i}", [(1000, 1600), (3000, 3400)]) for i in range(4)]
A, B = long_prompt("a", 990, 1605, 15_000), long_prompt("b", 2990, 3405, 10_000)


def test_each_freeze_has_its_own_culprit() -> None:
    assert causes(*FREEZE, A, B) == [("prefill_interference", "a"), ("prefill_interference", "b")]


def two_engines() -> list[RequestRecord]:
    """Streams in turn on two engines, each of which reads two long prompts."""
    a = [frozen(f"a{i}", [(1000, 1600), (3000, 3400)]) for i in range(3)]
    b = [frozen(f"b{i}", [(1300, 1800), (4000, 4500)], start=7) for i in range(3)]
    prompts = [A, B, long_prompt("c", 1290, 1805, 12_500), long_prompt("d", 3990, 4505, 12_500)]
    return [each for pair in zip(a, b, strict=True) for each in pair] + prompts


def test_streams_that_pause_together_are_on_one_engine() -> None:
    assert engines_of(run_of(*two_engines())).tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 1, 1]
    assert set(engines_of(run_of(*FREEZE, A, B)).tolist()) == {0}


def test_of_two_engines_each_has_its_own_freezes_and_culprits() -> None:
    found = causes(*two_engines())
    assert found == [("prefill_interference", name) for name in "acbd"]


def test_streams_that_are_held_up_by_chance_together_are_no_engine() -> None:
    since = [1000, 1000, 2000, 2300, 3300, 3300, 4300, 4600, 5000, 5000, 5500, 6000]
    held = [frozen(f"h{i}", [(each, each + 800)]) for i, each in enumerate(since)]
    assert set(engines_of(run_of(*held)).tolist()) == {0}
    assert {cause for cause, _ in causes(*held)} == {"one_stream"}


def test_a_stream_that_is_held_up_on_its_own_is_no_engine() -> None:
    held = frozen("held", [(1000, 1600), (2100, 2500), (3000, 3400)])
    assert set(engines_of(run_of(*FREEZE, held, A, B)).tolist()) == {0}
    assert ("one_stream", None) in causes(*FREEZE, held, A, B)


@pytest.mark.parametrize(
    ("stamps", "lag_s", "cause"),
    [
        ("kernel", 0.3, "client"),  # one read has one stamp: what waited for it comes in a burst
        ("kernel", 0.01, "buffering"),
        ("user", 0.3, "client"),
    ],
)
def test_a_burst_after_our_own_lateness_is_ours(stamps: str, lag_s: float, cause: str) -> None:
    at = [100 + 20 * i for i in range(20)] + [900] * 20 + [920 + 20 * i for i in range(20)]
    client = pd.DataFrame({"t_ns": [10**9], "loop_lag_max_s": [lag_s]})
    run = Run.from_records(meta(timestamp_source=stamps), [record("s", at, usage=60)], None, client)
    assert diagnose(run, find(run), run.measured).cause.tolist() == [cause]


def test_a_freeze_without_a_burst_is_not_ours_by_the_kernels_stamps() -> None:
    client = pd.DataFrame({"t_ns": [2 * 10**9], "loop_lag_max_s": [0.5]})
    run = Run.from_records(meta(timestamp_source="kernel"), [*FREEZE, A, B], None, client)
    assert "client" not in diagnose(run, find(run), run.measured).cause.tolist()


def test_a_prompt_that_is_far_too_short_for_it_is_no_culprit() -> None:
    short = long_prompt("short", 2990, 3405, 100)
    assert causes(*FREEZE, A, short) == [("prefill_interference", "a"), ("engine_pause", None)]


def test_a_request_that_came_in_mid_pause_is_no_culprit() -> None:
    assert causes(*FREEZE, A, long_prompt("late", 3300, 3405, 3_000)) == [
        ("prefill_interference", "a"),
        ("engine_pause", None),
    ]


def test_what_was_cached_was_not_read() -> None:
    cached = long_prompt("cached", 2990, 3405, 10_000)
    cached.cached_tokens = 9_900
    assert causes(*FREEZE, A, cached)[1] == ("engine_pause", None)


def test_of_two_prompts_in_one_freeze_the_longer_is_named() -> None:
    first, second = long_prompt("long", 990, 1500, 12_000), long_prompt("short", 995, 1605, 2_500)
    assert causes(*FREEZE, first, second, B)[0] == ("prefill_interference", "long")


def test_the_chunks_of_one_prompt_are_several_episodes_with_one_culprit() -> None:
    # Four passes of 300 each; the first token comes with the last one.
    streams = [frozen(f"s{i}", [(1000, 1280), (1300, 1580), (1600, 1880), (1900, 2180)]) for i in range(4)]
    chunked = long_prompt("chunked", 995, 2205, 30_000)
    assert causes(*streams, chunked) == [("prefill_interference", "chunked")] * 4


def test_a_stream_that_was_held_up_alone_is_an_episode_of_its_own() -> None:
    held = frozen("held", [(900, 2100), (3000, 3400)])
    assert causes(*FREEZE, held, A, B) == [
        ("one_stream", None),
        ("prefill_interference", "a"),
        ("prefill_interference", "b"),
    ]


def test_stalls_of_different_streams_that_overlap_are_one_episode() -> None:
    first, second = frozen("x", [(1000, 1600)]), frozen("y", [(1300, 1900)])
    others = [frozen(f"s{i}", []) for i in range(5)]
    assert causes(first, second, *others) == [("one_stream", None)]


def test_a_lone_stream_tells_nothing_of_the_engine() -> None:
    assert causes(frozen("s", [(1000, 1600)])) == [("unknown", None)]


# --- the parts -------------------------------------------------------------------------------------------------------


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def test_levels() -> None:
    level = Level.open(ints(0, 10, 10), ints(20, 30, 12))
    assert level.at(ints(-1, 0, 10, 12, 25, 30)).tolist() == [0, 1, 3, 2, 1, 0]
    assert level.area(ints(0, 5, 40), ints(30, 15, 50)).tolist() == [10 + 6 + 16 + 10, 5 + 6 + 6, 0]
    assert level.mean(ints(10), ints(12)).tolist() == [3]
    half = Level.open(ints(0), ints(15)).share_of(level)
    assert half.at(ints(0, 10, 12, 15, 99)).tolist() == pytest.approx([1, 1 / 3, 1 / 2, 0, 0])
    assert Level.open(ints(), ints()).mean(ints(1), ints(5)).tolist() == [0]


SPAN = st.tuples(st.integers(0, 1000), st.integers(0, 1000))


@settings(deadline=None)
@given(st.lists(SPAN), st.integers(0, 2000), st.integers(0, 2000))
def test_a_level_has_the_area_of_its_intervals(spans: list[tuple[int, int]], low: int, high: int) -> None:
    starts, ends = ints(*(a for a, _ in spans)), ints(*(a + length for a, length in spans))
    area = sum(max(0, min(a + length, high) - max(a, low)) for a, length in spans)
    assert Level.open(starts, ends).area(ints(low), ints(max(low, high))).tolist() == [area]


MS = 1_000_000
NOTHING = Level.open(ints(), ints())


def test_the_pace_of_prefill_is_that_of_the_longer_prompts() -> None:
    # 100 ms and 200 ms for 1,000 and 2,000 tokens; the second had to wait for the first; the short one shares a pass.
    waits = Waits(ints(0, 1, 2), ints(0, 50, 60) * MS, ints(100, 300, 301) * MS, ints(1000, 2000, 40))
    assert Prefill.of(waits, NOTHING, NOTHING).pace_ns == pytest.approx(0.1 * MS)
    unknown = Waits(ints(0), ints(0), ints(5), ints(0))
    assert np.isnan(Prefill.of(unknown, NOTHING, NOTHING).pace_ns)


def test_prompts_that_usually_stop_nobody_are_harmless() -> None:
    count = 30
    tokens = np.where(np.arange(count) < 15, 100, 9000)
    until = np.arange(1, count + 1) * 1000 * MS
    waits = Waits(np.arange(count), until - 100 * MS, until, tokens)
    decoding = Level.open(ints(0), ints(10**12))
    stopped = Level.open(until[15:] - 100 * MS, until[15:])
    prefill = Prefill.of(waits, stopped, decoding)
    assert prefill.stops_others(ints(60, 100, 9000, 15_000, 500)).tolist() == [False, False, True, True, True]
    few = Prefill.of(
        Waits(*(each[:5] for each in (waits.row, waits.from_ns, waits.until_ns, waits.tokens))), stopped, decoding
    )
    assert few.stops_others(ints(50)).tolist() == [True]


def test_nothing_waited_for_means_no_culprit() -> None:
    nothing = ints()
    waits = Waits(nothing, nothing, nothing, nothing)
    found = match(waits.read_at(1.0), Prefill.of(waits, NOTHING, NOTHING), ints(0), ints(10), 0.0, NOTHING)
    assert (found.at.tolist(), found.found.tolist()) == ([-1], [False])


def test_shifted_waits_keep_their_length_and_stay_in_the_run() -> None:
    waits = Waits(ints(0, 1), ints(10, 40), ints(20, 95), ints(1, 2))
    shifted = waits.shifted(10, (0, 100))
    assert (shifted.until_ns.tolist(), shifted.from_ns.tolist(), shifted.row.tolist()) == ([5, 30], [-50, 20], [1, 0])
