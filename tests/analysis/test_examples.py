"""The worked examples of the metrics' definitions, from records to summary. All times in milliseconds."""

from typing import Any

import pytest

from tests.analysis.records import every, record, summary_of


def ms(summary: dict[str, Any], metric: str, statistic: str = "mean") -> float | None:
    value = summary["metrics"][f"{metric}_s"][statistic]
    return None if value is None else value * 1e3


def count(summary: dict[str, Any], metric: str) -> int:
    return int(summary["metrics"][f"{metric}_s"]["n"])


def test_a_role_event_is_no_first_token() -> None:
    summary = summary_of(record("1", [480, 700], usage=2, end=952))
    assert ms(summary, "ttft") == pytest.approx(480)
    assert ms(summary, "gap") == ms(summary, "itl") == pytest.approx(220)
    assert ms(summary, "tpot") == pytest.approx(220)
    assert ms(summary, "e2e") == pytest.approx(700)
    assert summary["tokens"]["output"] == 2


def test_thinking_has_its_own_first_token() -> None:
    at = every(30, 10, 400) + every(30, 5, 700)
    summary = summary_of(record("2", at, kinds="R" * 10 + "C" * 5, usage=15, prompt_tokens=20))
    assert ms(summary, "ttft") == pytest.approx(400)
    assert ms(summary, "ttfat") == pytest.approx(700)
    assert ms(summary, "tpot") == pytest.approx((820 - 400) / 14)
    thinking, answer = summary["phases"]["thinking"], summary["phases"]["answer"]
    assert (thinking["events"], answer["events"]) == (10, 5)
    assert thinking["gap_s"]["n"] == 9
    assert answer["silence_s"]["n"] == 1
    assert answer["silence_s"]["p50"] == pytest.approx(0.03)
    assert answer["gap_s"]["n"] == 5
    assert thinking["share_of_decode_time"] == pytest.approx(270 / 420)
    assert answer["tpot_s"]["mean"] == pytest.approx(0.030)


def test_running_usage_splits_gaps_into_tokens() -> None:
    summary = summary_of(record("3", [400, 480, 500, 620], told=[1, 4, 1, 6], usage=12))
    assert count(summary, "itl") == 11
    assert ms(summary, "itl", "min") == pytest.approx(20)
    assert ms(summary, "itl", "max") == pytest.approx(20)
    assert count(summary, "gap") == 3
    assert ms(summary, "gap", "max") == pytest.approx(120)
    assert ms(summary, "tpot") == pytest.approx(20)


def test_final_usage_alone_leaves_itl_undefined() -> None:
    summary = summary_of(record("4", every(30, 11, 500), usage=41))
    assert count(summary, "itl") == 0
    assert "--per-event-usage" in summary["undefined"]["itl_s"]
    assert count(summary, "gap") == 10
    assert ms(summary, "gap") == pytest.approx(30)
    assert ms(summary, "tpot") == pytest.approx(7.5)
    assert summary["tokens"]["per_event"] == pytest.approx(41 / 11)


def test_the_wait_for_a_slot_counts_from_the_due_time() -> None:
    records = [record(str(i), [500], usage=1, due=100 * i, sent=500 * i) for i in range(8)]
    summary = summary_of(*records, loop="open", end_ns=800_000_000, limits={"max_in_flight": 1})
    assert ms(summary, "ttft", "min") == ms(summary, "ttft", "max") == pytest.approx(500)
    assert ms(summary, "ttft_due") == pytest.approx(1900)
    assert ms(summary, "ttft_due", "max") == pytest.approx(3300)
    assert ms(summary, "send_lag", "max") == pytest.approx(2800)
    assert summary["client"]["saturated"] is False, "the cap made them wait, not the client"


def test_one_token_has_no_decode() -> None:
    summary = summary_of(record("6", [100], usage=1))
    assert summary["requests"]["ok"] == 1
    assert ms(summary, "ttft") == ms(summary, "e2e") == pytest.approx(100)
    for metric in ("tpot", "itl", "gap"):
        assert count(summary, metric) == 0
        assert summary["metrics"][f"{metric}_s"]["p50"] is None
        assert summary["undefined"][f"{metric}_s"].startswith("no answer had more than one token")


def test_a_block_of_tokens_in_the_only_event_is_no_speed() -> None:
    """N <= k_1: five tokens that came at once have no time per token."""
    assert count(summary_of(record("one", [100], usage=5)), "tpot") == 0


def test_goodput_counts_requests_that_meet_every_limit() -> None:
    """10 requests in 5.0 s: 6 meet both limits, 2 miss only ttft, 1 only tpot, 1 fails."""
    whole = {"usage": 100}
    good = [record(f"good{i}", every(20, 100, 300), **whole) for i in range(6)]
    slow_start = [record(f"late{i}", every(20, 100, 900), **whole) for i in range(2)]
    slow_stream = record("slow", every(60, 100, 300), **whole)
    failed = record("failed", outcome="http_error", status=500)
    workload = {"name": "wire", "good": {"ttft": "500ms", "tpot": 0.05}}
    summary = summary_of(*good, *slow_start, slow_stream, failed, workload=workload, end_ns=5_000_000_000)
    assert summary["goodput"] == {
        "requests_per_s": pytest.approx(1.2),
        "output_tokens_per_s": pytest.approx(120),
        "attainment": pytest.approx(0.6),
        "by_limit": {"ttft": pytest.approx(0.7), "tpot": pytest.approx(0.8)},
    }
