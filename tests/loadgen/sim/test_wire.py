import json

import pytest

from loadgen.sim.core import Token
from loadgen.sim.wire import Answer, ApiError, Limits, parse_ask, parse_body, prompt_length, safe_id, token_ids

LIMITS = Limits("m", 1000)
HELLO = {"messages": [{"role": "user", "content": "two words"}]}


def ask(kind="chat", headers=None, limits=LIMITS, **body):
    return parse_ask(kind, body, headers or {}, limits)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (HELLO, 2 + 4 + 3),
        ({"messages": [{"role": "system", "content": "a  b\nc"}, {"role": "user", "content": ""}]}, 3 + 2 * 4 + 3),
        ({"messages": [{"content": [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]}]}, 3 + 4 + 3),
        ({"messages": [{"role": "assistant", "content": None}]}, 4 + 3),
        ({"prompt": "one two three"}, 3),
        ({"prompt": ["one two three"]}, 3),
        ({"prompt": [5, 6, 7, 8]}, 4),
    ],
)
def test_prompt_length_and_ids(body, tokens):
    assert prompt_length(body, LIMITS) == tokens
    assert len(token_ids(body, tokens)) == tokens


def test_the_same_word_has_the_same_id():
    ids = token_ids({"prompt": "a b a"}, 3)
    assert ids[0] == ids[2] != ids[1]


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
    assert (got.output_tokens, got.finish_reason) == expected


def test_an_answer_of_open_length_ends_with_the_context():
    got = ask(limits=Limits("m", 20), **HELLO)
    assert (got.output_tokens, got.finish_reason) == (11, "length")


@pytest.mark.parametrize(
    ("headers", "extra", "thinking"),
    [
        ({}, {}, 0),
        ({"x-loadgen-thinking-tokens": "3"}, {}, 3),
        ({"x-loadgen-thinking-tokens": "300"}, {}, 10),
        ({}, {"chat_template_kwargs": {"thinking_tokens": 4}}, 4),
        ({}, {"chat_template_kwargs": None}, 0),
    ],
)
def test_thinking(headers, extra, thinking):
    assert ask(headers=headers, **HELLO, max_tokens=10, **extra).thinking_tokens == thinking
    assert ask("completions", headers, prompt="x", max_tokens=10, **extra).thinking_tokens == 0


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": ["hi"]}, 400, "messages"),
        ({"messages": [{"content": 5}]}, 400, "messages"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": ["a", "b"]}, 400, "prompt"),
        ({"prompt": [True]}, 400, "prompt"),
        ({**HELLO, "model": "other"}, 404, "model"),
        ({**HELLO, "n": 2}, 400, "n"),
        ({**HELLO, "max_tokens": 0}, 400, "max_tokens"),
        ({**HELLO, "max_tokens": "5"}, 400, "max_tokens"),
        ({**HELLO, "max_tokens": True}, 400, "max_tokens"),
        ({**HELLO, "max_tokens": 992}, 400, "max_tokens"),
        ({**HELLO, "stream_options": 1}, 400, "stream_options"),
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


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"x"', b'{"a": "\xff"}'])
def test_a_body_that_is_no_object_is_refused(raw):
    with pytest.raises(ApiError, match=r"JSON"):
        parse_body(raw)


def test_a_bad_thinking_header_is_refused():
    with pytest.raises(ApiError, match="x-loadgen-thinking-tokens"):
        ask(headers={"x-loadgen-thinking-tokens": "-1"}, **HELLO)


def test_only_harmless_ids_are_taken_over():
    assert safe_id("a-B.9_:") == "a-B.9_:"
    assert [safe_id(header) for header in ('a"b', "a b", "", "é", "x" * 129, None)] == [None] * 6


def events_of(kind="chat", headers=None, tokens=3, **body):
    understood = ask(kind, headers, **(HELLO if kind == "chat" else {"prompt": "two words"}), max_tokens=tokens, **body)
    answer = Answer(understood, "id1", 1_700_000_000, "m")
    sent = [answer.events(Token("id1", n, n == tokens, "decode", None, 0)) for n in range(1, tokens + 1)]
    whole = json.loads(answer.whole(Token("id1", tokens, True, "decode", None, 0))[0])
    assert answer.whole(Token("id1", 1, False, "decode", None, 0)) == []
    return [[_payload(event) for event in together] for together in sent], whole


def _payload(event):
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    text = event[6:-2].decode()
    return text if text == "[DONE]" else json.loads(text)


def test_chat_events():
    sent, whole = events_of(stream_options={"include_usage": True})
    assert [len(together) for together in sent] == [2, 1, 3]  # role and first token; token; last token, usage, end
    role, first = sent[0]
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {key: first[key] for key in ("id", "object", "created", "model")} == {
        "id": "chatcmpl-id1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
    }
    assert first["choices"][0]["finish_reason"] is None
    assert "usage" not in first
    last, usage, done = sent[2]
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["delta"]["content"]
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    assert done == "[DONE]"
    text = "".join(together[-1 if n < 2 else 0]["choices"][0]["delta"]["content"] for n, together in enumerate(sent))
    assert whole["choices"][0]["message"]["content"] == text
    assert len(text.split()) == 3  # as many words as tokens
    assert whole["usage"] == usage["usage"]


def test_thoughts_come_first_and_in_their_own_field():
    sent, whole = events_of(headers={"x-loadgen-thinking-tokens": "2"}, stream_options={"include_usage": True})
    deltas = [together[-1 if n == 0 else 0]["choices"][0]["delta"] for n, together in enumerate(sent)]
    assert [list(delta) for delta in deltas] == [["reasoning_content"], ["reasoning_content"], ["content"]]
    assert sent[2][1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    message = whole["choices"][0]["message"]
    assert (len(message["reasoning_content"].split()), len(message["content"].split())) == (2, 1)


def test_running_usage_is_a_total_on_every_event():
    sent, _ = events_of(stream_options={"include_usage": True, "continuous_usage_stats": True})
    flat = [event for together in sent for event in together if event != "[DONE]"]
    assert [event["usage"]["completion_tokens"] for event in flat] == [0, 1, 2, 3, 3]


def test_completions_have_text_and_no_role():
    sent, whole = events_of("completions")
    assert [len(together) for together in sent] == [1, 1, 2]
    assert sent[0][0]["object"] == "text_completion"
    assert sent[0][0]["id"] == "cmpl-id1"
    assert whole["choices"][0]["text"] == "".join(together[0]["choices"][0]["text"] for together in sent)


def test_causes_are_told_to_those_who_ask():
    understood = ask(headers={"x-loadgen-causes": "1"}, **HELLO, max_tokens=3)
    event = Answer(understood, "id1", 0, "m").events(Token("id1", 2, False, "prefill_interference", "id2", 5))[0]
    assert _payload(event)["loadgen"] == {"cause": "prefill_interference", "culprit": "id2", "delay_ns": 5}
    assert "loadgen" not in events_of()[0][0][1]
