import pickle
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.request import turn_count
from workloads.schedule import build
from workloads.spec import Workload, WorkloadError

CLASSES = {
    "chat": {"weight": 3, "turns": {"law": "geometric", "mean": 3}, "think_time": "1s", "system_tokens": 10},
    "rag": {"weight": 1, "shape": "rag", "documents": {"count": 20, "top_k": 3}, "system_tokens": 10},
    "agent": {"weight": 1, "shape": "agent", "steps": 3, "parallel": {"probability": 0.5, "width": 2}},
    "think": {"weight": 1, "shape": "reasoning", "input_tokens": {"law": "normal", "mean": 50, "std": 9}},
}


def planned(seed=1, **keys):
    return build(Workload.model_validate({"classes": CLASSES, **keys}), seed)


def single(seed=1, **keys):
    return build(Workload.model_validate(keys), seed)


def stages(schedule):
    return [(s.name, s.start_ns / 1e9, s.end_ns and s.end_ns / 1e9, s.measured) for s in schedule.stages]


def test_constant_arrivals_are_due_on_the_nanosecond():
    schedule = single(arrivals={"process": "constant", "rate": "50/s"}, duration="20s")
    assert [s.due_ns for s in schedule.sessions()] == [i * 20_000_000 for i in range(1000)]
    assert stages(schedule) == [("main", 0, 20, True)]
    assert schedule.stages[0].offered_rps == 50


def test_warm_up_is_a_stage_of_its_own_and_the_process_runs_through():
    schedule = single(arrivals={"process": "constant", "rate": "30/s"}, duration="2s", warmup="500ms")
    assert stages(schedule) == [("warmup", 0, 0.5, False), ("main", 0.5, 2.5, True)]
    due = [s.due_ns for s in schedule.sessions()]
    assert due == pytest.approx([i / 30 * 1e9 for i in range(75)], abs=1)
    assert sum(t >= 500_000_000 for t in due) == 60


def test_each_stage_has_its_rate():
    rates = [{"rate": "2/s", "duration": "30s"}, {"rate": "8/s", "duration": "30s"}]
    schedule = single(arrivals={"process": "constant"}, stages=rates, warmup="1s")
    assert stages(schedule) == [("warmup", 0, 1, False), ("stage1", 1, 31, True), ("stage2", 31, 61, True)]
    assert [s.offered_rps for s in schedule.stages] == [2, 2, 8]
    due = [s.due_ns / 1e9 for s in schedule.sessions()]
    assert [sum(a <= t < b for t in due) for a, b in ((0, 1), (1, 31), (31, 61))] == [2, 60, 240]


@pytest.mark.parametrize("process", [{"process": "constant"}, {"process": "poisson"}, {"process": "gamma", "cv": 2}])
def test_requests_last_as_long_as_the_rate_says(process):
    schedule = single(arrivals={"rate": "40/s", **process}, requests=100, warmup="1s")
    assert stages(schedule)[-1] == ("main", 1, 3.5, True)
    due = [s.due_ns for s in schedule.sessions()]
    assert sum(t >= 10**9 for t in due) == 100
    assert all(t < 3_500_000_000 for t in due)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**64), requests=st.integers(1, 700), warmup=st.sampled_from(["0s", "3s"]))
def test_sessions_are_cut_to_the_requests_asked_for(seed, requests, warmup):
    schedule = planned(seed, arrivals={"rate": "20/s"}, requests=requests, warmup=warmup)
    start_ns = schedule.stages[-1].start_ns
    measured = [turn_count(s) for s in schedule.sessions() if s.due_ns >= start_ns]
    assert sum(measured) == requests
    assert min(measured) >= 1


def test_several_turns_a_session_end_when_they_are_done():
    # The last turn of a session comes when the others have been answered, which no plan can tell.
    assert planned(arrivals={"rate": "20/s"}, requests=50).stages[-1].end_ns is None


def test_a_rate_may_count_requests():
    keys = {"classes": {"c": {"turns": 4}}, "duration": "10s"}
    by_request = single(arrivals={"process": "constant", "rate": "8/s", "unit": "requests"}, **keys)
    by_session = single(arrivals={"process": "constant", "rate": "2/s"}, **keys)
    assert [s.due_ns for s in by_request.sessions()] == [i * 500_000_000 for i in range(20)]
    assert by_request.stages[0].offered_rps == by_session.stages[0].offered_rps == 8


