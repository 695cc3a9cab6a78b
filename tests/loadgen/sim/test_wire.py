import json

import pytest

from loadgen.sim.errors import ApiError
from loadgen.sim.script import script_of
from loadgen.sim.tools import CALL_TOKENS
from loadgen.sim.wire import Limits, parse_ask, parse_body, safe_id

LIMITS = Limits("m", 1000)
HELLO = {"messages": [{"role": "user", "content": "two words"}]}
FIND = {"type": "function", "function": {"name": "find"}}


def ask(kind="chat", headers=None, limits=LIMITS, **body):
    return parse_ask(kind, body, headers or {}, limits)


@pytest.mark.parametrize(
    ("body", "stop_early", "expected"),
    [
        ({"max_tokens": 7}, 0, (7, "length")),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 0, (9, "length")),
        ({}, 0, (256, "stop")),
        ({"max_tokens": 7}, 5, (5, "stop")),
        ({"max_tokens": 5}, 5, (5, "length")),
        ({"max_tokens": 7, "ignore_eos": True}, 5, (7, "length")),
        ({"max_tokens": 20, "min_tokens": 9}, 5, (9, "stop")),
        ({"max_tokens": 20, "min_tokens": 20}, 5, (20, "length")),
        ({}, 5, (5, "stop")),
    ],
)
def test_output_length(body, stop_early, expected):
    got = ask(limits=Limits("m", 1000, stop_early), **HELLO, **body)
    assert (got.output_tokens, got.finish) == expected


def test_an_answer_of_open_length_ends_with_the_context():
    got = ask(limits=Limits("m", 20), **HELLO)
    assert (got.output_tokens, got.finish) == (11, "length")


@pytest.mark.parametrize(
    ("headers", "extra", "thinking"),
    [
        ({}, {}, 0),
        ({"x-loadgen-thinking-tokens": "3"}, {}, 3),
        ({"x-loadgen-thinking-tokens": "300"}, {}, 10),
        ({"x-loadgen-thinking-tokens": "3"}, {"reasoning_effort": "high"}, 3),
        ({}, {"chat_template_kwargs": {"thinking_tokens": 4}}, 4),
        ({}, {"chat_template_kwargs": None}, 0),
        ({}, {"reasoning_effort": None}, 0),
        ({}, {"reasoning_effort": "none"}, 0),
        ({}, {"reasoning_effort": "low"}, 2),
        ({}, {"reasoning_effort": "medium"}, 5),
        ({}, {"reasoning_effort": "high"}, 8),
        ({}, {"reasoning_effort": "high", "max_tokens": 1}, 0),  # a token is left to answer
        ({}, {"reasoning_effort": "high", "chat_template_kwargs": {"thinking_budget": 3}}, 3),
        ({}, {"reasoning_effort": "low", "chat_template_kwargs": {"thinking_budget": 30}}, 2),
        ({}, {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, 0),
        ({}, {"chat_template_kwargs": {"enable_thinking": True}}, 5),
        ({}, {"chat_template_kwargs": {"thinking_budget": 7}}, 7),
        ({}, {"chat_template_kwargs": {"thinking_budget": 70}}, 9),
        ({}, {"chat_template_kwargs": {"thinking_budget": 7, "enable_thinking": False}}, 0),
        ({}, {"chat_template_kwargs": {"thinking_budget": 0, "enable_thinking": True}}, 0),
    ],
)
def test_thinking(headers, extra, thinking):
    assert ask(headers=headers, **{**HELLO, "max_tokens": 10, **extra}).thinking_tokens == thinking
    assert ask("completions", headers, **{"prompt": "x", "max_tokens": 10, **extra}).thinking_tokens == 0


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "messages"),
        ({"prompt": ""}, 400, "prompt"),
        ({**HELLO, "model": "other"}, 404, "model"),
        ({**HELLO, "n": 0}, 400, "n"),
        ({**HELLO, "n": 129}, 400, "n"),
        ({**HELLO, "max_tokens": 0}, 400, "max_tokens"),
        ({**HELLO, "max_tokens": "5"}, 400, "max_tokens"),
        ({**HELLO, "max_tokens": True}, 400, "max_tokens"),
        ({**HELLO, "max_tokens": 992}, 400, "max_tokens"),
        ({**HELLO, "min_tokens": -1}, 400, "min_tokens"),
        ({**HELLO, "stop": 5}, 400, "stop"),
        ({**HELLO, "stop": [5]}, 400, "stop"),
        ({**HELLO, "stream_options": 1}, 400, "stream_options"),
        ({**HELLO, "reasoning_effort": "huge"}, 400, "reasoning_effort"),
        ({**HELLO, "reasoning_effort": []}, 400, "reasoning_effort"),
        ({**HELLO, "chat_template_kwargs": {"thinking_budget": -1}}, 400, "thinking_budget"),
        ({**HELLO, "tool_choice": "required"}, 400, "tool_choice"),
        ({"messages": [{"content": "w " * 993}]}, 400, "input_tokens"),
    ],
)
def test_refusals_are_error_objects(body, status, param):
    with pytest.raises(ApiError) as refused:
        ask(**body)
    error = json.loads(refused.value.body())["error"]
    assert (error["code"], error["param"]) == (status, param)
    assert error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"x"', b'{"a": "\xff"}', b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(raw):
    with pytest.raises(ApiError, match=r"JSON"):
        parse_body(raw)


