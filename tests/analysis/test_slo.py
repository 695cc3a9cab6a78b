"""Verdicts. All times in milliseconds."""

from typing import Any

import pytest

from analysis.slo import exit_status, parse_limit
from analysis.summary import summarize
from tests.analysis.records import every, record, run_of


def streams(count: int, ttft: float = 100, step: float = 20, **more: Any) -> list[Any]:
    return [record(f"{ttft}-{step}-{i}", every(step, 10, ttft), usage=10, **more) for i in range(count)]


def gate(records: list[Any], *limits: str, strict: bool = False, **changes: Any) -> dict[str, Any]:
    run = run_of(*records, **changes)
    return summarize(run, [parse_limit(text) for text in limits], strict_point=strict)


def verdicts(summary: dict[str, Any]) -> list[str]:
    return [each["verdict"] for each in summary["slo"]["limits"]]


@pytest.mark.parametrize(
    ("limit", "verdict", "status"),
    [
        ("ttft.p95<150ms", "pass", 0),
        ("ttft.p95<50ms", "fail", 1),
        ("ttft.p95>=100ms", "pass", 0),
        ("itl.p99<30ms", "pass", 0),
        ("gap.max<10ms", "fail", 1),
        ("tpot.mean<25ms", "pass", 0),
        ("stall.per_1k<0.5", "pass", 0),
        ("stall.longest<1s", "pass", 0),
        ("errors<1%", "pass", 0),
        ("output_tokens_per_s>100", "pass", 0),
        ("output_tokens_per_s>100000", "fail", 1),
        ("ttft.p99<150ms", "no_verdict", 3),  # 200 requests: p99 needs 1,000
        ("ttfat.p50<1s", "pass", 0),
        ("ttft_due.p50<1s", "no_verdict", 3),  # closed loop: undefined
        ("attainment>90%", "no_verdict", 3),  # no per-request limit is given
        ("goodput>1", "no_verdict", 3),
    ],
)
def test_one_limit(limit: str, verdict: str, status: int) -> None:
    summary = gate(streams(200), limit)
    assert verdicts(summary)[0] == summary["slo"]["verdict"] == verdict
    assert (summary["slo"]["limits"][0]["reason"] is None) == (verdict != "no_verdict")
    assert exit_status(summary) == status


def test_a_fail_outweighs_what_has_no_verdict() -> None:
    summary = gate(streams(200), "ttft.p95<50ms", "ttft.p99<150ms", "itl.p99<30ms")
    assert verdicts(summary) == ["fail", "no_verdict", "pass", "pass"]
    assert summary["slo"]["verdict"] == "fail"


def test_nothing_succeeded_comes_before_any_fail() -> None:
    summary = gate(streams(20, outcome="http_error"), "ttft.p50<1s", "errors<1%")
    assert verdicts(summary) == ["no_verdict", "no_verdict"]
    assert exit_status(summary) == 3
    assert exit_status(gate(streams(20, outcome="http_error"))) == 3
    assert exit_status(gate(streams(1))) == 0


@pytest.mark.parametrize(
    ("failures", "limits", "verdict"),
    [
        (5, ["ttft.p50<10s"], "fail"),  # 5 of 11: over the 1 % that holds unless asked otherwise
        (5, ["ttft.p50<10s", "errors<50%"], "pass"),
        (0, ["ttft.p50<10s"], "pass"),
    ],
)
def test_errors_fail_a_gate_unless_another_limit_is_given(failures: int, limits: list[str], verdict: str) -> None:
    failed = [record(f"f{i}", outcome="http_error", status=500) for i in range(failures)]
    assert gate(streams(6) + failed, *limits, strict=True)["slo"]["verdict"] == verdict


def test_strict_point_ignores_how_few_samples_there_are() -> None:
    assert gate(streams(3), "ttft.p99<150ms")["slo"]["verdict"] == "no_verdict"
    assert gate(streams(3), "ttft.p99<150ms", strict=True)["slo"]["verdict"] == "pass"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"complete": False, "interrupted_by": "SIGINT"}, "cut short (SIGINT)"),
        ({"loop": "open", "end_ns": 1_000_000_000}, "the load was not delivered: 50.0%"),
    ],
)
def test_a_run_that_cannot_be_trusted_gets_no_verdict(changes: dict[str, Any], reason: str) -> None:
    late = streams(100, due=0, sent=5000)
    summary = gate(streams(100, ttft=101, due=0, sent=0) + late, "tpot.p50<1s", **changes)
    assert summary["slo"]["limits"][0]["verdict"] == "no_verdict"
    assert reason in summary["slo"]["limits"][0]["reason"]


def test_a_saturated_client_gets_no_verdict() -> None:
    records = streams(100, due=0, sent=60)
    summary = gate(records, "ttft.p50<500ms", loop="open", end_ns=1_000_000_000)
    assert "the client is saturated" in summary["slo"]["limits"][0]["reason"]
    generous = gate(records, "ttft.p50<1s", loop="open", end_ns=1_000_000_000)
    assert generous["slo"]["verdict"] == "pass", "60 ms of lag are less than 10 % of this limit"


def test_requests_cut_at_an_age_over_the_limit_count_as_misses() -> None:
    cut = [record(f"cut{i}", outcome="cancelled", end=9000) for i in range(30)]
    summary = gate(streams(200) + cut, "ttft.p90<500ms", "ttft.p50<500ms", "ttft.p90<10s")
    assert verdicts(summary)[:3] == ["fail", "pass", "pass"]
    assert summary["requests"]["censored"] == 30


def test_a_played_back_stream_meets_no_limit_on_decode() -> None:
    played_back = [record(f"p{i}", [1000] * 20, usage=200) for i in range(3)]
    assert gate(played_back, "tpot.p50<50ms", strict=True)["slo"]["verdict"] == "no_verdict"
    mixed = gate(played_back + streams(2), "tpot.p50<50ms", "gap.p95<50ms", "ttft.p50<2s", strict=True)
    assert verdicts(mixed)[:3] == ["fail", "fail", "pass"]


def test_usage_that_contradicts_itself_gives_no_verdict_on_token_speed() -> None:
    liar = record("liar", every(20, 10, 100), usage=1)
    summary = gate([*streams(200), liar], "tpot.p50<1s", "ttft.p50<1s")
    assert verdicts(summary)[:2] == ["no_verdict", "pass"]


def test_each_class_has_limits_of_its_own() -> None:
    records = streams(200, class_name="chat") + streams(200, ttft=900, class_name="rag")
    limits = [parse_limit("ttft.p95<500ms", "chat"), parse_limit("ttft.p95<2s", "rag"), parse_limit("ttft.p50<1s", "x")]
    summary = summarize(run_of(*records), limits)
    assert verdicts(summary) == ["pass", "pass", "no_verdict", "pass"]
    assert summary["slo"]["limits"][2]["reason"] == "no request of class 'x'"
    assert summary["by_class"]["chat"]["goodput"]["by_limit"] == {"ttft": 1.0}


def test_limits_of_the_workload_hold_unless_others_are_given() -> None:
    run = run_of(*streams(200), workload={"name": "w", "slo": {"all": ["ttft.p95<50ms"]}})
    assert summarize(run)["slo"]["verdict"] == "fail"
    assert summarize(run, [])["slo"] == {"verdict": None, "limits": []}