def test_the_mean_number_of_turns_is_that_of_the_sessions():
    schedule = planned(arrivals={"rate": "1/s"}, duration="4000s")
    per_session = schedule.stages[0].offered_rps
    # chat 3, rag 1, think 1, agent 1 + 2 × 1.5 = 4, weighted 3 : 1 : 1 : 1.
    assert per_session == pytest.approx((3 * 3 + 1 + 1 + 4) / 6)
    plan = list(schedule.sessions())
    assert sum(map(turn_count, plan)) / len(plan) == pytest.approx(per_session, rel=0.05)


def test_classes_come_by_weight():
    names = [s.class_name for s in islice(planned().sessions(), 6000)]
    assert {n: round(names.count(n) / 1000, 1) for n in CLASSES} == pytest.approx(
        {"chat": 3, "rag": 1, "agent": 1, "think": 1}, abs=0.15
    )


def test_a_closed_loop_goes_on_for_ever_without_due_times():
    schedule = planned(concurrency=8, duration="30s", warmup="5s")
    assert (schedule.loop, schedule.concurrency, schedule.requests) == ("closed", 8, None)
    assert stages(schedule) == [("warmup", 0, 5, False), ("main", 5, 35, True)]
    assert schedule.stages[-1].offered_rps is None
    numbers = [(s.number, s.due_ns) for s in islice(schedule.sessions(), 3000)]
    assert numbers == [(i, None) for i in range(3000)]
    counted = planned(concurrency=8, requests=50)
    assert (counted.requests, counted.stages[-1].end_ns) == (50, None)


def test_users_with_a_period_are_staggered():
    schedule = single(users=4, every="10s", duration="30s", warmup="5s")
    due = [s.due_ns / 1e9 for s in schedule.sessions()]
    assert due == [2.5 * i for i in range(14)]  # each of four users every 10 s, a quarter of that apart
    assert stages(schedule) == [("warmup", 0, 5, False), ("main", 5, 35, True)]
    assert (schedule.loop, schedule.concurrency, schedule.stages[-1].offered_rps) == ("open", None, 0.4)


def test_a_stage_may_be_a_ramp():
    ramp = [{"rate": "2/s", "duration": "10s"}, {"from": "2/s", "to": "8/s", "duration": "30s"}]
    schedule = single(arrivals={"process": "constant"}, stages=ramp, warmup="1s")
    assert [s.offered_rps for s in schedule.stages] == [2, 2, 5]
    due = [s.due_ns / 1e9 - 11 for s in schedule.sessions()][22:]
    assert [2 * t + t**2 / 10 for t in due] == pytest.approx(list(range(150)), abs=1e-6)


def test_bursts_and_waves_begin_anew_in_each_stage():
    bursts = {"process": "onoff", "rate": "20/s", "burst": "1s", "pause": "3s"}
    due = [s.due_ns / 1e9 for s in single(arrivals=bursts, duration="40s", warmup="5s").sessions()]
    assert max((t if t < 5 else t - 5) % 4 for t in due) < 1
    wave = {"process": "sine", "rate": "50/s", "period": "40s", "amplitude": 1}
    due = [s.due_ns / 1e9 for s in single(arrivals=wave, duration="40s").sessions()]
    up = sum(t < 20 for t in due)
    assert up / len(due) == pytest.approx(0.5 + 1 / 3.14159, abs=0.04)  # the integral of 1 + sin over half a period


def test_a_rate_of_requests_is_divided_by_the_turns_on_a_ramp_too():
    arrivals = {"process": "constant", "unit": "requests"}
    ramp = [{"from": "2/s", "to": "8/s", "duration": "30s"}]
    schedule = single(arrivals=arrivals, stages=ramp, classes={"c": {"turns": 5}})
    assert len(list(schedule.sessions())) == 30
    assert schedule.stages[0].offered_rps == 5


LOADS = [
    {"arrivals": {"rate": "20/s", "process": "onoff", "burst": "1s", "pause": "2s"}, "duration": "20s"},
    {"arrivals": {"rate": "20/s", "process": "sine", "period": "9s", "amplitude": 0.7}, "requests": 300},
    {"stages": [{"from": "5/s", "to": "40/s", "duration": "10s"}]},
    {"arrivals": {"rate": "20/s"}, "duration": "20s", "warmup": "2s"},
    {"arrivals": {"rate": "20/s", "process": "gamma", "cv": 3}, "requests": 300},
    {"stages": [{"rate": "5/s", "duration": "10s"}, {"rate": "40/s", "duration": "10s"}]},
    {"concurrency": 5, "requests": 100},
]


