"""Whatever plan, server and user do: each planned request gives one record, and nothing leaves when it may not."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.record import NEVER_SENT
from loadgen.drive import Live, stage_at
from tests.loadgen.plans import Answer, Outcome, Plan, main_stage, play, session, warmup

durations = st.integers(1, 3000)
outcomes = st.sampled_from(["ok", "ok", "ok", "http_error", "truncated"])
widths = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    end_ms = draw(st.integers(200, 4000))
    stages = (warmup(100), main_stage(end_ms, start_ms=100)) if draw(st.booleans()) else (main_stage(end_ms),)
    drain_ms = draw(st.integers(0, 2000))
    shapes = draw(st.lists(widths, min_size=1, max_size=12))
    pause_ms = draw(st.integers(0, 500))
    if draw(st.booleans()):
        made = lambda n: session(n, None, *shapes[n % len(shapes)], pause_ms=pause_ms)  # noqa: E731
        return Plan(made, stages, "closed", drain_ms, draw(st.integers(1, 5)), draw(st.none() | st.integers(1, 30)))
    dues = sorted(draw(st.lists(st.integers(0, end_ms - 1), min_size=len(shapes), max_size=len(shapes))))
    sessions = [session(n, dues[n], *shape, pause_ms=pause_ms) for n, shape in enumerate(shapes)]
    return Plan(sessions, stages, "open", drain_ms, None, draw(st.none() | st.just(sum(map(sum, shapes)))))


@settings(deadline=None, max_examples=60)
@given(
    plan=plans(),
    answers=st.lists(st.builds(Answer, ms=durations, outcome=outcomes), min_size=1, max_size=7),
    limit=st.none() | st.integers(1, 4),
    stop_ms=st.none() | st.integers(0, 5000),
    at_once_ms=st.none() | st.integers(0, 5000),
)
def test_every_plan_gives_each_request_one_record(plan, answers, limit, stop_ms, at_once_ms) -> None:  # type: ignore[no-untyped-def]
    answer_to = lambda request_id: answers[sum(request_id.encode()) % len(answers)]  # noqa: E731
    run = play(plan, answer_to, stop_ms=stop_ms, at_once_ms=at_once_ms, max_in_flight=limit)
    assert len(run.records) == len(run.filed)
    check_completeness(plan, run, stopped=stop_ms is not None or at_once_ms is not None)
    check_times(plan, run)
    assert run.engine.most_in_flight <= (limit or 10**9)
    assert {r.request_id for r in run.filed if r.outcome not in NEVER_SENT} == {q.request_id for q in run.engine.sent}
    assert run.live == Live(sent=len(run.engine.sent), in_flight=0)


def check_completeness(plan: Plan, run: Outcome, stopped: bool) -> None:
    """Every turn of every session that began, and of every one planned if nobody stopped the drive."""
    filed = Counter(record.session for record in run.filed)
    taken = plan.made if not callable(plan.made) else [plan.made(n) for n in range(len(filed))]
    planned = {s.number: sum(len(r.turns) for r in s.rounds) for s in taken}
    if plan.loop == "closed":
        last = max(filed)
        assert filed.keys() == set(range(last + 1))
        assert all(filed[n] == planned[n] or (n == last and plan.requests) for n in filed)
        if plan.requests and len(plan.stages) == 1 and not stopped:
            assert filed.total() == plan.requests
    elif not stopped:
        assert filed == planned
    else:
        assert all(filed[n] == planned[n] for n in filed)


def check_times(plan: Plan, run: Outcome) -> None:
    for record in run.filed:
        if record.sent_ns is not None:
            assert record.sent_ns >= 0
            assert record.due_ns is None or record.sent_ns >= record.due_ns
            assert plan.requests is not None or record.sent_ns < (plan.stages[-1].end_ns or 0)
            since_ns = record.sent_ns if record.due_ns is None else record.due_ns
            assert record.stage == stage_at(plan.stages, since_ns).name
