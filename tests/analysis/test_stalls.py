"""Stalls, the episodes they make, and their causes. All times in milliseconds."""

from typing import Any

import pandas as pd
import pytest

from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.records import codes, every, meta, record, summary_of


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


def test_a_pause_that_ends_in_a_first_token_is_not_called_an_engine_pause() -> None:
    frozen = [with_pause(f"f{i}", i, 300, 900) for i in range(3)]
    waiting = record("waiting", every(20, 5, 620), sent=290, usage=5)
    [episode] = summary_of(*frozen, waiting)["stalls"]["episodes"]
    assert episode["cause"] == "unknown"


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
