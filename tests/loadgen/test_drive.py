"""The drive in virtual time: who leaves when, who waits, and what becomes of those that never leave."""

import asyncio
import statistics
from collections import Counter

import pytest

from analysis.record import RequestRecord
from loadgen.drive import Stop, drive, stage_at
from tests.loadgen.plans import (
    MS,
    STAGE1,
    STAGE2,
    Answer,
    MemoryEngine,
    Plan,
    WordPrompter,
    closed,
    main_stage,
    play,
    session,
    warmup,
)
from tests.loadgen.virtual import VirtualClock, run_virtual
from workloads.prompts import Prompter
from workloads.request import Request
from workloads.schedule import build
from workloads.spec import Workload

# Open loop


def test_requests_leave_when_due_however_late_the_answers_are() -> None:
    dues = [0, 0.25, 20, 99.999, 100, 100, 1234.5678]
    run = play(Plan([session(n, due) for n, due in enumerate(dues)]), lambda _: Answer(ms=9_000))
    assert list(run.sent_ms().values()) == dues
    assert list(run.due_ms().values()) == dues


def test_one_in_flight_adds_the_wait_to_the_time_since_due() -> None:
    """METRICS, worked example 5."""
    plan = Plan([session(n, 100 * n) for n in range(8)], (main_stage(800),), requests=8)
    run = play(plan, max_in_flight=1)
    assert list(run.sent_ms().values()) == [500 * n for n in range(8)]
    since_due = [(r.arrival_ns[0] - r.due_ns) / MS for r in run.filed if r.due_ns is not None]
    assert [statistics.mean(since_due), max(since_due)] == [1900, 3300]
    assert {(r.arrival_ns[0] - r.sent_ns) / MS for r in run.filed if r.sent_ns is not None} == {500}


def test_those_that_wait_for_a_slot_go_first_come_first_served() -> None:
    plan = Plan([session(n, n) for n in range(6)])
    run = play(plan, {"s0.1a": Answer(ms=300), "s1.1a": Answer(ms=100)}, max_in_flight=2)
    assert sorted(run.sent_ms().items(), key=lambda item: item[1]) == [
        ("s0.1a", 0), ("s1.1a", 1), ("s2.1a", 101), ("s3.1a", 300), ("s4.1a", 601), ("s5.1a", 800)
    ]  # fmt: skip
    assert run.engine.most_in_flight == 2


def test_a_follow_up_is_due_when_the_round_before_has_ended_and_the_pause_is_over() -> None:
    run = play(Plan([session(0, 200, 1, 1, 1, pause_ms=1000)]), {"s0.1a": Answer(ms=500), "s0.2a": Answer(ms=70)})
    assert run.due_ms() == {"s0.1a": 200, "s0.2a": 1700, "s0.3a": 2770}
    assert run.sent_ms() == run.due_ms()


def test_turns_of_a_round_leave_together_and_the_next_round_waits_for_the_slowest() -> None:
    run = play(
        Plan([session(0, 0, 1, 3, 1, pause_ms=100)]),
        {"s0.1a": Answer(ms=50), "s0.2a": Answer(ms=10), "s0.2b": Answer(ms=400), "s0.2c": Answer(ms=30)},
    )
    assert run.sent_ms() == {"s0.1a": 0, "s0.2a": 150, "s0.2b": 150, "s0.2c": 150, "s0.3a": 650}
    assert [r.turn for r in run.filed] == [1, 2, 2, 2, 3]


def test_a_failed_turn_skips_the_rest_of_its_session_and_no_other() -> None:
    plan = Plan([session(0, 0, 1, 1, 2, 1, pause_ms=10), session(1, 0, 1, 1)])
    run = play(plan, {"s0.2a": Answer(outcome="http_error")})
    assert run.outcomes() == {
        "s0.1a": "ok", "s0.2a": "http_error", "s0.3a": "skipped", "s0.3b": "skipped", "s0.4a": "skipped",
        "s1.1a": "ok", "s1.2a": "ok",
    }  # fmt: skip
    skipped = run.records["s0.3b"]
    assert (skipped.due_ns, skipped.sent_ns, skipped.stage, skipped.tries) == (None, None, "main", 0)


def test_one_failed_turn_of_a_parallel_round_is_enough() -> None:
    run = play(Plan([session(0, 0, 2, 1)]), {"s0.1a": Answer(ms=5, outcome="empty"), "s0.1b": Answer(ms=900)})
    assert run.outcomes() == {"s0.1a": "empty", "s0.1b": "ok", "s0.2a": "skipped"}


