"""The fluidity index, by hand and against the loop that its definition describes. Times in milliseconds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.fluidity import Targets, deadlines, fluidity, run_fluidity, targets
from analysis.limits import Limit, parse_limit
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.records import every, record, run_of

CASES = [
    # at, met, missed: TTFT target 500, TBT target 50
    ("all in time", [500, 550, 600], 3, 0),
    ("slack of an early first token pays for a gap of 200", [300, 350, 550, 600], 4, 0),
    ("slack of quick tokens pays", [500, 510, 520, 530, 700], 5, 0),
    ("a token that is 30 late misses one, then the clock starts anew", [500, 580, 630], 2, 1),
    ("one that is 130 late misses its own deadline and two more", [500, 680, 730], 2, 3),
    ("the first token 120 late", [620, 670], 1, 3),
    ("slack is lost with a miss", [500, 505, 510, 700, 760], 3, 3),
]


@pytest.mark.parametrize(("name", "at", "met", "missed"), CASES, ids=[case[0] for case in CASES])
def test_by_hand(name: str, at: list[float], met: int, missed: int) -> None:
    run = run_of(record("a", at, usage=len(at), sent=7000))
    rows = np.array([True])
    assert [int(each[0]) for each in deadlines(run, rows, 0.5, 0.05)] == [met, missed]
    assert fluidity(run, rows, 0.5, 0.05)[0] == pytest.approx(met / (met + missed))


def test_tokens_of_one_event_share_its_deadline_miss() -> None:
    # 580 is 30 late for token 2; tokens 3 and 4 of the same event are early by the new clock (due 630, 680), so token 5
    # is due at 730 and misses that and 780.
    run = run_of(record("a", [500, 580, 780], told=[1, 3, 1], usage=5))
    assert [int(each[0]) for each in deadlines(run, np.array([True]), 0.5, 0.05)] == [3, 3]


def test_what_has_no_fluidity() -> None:
    run = run_of(
        record("failed", [100, 150], outcome="broken"),
        record("unknown", every(20, 5, 100), usage=50),
        record("outside", [100, 150], usage=2),
        record("fine", [100, 150], usage=2),
    )
    rows = np.array([True, True, False, True])
    assert np.array_equal(fluidity(run, rows, 0.5, 0.05), [np.nan, np.nan, np.nan, 1.0], equal_nan=True)
    assert run_fluidity(run, rows, 0.5, 0.05) == 1.0
    assert run_fluidity(run, rows & False, 0.5, 0.05) is None


@pytest.mark.parametrize("targets", [(0.0, 0.05), (0.5, 0.0), (float("nan"), 0.05)])
def test_targets_must_be_above_zero(targets: tuple[float, float]) -> None:
    run = run_of(record("a", [100, 150], usage=2))
    with pytest.raises(ValueError, match="targets above 0"):
        fluidity(run, np.array([True]), *targets)


def by_definition(at: list[int], ttft: int, tbt: int) -> tuple[int, int]:
    met = missed = 0
    due = ttft
    for arrival in at:
        if arrival <= due:
            met, due = met + 1, due + tbt
        else:
            missed, due = missed + 1 + (arrival - due) // tbt, arrival + tbt
    return met, missed


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 600), min_size=1, max_size=12), min_size=1, max_size=4))
def test_it_is_what_the_definition_says(gaps: list[list[int]]) -> None:
    at = [np.cumsum(each).tolist() for each in gaps]
    run = run_of(*(record(f"r{i}", each, usage=len(each)) for i, each in enumerate(at)))
    met, missed = deadlines(run, run.streamed, 0.5, 0.05)
    for i in np.flatnonzero(run.streamed):
        assert (met[i], missed[i]) == by_definition(at[i], 500, 50)


# As a limit, and as a condition of a good request


def judged(run: Run, limit: str = "fluidity>=90%") -> dict[str, Any]:
    entry: dict[str, Any] = summarize(run, [parse_limit(limit)])["slo"]["limits"][0]
    return entry


def test_the_grammar() -> None:
    assert parse_limit("fluidity >= 0.99", "chat") == Limit("fluidity", None, ">=", 0.99, "chat")
    assert parse_limit("fluidity>99%") == Limit("fluidity", None, ">", 0.99)
    with pytest.raises(ValueError, match="fluidity has no statistics"):
        parse_limit("fluidity.p99>0.9")
    with pytest.raises(ValueError, match="not a share"):
        parse_limit("fluidity>50ms")


def test_targets_are_the_workloads() -> None:
    run = run_of(record("a", [500, 550], usage=2))
    assert targets(run) == Targets(1.0, 0.1, None)
    said = {"fluidity": {"ttft": "500ms", "tbt": "50ms", "at_least": 0.9}}
    assert targets(run.but(meta={**run.meta, "workload": said})) == Targets(0.5, 0.05, 0.9)


def test_the_value_of_a_limit_is_the_share_of_all_deadlines() -> None:
    """Of two streams with 3 of 3 and 2 of 5 met (a token 130 late), 5 of 8."""
    records = [record("a", [500, 550, 600], usage=3), record("b", [500, 680, 730], usage=3)]
    run = run_of(*records, workload={"fluidity": {"ttft": "500ms", "tbt": "50ms"}})
    assert judged(run)["value"] == pytest.approx(5 / 8)


def test_tokens_of_a_stream_that_was_played_back_met_no_deadline() -> None:
    good = [record(f"a{n}", every(50, 12, 500), usage=12) for n in range(3)]
    back = record("b", every(1, 12, 5000), usage=12)
    workload = {"fluidity": {"ttft": "500ms", "tbt": "50ms"}}
    assert judged(run_of(*good, workload=workload))["value"] == 1.0
    run = run_of(*good, back, workload=workload)
    entry = summarize(run, [parse_limit("fluidity>=80%")], strict_point=True)["slo"]["limits"][0]
    assert (entry["value"], entry["verdict"]) == (36 / 48, "fail")
    assert "12 samples that never came" in entry["reason"]


def test_it_is_undefined_where_the_tokens_of_an_event_are_unknown() -> None:
    entry = judged(run_of(record("a", [500, 550, 600], usage=9)))
    assert (entry["value"], entry["verdict"]) == (None, "no_verdict")
    assert "--per-event-usage" in entry["reason"]


def test_a_good_request_has_its_tokens_in_time() -> None:
    records = [record("a", [500, 550, 600], usage=3), record("b", [500, 680, 730], usage=3)]
    workload = {"fluidity": {"ttft": "500ms", "tbt": "50ms", "at_least": 0.9}}
    found = summarize(run_of(*records, workload=workload))["goodput"]
    assert (found["attainment"], found["by_limit"]) == (0.5, {"fluidity": 0.5})
    both = summarize(run_of(*records, workload=workload | {"good": {"ttft": "400ms"}}))["goodput"]
    assert (both["attainment"], both["by_limit"]) == (0.0, {"ttft": 0.0, "fluidity": 0.5})
