"""Stalls, the episodes they make, and their causes. All times in milliseconds."""

from itertools import accumulate
from statistics import median
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.run import Run
from analysis.stalls.episodes import episodes, find
from analysis.summary import summarize
from tests.analysis.records import MS, codes, every, meta, record, summary_of


def with_pause(name: str, start: float, pause_from: float, pause_to: float, **more: Any) -> Any:
    """40 tokens, one every 20 ms from `start` + 100, except that nothing comes while the engine stands still."""
    due = every(20, 40, start + 100)
    at = [each if each <= pause_from else each + pause_to - pause_from for each in due]
    return record(name, [each - start for each in at], sent=start, usage=40, **more)


def test_streams_that_freeze_together_are_one_episode() -> None:
    early = [with_pause(f"early{i}", i, 1300, 1900) for i in range(4)]
    late = [with_pause(f"late{i}", 983 + i, 1300, 1900) for i in range(4)]
    stalls = summary_of(*early, *late)["stalls"]
    assert (stalls["count"], stalls["requests"], stalls["share_of_requests"]) == (4, 4, 0.5)
    assert stalls["longest_s"] == pytest.approx(0.62)
    assert stalls["total_s"] == pytest.approx(4 * 0.6)
    assert stalls["per_1k_tokens"] == pytest.approx(1000 * 4 / 320)
    assert len(stalls["episodes"]) == 1
    episode = stalls["episodes"][0]
    assert episode["cause"] == "engine_pause"
    assert (episode["requests"], episode["bystanders"]) == (4, 0)
    assert episode["duration_s"] == pytest.approx(0.623)
    assert stalls["worst"]["request_id"] in {f"late{i}" for i in range(4)}


def test_one_stream_that_freezes_while_others_go_on() -> None:
    frozen = with_pause("frozen", 0, 300, 900)
    others = [record(f"o{i}", every(20, 80, 100), usage=80) for i in range(3)]
    [episode] = summary_of(frozen, *others)["stalls"]["episodes"]
    assert (episode["requests"], episode["bystanders"], episode["cause"]) == (1, 3, "one_stream")


def test_a_pause_that_ends_in_the_first_token_of_a_waiting_request_is_its_prefill() -> None:
    frozen = [with_pause(f"f{i}", i, 300, 900) for i in range(3)]
    waiting = record("waiting", every(20, 5, 620), sent=290, usage=5)
    [episode] = summary_of(*frozen, waiting)["stalls"]["episodes"]
    assert (episode["cause"], episode["culprit_request_id"]) == ("prefill_interference", "waiting")
    assert episode["culprit_prompt_tokens"] is None


def test_a_silence_made_up_by_a_burst_is_buffering() -> None:
    at = [1310.0] * 64 + [2590.0] * 64 + [3870.0] * 64 + [4030.0] * 8
    reads = [0] * 64 + [1] * 64 + [2] * 64 + [3] * 8
    summary = summary_of(record("a", at, reads=reads, usage=200))
    assert [each["cause"] for each in summary["stalls"]["episodes"]] == ["buffering", "buffering"]
    assert summary["metrics"]["gap_s"]["max"] == pytest.approx(1.28)
    assert summary["tokens"]["events_per_read"] == 50
    assert {"buffering", "events_per_read"} <= set(codes(summary))


def test_a_late_client_is_the_cause_only_where_it_stamps_itself() -> None:
    records = [with_pause(f"f{i}", i, 300, 900) for i in range(3)]
    client = pd.DataFrame({"t_ns": [1_000_000_000], "loop_lag_max_s": [0.6]})
    causes = [
        summarize(Run.from_records(meta(timestamp_source=source), records, client=client))["stalls"]["episodes"][0][
            "cause"
        ]
        for source in ("user", "kernel")
    ]
    assert causes == ["client", "engine_pause"]


@pytest.mark.parametrize(
    ("stall", "count"),
    [({}, 1), ({"floor": "700ms"}, 0), ({"floor": 0.1, "factor": 40}, 0), ({"floor": "1ms", "factor": 5}, 1)],
)
def test_floor_and_factor_come_from_the_workload(stall: dict[str, Any], count: int) -> None:
    summary = summary_of(with_pause("f", 0, 300, 900), workload={"name": "w", "stall": stall})
    assert summary["stalls"]["count"] == count


def test_stalls_of_failed_and_of_warm_up_requests_do_not_count() -> None:
    failed = with_pause("failed", 0, 300, 900, outcome="broken")
    warm = with_pause("warm", 0, 300, 900, stage="warmup")
    stages = [{"name": "warmup", "start_ns": 0, "end_ns": 1, "measured": False}, {"name": "main", "start_ns": 1}]
    summary = summary_of(failed, warm, record("ok", every(20, 9, 100), usage=9), stages=stages)
    assert summary["stalls"]["count"] == 0
    assert summary["by_stage"]["warmup"]["stalls"]["count"] == 1