def test_nothing_starts_after_the_end_of_the_last_stage() -> None:
    plan = Plan(
        [session(0, 100, 1, 1, 1, pause_ms=300), session(1, 200), session(2, 300), session(3, 950, 1, 1)],
        (main_stage(1000),),
    )
    answers = {"s0.1a": Answer(ms=750), "s1.1a": Answer(ms=1), "s2.1a": Answer(ms=1), "s3.1a": Answer(ms=500)}
    run = play(plan, answers)
    assert run.outcomes() == {
        "s0.1a": "ok", "s1.1a": "ok", "s2.1a": "ok", "s3.1a": "ok",
        "s0.2a": "not_sent", "s0.3a": "not_sent", "s3.2a": "not_sent",
    }  # fmt: skip
    assert [run.records[key].due_ns for key in ("s0.2a", "s0.3a", "s3.2a")] == [None, None, None]
    assert [run.records[key].stage for key in ("s0.2a", "s0.3a", "s3.2a")] == ["main", "main", "main"]


def test_what_was_due_in_the_stage_and_got_no_slot_is_not_sent_with_its_due_time() -> None:
    plan = Plan([session(n, 100 * n, 1, 1) for n in range(8)], (main_stage(800),))
    run = play(plan, max_in_flight=1)
    assert run.sent_ms() == {"s0.1a": 0, "s1.1a": 500}
    assert run.due_ms()["s2.1a"] == 200
    assert run.due_ms()["s0.2a"] == 500
    assert run.due_ms()["s2.2a"] is None
    assert run.due_ms()["s1.2a"] is None
    assert Counter(run.outcomes().values()) == {"ok": 2, "not_sent": 14}


def test_requests_by_number_are_all_sent_even_after_the_end_of_the_stage() -> None:
    plan = Plan([session(0, 0, 1, 1, 1, pause_ms=5000)], (main_stage(750),), requests=3)
    run = play(plan)
    assert run.sent_ms() == {"s0.1a": 0, "s0.2a": 5500, "s0.3a": 11_000}
    assert set(run.stages().values()) == {"main"}
    assert run.driven.stages == plan.stages


def test_the_drive_ends_with_its_last_request() -> None:
    run = play(Plan([session(0, 0), session(1, 4000)]), {"s1.1a": Answer(ms=250)})
    assert (run.ended_ms, run.driven.ended_ns, run.driven.interrupted_by) == (4250, 4250 * MS, None)
    assert run.driven.stages == (main_stage(),)


# Stages


def test_the_stage_of_a_request_is_where_its_due_time_falls() -> None:
    dues = (0, 99.999999, 100, 199, 200, 299)
    plan = Plan([session(n, due) for n, due in enumerate(dues)], (warmup(100), STAGE1, STAGE2))
    run = play(plan, max_in_flight=1)
    assert [run.stages()[f"s{n}.1a"] for n in range(6)] == ["warmup", "warmup", "stage1", "stage1", "stage2", "stage2"]


@pytest.mark.parametrize(
    ("t_ms", "name"), [(-1, "warmup"), (0, "warmup"), (99, "warmup"), (100, "main"), (1000, "main"), (5000, "main")]
)
def test_stage_at(t_ms: int, name: str) -> None:
    assert stage_at((warmup(100), main_stage(1000, start_ms=100)), t_ms * MS).name == name


# Closed loop


def test_each_user_takes_the_next_session_when_the_last_is_over() -> None:
    run = play(
        closed(concurrency=2, requests=5),
        {"s0.1a": Answer(ms=1000), "s1.1a": Answer(ms=300), "s2.1a": Answer(ms=300), "s3.1a": Answer(ms=300)},
    )
    assert run.sent_ms() == {"s0.1a": 0, "s1.1a": 0, "s2.1a": 300, "s3.1a": 600, "s4.1a": 900}
    assert set(run.due_ms().values()) == {None}
    assert run.engine.most_in_flight == 2


def test_think_time_holds_the_user() -> None:
    run = play(closed(1, 1, pause_ms=2000, last_pause_ms=3000, concurrency=1, requests=3))
    assert run.sent_ms() == {"s0.1a": 0, "s0.2a": 2500, "s1.1a": 6000}


def test_nobody_thinks_before_nothing() -> None:
    """The last answer ends the stage, and with the number of requests asked for all users are done."""
    run = play(closed(1, last_pause_ms=3000, concurrency=2, requests=3, stages=(main_stage(None),)))
    assert run.sent_ms() == {"s0.1a": 0, "s1.1a": 0, "s2.1a": 3500}
    assert run.driven.stages == (main_stage(4000),)
    assert run.ended_ms == 4000


