"""Verdicts. All times in milliseconds."""

from typing import Any

import numpy as np
import pytest

from analysis.limits import Limit
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
        ("stall.share<1%", "pass", 0),
        ("stall.count<1", "pass", 0),
        ("stall.total<1ms", "pass", 0),
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
    reason = summary["slo"]["limits"][0]["reason"] or ""
    assert bool(reason) == (verdict == "no_verdict") or reason.startswith("there was none")
    assert exit_status(summary) == status


@pytest.mark.parametrize(
    ("limit", "count", "reason"),
    [
        ("errors<1%", 200, "there was none; so short a run may miss a rate of up to 1.5%"),  # 3 of 200
        ("errors<2%", 200, None),
        ("errors<=0%", 200, "there was none; so short a run may miss a rate of up to 1.5%"),
        ("stall.share<1%", 200, "there was none; so short a run may miss a rate of up to 1.5%"),
        ("stall.per_1k<0.5", 200, "there was none; so short a run may miss a rate of up to 1.50"),  # 3 of 2,000 tokens
        ("stall.per_1k<2", 200, None),
        ("stall.count<1", 200, None),
    ],
)
def test_what_never_happened_passes_and_the_report_says_what_may_be_unseen(
    limit: str, count: int, reason: str | None
) -> None:
    entry = gate(streams(count), limit)["slo"]["limits"][0]
    assert (entry["verdict"], entry["reason"], entry["value"]) == ("pass", reason, 0)


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
    assert verdicts(summary)[:3] == ["no_verdict", "pass", "pass"], (
        "13 % were cut: a bit more than 10 %, by chance or not"
    )
    assert summary["slo"]["limits"][0]["reason"].startswith("30 samples that never came count as misses")
    assert verdicts(gate(streams(200) + cut, "ttft.p90<500ms", strict=True))[0] == "fail"
    more = [record(f"more{i}", outcome="cancelled", end=9000) for i in range(300)]
    assert verdicts(gate(streams(900) + more, "ttft.p90<500ms"))[0] == "fail"
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


# --- intervals: 200 requests, a second apart, unless said otherwise


def spaced(ttfts: Any, **more: Any) -> list[Any]:
    return [record(f"r{i}", every(20, 10, ttft), usage=10, sent=1000 * i, **more) for i, ttft in enumerate(ttfts)]


def noisy(count: int = 200, centre: float = 100) -> list[float]:
    return (centre + np.random.default_rng(5).normal(0, 20, count)).tolist()


@pytest.mark.parametrize(
    ("limit_ms", "verdict"),
    [(80, "fail"), (97, "no_verdict"), (99, "no_verdict"), (120, "pass")],
)
def test_value_and_whole_interval_decide(limit_ms: float, verdict: str) -> None:
    [entry, _] = gate(spaced(noisy()), f"ttft.p50<{limit_ms}ms")["slo"]["limits"]
    low, high = entry["ci95"]
    assert 0.09 < low < entry["value"] < high < 0.11
    assert entry["verdict"] == verdict
    assert (low < limit_ms / 1000 < high) == (verdict == "no_verdict")


def test_no_verdict_says_how_long_a_run_would_settle_it() -> None:
    """Intervals shrink with the square root of time: with the limit halfway to the end it takes four times as long."""
    records = spaced(noisy())
    [entry, _] = gate(records, "ttft.p50<1s", end_ns=200_000_000_000)["slo"]["limits"]
    value, high = entry["value"], entry["ci95"][1]
    limit = Limit("ttft", "p50", "<", value + (high - value) / 2)
    summary = summarize(run_of(*records, end_ns=200_000_000_000), [limit])
    reason = summary["slo"]["limits"][0]["reason"]
    assert "the limit lies within the interval" in reason
    assert reason.endswith("; it takes about 14 min at this load"), "4 times 200 s"
    barely = Limit("ttft", "p50", "<", value * (1 + 1e-7))
    summary = summarize(run_of(*records, end_ns=200_000_000_000), [barely])
    assert summary["slo"]["limits"][0]["reason"].endswith("too close to the limit for a longer run to settle it")


def test_too_few_samples_say_how_many_it_takes() -> None:
    [entry, _] = gate(spaced(noisy()), "ttft.p99<1s", end_ns=200_000_000_000)["slo"]["limits"]
    assert entry["ci95"] is None
    assert entry["reason"] == "200 samples are too few for p99: it needs 1,000; it takes about 17 min at this load"


def test_samples_too_much_alike_give_no_verdict() -> None:
    """1,000 requests of which ten in a row were slow are one bad moment: they cannot tell how often it comes."""
    ttfts = noisy(1000)
    ttfts[500:515] = [900] * 15
    [entry, _] = gate(spaced(ttfts), "ttft.p99<1s")["slo"]["limits"]
    assert (entry["verdict"], entry["ci95"]) == ("no_verdict", None)
    assert "alike as they are, say no more than" in entry["reason"]
    assert "min at this load" in entry["reason"]


