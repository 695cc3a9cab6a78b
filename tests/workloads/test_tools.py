import json

import pytest

from workloads.prompts import Calibration, Prompter
from workloads.request import Message, Passage, Turn
from workloads.tools import HINT, TOOL, ToolCosts, name, scripted_call

TOOLS = (Passage(TOOL, (7, 1), 30), Passage(TOOL, (7, 2), 30))
TASK, RESULT = Passage("user", (1,), 20), Passage(TOOL, (2,), 50)
FIRST = Turn("a", 1, (TASK,), 80, 10, tools=TOOLS)
SECOND = Turn("b", 2, (RESULT,), 140, 10, tools=TOOLS)
MADE = [
    {"id": "call_x", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
    {"id": "call_y", "type": "function", "function": {"name": "find_text", "arguments": "{}"}},
]


def roles(messages):
    return [(m.role, len(m.content.split()), sorted(m.extra)) for m in messages]


def history(prompter, answer):
    request = prompter.request(FIRST, (), keep_text=True)
    return prompter.history((), [FIRST], [request], [answer])


def test_tools_stand_in_the_body_of_each_request_and_give_way_to_the_template():
    prompter = Prompter(1, Calibration(tools=ToolCosts(frame_tokens=8, each_tokens=6, exchange_tokens=9)))
    first = prompter.request(FIRST, (), keep_text=True)
    second = prompter.request(SECOND, history(prompter, ("as it said", None)), keep_text=True)
    assert first.body["tools"] is second.body["tools"]
    for i, tool in enumerate(first.body["tools"]):
        function = tool["function"]
        assert (tool["type"], function["name"]) == ("function", name(i))
        assert function["parameters"]["required"] == ["query"]
        assert len(function["description"].split()) - len(HINT.split()) == 30 - 6 - 8 / 2
    assert roles(first.messages) == [("user", 20, [])]
    assert roles(second.messages)[2:] == [("tool", 50 - 9, ["tool_call_id"])]


def test_a_model_that_only_talks_has_a_call_put_beside_its_words():
    prompter = Prompter(1)
    said = history(prompter, ("as it said", None))
    assert said[-1].content == "as it said"
    (call,) = said[-1].extra["tool_calls"]
    assert call == scripted_call("a", 1)
    assert json.loads(call["function"]["arguments"])
    answered = prompter.request(SECOND, said, keep_text=True).messages[-1]
    assert answered.extra == {"tool_call_id": call["id"]}


def test_the_model_s_own_calls_are_answered_each():
    prompter = Prompter(1)
    said = history(prompter, (None, MADE))
    assert said[-1] == Message("assistant", "", {"tool_calls": MADE})
    new = prompter.request(SECOND, said, keep_text=True).messages[len(said) :]
    assert [m.extra["tool_call_id"] for m in new] == ["call_x", "call_y"]
    assert roles(new) == [("tool", 25, ["tool_call_id"])] * 2
    assert new[0].content != new[1].content


def test_a_script_is_kept_to_whatever_the_model_calls():
    prompter = Prompter(1)
    scripted = Turn("a", 1, (TASK,), 80, 10, tools=TOOLS, scripted_answer=Passage("assistant", (9,), 4))
    message = prompter.answer(scripted, "as it said", MADE)
    assert message.content == prompter.text(Passage("assistant", (9,), 4))
    assert message.extra["tool_calls"] == [scripted_call("a", 1)]


def test_where_tools_are_refused_they_are_told_in_words():
    prompter = Prompter(1, Calibration(tools=None))
    said = history(prompter, ("as it said", MADE))
    assert roles(said) == [("system", 60, []), ("user", 20, []), ("assistant", 3, [])]
    request = prompter.request(SECOND, said, keep_text=True)
    assert roles(request.messages)[3:] == [("user", 50, [])]
    assert "tools" not in request.body


@pytest.mark.parametrize("tools", [ToolCosts(), None])
def test_calls_side_by_side_all_enter_the_history_and_the_last_goes_on(tools):
    prompter = Prompter(1, Calibration(tools=tools))
    said = history(prompter, ("as it said", MADE[:1]))
    round_ = [Turn(f"b{i}", 2, (Passage(TOOL, (2, i), 50),), 140, 10, tools=TOOLS) for i in (1, 2, 3)]
    requests = [prompter.request(turn, said, keep_text=True) for turn in round_]
    after = prompter.history(said, round_, requests, [(f"answer {i}", None) for i in range(3)])
    new = after[len(said) :]
    keys = (["tool_call_id"], ["tool_calls"]) if tools else ([], [])
    assert roles(new) == [("tool" if tools else "user", 50, keys[0]), ("assistant", 2, keys[1])] * 3
    if tools:
        calls = [m.extra["tool_calls"][0]["id"] for m in (said[-1], *new[1::2])]
        assert [m.extra["tool_call_id"] for m in new[::2]] == calls[:-1]
        assert len(set(calls)) == 4
    assert after[: len(said)] == said