def test_users_stop_at_the_end_of_the_last_stage() -> None:
    run = play(closed(1, 1, 1, pause_ms=100, concurrency=1, stages=(main_stage(2500),)))
    assert run.sent_ms() == {"s0.1a": 0, "s0.2a": 600, "s0.3a": 1200, "s1.1a": 1700, "s1.2a": 2300}
    assert run.outcomes()["s1.3a"] == "not_sent"
    assert run.due_ms()["s1.3a"] is None
    assert run.ended_ms == 2800


def test_the_last_session_is_cut_to_the_number_of_turns_asked_for() -> None:
    run = play(closed(1, 2, concurrency=1, requests=5, stages=(main_stage(None),)))
    assert list(run.outcomes()) == ["s0.1a", "s0.2a", "s0.2b", "s1.1a", "s1.2a"]
    assert set(run.outcomes().values()) == {"ok"}
    assert run.driven.stages == (main_stage(2000),)


def test_fewer_turns_than_users_leave_users_idle() -> None:
    run = play(closed(concurrency=10, requests=3))
    assert list(run.outcomes()) == ["s0.1a", "s1.1a", "s2.1a"]


def test_sessions_begun_in_warm_up_are_not_counted() -> None:
    stages = (warmup(1200), main_stage(None, start_ms=1200))
    run = play(closed(1, 1, concurrency=1, requests=3, stages=stages))
    assert run.stages() == {
        "s0.1a": "warmup", "s0.2a": "warmup", "s1.1a": "warmup", "s1.2a": "main",
        "s2.1a": "main", "s2.2a": "main", "s3.1a": "main",
    }  # fmt: skip


def test_no_users_send_nothing() -> None:
    run = play(closed(concurrency=0, requests=0, stages=(main_stage(None),)))
    assert (run.filed, run.driven.stages) == ([], (main_stage(0),))


def test_a_request_that_never_reached_the_wire_counts_in_the_stage_it_was_tried_in() -> None:
    stages = (warmup(300), main_stage(None, start_ms=300))
    run = play(closed(1, 1, concurrency=1, requests=1, stages=stages), {"s1.1a": Answer(raises=OSError("no"))})
    assert (run.records["s1.1a"].sent_ns, run.stages()["s1.1a"]) == (None, "main")


# Text


def test_history_holds_what_was_asked_and_what_the_model_said() -> None:
    run = play(Plan([session(0, 0, 1, 2, 1)]))
    (last,) = [request for request in run.engine.sent if request.request_id == "s0.3a"]
    assert [(m.role, m.content) for m in last.messages] == [
        ("user", "ask s0.1a"), ("assistant", "said s0.1a"),
        ("user", "ask s0.2a"), ("assistant", "said s0.2a"), ("user", "ask s0.2b"), ("assistant", "said s0.2b"),
        ("user", "ask s0.3a"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "save_text", "kept", "answer"),
    [
        (None, False, {"s0.1a": True, "s0.2a": False}, "said s0.1a"),  # live: the last answer is nobody's history
        ("x", False, {"s0.1a": False, "s0.2a": False}, "script s0.1a"),
        ("x", True, {"s0.1a": True, "s0.2a": True}, "script s0.1a"),
    ],
)
def test_text_is_kept_only_where_it_is_needed(
    script: str | None, save_text: bool, kept: dict[str, bool], answer: str
) -> None:
    run = play(Plan([session(0, 0, 1, 1, script=script)]), save_text=save_text)
    assert {request.request_id: request.keep_text for request in run.engine.sent} == kept
    assert run.engine.sent[1].messages[1].content == answer
    assert [r.text is not None for r in run.filed] == [save_text, save_text]


def test_text_is_made_before_the_clock_starts_or_shortly_before_it_is_due() -> None:
    run = play(Plan([session(0, 0), session(1, 99), session(2, 100), session(3, 4000, 1, 1, pause_ms=300)]))
    assert run.prompter.started == {"s0.1a": False, "s1.1a": False, "s2.1a": True, "s3.1a": True, "s3.2a": True}
    assert {key: ns / MS for key, ns in run.prompter.asked_ns.items() if run.prompter.started[key]} == {
        "s2.1a": 50, "s3.1a": 3950, "s3.2a": 4750
    }  # fmt: skip


def test_first_requests_of_all_users_are_made_before_the_clock_starts() -> None:
    run = play(closed(concurrency=3, requests=4))
    assert run.prompter.started == {"s0.1a": False, "s1.1a": False, "s2.1a": False, "s3.1a": True}


# Failures of others