@pytest.mark.parametrize("load", LOADS, ids=str)
@pytest.mark.parametrize("seed", [0, 7, 2**63])
def test_the_seed_alone_decides(load, seed):
    def whole(s):
        return pickle.dumps(list(islice(planned(s, **load).sessions(), 800)))

    assert whole(seed) == whole(seed)
    assert whole(seed) != whole(seed + 1)


@pytest.mark.parametrize("load", LOADS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_shards_together_are_the_whole(load, n):
    schedule = planned(7, **load)
    whole = list(islice(schedule.sessions(), 700))
    shards = [schedule.shard(i, n) for i in range(n)]
    parts = [list(islice(shard.sessions(), len(whole[i::n]))) for i, shard in enumerate(shards)]
    assert [pickle.dumps(part) for part in parts] == [pickle.dumps(whole[i::n]) for i in range(n)]
    if schedule.loop == "open":
        assert sum(len(list(shard.sessions())) for shard in shards) == len(list(schedule.sessions()))
    else:
        assert sum(shard.concurrency for shard in shards) == 5
        assert sum(shard.requests for shard in shards) == 100


def test_a_shard_of_a_shard():
    whole = [s.number for s in islice(planned(concurrency=1).sessions(), 24)]
    part = planned(concurrency=1).shard(1, 2).shard(2, 3)
    assert [s.number for s in islice(part.sessions(), 4)] == whole[5::6]


def test_request_ids_and_texts_are_unique_save_for_what_a_class_shares():
    plan = list(islice(planned().sessions(), 600))
    turns = [t for s in plan for r in s.rounds for t in r.turns]
    assert len({t.request_id for t in turns}) == len(turns)
    own = [t.passages[-1].key for t in turns]
    assert len(set(own)) == len(own)
    shared = {p.key for t in turns for p in t.passages[:-1]}
    assert len(shared) == 2 + 20  # two system prompts and the documents
    other = {p.key for s in islice(planned(2).sessions(), 600) for r in s.rounds for t in r.turns for p in t.passages}
    assert not other & (shared | set(own))


def test_a_class_keeps_its_lengths_when_another_one_changes():
    def lengths(outputs):
        classes = CLASSES | {"rag": {**CLASSES["rag"], "output_tokens": outputs}}
        plan = islice(build(Workload.model_validate({"classes": classes}), 1).sessions(), 500)
        return [[t.input_tokens for r in s.rounds for t in r.turns] for s in plan if s.class_name == "chat"]

    assert lengths(5) == lengths({"law": "normal", "mean": 50, "std": 9})


def test_primers_are_the_prefixes_that_prompts_share():
    assert list(planned().primers()) == []
    classes = {
        "chat": {"system_tokens": 10},
        "rag": {"shape": "rag", "system_tokens": 20, "documents": {"count": 3, "tokens": 100, "top_k": 2}},
        "bare": {},
    }
    schedule = single(classes=classes, warm=True, concurrency=1)
    primers = list(schedule.primers())
    assert [[p.tokens for p in t.passages] for t in primers] == [[10, 1], *[[20, 100, 1]] * 3]
    assert {t.output_tokens for t in primers} == {1}
    assert [t.input_tokens for t in primers] == [11, 121, 121, 121]
    plan = list(islice(schedule.sessions(), 50))
    turns = [t for s in plan for r in s.rounds for t in r.turns]
    assert not {t.request_id for t in turns} & {t.request_id for t in primers}
    begins = {tuple(p.key for p in t.passages[:-1]) for t in primers}
    assert {tuple(p.key for p in t.passages[:-1])[:2] for t in turns if t.passages[:-1]} <= begins
    assert list(schedule.shard(1, 2).primers()) == primers


@pytest.mark.parametrize(
    "keys",
    [
        {"arrivals": {"rate": "1000/s"}, "duration": "9000h"},
        {"arrivals": {"rate": "1/s"}, "requests": 10**9},
        {"stages": [{"rate": 1e9, "duration": "1000h"}]},
        {"arrivals": {"rate": "5/s"}, "warmup": "9000h", "duration": "5s"},
    ],
)
def test_a_plan_that_no_memory_holds_is_refused(keys):
    with pytest.raises(WorkloadError, match="over 20,000,000 sessions in one plan"):
        planned(**keys)
