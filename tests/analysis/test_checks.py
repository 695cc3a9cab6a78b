"""What the report warns of, and that it does not warn of what is well. All times in milliseconds."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.records import codes, every, meta, record, summary_of

FRESH = {"name": "w", "classes": {"c": {"shape": "chat", "system_tokens": 0}}}


def healthy(count: int = 200, **more: Any) -> list[Any]:
    """Requests as a good server answers them: every length as asked, jitter on everything."""
    rng = np.random.default_rng(3)
    given = {"prompt_tokens": 1010, "asked_input_tokens": 1000, "asked_output_tokens": 30, "cached_tokens": 0, **more}
    return [
        record(f"r{i}", (100 + rng.normal(0, 5) + np.cumsum(rng.normal(20, 1, 30))).tolist(), usage=30,
               sent=50 * i + 0.2, due=50 * i, reused_connection=i > 20, **given)
        for i in range(count)
    ]  # fmt: skip


def open_loop(**changes: Any) -> dict[str, Any]:
    return {"loop": "open", "end_ns": 10_000_000_000, "workload": FRESH} | changes


def test_a_healthy_run_gives_no_warning() -> None:
    assert summary_of(*healthy(), **open_loop())["warnings"] == []


def texts(summary: dict[str, Any], code: str) -> list[str]:
    return [each["text"] for each in summary["warnings"] if each["code"] == code]


@pytest.mark.parametrize(
    ("code", "figure", "records", "changes"),
    [
        ("cached_prompts", "49.5%", healthy(cached_tokens=500), {}),
        ("prompt_length", "+95.0% off the plan (mean 1950", healthy(prompt_tokens=1950), {}),
        ("output_length", "200 of 200 answers were shorter", healthy(asked_output_tokens=40), {}),
        ("events_dropped", "400 events of 200 requests", healthy(events_dropped=2), {}),
        ("clock_stepped", "by 30.0 ms", healthy(), {"clock": {"stepped_ns": 30_000_000}}),
        ("interrupted", "cut short (SIGTERM)", healthy(), {"complete": False, "interrupted_by": "SIGTERM"}),
        ("few_samples", "ttft 3", healthy(3), {}),
        ("proxy", "given by the driver", healthy(), {"warnings": [{"code": "proxy", "text": "given by the driver"}]}),
    ],
)
def test_each_warning_gives_its_figure(code: str, figure: str, records: list[Any], changes: dict[str, Any]) -> None:
    summary = summary_of(*records, **open_loop(**changes))
    assert codes(summary) == [code]
    assert figure in texts(summary, code)[0]


def streams(count: int, at: list[float], usage: int | None, **more: Any) -> list[Any]:
    return [record(f"s{i}", at, usage=usage, **more) for i in range(count)]


@pytest.mark.parametrize(
    ("code", "figure", "records"),
    [
        ("tokens_estimated", "20 of 20 requests", streams(20, every(20, 9, 100), None)),
        ("usage_mismatch", "20 requests", streams(20, every(20, 12, 100), 1)),
        ("tokens_per_event", "(4.00 tokens per event)", streams(20, every(20, 50, 200), 200)),
        ("not_streamed", "20 of 20 answers", streams(20, [1000] * 20, 200)),
        ("implausible_speed", "(fastest 2,000 tokens/s, s0)", streams(20, every(0.5, 40, 10), 40)),
        ("events_per_read", "2.0 events", streams(20, every(20, 8, 100), 8, reads=[0, 0, 1, 1, 2, 2, 3, 3])),
    ],
)
def test_what_streams_show(code: str, figure: str, records: list[Any]) -> None:
    summary = summary_of(*records)
    assert codes(summary) == [code]
    assert figure in texts(summary, code)[0]


def test_answers_shorter_than_asked_are_pointed_out() -> None:
    short = [record(f"s{i}", every(5, 10, 50), usage=10, asked_output_tokens=40) for i in range(6)]
    whole = [record(f"w{i}", every(5, 40, 50), usage=40, asked_output_tokens=40) for i in range(14)]
    [text] = texts(summary_of(*short, *whole), "output_length")
    assert "6 of 20 answers were shorter" in text
    assert "mean 31.0 tokens, 40.0 asked" in text


@pytest.mark.parametrize(
    "workload",
    [
        {"name": "w", "classes": {"c": {"shape": "chat", "system_tokens": 400}}},
        {"name": "w", "classes": {"c": {"shape": "rag"}}},
        {"name": "w"},
    ],
)
def test_prompts_that_share_text_on_purpose_may_be_cached(workload: dict[str, Any]) -> None:
    assert "cached_prompts" not in codes(summary_of(*healthy(cached_tokens=500), **open_loop(workload=workload)))


def test_later_turns_of_a_session_may_be_cached() -> None:
    records = [*healthy(cached_tokens=500), record("second", [10], usage=1, turn=2)]
    assert "cached_prompts" not in codes(summary_of(*records, **open_loop()))


def test_a_late_client_is_saturated() -> None:
    late = [record(f"l{i}", every(20, 30, 100), usage=30, due=50 * i, sent=50 * i + 300) for i in range(20)]
    summary = summary_of(*healthy(80), *late, **open_loop())
    assert summary["client"]["saturated"] is True
    assert "300 ms late (p99; 20 ms are allowed)" in texts(summary, "client_saturated")[0]


def queued(slots: int, worker: int = 0) -> list[Any]:
    """Requests of a second each, three due at one instant every 1.6 s, sent as soon as a slot is free."""
    free, records = [0.0] * slots, []
    for number in range(12):
        due = 1600.0 * (number // 3)
        sent = max(due, free[0]) + 1
        free = sorted([*free[1:], sent + 1000])
        records.append(record(f"{worker}-{number}", [500, 1000], usage=2, due=due, sent=sent, worker=worker))
    return records


@pytest.mark.parametrize(
    ("records", "changes"),
    [
        (queued(2), {"limits": {"max_in_flight": 2}}),
        (queued(2)[::-1], {"limits": {"max_in_flight": 2}}),
        (queued(2) + queued(1, 1), {"limits": {"max_in_flight": 3}, "workers": 2}),
        (queued(1) + queued(1, 1), {"limits": {"max_in_flight": 2}, "workers": 2}),
        (queued(1) + queued(1, 1), {"limits": {"max_in_flight": 2}}),
        (queued(1), {"limits": {"max_in_flight": 2}, "workers": 2}),
    ],
    ids=[
        "due at one instant",
        "in another order",
        "two workers have two slots and one",
        "one each",
        "their number is not told",
        "the other sent nothing",
    ],
)
def test_who_waits_for_a_slot_is_not_late(records: list[Any], changes: dict[str, Any]) -> None:
    summary = summary_of(*records, **open_loop(**changes))
    assert summary["metrics"]["send_lag_s"]["max"] > 0.3
    assert summary["client"]["saturated"] is False
    assert summary["client"]["send_lag_p99_s"] == pytest.approx(0.001)
    assert "client_saturated" not in codes(summary)


def test_who_had_a_slot_and_left_late_was_held_up_by_the_client() -> None:
    records = [*queued(2), record("late", [100], usage=1, due=10_000, sent=10_300)]
    summary = summary_of(*records, **open_loop(end_ns=12_000_000_000, limits={"max_in_flight": 2}))
    assert summary["client"]["saturated"] is True
    assert summary["client"]["send_lag_p99_s"] > 0.2


def test_processes_use_their_cores_together() -> None:
    client = pd.DataFrame({"t_ns": [1, 1, 2, 2], "worker": [0, 1, 0, 1], "cpu_share": [0.8, 0.6, 1.0, float("nan")]})
    found = summarize(Run.from_records(meta(), streams(20, every(20, 9, 100), 9), client=client))["client"]
    assert found["cpu_share"] == pytest.approx(1.5)


@pytest.mark.parametrize(("source", "saturated"), [("user", True), ("kernel", False)])
def test_a_late_event_loop_matters_where_it_takes_the_stamps(source: str, saturated: bool) -> None:
    client = pd.DataFrame({"t_ns": [1, 2], "loop_lag_max_s": [0.015, 0.016], "cpu_share": [0.9, 1.0]})
    run = Run.from_records(meta(timestamp_source=source), streams(20, every(20, 9, 100), 9), client=client)
    found = summarize(run)["client"]
    assert found["saturated"] is saturated
    assert found["loop_lag_p99_s"] == pytest.approx(0.01599)
    assert found["cpu_share"] == pytest.approx(0.95)


def test_samples_without_a_value_say_nothing_of_the_client() -> None:
    client = pd.DataFrame({"t_ns": [1, 2], "loop_lag_max_s": [float("nan")] * 2, "cpu_share": [float("nan")] * 2})
    found = summarize(Run.from_records(meta(), streams(20, every(20, 9, 100), 9), client=client))["client"]
    assert (found["loop_lag_p99_s"], found["cpu_share"]) == (None, None)


def test_load_that_was_not_sent_is_pointed_out_but_not_what_was_skipped() -> None:
    unsent = [record(f"u{i}", due=100, sent=None, outcome="not_sent") for i in range(20)]
    assert "90.9%" in texts(summary_of(*healthy(), *unsent, **open_loop()), "load_not_delivered")[0]
    skipped = [record(f"u{i}", due=100, sent=None, outcome="skipped") for i in range(20)]
    assert "load_not_delivered" not in codes(summary_of(*healthy(), *skipped, **open_loop()))


@pytest.mark.parametrize(
    ("ttft", "told"),
    [
        (lambda i: 500 - 4 * i, "fell from 436 to 168 ms"),
        (lambda i: 100 + 4 * i, "rose from 164 to 432 ms"),
        (lambda i: 100 + i % 7, None),
    ],
)
def test_a_trend_in_ttft_is_no_steady_state(ttft: Any, told: str | None) -> None:
    summary = summary_of(*[record(f"r{i}", every(20, 20, ttft(i)), usage=20, sent=1000 * i) for i in range(100)])
    found = texts(summary, "warmup_short")
    assert [told in text for text in found] == ([True] if told else [])


@pytest.mark.parametrize("seed", range(8))
def test_a_busy_queue_in_a_steady_state_is_no_trend(seed: int) -> None:
    """Waits in a queue come in clumps: taken for independent samples, one run in seven would seem to have a trend."""
    gaps = np.random.default_rng(seed).exponential(83, 200)
    waits = [0.0]
    for gap in gaps:
        waits.append(max(0.0, waits[-1] + 50 - gap))
    records = [record(f"r{i}", every(20, 3, 50 + wait), usage=3, sent=83 * i) for i, wait in enumerate(waits)]
    assert texts(summary_of(*records), "warmup_short") == []


@pytest.mark.parametrize(("extra", "warns"), [(40, True), (4, False), (400, False)])
def test_a_constant_extra_on_reused_connections(extra: float, warns: bool) -> None:
    new = [record(f"n{i}", every(20, 20, 100 + i % 5), usage=20, reused_connection=False) for i in range(12)]
    old = [record(f"o{i}", every(20, 20, 100 + extra + i % 5), usage=20, reused_connection=True) for i in range(12)]
    assert ("reused_connection_step" in codes(summary_of(*new, *old))) is warns


def drifting(ttft: Any) -> list[str]:
    records = [record(f"r{i}", every(20, 20, ttft(i)), usage=20, sent=1000 * i) for i in range(200)]
    return texts(summary_of(*records), "warmup_short")


def test_a_short_warmup_is_told_with_what_would_have_been_enough() -> None:
    """It settles within the first 100 s of 200."""
    [text] = drifting(lambda i: 100 + 400 * max(0.0, 1 - i / 100) + (i * 37) % 11)
    assert "TTFT fell from" in text
    seconds = float(text.rsplit("about ", 1)[1].split(" s more")[0])
    assert 70 <= seconds <= 100


def test_a_queue_that_grows_is_no_steady_state() -> None:
    """Requests every 100 ms, each open for longer than the last; their first tokens come as quickly as ever."""
    records = [record(f"r{i}", [100, 100 + 20 * i], usage=2, sent=100 * i) for i in range(200)]
    [text] = texts(summary_of(*records), "warmup_short")
    assert "the number of requests in flight rose from" in text
    assert "the server falls behind" in text


def test_a_load_that_rises_by_plan_is_no_unsteady_state() -> None:
    records = [record(f"r{i}", [100, 100 + 20 * i], usage=2, sent=100 * i, stage="stage1") for i in range(200)]
    stages = [{"name": "stage1", "start_ns": 0, "end_ns": None, "measured": True, "offered_rps": 6.0}]
    for stage, warns in (({"from": "2/s", "to": "10/s"}, False), ({"rate": "6/s"}, True)):
        workload = {"name": "w", "stages": [stage | {"duration": "20s"}]}
        assert ("warmup_short" in codes(summary_of(*records, stages=stages, workload=workload))) is warns