def test_a_record_is_completed_from_the_plan() -> None:
    run = play(Plan([session(7, 0, 1, 1)]), worker=3)
    record = run.records["s7.2a"]
    assert (record.session, record.turn, record.class_name, record.worker) == (7, 2, "chat", 3)
    assert (record.asked_input_tokens, record.asked_output_tokens) == (20, 20)


def test_an_engine_that_raises_costs_one_request() -> None:
    plan = Plan([session(0, 0, 1, 1), session(1, 10)])
    run = play(plan, {"s0.1a": Answer(raises=ValueError("a bug"))}, max_in_flight=1)
    assert run.outcomes() == {"s0.1a": "client_error", "s0.2a": "skipped", "s1.1a": "ok"}
    assert run.records["s0.1a"].error == "ValueError: a bug"


def test_an_engine_that_lets_a_cancellation_through_still_gives_a_record() -> None:
    class Rude(MemoryEngine):
        async def send(self, request: Request) -> RequestRecord:
            await self.clock.sleep_until(60_000 * MS)
            raise AssertionError("never so late")

    filed = drive_raw(Plan([session(0, 0)], (main_stage(100),), drain_ms=10), Rude)
    assert [(r.outcome, r.end_ns) for r in filed] == [("cancelled", 110 * MS)]


def test_a_cancelled_drive_sends_no_more() -> None:
    sent: list[str] = []

    class Seen(MemoryEngine):
        async def send(self, request: Request) -> RequestRecord:
            sent.append(request.request_id)
            return await super().send(request)

    with pytest.raises(asyncio.CancelledError):
        drive_raw(Plan([session(0, 0, 1, 1, 1), session(1, 2000)]), Seen, cancel_ms=100)
    assert sent == ["s0.1a"]


def test_a_failure_to_file_a_record_comes_out_as_it_is() -> None:
    def broken(record: RequestRecord) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        drive_raw(Plan([session(0, 0), session(1, 2000)]), on_record=broken)


def drive_raw(plan, engine=MemoryEngine, on_record=None, cancel_ms=None, prompter=None) -> list[RequestRecord]:  # type: ignore[no-untyped-def]
    filed: list[RequestRecord] = []

    async def main() -> None:
        clock = VirtualClock()
        task = asyncio.ensure_future(
            drive(
                plan,
                engine(clock),
                clock,
                prompter or WordPrompter(clock),
                on_record or filed.append,
                stop=Stop(),
            )
        )
        if cancel_ms is not None:
            await asyncio.sleep(cancel_ms / 1e3)
            task.cancel()
        await task

    run_virtual(main())
    return filed


def test_live_counts_return_to_rest() -> None:
    run = play(Plan([session(n, n, 2, 1) for n in range(5)]))
    assert (run.live.sent, run.live.in_flight) == (15, 0)


# With the real plan and the real texts


@pytest.mark.parametrize("load", [{"arrivals": {"rate": "4/s"}, "duration": "5s"}, {"concurrency": 3, "requests": 25}])
def test_prompts_come_to_their_planned_length(load: dict[str, object]) -> None:
    both = {"history": "scripted", "output_tokens": 20}
    chat = {"shape": "chat", "turns": 3, "think_time": "100ms", "input_tokens": 30, **both}
    agent = {"shape": "agent", "steps": 4, "tool_time": "100ms", "parallel": {"probability": 0.5, "width": 3}, **both}
    workload = Workload.model_validate({**load, "warmup": "1s", "classes": {"chat": chat, "agent": agent}})
    schedule, prompter = build(workload, seed=7), Prompter(seed=7)
    sent: list[Request] = []

    class Seen(MemoryEngine):
        async def send(self, request: Request) -> RequestRecord:
            sent.append(request)
            return await super().send(request)

    filed = drive_raw(schedule, Seen, prompter=prompter)
    measured = [record for record in filed if record.stage == "main" and record.outcome == "ok"]
    assert len({record.request_id for record in filed}) == len(filed)
    assert {record.outcome for record in filed} <= {"ok", "not_sent"}
    assert len(measured) >= 25
    words = {r.request_id: sum(len(m.content.split()) for m in r.messages) for r in sent}
    assert words == {request.request_id: request.input_tokens for request in sent}


def test_the_model_s_calls_go_into_the_history_and_are_not_filed() -> None:
    made = [{"id": "a"}]
    run = play(Plan([session(0, 0, 1, 1)]), {"s0.1a": Answer(tool_calls=made)})
    assert run.engine.sent[1].messages[1].extra == {"calls": made}
    assert [record.tool_calls for record in run.filed] == [None, None]
