import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sim.answers import Completion
from loadgen.sim.script import script_of
from loadgen.sim.tokens import Token
from loadgen.sim.wire import Limits, parse_ask

LIMITS = Limits("m", 1000)
HELLO = {"messages": [{"role": "user", "content": "two words"}]}
FIND = {"type": "function", "function": {"name": "find"}}


def token(number, last=False, count=1, cause="decode", culprit=None, delay_ns=0):
    return Token("id1", number, last, cause, culprit, delay_ns, count)


def choice_of(kind="chat", headers=None, thinking_field="reasoning_content", index=0, stream=True, **body):
    prompt = HELLO if kind == "chat" else {"prompt": "two words"}
    understood = parse_ask(kind, {**prompt, "stream": stream, **body}, headers or {}, LIMITS)
    form = Completion(understood, "id1", 1_700_000_000, "m", thinking_field)
    return form.voice(script_of(understood, "id1"), index), form


def parsed(events):
    parts = events.decode().split("\n\n")
    assert parts.pop() == ""
    return [part if part == "data: [DONE]" else json.loads(part.removeprefix("data: ")) for part in parts]


def streamed(choice, sizes=None):
    """The events of a choice, one list a core event; `sizes` are the tokens in each."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))] if sizes else range(1, choice.script.tokens + 1)
    sizes = sizes or [1] * choice.script.tokens
    return [
        parsed(choice.events(token(end, end == choice.script.tokens, size)))
        for end, size in zip(ends, sizes, strict=True)
    ]


def test_chat_events():
    choice, form = choice_of(max_tokens=3, stream_options={"include_usage": True})
    (role,) = parsed(form.opening())
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    (first,), (second,), (last,) = streamed(choice)
    about = {"id": "chatcmpl-id1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    assert {key: first[key] for key in about} == about
    assert first["choices"][0]["finish_reason"] is second["choices"][0]["finish_reason"] is None
    assert "usage" not in first
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("length", None)
    usage, done = parsed(form.closing([choice.script], 0))
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": None,
    }
    assert done == "data: [DONE]"


def test_without_include_usage_nothing_but_done_ends_a_stream():
    choice, form = choice_of(max_tokens=3)
    assert parsed(form.closing([choice.script], 0)) == ["data: [DONE]"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_come_first_and_in_their_own_field(field):
    choice, form = choice_of(headers={"x-loadgen-thinking-tokens": "2"}, thinking_field=field, max_tokens=3)
    deltas = [event["choices"][0]["delta"] for (event,) in streamed(choice)]
    assert [list(delta) for delta in deltas] == [[field], [field], ["content"]]
    assert form.usage([choice.script], 5)["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert form.usage([choice.script], 5)["prompt_tokens_details"] == {"cached_tokens": 5}
    message = choice.whole()["message"]
    assert (len(message[field].split()), len(message["content"].split())) == (2, 1)


@pytest.mark.parametrize("extra", [{}, {"logprobs": True}, {"tools": [FIND], "tool_choice": "required"}])
def test_running_usage_is_a_total_on_every_event(extra):
    options = {"include_usage": True, "continuous_usage_stats": True}
    choice, form = choice_of(max_tokens=3, stream_options=options, **extra)
    flat = parsed(form.opening()) + [event for together in streamed(choice) for event in together]
    closing = [3] if "tools" in extra else []
    assert [event["usage"]["completion_tokens"] for event in flat] == [0, 1, 2, 3, *closing]
    assert all(
        event["usage"]["total_tokens"] == event["usage"]["prompt_tokens"] + event["usage"]["completion_tokens"]
        for event in flat
    )


def test_completions_have_text_and_no_role():
    choice, form = choice_of("completions", max_tokens=3)
    assert form.opening() == b""
    events = [event for (event,) in streamed(choice)]
    assert (events[0]["object"], events[0]["id"]) == ("text_completion", "cmpl-id1")
    assert choice.whole()["text"] == "".join(event["choices"][0]["text"] for event in events)


def test_causes_are_told_to_those_who_ask():
    choice, _ = choice_of(headers={"x-loadgen-causes": "1"}, max_tokens=3)
    (event,) = parsed(choice.events(token(2, False, 1, "prefill_interference", "id2#1", 5)))
    assert event["loadgen"] == {"cause": "prefill_interference", "culprit": "id2", "delay_ns": 5}
    choice, _ = choice_of(max_tokens=3)
    assert b"loadgen" not in choice.events(token(2, False, 1, "prefill_interference", "id2", 5))


def test_a_tool_call_is_a_name_and_then_arguments():
    choice, _ = choice_of(max_tokens=4, tools=[FIND], tool_choice="required")
    (name,), (first,), (second,), (last, finish) = streamed(choice)
    (call,) = name["choices"][0]["delta"]["tool_calls"]
    assert call == {
        "id": "chatcmpl-id1-tool-0-0",
        "type": "function",
        "index": 0,
        "function": {"name": "find", "arguments": ""},
    }
    pieces = [event["choices"][0]["delta"]["tool_calls"] for event in (first, second, last)]
    assert all(len(calls) == 1 and set(calls[0]) == {"index", "function"} for calls in pieces)
    arguments = "".join(calls[0]["function"]["arguments"] for calls in pieces)
    assert len(json.loads(arguments)["input"].split()) == 3
    assert finish["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls", "stop_reason": None
    }  # fmt: skip
    whole = choice.whole()
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, "tool_calls")
    (made,) = whole["message"]["tool_calls"]
    assert made == {"id": call["id"], "type": "function", "function": {"name": "find", "arguments": arguments}}


def test_a_stop_string_is_not_shown_and_named():
    choice, _ = choice_of(max_tokens=90, stop=["e"])
    *_, (last,) = streamed(choice)
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["stop_reason"]) == ("stop", "e")
    assert "e" not in choice.whole()["message"]["content"]


def test_logprobs_have_an_entry_a_token():
    choice, _ = choice_of(max_tokens=3, logprobs=True)
    (event,) = parsed(choice.events(token(2, count=2)))
    entries = event["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == event["choices"][0]["delta"]["content"]
    assert len(entries) == 2
    assert len(choice.whole()["logprobs"]["content"]) == 3
    choice, _ = choice_of("completions", max_tokens=3, logprobs=1)
    assert len(choice.whole()["logprobs"]["tokens"]) == 3


@st.composite
def answers(draw):
    tokens = draw(st.integers(1, 30))
    body = {
        "max_tokens": tokens,
        "min_tokens": draw(st.integers(0, 10)),
        "stop": draw(st.sampled_from([[], ["e"], ["the", "t w"]])),
    }
    if draw(st.booleans()):
        body |= {
            "tools": [FIND],
            "tool_choice": "required",
            "chat_template_kwargs": {"tool_calls": draw(st.integers(1, 3))},
        }
    body["logprobs"] = draw(st.booleans())
    body["stream_options"] = {"continuous_usage_stats": draw(st.booleans())}
    headers = {"x-loadgen-thinking-tokens": str(draw(st.integers(0, tokens)))}
    return choice_of(headers=headers, index=draw(st.integers(0, 2)), **body)


@settings(deadline=None)
@given(answers(), st.data())
def test_however_tokens_are_put_together_the_events_add_up_to_the_whole_answer(built, data):
    choice, _ = built
    left, sizes = choice.script.tokens, []
    while left:
        sizes.append(data.draw(st.integers(1, min(left, 6))))
        left -= sizes[-1]
    found = {"content": "", "reasoning_content": ""}
    calls: dict[int, dict[str, str]] = {}
    finishes = []
    for event in (event for together in streamed(choice, sizes) for event in together):
        (only,) = event["choices"]
        assert only["index"] == choice.index
        finishes.append(only["finish_reason"])
        for key in found:
            found[key] += only["delta"].get(key) or ""
        for call in only["delta"].get("tool_calls", ()):
            known = calls.setdefault(call["index"], {"arguments": ""})
            known["name"] = call["function"].get("name", known.get("name"))
            known["arguments"] += call["function"]["arguments"]
    whole = choice.whole()
    assert finishes[-1] == whole["finish_reason"]
    assert set(finishes[:-1]) <= {None}
    assert found["content"] == (whole["message"]["content"] or "")
    assert found["reasoning_content"] == (whole["message"]["reasoning_content"] or "")
    assert [calls[i] for i in sorted(calls)] == [call["function"] for call in whole["message"].get("tool_calls", ())]
