from itertools import permutations

import numpy as np
import pytest

from workloads.prompts import Calibration, Prompter
from workloads.request import Message
from workloads.schedule import build
from workloads.spec import Workload
from workloads.tools import HINT, ToolCosts


def sessions(n, seed=5, **spec):
    plan = build(Workload.model_validate({"classes": {"c": spec}}), seed).sessions()
    return [next(plan) for _ in range(n)]


def n_words(request):
    """The words of a prompt: of its messages and of the descriptions of its tools."""
    described = [tool["function"]["description"] for tool in request.body.get("tools", ())]
    return sum(len(text.split()) for text in [*described, *(m.content for m in request.messages)])


def turns(session):
    return [turn for this in session.rounds for turn in this.turns]


def test_a_chat_sends_all_that_was_said_before():
    spec = {"system_tokens": 100, "turns": 3, "input_tokens": 10, "output_tokens": 50, "think_time": "2s"}
    (session,) = sessions(1, **spec)
    assert [t.input_tokens for t in turns(session)] == [110, 110 + 50 + 10, 110 + 60 + 60]
    assert [t.number for t in turns(session)] == [1, 2, 3]
    assert [[(p.role, p.tokens) for p in t.passages] for t in turns(session)] == [
        [("system", 100), ("user", 10)],
        [("user", 10)],
        [("user", 10)],
    ]
    assert {this.pause_ns for this in session.rounds} == {2_000_000_000}


@pytest.mark.parametrize(("history", "scripted"), [("live", None), ("scripted", 50)])
def test_history(history, scripted):
    (session,) = sessions(1, turns=2, output_tokens=50, history=history)
    answers = [t.scripted_answer for t in turns(session)]
    assert [a.tokens if a else None for a in answers] == [scripted, scripted]
    assert scripted is None or len({a.key for a in answers}) == 2


def test_reasoning_asks_for_the_thinking_too():
    (session,) = sessions(1, shape="reasoning", input_tokens=20, thinking_tokens=700, output_tokens=300)
    (turn,) = turns(session)
    assert (turn.input_tokens, turn.output_tokens, turn.thinking_tokens, turn.body) == (20, 1000, 700, {})


def test_an_agent_s_context_grows_by_answers_and_tool_results():
    spec = {"steps": 3, "tools": 2, "tool_definition_tokens": 30, "system_tokens": 40, "input_tokens": 100}
    (session,) = sessions(1, shape="agent", tool_result_tokens=500, output_tokens=20, tool_time="3s", **spec)
    assert [p.tokens for p in turns(session)[0].passages] == [40, 100]
    assert [[p.tokens for p in t.tools] for t in turns(session)] == [[30, 30]] * 3
    assert [t.passages[-1].role for t in turns(session)] == ["user", "tool", "tool"]
    assert [t.input_tokens for t in turns(session)] == [200, 200 + 20 + 500, 200 + 2 * 520]
    assert session.rounds[0].pause_ns == 3_000_000_000


def test_tools_may_be_told_in_words():
    spec = {"steps": 2, "tools": 2, "tool_definition_tokens": 30, "system_tokens": 40, "input_tokens": 100}
    (session,) = sessions(1, shape="agent", tool_calls="text", tool_result_tokens=500, output_tokens=20, **spec)
    assert [p.tokens for p in turns(session)[0].passages] == [100, 100]  # 40 + 2 × 30, then the task
    assert {p.role for t in turns(session) for p in t.passages} == {"system", "user"}
    assert [(t.input_tokens, t.tools) for t in turns(session)] == [(200, ()), (200 + 20 + 500, ())]


@pytest.mark.parametrize(
    ("spec", "body"),
    [
        ({"effort": "low"}, {"reasoning_effort": "low"}),
        ({"effort": "low", "body": {"reasoning_effort": "max"}}, {"reasoning_effort": "max"}),
        (
            {"enable_thinking": True, "body": {"chat_template_kwargs": {"x": 1}}},
            {"chat_template_kwargs": {"enable_thinking": True, "x": 1}},
        ),
        ({"budget_field": "thinking_token_budget"}, {"thinking_token_budget": 700}),
        (
            {"enable_thinking": False, "budget_field": "chat_template_kwargs.thinking_budget"},
            {"chat_template_kwargs": {"enable_thinking": False, "thinking_budget": 700}},
        ),
    ],
)
def test_how_much_to_think_is_told_to_the_server(spec, body):
    (session,) = sessions(1, shape="reasoning", thinking_tokens=700, output_tokens=300, **spec)
    assert turns(session)[0].body == body


