import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.record import ANSWER, THINKING, TOOL, RequestRecord
from loadgen.sim.errors import ApiError
from loadgen.sim.options import Options
from loadgen.sim.responses import ResponseForm, as_chat
from loadgen.sim.script import script_of
from loadgen.sim.tokens import Token
from loadgen.sim.wire import Limits, parse_ask
from loadgen.typed_reader import TypedReader
from tests.loadgen.sim.serving import ask

PATH = "/v1/responses"
PARTS = [{"type": "input_text", "text": "hi"}]
FIND = {"type": "function", "name": "find", "description": "d", "parameters": {}}


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({"input": "hello"}, [{"role": "user", "content": "hello"}]),
        (
            {
                "instructions": "be brief",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            },
            [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            ],
        ),
        (
            {
                "input": [
                    {"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "found"},
                ]
            },
            [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": "find", "arguments": "{}"}}],
                },
                {"role": "tool", "content": "found"},
            ],
        ),
    ],
)
def test_the_input_is_a_conversation(body, messages):
    assert as_chat(body)["messages"] == messages


def test_the_fields_of_a_chat():
    body = {"input": "x", "max_output_tokens": 7, "reasoning": {"effort": "low"}, "stream": True, "model": "m"}
    chat = as_chat({**body, "tools": [FIND], "tool_choice": {"type": "function", "name": "find"}})
    function = {"name": "find", "description": "d", "parameters": {}}
    assert (chat["max_tokens"], chat["reasoning_effort"], chat["stream"], chat["model"]) == (7, "low", True, "m")
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "find"}}


@pytest.mark.parametrize("body", [{}, {"input": []}, {"input": 5}, {"input": ["x"]}, {"input": "x", "tools": ["find"]}])
def test_what_cannot_be_read_is_refused(body):
    with pytest.raises(ApiError) as refused:
        parse_ask("responses", as_chat(body), {}, Limits("m", 1000))
    assert refused.value.status == 400


@st.composite
def forms(draw):
    tokens = draw(st.integers(1, 30))
    body = {"input": "two words", "max_output_tokens": tokens, "stream": True}
    body["chat_template_kwargs"] = {"tool_calls": draw(st.integers(0, 3))}
    if draw(st.booleans()):
        body |= {"tools": [FIND]}
    headers = {"x-loadgen-thinking-tokens": str(draw(st.integers(0, tokens)))}
    understood = parse_ask("responses", as_chat(body), headers, Limits("m", 1000))
    return ResponseForm(understood, "id1", 0, "m"), script_of(understood, "id1")


@settings(deadline=None)
@given(forms(), st.data())
def test_the_events_add_up_to_the_response(built, data):
    form, script = built
    voice, stream, number = form.voice(script, 0), [form.opening()], 0
    while number < script.tokens:
        count = data.draw(st.integers(1, min(6, script.tokens - number)))
        number += count
        stream.append(voice.events(Token("id1", number, number == script.tokens, "decode", None, 0, count)))
    stream.append(form.closing([script], 5))
    events = [event.split(b"\n", 1) for event in b"".join(stream).split(b"\n\n")[:-1]]
    parsed = [json.loads(line.removeprefix(b"data: ")) for _, line in events]
    assert [name.decode() for name, _ in events] == [f"event: {event['type']}" for event in parsed]
    numbers = [event["sequence_number"] for event in parsed]
    assert numbers == sorted(set(numbers))
    # What was added, said piece by piece and done is what the whole response has.
    final = parsed[-1]["response"]
    assert final["output"] == [e["item"] for e in parsed if e["type"] == "response.output_item.done"]
    assert [item["id"] for item in final["output"]] == [
        e["item"]["id"] for e in parsed if e["type"] == "response.output_item.added"
    ]
    for item in final["output"]:
        said = "".join(e["delta"] for e in parsed if e.get("item_id") == item["id"] and "delta" in e)
        assert said == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    assert final == json.loads(form.whole([script], 5))


def test_our_own_reader_understands_it():
    body = {"input": "hi", "max_output_tokens": 6, "stream": True, "reasoning": {"effort": "medium"}}
    answer = ask(body, PATH)
    record = RequestRecord("r")
    reader = TypedReader(record, keep_text=True)
    for event in answer.text.split("\n\n")[:-1]:
        name, data = event.split("\n", 1)
        reader.read(name.removeprefix("event: ").encode(), data.removeprefix("data: ").encode(), 1, 1)
    assert (reader.done, reader.failed, record.finish_reason) == (True, False, "length")
    assert list(record.kind) == [THINKING] * 3 + [ANSWER] * 3
    assert len(reader.text().split()) == 3
    assert (record.completion_tokens, record.reasoning_tokens, record.prompt_tokens) == (6, 3, 1 + 4 + 3)


def test_calls_are_token_events_to_our_own_reader():
    body = {"input": "hi", "max_output_tokens": 5, "stream": True, "tools": [FIND], "tool_choice": "required"}
    record = RequestRecord("r")
    reader = TypedReader(record)
    for event in ask(body, PATH).text.split("\n\n")[:-1]:
        name, data = event.split("\n", 1)
        reader.read(name.removeprefix("event: ").encode(), data.removeprefix("data: ").encode(), 1, 1)
    assert list(record.kind) == [TOOL] * 5
    assert record.finish_reason == "stop"


def test_an_answer_in_one_piece_and_a_failure():
    whole = ask({"input": "hi", "max_output_tokens": 4}, PATH).json()
    assert (whole["object"], whole["status"], whole["usage"]["output_tokens"]) == ("response", "incomplete", 4)
    assert ask({"input": "hi", "model": "x"}, PATH).status_code == 404
    options = Options(speed=10_000, inject=("error:after=2",))
    text = ask({"input": "hi", "max_output_tokens": 9, "stream": True}, PATH, options).text
    name, data = text.split("\n\n")[-2].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["message"] == "injected: the engine failed"
