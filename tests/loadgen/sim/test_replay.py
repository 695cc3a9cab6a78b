import dataclasses
from collections import Counter
from dataclasses import fields
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analysis.record import ANSWER, THINKING, RequestRecord
from analysis.run import Run
from analysis.summary import summarize
from loadgen.sim.core import ClusterConfig, SimConfig
from loadgen.sim.kv import BLOCK_TOKENS
from loadgen.sim.prefixes import answer_of, block_hashes, prompt_of, request_hashes, said_after
from loadgen.sim.replay import simulate
from tests.loadgen.plans import MS, Plan, main_stage, session
from tests.loadgen.sim.clusters import H100
from tests.loadgen.sim.reference import driven
from tests.loadgen.test_drive_any_plan import plans
from workloads.prompts import Prompter
from workloads.request import HEAD, Passage, Turn
from workloads.schedule import build
from workloads.spec import Workload

UNSAID = {"chars", "text"}


def records_of(schedule, config, **options):
    records = []
    return records, simulate(schedule, config, records.append, **options)


def told(records):
    """What records say, by request, but for text."""
    names = [f.name for f in fields(RequestRecord) if f.name not in UNSAID]
    return {r.request_id: {name: getattr(r, name) for name in names} for r in records}


def lengthened(plan, prompts, outputs):
    """The same plan with prompts and answers of these lengths, one after the other."""

    def change(session):
        # Which of two that leave at the same instant goes first is nobody's promise: so no two sessions do, but those
        # with which users begin, and these begin with one turn.
        own_ns = 7_000 * (session.number + 1)
        made = [
            replace(r, turns=tuple(turn(t) for t in (r.turns if i else r.turns[:1])), pause_ns=r.pause_ns + own_ns + i)
            for i, r in enumerate(session.rounds)
        ]
        due_ns = None if session.due_ns is None else session.due_ns + own_ns
        return replace(session, rounds=tuple(made), due_ns=due_ns)

    def turn(t):
        which = sum(t.request_id.encode())
        lengths = {"input_tokens": prompts[which % len(prompts)], "output_tokens": outputs[which % len(outputs)]}
        return replace(t, **lengths, thinking_tokens=min(which % 3, lengths["output_tokens"] - 1))

    made = plan.made
    return dataclasses.replace(plan, made=(lambda n: change(made(n))) if callable(made) else [change(s) for s in made])


configs = st.sampled_from([
    SimConfig(H100, 512, prefix_cache=False),
    SimConfig(H100, 0, kv_tokens=4000, prefix_cache=False),
    SimConfig(H100, 512, draft_tokens=2, acceptance=0.7, prefix_cache=False),
    ClusterConfig(SimConfig(H100, 512, prefix_cache=False), 2, "least_loaded", prefill_replicas=1),
])  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(
    plan=plans(),
    config=configs,
    prompts=st.lists(st.integers(1, 6000), min_size=1, max_size=5),
    outputs=st.lists(st.integers(1, 200), min_size=1, max_size=5),
    limit=st.none() | st.integers(1, 4),
)
def test_a_replay_is_what_the_driver_does(plan, config, prompts, outputs, limit):
    plan = lengthened(plan, prompts, outputs)
    reference, was = driven(plan, config, limit)
    records, ended = records_of(plan, config, max_in_flight=limit)
    assert told(records) == told(reference)
    assert len(records) == len(reference)
    assert ended == was


def test_what_can_never_run_is_refused_and_the_rest_of_its_session_skipped():
    plan = lengthened(Plan([session(0, 0, 1, 1), session(1, 0)]), [131_070], [20])
    records, _ = records_of(plan, SimConfig(H100))
    assert Counter(r.outcome for r in records) == {"http_error": 2, "skipped": 1}
    assert {r.error for r in records if r.error} == {"prompt and answer need more than the context of 131072 tokens"}


def test_users_who_are_always_refused_do_not_stop_the_clock():
    plan = lengthened(Plan(lambda n: session(n, None), (main_stage(20),), "closed", concurrency=2), [131_070], [20])
    records, ended = records_of(plan, SimConfig(H100))
    assert {r.outcome for r in records} == {"http_error"}
    assert ended.ended_ns == 20 * MS
    assert 30 < len(records) <= 40


