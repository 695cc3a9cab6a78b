"""What becomes of finished requests, as counts: by hand."""

import pickle
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.record import RequestRecord
from loadgen.tally import UNIT_NS, Tally, Times, stalls, token_gaps
from tests.loadgen.plans import main_stage, warmup

MS = 1_000_000


def record(
    *arrivals_ms: float,
    n_tokens: list[int] | None = None,
    completion: int | None = None,
    outcome: str = "ok",
    choices: int = 1,
    **more: Any,
) -> RequestRecord:
    """A request sent at 0 whose token events came at these times."""
    plain = {"stage": "main", "class_name": "chat", "sent_ns": 0, "completion_tokens": completion, "choices": choices}
    made = RequestRecord("r", outcome=outcome, **(plain | more))
    made.arrival_ns = array("q", [round(ms * MS) for ms in arrivals_ms])
    made.n_tokens = array("i", n_tokens or [-1] * len(arrivals_ms))
    return made


SCHEDULE: Any = SimpleNamespace(
    stages=(warmup(100), main_stage(1000, start_ms=100)),
    workload=SimpleNamespace(stall=SimpleNamespace(floor=0.2, factor=5.0)),
)


def tally(*records: RequestRecord) -> Tally:
    found = Tally()
    for each in records:
        found.add(each, SCHEDULE)
    return found


@pytest.mark.parametrize(
    ("made", "ms_per_token", "tokens"),
    [
        (
            record(400, 480, 500, 620, n_tokens=[1, 4, 1, 6], completion=12),
            [20, 20, 20],
            [4, 1, 6],
        ),  # METRICS, example 3
        (record(480, 700, completion=2), [220], [1]),  # example 1: as many events as tokens
        (record(480, 700), [220], [1]),  # no usage: events count as tokens
        (record(500, 530, 560, completion=41), [], []),  # example 4: unknown
        (record(500, 530, 560, completion=3, choices=2), [], []),
        (record(500, 530, n_tokens=[1, 0], completion=1), [], []),
        (record(500), [], []),
        (record(), [], []),
    ],
)
def test_token_gaps(made: RequestRecord, ms_per_token: list[float], tokens: list[int]) -> None:
    gaps_ns, counts = token_gaps(made)
    assert (gaps_ns.tolist(), counts.tolist()) == ([ms * MS for ms in ms_per_token], tokens)


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (record(0, 20, 40, 60, 260, 280), 0),  # 200 ms is the floor, not above it
        (record(0, 20, 40, 60, 261, 281), 1),
        (record(0, 100, 200, 300, 800, 900), 0),  # 500 ms is five times the median
        (record(0, 100, 200, 300, 801, 901, 1500), 2),
        (record(0, 20, 40, 60, 900, outcome="broken"), 0),
        (record(7), 0),
    ],
)
def test_stalls(made: RequestRecord, count: int) -> None:
    assert stalls(made, floor_ns=200 * MS, factor=5) == count


def test_everything_is_counted_by_class_and_once() -> None:
    found = tally(
        record(100, 120, 140, 160, 460, completion=5, prompt_tokens=50, due_ns=-3 * MS),
        record(100, class_name="rag", stage="warmup", completion=1, prompt_tokens=900),
        record(100, 120, outcome="broken", status=200, error="reset"),
        record(outcome="rate_limited", status=429, error="slow down"),
        record(outcome="cancelled"),
        record(outcome="skipped"),
        record(outcome="not_sent"),
    )
    assert found.ended == {
        ("chat", "ok"): 1, ("rag", "ok"): 1, ("chat", "broken"): 1, ("chat", "rate_limited"): 1,
        ("chat", "cancelled"): 1, ("chat", "skipped"): 1, ("chat", "not_sent"): 1,
    }  # fmt: skip
    assert found.measured == 6
    assert (found.prompt_tokens, found.output_tokens) == ({"chat": 50, "rag": 900}, {"chat": 7, "rag": 1})
    assert found.stalls == {"chat": 1, "rag": 0}
    assert found.ttft["main", "chat"] == Times({1000: 1}, 100 * MS)
    assert found.itl["main", "chat"] == Times({200: 3, 3000: 1}, 360 * MS)
    assert found.lag == Times({30: 1}, 3 * MS)
    assert found.error == ("chat", "rate_limited", "429 slow down")
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_status_of_an_answer_that_broke_off_later_says_nothing() -> None:
    assert tally(record(100, outcome="broken", status=200, error="reset")).error == ("chat", "broken", "reset")


@pytest.mark.parametrize(
    ("ns", "units"),
    [
        (-5, 0), (0, 0), (99_999, 0), (100_000, 1), (99_999_999, 999), (100_000_000, 1000), (123_456_789, 1230),
        (9_876_543_210, 98_700),
    ],
)  # fmt: skip
def test_times_keep_three_digits(ns: int, units: int) -> None:
    times = Times()
    times.add(ns)
    assert times == Times({units: 1}, max(0, ns))


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_below_the_true_one_by_less_than_a_hundredth(values: list[int], q: float) -> None:
    times = Times()
    for value in values:
        times.add(value)
    true_ns = next(each for n, each in enumerate(sorted(values), 1) if n >= q * len(values))
    found_ns = times.quantile_ns(q)
    assert found_ns is not None
    assert found_ns <= true_ns < max(found_ns * 1.0101, found_ns + UNIT_NS + 1)


def test_no_times_have_no_quantile() -> None:
    assert Times().quantile_ns(0.5) is None
