"""Per-request limits: where they come from and who meets them."""

from typing import Any

import pytest

from analysis.goodput import per_request_limits
from analysis.limits import Limit, parse_limit
from tests.analysis.records import every, record, summary_of


@pytest.mark.parametrize(
    ("good", "limits", "expected"),
    [
        ({"ttft": 0.5}, ["tpot.p95<1s"], {"ttft": 0.5}),
        ({}, ["ttft.p95<500ms", "ttft.p50<300ms"], {"ttft": 0.3}),
        ({}, ["itl.p99<60ms", "gap.max<2s"], {"gap_p99": 0.06}),
        ({}, ["errors<1%", "stall.per_1k<1", "ttft.p95>1s", "attainment>90%"], {}),
        ({}, [], {}),
    ],
)
def test_derived(good: dict[str, float], limits: list[str], expected: dict[str, float]) -> None:
    assert per_request_limits(good, [parse_limit(text) for text in limits], "c") == expected


def test_limits_of_another_class_do_not_hold() -> None:
    limits = [Limit("ttft", "p95", "<", 1.0, "all"), Limit("ttft", "p95", "<", 0.1, "rag")]
    assert per_request_limits({}, limits, "chat") == {"ttft": 1.0}
    assert per_request_limits({}, limits, "rag") == {"ttft": 0.1}


@pytest.mark.parametrize(
    ("good", "request_", "meets"),
    [
        ({"gap_max": "100ms"}, record("a", [10, 30, 140], usage=3), False),
        ({"gap_p50": "100ms"}, record("a", [10, 30, 140], usage=3), True),
        ({"tpot": "20ms"}, record("a", [10, 30, 50], usage=3), True),
        ({"tpot": "1ms"}, record("a", [10], usage=1), True),  # one token has no tpot to miss
        ({"gap_p99": "1ms"}, record("a", [10], usage=1), True),
        ({"tpot": "1s"}, record("a", every(10, 12, 100), usage=1), False),  # unknown: usage contradicts
        ({"tpot": "1s"}, record("a", [1000] * 20, usage=200), False),  # only played back
        ({"gap_p99": "1s"}, record("a", [1000] * 20, usage=200), False),
        ({"ttfat": "1s"}, record("a", [10, 20], kinds="RR", usage=2), False),  # the answer never began
        ({"ttft": "1s"}, record("a", [10], usage=1, outcome="truncated"), False),
        ({"ttft": "1s"}, record("a", sent=None, outcome="skipped"), False),
        ({"ttft": "1s"}, record("a", sent=None, due=3, outcome="not_sent"), False),
    ],
)
def test_meets(good: dict[str, Any], request_: Any, meets: bool) -> None:
    summary = summary_of(request_, workload={"name": "w", "good": good})
    assert summary["goodput"]["attainment"] == float(meets)


def test_what_was_not_due_in_the_stage_is_in_no_denominator() -> None:
    late = record("late", sent=None, outcome="not_sent")
    summary = summary_of(record("a", [10], usage=1), late, workload={"name": "w", "good": {"ttft": "1s"}})
    assert summary["requests"]["planned"] == 2
    assert summary["goodput"]["attainment"] == 1.0


def test_without_limits_goodput_is_undefined() -> None:
    summary = summary_of(record("a", [10], usage=1))
    assert summary["goodput"]["attainment"] is None
    assert "--good" in summary["undefined"]["goodput"]