def evidence_of(*records: Any, **frames: Any) -> list[dict[str, Any]]:
    run = Run.from_records(meta(timestamp_source=frames.pop("timestamp_source", "kernel")), records, **frames)
    return [each["evidence"] | {"cause": each["cause"]} for each in episodes(run, find(run), run.measured)]


def test_evidence_of_prefill_interference() -> None:
    frozen = [with_pause(f"f{i}", i, 300, 900) for i in range(3)]
    waiting = record("waiting", every(20, 5, 620), sent=290, usage=5, prompt_tokens=12_000, cached_tokens=2_000)
    [told] = evidence_of(*frozen, waiting)
    # From the earliest last token, at 281 ms, to the latest next one, at 920; the prompt was read from 290 to 910.
    assert told["frozen_s"] == pytest.approx(3 * 0.6)
    assert told["end_offset_s"] == pytest.approx(0.01)
    assert told["culprit_waited_s"] == pytest.approx(0.62)
    assert (told["prefill_tokens"], told["waiting_requests"]) == (10_000, 1)
    assert told["explained_share"] == pytest.approx(620 / 639)
    assert told["stopped_share"] == pytest.approx(1.0, abs=0.05)
    assert 0 <= told["chance_share"] < 0.2


def test_evidence_of_buffering_and_of_a_late_client() -> None:
    at = [1310.0] * 64 + [2590.0] * 64 + [3870.0] * 72
    [first, second] = evidence_of(record("a", at, reads=[0] * 64 + [1] * 64 + [2] * 72, usage=200))
    assert (first["burst_tokens"], second["burst_tokens"]) == (64, 72)
    client = pd.DataFrame({"t_ns": [1_500_000_000, 1_000_000_000], "loop_lag_max_s": [0.1, 0.6]})
    frozen = [with_pause(f"f{i}", i, 300, 900) for i in range(3)]
    [told] = evidence_of(*frozen, client=client, timestamp_source="user")
    assert (told["cause"], told["loop_lag_s"]) == ("client", 0.6)


def test_evidence_of_preemption() -> None:
    frozen = with_pause("frozen", 0, 300, 900)
    others = [record(f"o{i}", every(20, 80, 100), usage=80) for i in range(3)]
    samples = {"t_ns": [0, 500_000_000, 1_000_000_000], "preemptions": [2, 3, 4], "kv_usage": [0.5, 1.0, 0.9]}
    [told] = evidence_of(frozen, *others, server=pd.DataFrame(samples))
    assert (told["cause"], told["preemptions"], told["kv_usage_peak"]) == ("preemption", 2, 1.0)
    assert told["stopped_share"] == pytest.approx(1 / 4, abs=0.02)
    quiet = pd.DataFrame(samples | {"preemptions": [2, 2, 2], "kv_usage": [0.5, 0.6, 0.9]})
    [told] = evidence_of(frozen, *others, server=quiet)
    assert told["cause"] == "one_stream"


def test_silences_that_are_all_alike_on_reused_connections_are_told() -> None:
    held = [with_pause(f"h{i}", 1000 * i, 1000 * i + 300, 1000 * i + 500, reused_connection=True) for i in range(12)]
    steady = record("steady", every(20, 700, 100), usage=700, reused_connection=True)
    also = record("also", every(20, 700, 100), usage=700, reused_connection=True)
    told = evidence_of(*held, steady, also)
    assert {each["cause"] for each in told} == {"one_stream"}
    assert {round(each["constant_step_s"], 3) for each in told} == {0.22}
    assert {each["reused_connection_share"] for each in told} == {1.0}
    fresh = evidence_of(
        *[with_pause(f"h{i}", 1000 * i, 1000 * i + 300, 1000 * i + 500) for i in range(12)], steady, also
    )
    assert not any("constant_step_s" in each for each in fresh)


@given(
    st.lists(st.lists(st.sampled_from([5, 39, 40, 41, 60, 199, 200, 201, 299, 300, 900]), max_size=12), max_size=5),
    st.sampled_from([1.0, 3.0, 5.0]),
)
def test_a_gap_is_a_stall_by_the_floor_and_by_the_median_of_its_own_request(
    gaps: list[list[int]], factor: float
) -> None:
    records = [record(f"r{i}", [0.0, *accumulate(map(float, mine))]) for i, mine in enumerate(gaps)]
    run = Run.from_records(meta(workload={"name": "w", "stall": {"floor": 0.2, "factor": factor}}), records)
    expected = [
        (row, gap, gap - median(mine))
        for row, mine in enumerate(gaps)
        for gap in mine
        if gap > max(200, factor * median(mine)) and run.streamed[row]
    ]
    found = find(run)
    length_ms = (found.end_ns - found.start_ns) / MS
    assert list(zip(found.row, length_ms, (found.stalled_s * 1e3).round(6), strict=True)) == expected