@pytest.mark.parametrize(("limit", "verdict"), [("1125ms", "pass"), ("1124ms", "no_verdict"), ("800ms", "no_verdict")])
def test_a_limit_that_no_sample_comes_near_passes_all_the_same(limit: str, verdict: str) -> None:
    ttfts = noisy(1000)
    ttfts[500:515] = [900] * 15
    [entry, _] = gate(spaced(ttfts), f"ttft.p99<{limit}")["slo"]["limits"]
    assert (entry["verdict"], entry["ci95"]) == (verdict, None)
    assert (entry["reason"] == "no sample of 1,000 requests comes within a fifth of it") == (verdict == "pass")


def test_it_takes_three_requests_beyond_the_percentile_to_pass_so() -> None:
    def verdict(count: int) -> str:
        few = [record(f"r{i}", every(20, 60, 100 + i), usage=60, sent=1000 * i) for i in range(count)]
        few[count // 2] = record("slow", every(30, 60, 100), usage=60, sent=500 * count)
        return str(gate(few, "itl.p99<1s")["slo"]["limits"][0]["verdict"])

    assert (verdict(299), verdict(300)) == ("no_verdict", "pass")


def test_a_few_requests_with_many_tokens_are_few() -> None:
    few = [record(f"r{i}", every(20, 300, 100 + i), usage=300, sent=1000 * i) for i in range(10)]
    [entry, _] = gate(few, "itl.p99<1s")["slo"]["limits"]
    assert entry["verdict"] == "no_verdict"
    assert entry["reason"].startswith("fewer than 20 requests")


def failing(count: int, of: int) -> list[Any]:
    failed = {round(i * of / count) for i in range(count)}
    return [record(f"r{i}", [] if i in failed else [100], usage=None if i in failed else 1, sent=1000 * i,
                   outcome="http_error" if i in failed else "ok") for i in range(of)]  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "limit", "verdict"),
    [
        (30, "errors<1%", "fail"),
        (3, "errors<1%", "no_verdict"),  # 1 % of 300, give or take
        (1, "errors<5%", "pass"),
        (0, "errors<0.01%", "pass"),  # without any failure there is nothing to weigh
        (30, "attainment>80%", "pass"),
        (30, "attainment>90%", "no_verdict"),
        (30, "attainment>97%", "fail"),
    ],
)
def test_shares_have_intervals_too(failed: int, limit: str, verdict: str) -> None:
    records = failing(failed, 300) if failed else streams(300)
    summary = gate(records, limit, workload={"name": "w", "good": {"ttft": "1s"}})
    entry = summary["slo"]["limits"][0]
    assert entry["verdict"] == verdict
    if failed:
        assert entry["ci95"][0] <= entry["value"] <= entry["ci95"][1]


def test_the_limit_on_errors_that_nobody_asked_for_needs_no_proof_to_pass() -> None:
    summary = gate(failing(1, 300), "ttft.p50<1s")
    assert verdicts(summary) == ["pass", "pass"], "0.3 %, perhaps 2 %"


@pytest.mark.parametrize("share", [1e-9, 1.0])
def test_a_longest_gap_is_what_it_is(share: float) -> None:
    [entry, _] = gate(spaced(noisy()), f"gap.max<{20 + share:.9f}ms")["slo"]["limits"]
    assert (entry["verdict"], entry["ci95"]) == ("pass", None)


def test_rates_are_held_against_their_interval() -> None:
    rng = np.random.default_rng(1)
    at = np.sort(rng.uniform(0, 200_000, 400))
    records = [record(f"r{i}", [10], usage=1, sent=float(each)) for i, each in enumerate(at)]
    for limit, verdict in (
        ("requests_per_s>1", "pass"),
        ("requests_per_s>2", "no_verdict"),
        ("requests_per_s>4", "fail"),
    ):
        [entry, _] = gate(records, limit, end_ns=200_000_000_000)["slo"]["limits"]
        assert (entry["verdict"], entry["value"]) == (verdict, pytest.approx(2, abs=0.02))


def test_the_bound_of_mlperf_is_given_beside() -> None:
    [entry, other, _] = gate(spaced(noisy(1000)), "ttft.p95<1s", "itl.p95<1s")["slo"]["limits"]
    assert entry["mlperf_early_stopping"] > entry["value"]
    assert other["mlperf_early_stopping"] is None, "tokens are far from independent"


def stalled(often: int, count: int = 400) -> list[Any]:
    """Every so many streams freeze for a second."""
    quick, frozen = every(20, 10, 100), [*every(20, 5, 100), *every(20, 5, 1200)]
    return [record(f"r{i}", frozen if i % often == 0 else quick, usage=10, sent=2000 * i) for i in range(count)]


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        ("stall.per_1k<20", "pass"),  # 10 of them in 1,000 tokens
        ("stall.per_1k<9.9", "no_verdict"),
        ("stall.per_1k<2", "fail"),
        ("stall.share<20%", "pass"),
        ("stall.share<10.1%", "no_verdict"),
        ("stall.share<2%", "fail"),
        ("stall.count<41", "pass"),  # a count is what it is
        ("stall.count<40", "fail"),
        ("stall.longest<1s", "fail"),
        ("stall.longest<1.1s", "pass"),
    ],
)
def test_stalls_have_intervals_where_they_are_rates(limit: str, verdict: str) -> None:
    [entry, _] = gate(stalled(10), limit)["slo"]["limits"]
    assert entry["verdict"] == verdict
    assert (entry["ci95"] is not None) == ("per_1k" in limit or "share" in limit)
