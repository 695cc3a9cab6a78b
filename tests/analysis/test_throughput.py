"""Stages' windows and rates over them."""

import pytest

from analysis.compare.sides import estimate, members
from analysis.limits import ALL
from analysis.summary import summarize
from analysis.throughput import windows
from tests.analysis.records import every, record, run_of, summary_of

S = 1_000_000_000


def test_tokens_count_by_arrival_also_those_of_cut_requests() -> None:
    """Four users, a token every 10 ms, cut after 2.5 s: 400 tokens a second."""
    whole = [record(f"{user}-{i}", every(10, 100, 10), sent=1000 * i, usage=100) for user in range(4) for i in range(2)]
    cut = [record(f"{user}-cut", every(10, 49, 10), sent=2000, outcome="cancelled") for user in range(4)]
    summary = summary_of(*whole, *cut, end_ns=int(2.5 * S))
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(400, rel=0.01)
    assert summary["throughput"]["requests_per_s"] == pytest.approx(12 / 2.5)
    assert summary["requests"]["cancelled"] == 4


def test_events_of_unknown_tokens_share_the_count_evenly() -> None:
    summary = summary_of(record("a", every(100, 10, 100), usage=40), end_ns=S)
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(36), "the tenth came at the end of the stage"


@pytest.mark.parametrize(
    ("stage", "changes", "window"),
    [
        ({"end_ns": 5 * S}, {}, (0, 5 * S)),
        ({"end_ns": None}, {}, (0, 2 * S)),
        ({"end_ns": None, "offered_rps": 4}, {"loop": "open"}, (0, S / 2)),
        ({"end_ns": 60 * S}, {"complete": False}, (0, 2 * S)),
        ({"end_ns": S}, {"complete": False}, (0, S)),
    ],
)
def test_windows(stage: dict[str, float | None], changes: dict[str, object], window: tuple[float, float]) -> None:
    stages = [{"name": "main", "start_ns": 0, "measured": True, **stage}]
    run = run_of(record("a", [1000], usage=1), record("b", [1500], usage=1, end=2000), stages=stages, **changes)
    assert windows(run) == {"main": window}


def test_only_measured_stages_feed_the_headline() -> None:
    stages = [
        {"name": "warmup", "start_ns": 0, "end_ns": S, "measured": False},
        {"name": "main", "start_ns": S, "end_ns": 3 * S, "measured": True},
    ]
    warm = [record(f"w{i}", [100], stage="warmup", usage=1, sent=0) for i in range(5)]
    run = run_of(*warm, record("m", [200], usage=1, sent=1500), stages=stages)
    summary = summarize(run)
    assert summary["requests"]["planned"] == 1
    assert summary["metrics"]["ttft_s"]["max"] == pytest.approx(0.2)
    assert summary["run"]["duration_s"] == 2
    assert summary["throughput"]["requests_per_s"] == 0.5
    assert summary["by_stage"]["warmup"]["requests"]["ok"] == 5
    assert summary["by_stage"]["warmup"]["throughput"]["requests_per_s"] == 5


def test_a_stage_has_the_tokens_that_came_in_it_whoever_asked_and_when() -> None:
    """One user, a token every 10 ms without a pause: 100 tokens a second, however the answers lie in the stages."""
    stages = [
        {"name": "warmup", "start_ns": 0, "end_ns": S, "measured": False},
        {"name": "main", "start_ns": S, "end_ns": 3 * S, "measured": True},
    ]
    two = [
        record("a", every(10, 180, 10), sent=0, stage="warmup", usage=180, prompt_tokens=50, turn=1),
        record("b", every(10, 180, 10), sent=1800, stage="main", usage=180, prompt_tokens=50, turn=1),
    ]
    run = run_of(*two, stages=stages)
    summary = summarize(run)
    parts = [summary, *summary["by_class"].values(), summary["by_turn"]["1"], summary["by_stage"]["main"]]
    assert [part["throughput"]["output_tokens_per_s"] for part in parts] == pytest.approx([100] * 4, rel=0.01)
    assert [part["throughput"]["requests_per_s"] for part in parts] == [0.5] * 4
    assert summary["throughput"]["prompt_tokens_per_s"] == 25, "the prompt of the warm-up was read in the warm-up"
    assert summary["by_stage"]["warmup"]["throughput"]["output_tokens_per_s"] == pytest.approx(100, rel=0.01)
    compared = estimate(members([run], {}, []), ALL, "output_tokens_per_s", None, 2.0)
    assert compared.shown == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    ("rates", "planned"),
    [
        ([None, 4.0, 8.0], 7.0),
        ([2.0, 5.0, 5.0], 5.0),
        ([2.0, None, None], None),
        ([2.0, 5.0, None], None),
        ([2.0, 0.0, 4.0], 3.0),
    ],
)
def test_the_planned_rate_is_that_of_the_measured_stages(rates: list[float | None], planned: float | None) -> None:
    ends = [(0, S), (S, 2 * S), (2 * S, 5 * S)]
    stages = [
        {"name": f"s{i}", "start_ns": start, "end_ns": end, "measured": i > 0, "offered_rps": rate}
        for i, ((start, end), rate) in enumerate(zip(ends, rates, strict=True))
    ]
    run = run_of(record("a", [100], usage=1, due=0, stage="s1"), stages=stages, loop="open")
    assert summarize(run)["run"]["offered_rps"] == planned
