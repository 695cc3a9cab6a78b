import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sim.errors import ApiError
from loadgen.sim.tools import Function, calls_in, functions_called


def tool(name, **properties):
    schemas = {key: {"type": kind} for key, kind in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": schemas}}}


FIND, READ = tool("find", page="integer", query="string"), tool("read")
NAMED = {"type": "function", "function": {"name": "read"}}
ASKED = {"x-loadgen-tool-calls": "3"}


@pytest.mark.parametrize(
    ("body", "headers", "auto", "names"),
    [
        ({}, {}, 0, []),
        ({}, ASKED, 1, []),  # there is nothing to call
        ({"tools": [FIND, READ]}, {}, 0, []),
        ({"tools": [FIND, READ]}, {}, 1, ["find"]),
        ({"tools": [FIND, READ], "tool_choice": "auto"}, ASKED, 0, ["find", "read", "find"]),
        ({"tools": [FIND, READ], "chat_template_kwargs": {"tool_calls": 2}}, {}, 0, ["find", "read"]),
        ({"tools": [FIND, READ], "chat_template_kwargs": {"tool_calls": 0}}, {}, 5, []),
        ({"tools": [FIND, READ], "parallel_tool_calls": False}, ASKED, 0, ["find"]),
        ({"tools": [FIND, READ], "tool_choice": "none"}, ASKED, 1, []),
        ({"tools": [FIND, READ], "tool_choice": "required"}, {}, 0, ["find"]),
        ({"tools": [FIND, READ], "tool_choice": NAMED}, {}, 0, ["read"]),
        ({"tools": [FIND, READ], "tool_choice": NAMED}, ASKED, 0, ["read"] * 3),
    ],
)
def test_what_is_called(body, headers, auto, names):
    assert [function.name for function in functions_called(body, headers, auto)] == names


def test_the_words_go_into_the_first_text():
    assert functions_called({"tools": [FIND], "tool_choice": "required"}, {}, 0) == (Function("find", "query"),)
    assert functions_called({"tools": [READ], "tool_choice": "required"}, {}, 0) == (Function("read", "input"),)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"tools": "find"}, {}),
        ({"tools": ["find"]}, {}),
        ({"tools": [{"type": "function"}]}, {}),
        ({"tools": [{"function": {"name": 5}}]}, {}),
        ({"tool_choice": "required"}, {}),
        ({"tools": [FIND], "tool_choice": NAMED}, {}),
        ({"tools": [FIND], "tool_choice": "sometimes"}, {}),
        ({"tools": [FIND]}, {"x-loadgen-tool-calls": "some"}),
        ({"tools": [FIND]}, {"x-loadgen-tool-calls": "129"}),
        ({"tools": [FIND], "chat_template_kwargs": {"tool_calls": 129}}, {}),
    ],
)
def test_what_cannot_be_called(body, headers):
    with pytest.raises(ApiError) as refused:
        functions_called(body, headers, 0)
    assert refused.value.status == 400


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 40), st.integers(0, 60))
def test_calls_share_out_all_tokens_and_are_json(n, before, tokens, offset):
    calls = calls_in([Function(f"f{i}", 'a "b"') for i in range(n)], before + 1, before + tokens)
    spans = [number for call in calls for number in range(call.first, call.last + 1)]
    assert spans == list(range(before + 1, before + tokens + 1))
    assert [(call.index, call.function.name) for call in calls] == [(i, f"f{i}") for i in range(min(n, tokens))]
    for call in calls:
        text = "".join(call.arguments(offset, number) for number in range(call.first + 1, call.last + 1))
        assert call.whole == bool(text)
        if text:
            assert len(json.loads(text)['a "b"'].split()) == call.last - call.first