def test_an_answer_that_is_late_is_cut_when_the_drain_ends():
    plan = lengthened(Plan([session(0, 0), session(1, 900)], (main_stage(1000),), drain_ms=500), [100], [400])
    records, ended = records_of(plan, SimConfig(H100))
    first, second = sorted(records, key=lambda r: r.request_id)
    assert (first.outcome, second.outcome) == ("cancelled", "cancelled")
    assert first.end_ns == second.end_ns == ended.ended_ns == 1500 * MS
    assert len(first.arrival_ns) > len(second.arrival_ns) > 50
    assert (first.prompt_tokens, first.completion_tokens) == (None, None)


def test_several_tokens_in_an_event_are_thought_up_to_the_event_that_goes_beyond():
    plan = lengthened(Plan([session(0, 0)]), [100], [60])
    plan = dataclasses.replace(plan, made=[replace(plan.made[0], rounds=(replace(plan.made[0].rounds[0], turns=tuple(
        replace(t, thinking_tokens=20) for t in plan.made[0].rounds[0].turns)),))])  # fmt: skip
    (record,), _ = records_of(plan, SimConfig(H100, draft_tokens=3, acceptance=0.8))
    assert sum(record.n_tokens) == record.completion_tokens == 60
    assert len(record.n_tokens) == len(record.kind) == len(record.chars) == len(record.read_id) < 40
    before = [sum(record.n_tokens[:i]) for i in range(len(record.n_tokens))]
    assert list(record.kind) == [THINKING if n < 20 else ANSWER for n in before]


def test_samples_are_taken_as_long_as_the_run_lasts():
    samples = []
    plan = lengthened(Plan([session(i, 100 * i) for i in range(20)]), [500], [100])
    take = lambda now_ns, cluster: samples.append((now_ns, cluster.running, cluster.totals.finished))  # noqa: E731
    records, ended = records_of(plan, SimConfig(H100), on_sample=take, sample_every_ns=250 * MS)
    assert [now_ns for now_ns, _, _ in samples] == list(range(0, ended.ended_ns + 1, 250 * MS))
    plain, _ = records_of(plan, SimConfig(H100))
    assert told(records) == told(plain)
    for now_ns, running, finished in samples:
        assert finished == sum(r.end_ns <= now_ns for r in records)
        assert running <= sum(r.sent_ns < now_ns < r.end_ns for r in records)


# Prefixes.


def workload(**classes):
    arrivals = {"process": "poisson", "rate": "4/s"}
    return Workload.model_validate({"name": "w", "arrivals": arrivals, "duration": "20s", "classes": classes})


CHAT = {"shape": "chat", "turns": 4, "think_time": "1s", "system_tokens": 70, "input_tokens": 33, "output_tokens": 41}
RAG = {"shape": "rag", "system_tokens": 70, "input_tokens": 20, "output_tokens": 9,
       "documents": {"count": 3, "tokens": 50, "top_k": 2, "order": "shuffled"}}  # fmt: skip
AGENT = {"shape": "agent", "steps": 4, "tools": 2, "tool_result_tokens": 60, "output_tokens": 25,
         "parallel": {"probability": 0.6, "width": 2}}  # fmt: skip
THINK = {"shape": "reasoning", "input_tokens": 50, "thinking_tokens": 40, "output_tokens": 30}


def conversations(work, n=12):
    """(turn, what was said before it) of the first sessions of a workload."""
    for made in islice(build(work, 3).sessions(), n):
        said = ()
        for round_ in made.rounds:
            yield from ((turn, said) for turn in round_.turns)
            said = said_after(said, round_.turns)


