"""The end of a drive in virtual time: the end of the last stage, the drain, and a stop before either."""

from dataclasses import replace

from tests.loadgen.plans import MS, STAGE1, STAGE2, Answer, Plan, closed, main_stage, play, session, warmup

# The drain


def test_the_drain_counts_from_the_end_of_the_stage() -> None:
    run = play(Plan([session(0, 100), session(1, 200)], drain_ms=500), {"s1.1a": Answer(ms=60_000, first_ms=1000)})
    assert run.outcomes() == {"s0.1a": "ok", "s1.1a": "cancelled"}
    cut = run.records["s1.1a"]
    assert (cut.end_ns, list(cut.arrival_ns)) == (10_500 * MS, [1200 * MS])
    assert run.ended_ms == 10_500


def test_the_drain_of_requests_by_number_counts_from_the_last_start() -> None:
    plan = Plan([session(0, 0, 1, 1)], (main_stage(100),), requests=2, drain_ms=700)
    run = play(plan, {"s0.1a": Answer(ms=3000), "s0.2a": Answer(ms=3000)})
    assert run.outcomes() == {"s0.1a": "ok", "s0.2a": "cancelled"}
    assert run.ended_ms == 3700


def test_a_session_cut_by_the_drain_leaves_its_later_turns_unsent_rather_than_skipped() -> None:
    run = play(Plan([session(0, 0, 1, 1)], (main_stage(1000),), drain_ms=100), {"s0.1a": Answer(ms=5000)})
    assert run.outcomes() == {"s0.1a": "cancelled", "s0.2a": "not_sent"}


def test_an_open_loop_without_end_waits_for_its_last_answer_too() -> None:
    plan = Plan([session(0, 0, 1, 1, pause_ms=100)], (main_stage(None),), requests=2, drain_ms=10)
    run = play(plan, lambda _: Answer(ms=60_000))
    assert set(run.outcomes().values()) == {"ok"}
    assert run.driven.stages == (main_stage(120_100),)


def test_a_closed_loop_by_number_waits_for_its_last_answer_whatever_the_drain() -> None:
    run = play(closed(concurrency=1, requests=1, stages=(main_stage(None),), drain_ms=10), {"s0.1a": Answer(ms=90_000)})
    assert run.outcomes() == {"s0.1a": "ok"}


def test_what_a_held_up_loop_had_no_time_to_begin_is_not_sent_with_its_due_time() -> None:
    """The first request holds the loop up until long after the end."""
    plan = Plan([session(n, 100 + 10 * n, 1, 1) for n in range(60)], (main_stage(1000),))
    run = play(plan, lambda key: Answer(blocks_ms=5000 if key == "s0.1a" else 0))
    late = [n for n in range(60) if run.outcomes()[f"s{n}.1a"] == "not_sent"]
    assert len(late) > 40
    assert [run.due_ms()[f"s{n}.1a"] for n in late] == [100 + 10 * n for n in late]
    assert {run.due_ms()[f"s{n}.2a"] for n in late} == {None}
    assert set(run.outcomes().values()) == {"ok", "not_sent"}


# Stopping


def test_a_stop_ends_the_sending_and_drains() -> None:
    chat, others = session(0, 0, 1, 1, pause_ms=9000), {1: 100, 2: 200, 3: 520, 4: 600, 5: 2000}
    plan = Plan([chat, *(session(n, due) for n, due in others.items())])
    run = play(plan, {"s1.1a": Answer(ms=900)}, stop_ms=505, max_in_flight=1)
    assert run.outcomes() == {"s0.1a": "ok", "s0.2a": "not_sent", "s1.1a": "ok", "s2.1a": "not_sent"}
    assert run.due_ms() == {"s0.1a": 0, "s0.2a": None, "s1.1a": 100, "s2.1a": 200}
    assert run.driven.interrupted_by == "SIGINT"
    assert run.driven.stages == (replace(main_stage(), end_ns=505 * MS),)
    assert run.ended_ms == 1400


def test_the_drain_after_a_stop_is_no_longer_than_any_other() -> None:
    run = play(Plan([session(0, 0)], drain_ms=700), {"s0.1a": Answer(ms=60_000)}, stop_ms=50)
    assert (run.outcomes(), run.ended_ms) == ({"s0.1a": "cancelled"}, 750)


def test_a_stop_at_once_cuts_what_is_in_flight() -> None:
    run = play(Plan([session(0, 0, 2, 1), session(1, 90)]), lambda _: Answer(ms=60_000), at_once_ms=100)
    assert run.outcomes() == {"s0.1a": "cancelled", "s0.1b": "cancelled", "s1.1a": "cancelled", "s0.2a": "not_sent"}
    assert run.ended_ms == 100


def test_a_second_stop_cuts_the_drain_short() -> None:
    run = play(Plan([session(0, 0)]), {"s0.1a": Answer(ms=60_000)}, stop_ms=50, at_once_ms=80)
    assert (run.outcomes(), run.ended_ms) == ({"s0.1a": "cancelled"}, 80)


def test_a_stop_in_the_drain_starts_a_shorter_one() -> None:
    plan = Plan([session(0, 0)], (main_stage(5000),), drain_ms=1000)
    run = play(plan, {"s0.1a": Answer(ms=60_000)}, stop_ms=2000)
    assert run.ended_ms == 3000
    assert run.driven.stages == plan.stages


def test_a_stop_leaves_out_stages_that_never_began() -> None:
    plan = Plan([session(0, 50, 1, 1), session(1, 250)], (warmup(100), STAGE1, STAGE2))
    run = play(plan, {"s0.1a": Answer(ms=60_000)}, at_once_ms=150)
    assert run.driven.stages == (warmup(100), replace(STAGE1, end_ns=150 * MS))
    assert run.stages() == {"s0.1a": "warmup", "s0.2a": "stage1"}


def test_a_stop_frees_the_users_of_a_closed_loop() -> None:
    run = play(closed(1, 1, pause_ms=5000, concurrency=2), {"s1.1a": Answer(ms=700)}, stop_ms=600)
    assert run.outcomes() == {"s0.1a": "ok", "s0.2a": "not_sent", "s1.1a": "ok", "s1.2a": "not_sent"}
