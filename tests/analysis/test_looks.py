"""Runs that are looked at while they last: when, with what intervals, and what a look sees."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.intervals import Z95
from analysis.limits import Limit
from analysis.looks import GROWTH, SHORTEST, as_of, can_settle, look_ends_s, settled_at, told, unsettled, z_of
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.synthetic import Server, simulate
from tests.bench.until import LOADS, growing, tried, truth, wrong

ENDS = [
    # first, most, ends
    (60, 1800, [60, 120, 240, 480, 960, 1800]),
    (60, 1000, [60, 120, 240, 480, 1000]),  # 960 would be too near to the end to be worth a look
    (60, 60, [60]),
    (60, 70, [70]),
    (60, 75, [60, 75]),
]


@pytest.mark.parametrize(("first", "most", "ends"), ENDS)
def test_each_look_is_twice_as_long_as_the_one_before(first: float, most: float, ends: list[float]) -> None:
    assert look_ends_s(first, most) == ends


@given(st.floats(1, 1e4), st.floats(1, 1e3))
def test_looks_grow_up_to_the_longest_duration(first: float, times: float) -> None:
    ends = look_ends_s(first, first * times)
    assert ends[-1] == first * times
    assert all(1 < later / earlier <= GROWTH * SHORTEST for earlier, later in pairwise(ends))


def looked_at(count: int) -> Run:
    run = simulate(Server(load=0.3), 30, 5, 1)
    return run.but(meta={**run.meta, "looks": {"ends_ns": list(range(1, count + 1)), "taken": None}})


def test_looks_share_the_error_equally() -> None:
    """Of 5 looks each has 1 %, of 6 looks 0.83 %: the quantiles stand in every table of the normal distribution."""
    assert z_of(simulate(Server(), 30, 5, 1)) == z_of(looked_at(1)) == Z95
    assert z_of(looked_at(5)) == pytest.approx(2.5758, abs=1e-4)
    assert z_of(looked_at(6)) == pytest.approx(2.6383, abs=1e-4)


def test_intervals_of_every_kind_are_wider_for_more_looks() -> None:
    limits = [
        Limit("ttft", "p90", "<", 9), Limit("itl", "mean", "<", 9), Limit("errors", None, "<", 0.9),
        Limit("attainment", None, ">", 0.1), Limit("goodput", None, ">", 0.1), Limit("fluidity", None, ">", 0.1),
        Limit("output_tokens_per_s", None, ">", 1),
    ]  # fmt: skip
    good = {"good": {"ttft": 0.25}, "fluidity": {"ttft": 0.25, "tbt": 0.02}}
    run = simulate(Server(failures=0.1), 600, 10, 3, workload=good)
    once = summarize(run, limits)
    often = summarize(run.but(meta={**run.meta, "looks": {"ends_ns": [1, 2, 3, 4, 5]}}), limits)
    for a, b in zip(once["slo"]["limits"], often["slo"]["limits"], strict=True):
        assert b["ci95"][0] < a["ci95"][0] < a["value"] < a["ci95"][1] < b["ci95"][1], a["metric"]
    assert often["metrics"]["itl_s"]["ci95"]["p95"][1] > once["metrics"]["itl_s"]["ci95"]["p95"][1]


def test_a_look_that_happens_to_see_no_failure_proves_little() -> None:
    """Of 5 looks each may be wrong in 1 % of runs: where none of 300 failed, fewer than -ln(0.01) / 300 = 1.54 % do."""
    limits = [Limit("errors", None, "<", 0.01), Limit("stall", "share", "<", 0.02), Limit("stall", "per_1k", "<", 1.6),
              Limit("stall", "count", "<", 1)]  # fmt: skip
    run = simulate(Server(load=0.3), 300, 10, 1)
    once = summarize(run, limits)["slo"]["limits"]
    often = summarize(run.but(meta={**run.meta, "looks": {"ends_ns": [1, 2, 3, 4, 5]}}), limits)["slo"]["limits"]
    assert [each["verdict"] for each in once] == ["pass"] * 4
    assert [each["verdict"] for each in often] == ["no_verdict", "pass", "pass", "pass"]
    assert often[0]["ci95"] == [0.0, pytest.approx(0.01535, abs=1e-5)]
    assert can_settle(often[0])


def test_a_look_sees_what_was_due_up_to_it() -> None:
    run = growing(LOADS[0], 3, 1, shared=True)
    for look, count in ((1, 300), (2, 600), (3, 1200)):
        seen = as_of(run.but(meta={**run.meta, "complete": False, "timestamp_source": None}), look)
        summary = summarize(seen, [Limit("ttft", "p50", "<", 9)])
        assert summary["requests"]["planned"] == count
        assert summary["run"]["complete"]
        assert summary["run"]["looks"] == {"planned": 3, "taken": look}
    assert told(simulate(Server(), 30, 5, 1)) is None


def test_what_came_after_the_look_that_settled_it_is_not_measured() -> None:
    stages = [{"name": name, "measured": name != "warmup"} for name in ("warmup", "main", "main-2", "main-3")]
    after = settled_at({"stages": stages, "looks": {"ends_ns": [1, 2, 3], "taken": None}}, 2)
    assert [stage["measured"] for stage in after["stages"]] == [False, True, True, False]
    assert after["looks"] == {"ends_ns": [1, 2, 3], "taken": 2}


def test_what_more_of_the_same_could_settle() -> None:
    run = simulate(Server(load=0.3), 300, 10, 1)
    value = float(np.median(run.gaps.gap_ns) / 1e9)
    asked = [Limit("itl", "p50", "<", 1.002 * value), Limit("itl", "p50", "<", 9), Limit("connect", "p50", "<", 9)]
    left = unsettled(summarize(run, asked))
    assert [(each["metric"], can_settle(each)) for each in left] == [("itl", True), ("connect", False)]
    assert left[0]["needed_s"] > summarize(run)["run"]["duration_s"]
    cut_short = run.but(meta={**run.meta, "complete": False})
    assert not any(can_settle(each) for each in unsettled(summarize(cut_short, asked)))


def test_looking_again_and_again_makes_no_wrong_verdicts() -> None:
    """A small version of tests/bench/until.py, always of the same runs."""
    load = replace(LOADS[0], requests=150, tokens=8)
    true = truth(load, requests=8_000)
    found = tried(load, 3, 5, true, first_seed=40)
    for (metric, place), counts in found.items():
        if place != "on the limit":
            assert not wrong(place, counts), (metric, place)
    assert found["itl.p50", "10 % inside"]["pass"] == found["itl.p50", "10 % outside"]["fail"] == 5