def test_parallel_calls_share_their_history_and_all_enter_it():
    spec = {"steps": 3, "input_tokens": 100, "tool_result_tokens": 10, "output_tokens": 5}
    (session,) = sessions(1, shape="agent", parallel={"probability": 1, "width": 3}, **spec)
    assert [len(this.turns) for this in session.rounds] == [1, 3, 3]
    assert [t.input_tokens for t in turns(session)] == [100, *[115] * 3, *[115 + 2 * 15 + 15] * 3]
    assert [t.number for t in turns(session)] == [1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize(
    "spec",
    [
        {"turns": 4, "system_tokens": 30},
        {"shape": "agent", "steps": 4, "tools": 1, "parallel": {"probability": 0.5, "width": 2}},
        {"shape": "rag"},
    ],
    ids=lambda spec: spec.get("shape", "chat"),
)
@pytest.mark.parametrize("tools", [ToolCosts(each_tokens=len(HINT.split())), None])
def test_prompts_are_as_long_as_planned(spec, tools):
    prompter = Prompter(5, Calibration(tools=tools))
    for session in sessions(5, **spec):
        history: tuple[Message, ...] = ()
        for this in session.rounds:
            requests = [prompter.request(turn, history, keep_text=False) for turn in this.turns]
            for turn, request in zip(this.turns, requests, strict=True):
                assert n_words(request) == turn.input_tokens
                assert ("tools" in request.body) == bool(tools and turn.tools)
            history = prompter.history(history, this.turns, requests, [(None, None)] * len(requests))


def test_documents_come_from_one_pool_by_popularity():
    documents = {"count": 50, "tokens": {"law": "uniform", "low": 10, "high": 90}, "top_k": 4, "popularity": {"s": 1}}
    plan = [turns(s)[0] for s in sessions(2000, shape="rag", documents=documents, input_tokens=7, system_tokens=9)]
    lengths: dict[tuple[int, ...], set[int]] = {}
    seen = np.zeros(50)
    for turn in plan:
        system, *found, question = turn.passages
        assert (system.tokens, question.tokens, len({p.key for p in found})) == (9, 7, 4)
        for p in found:
            lengths.setdefault(p.key, set()).add(p.tokens)
            seen[p.key[-1] - 1] += 1
    assert all(len(each) == 1 for each in lengths.values())
    assert len(lengths) == 50
    assert seen[0] == seen.max() > 3 * seen[25:].mean()
    first_choices = np.bincount([t.passages[1].key[-1] for t in plan], minlength=51)[1:]
    assert first_choices[0] < seen[0] / 3  # shuffled: the favourite does not always lead


def test_ranked_documents_come_most_popular_first():
    documents = {"count": 50, "top_k": 4, "order": "ranked"}
    for session in sessions(20, shape="rag", documents=documents):
        ranks = [p.key[-1] for p in turns(session)[0].passages[:-1]]
        assert ranks == sorted(ranks)


def test_even_popularity():
    documents = {"count": 8, "top_k": 2, "popularity": {"law": "uniform"}}
    found = [p.key[-1] for s in sessions(4000, shape="rag", documents=documents) for p in turns(s)[0].passages[:-1]]
    assert np.bincount(found, minlength=9)[1:] / 1000 == pytest.approx(np.ones(8), rel=0.1)


@pytest.mark.parametrize(("count", "top_k", "s"), [(5, 3, 0.0), (6, 2, 1.0), (40, 3, 1.5), (5, 4, 4.0), (7, 7, 1.0)])
def test_documents_are_drawn_without_replacement_by_weight(count, top_k, s):
    weights = np.arange(1.0, count + 1) ** -s
    expected = np.zeros(count)  # of the k draws, how often each document is among them
    for drawn in permutations(range(count), top_k):
        left = weights.sum() - np.cumsum([0.0, *weights[list(drawn[:-1])]])
        expected[list(drawn)] += np.prod(weights[list(drawn)] / left)
    documents = {"count": count, "top_k": top_k, "popularity": {"law": "zipf", "s": s} if s else {"law": "uniform"}}
    n = 4000
    found = [p.key[-1] for x in sessions(n, shape="rag", documents=documents) for p in turns(x)[0].passages[:-1]]
    share = np.bincount(found, minlength=count + 1)[1:] / n
    assert np.all(np.abs(share - expected) <= 4.5 * np.sqrt(expected * np.maximum(1 - expected, 0) / n) + 1e-9)


def test_a_class_may_have_its_own_model_and_body():
    (session,) = sessions(1, model="small", body={"temperature": 0.5})
    assert turns(session)[0].body == {"model": "small", "temperature": 0.5}


COLD = [
    {"turns": 3, "system_tokens": 30, "input_tokens": 10, "output_tokens": 5},
    {"turns": 3, "input_tokens": 1, "output_tokens": 2, "history": "scripted"},
    {"shape": "agent", "steps": 4, "tools": 1, "parallel": {"probability": 1, "width": 2}, "input_tokens": 9},
    {"shape": "rag", "documents": {"count": 3, "tokens": 20, "top_k": 2}, "system_tokens": 50},
]


@pytest.mark.parametrize("spec", COLD, ids=lambda spec: spec.get("shape", "chat"))
def test_cold_prompts_all_begin_otherwise_and_are_as_long_as_planned(spec):
    plan = build(Workload.model_validate({"cold": True, "classes": {"c": spec}}), 5).sessions()
    prompter = Prompter(5, Calibration(tools=ToolCosts(each_tokens=len(HINT.split()))))
    begins = []
    for session in (next(plan) for _ in range(20)):
        history: tuple[Message, ...] = ()
        for this in session.rounds:
            requests = [prompter.request(turn, history, keep_text=False) for turn in this.turns]
            for turn, request in zip(this.turns, requests, strict=True):
                begin = " ".join(request.messages[0].content.split()[:4])
                begins.append(begin)
                assert n_words(request) == turn.input_tokens
                assert all(begin in tool["function"]["description"] for tool in request.body.get("tools", ())[:1])
            history = prompter.history(history, this.turns, requests, [(None, None)] * len(requests))
    assert len(set(begins)) == len(begins) >= 20


def test_a_cold_prompt_is_no_longer_than_a_warm_one():
    spec = {"turns": 2, "system_tokens": 30, "input_tokens": 10, "output_tokens": 5}

    def lengths(*, cold):
        plan = build(Workload.model_validate({"cold": cold, "classes": {"c": spec}}), 5).sessions()
        return [t.input_tokens for t in turns(next(plan))]

    assert lengths(cold=False) == [40, 55]
    assert lengths(cold=True) == [40, 55]