@pytest.mark.parametrize("header", ["-1", "1.5", "", "٣", "9" * 30])
def test_a_bad_thinking_header_is_refused(header):
    with pytest.raises(ApiError, match="x-loadgen-thinking-tokens"):
        ask(headers={"x-loadgen-thinking-tokens": header}, **HELLO)


def test_only_harmless_ids_are_taken_over():
    assert safe_id("a-B.9_:") == "a-B.9_:"
    assert [safe_id(header) for header in ('a"b', "a b", "", "é", "a#1", "x" * 129, None)] == [None] * 7


def test_a_script_is_what_its_id_makes_it():
    understood = ask(**HELLO, max_tokens=9, stop="e")
    assert script_of(understood, "a") == script_of(understood, "a") != script_of(understood, "b")
    assert script_of(ask(**HELLO, max_tokens=9), "a").tokens == 9


@pytest.mark.parametrize(
    ("extra", "tokens", "finish", "calls"),
    [
        ({"max_tokens": 9}, 9, "tool_calls", 1),
        ({}, CALL_TOKENS, "tool_calls", 1),
        ({"max_tokens": 1}, 1, "length", 1),  # only its name
        ({"max_tokens": 9, "reasoning_effort": "medium"}, 9, "tool_calls", 1),
        ({"max_tokens": 4, "chat_template_kwargs": {"thinking_tokens": 4}}, 4, "length", 0),  # nothing but thoughts
        ({"max_tokens": 9, "chat_template_kwargs": {"tool_calls": 3}}, 9, "tool_calls", 3),
        ({"max_tokens": 3, "chat_template_kwargs": {"tool_calls": 3}}, 3, "length", 3),
        ({"max_tokens": 2, "chat_template_kwargs": {"tool_calls": 3}}, 2, "length", 2),
    ],
)
def test_scripts_with_calls(extra, tokens, finish, calls):
    script = script_of(ask(**HELLO, tools=[FIND], tool_choice="required", **extra), "a")
    assert (script.tokens, script.finish, len(script.calls)) == (tokens, finish, calls)


def test_min_tokens_puts_off_a_stop_string():
    early = script_of(ask(**HELLO, max_tokens=90, stop=["e"]), "a")
    late = script_of(ask(**HELLO, max_tokens=90, stop=["e"], min_tokens=20), "a")
    assert early.tokens < 20 <= late.tokens < 90
    assert (early.finish, early.stop_string) == ("stop", "e")