@pytest.mark.parametrize("cold", [False, True])
def test_blocks_are_equal_where_the_words_of_prompts_are(cold):
    work = workload(chat=CHAT, rag=RAG, agent=AGENT, old=CHAT | {"history": "scripted"})
    work = work.model_copy(update={"cold": cold})
    prompter = Prompter(1)
    hash_of, words_of = {}, {}
    for turn, said in conversations(work):
        prompt = prompt_of(turn, said)
        words = [word for passage in prompt for word in prompter.text(passage).split()]
        assert len(words) == turn.input_tokens
        hashes = block_hashes(prompt)
        assert len(hashes) == len(words) // BLOCK_TOKENS
        for i, value in enumerate(hashes, 1):
            prefix = tuple(words[: i * BLOCK_TOKENS])
            assert hash_of.setdefault(prefix, value) == value
            assert words_of.setdefault(value, prefix) == prefix
    assert len(hash_of) < sum(turn.input_tokens // BLOCK_TOKENS for turn, _ in conversations(work)) or cold


def test_the_prompt_as_hashed_is_the_prompt_as_written():
    """The order of passages is that of the texts in the messages that the prompter makes."""
    work = workload(chat=CHAT, rag=RAG, agent=AGENT).model_copy(update={"cold": True})
    prompter = Prompter(1)
    for made in islice(build(work, 3).sessions(), 12):
        said, history = (), ()
        for round_ in made.rounds:
            requests = []
            for turn in round_.turns:
                messages = prompter.request(turn, history, keep_text=False).messages
                written = " ".join(message.content for message in messages)
                spoken_of = [passage for passage in prompt_of(turn, said) if passage not in turn.tools]
                assert written == " ".join(prompter.text(passage) for passage in spoken_of)
                requests.append(prompter.request(turn, history, keep_text=False))
            history = prompter.history(history, round_.turns, requests, [(None, None)] * len(requests))
            said = said_after(said, round_.turns)


def test_an_answer_is_found_by_the_next_turn_unless_it_was_thought_or_scripted():
    key = (1, 2, 3)
    turn = Turn("a", 1, (Passage("user", key, 40),), 40, 30)
    hashes = request_hashes(turn, ())
    assert len(hashes) == 70 // BLOCK_TOKENS
    assert hashes == block_hashes([*said_after((), [turn]), Passage("user", (9,), 64)])[: len(hashes)]
    for changed in (replace(turn, thinking_tokens=5), replace(turn, scripted_answer=Passage("assistant", (7,), 30))):
        assert request_hashes(changed, ()) == block_hashes(turn.passages)
    assert answer_of(replace(turn, thinking_tokens=12)).tokens == 18
    headed = replace(turn, passages=(Passage(HEAD, (4,), 4), *turn.passages), input_tokens=44)
    assert request_hashes(headed, ()) != hashes


def test_a_conversation_is_found_in_the_cache():
    records, _ = records_of(build(workload(chat=CHAT), 1), SimConfig(H100))
    for record in records:
        if record.outcome != "ok":
            continue
        # All that was said before, but for its last token and what is left of a block; at first, the system prompt.
        known = record.prompt_tokens - 33 - 1 if record.turn > 1 else 64
        assert record.cached_tokens == known // BLOCK_TOKENS * BLOCK_TOKENS or record.session == 0


def test_primers_go_before_the_run():
    schedule = build(workload(chat=CHAT).model_copy(update={"warm": True}), 1)
    cold, _ = records_of(schedule, SimConfig(H100))
    warm, ended = records_of(schedule, SimConfig(H100), primers=schedule.primers())
    assert len(warm) == len(cold)
    first = [min((r for r in records if r.outcome == "ok"), key=lambda r: r.sent_ns) for records in (cold, warm)]
    assert [r.cached_tokens for r in first] == [0, 64]
    assert first[1].sent_ns == first[0].sent_ns > 0
    assert ended.ended_ns > 0


def test_a_simulated_run_is_summarized_like_any_other():
    schedule = build(workload(chat=CHAT, think=THINK), 1)
    records, ended = records_of(schedule, ClusterConfig(SimConfig(H100), 2))
    stages = [
        {"name": s.name, "start_ns": s.start_ns, "end_ns": s.end_ns, "measured": s.measured} for s in ended.stages
    ]
    summary = summarize(Run.from_records({"stages": stages, "loop": "open"}, records))
    assert summary["requests"]["planned"] == len(records)
    assert summary["requests"]["ok"] == sum(r.outcome == "ok" for r in records) > 100
    assert summary["metrics"]["itl_s"]["p50"] == pytest.approx(0.006, rel=0.1)
