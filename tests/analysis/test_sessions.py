from typing import Any

import pytest

from analysis.run import Run
from analysis.sessions import sessions
from tests.analysis.records import meta, record


def found(*records: Any) -> dict[str, Any] | None:
    run = Run.from_records(meta(), records)
    return sessions(run, run.measured)


def turn(session: int, number: int, sent: float, took: float, prompt: int, **more: Any) -> Any:
    name = f"{session}-{number}-{sent}"
    return record(
        name, [took / 2, took], sent=sent, session=session, turn=number, prompt_tokens=prompt, usage=2, **more
    )


def test_a_conversation_is_measured_as_a_whole() -> None:
    one = found(turn(1, 1, 0, 400, 100, cached_tokens=0), turn(1, 2, 1400, 600, 160, cached_tokens=96))
    assert one is not None
    assert (one["n"], one["of"], one["steps"]["mean"]) == (1, 1, 2)
    assert one["wall_s"]["p50"] == pytest.approx(2.0)
    assert one["model_s"]["p50"] == pytest.approx(1.0)
    assert one["pause_s"]["p50"] == pytest.approx(1.0)
    assert one["context_growth_tokens"]["p50"] == 60
    assert one["cached_share"] == pytest.approx(96 / 260)


def test_calls_sent_together_wait_together() -> None:
    one = found(turn(1, 1, 0, 100, 10), turn(1, 2, 200, 300, 20), turn(1, 2, 210, 500, 30), turn(1, 3, 1000, 100, 50))
    assert one is not None
    assert one["steps"]["mean"] == 4
    assert one["wall_s"]["p50"] == pytest.approx(1.1)
    assert one["model_s"]["p50"] == pytest.approx(0.1 + 0.51 + 0.1)
    assert one["context_growth_tokens"]["p50"] == 40
    assert one["cached_share"] is None


def test_a_session_that_was_cut_is_counted_and_not_measured() -> None:
    cut = record("x", outcome="skipped", sent=None, session=2, turn=2)
    one = found(turn(1, 1, 0, 100, 10), turn(1, 2, 200, 100, 20), turn(2, 1, 0, 900, 10), cut)
    assert one is not None
    assert (one["n"], one["of"]) == (1, 2)
    assert one["wall_s"]["max"] == pytest.approx(0.3)


def test_a_session_that_began_in_the_warm_up_is_counted_and_not_measured() -> None:
    records = [turn(1, 1, 1000, 100, 10), turn(1, 2, 1200, 100, 20)]
    records += [turn(2, 1, 900, 50, 10, stage="warmup"), turn(2, 2, 1000, 900, 20), turn(2, 3, 2000, 100, 30)]
    records += [turn(3, 1, 0, 100, 10, stage="warmup"), turn(3, 2, 200, 100, 10, stage="warmup")]
    stages = [
        {"name": "warmup", "start_ns": 0, "end_ns": 10**9, "measured": False},
        {"name": "main", "start_ns": 10**9, "end_ns": None, "measured": True},
    ]
    run = Run.from_records(meta(stages=stages), records)
    one = sessions(run, run.measured)
    assert one is not None
    assert (one["n"], one["of"], one["steps"]["mean"], one["cached_share"]) == (1, 2, 2, None)
    assert one["wall_s"]["max"] == pytest.approx(0.3)


def test_all_were_cut() -> None:
    one = found(turn(1, 1, 0, 100, 10), record("x", outcome="skipped", sent=None, session=1, turn=2))
    assert one is not None
    assert (one["n"], one["of"], one["wall_s"]["n"], one["cached_share"]) == (0, 1, 0, None)


def test_single_turns_are_no_sessions() -> None:
    assert found(turn(1, 1, 0, 100, 10), turn(2, 1, 5, 100, 10)) is None
    assert found() is None
