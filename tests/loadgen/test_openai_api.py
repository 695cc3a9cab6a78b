import pytest

from loadgen.openai_api import BodyOptions, laid_over, request_body
from workloads.request import Message, Request

REQUEST = Request("r", (Message("system", "be brief"), Message("user", "hi")), 4, 9)


def test_completions_take_the_messages_as_one_text() -> None:
    body = request_body(REQUEST, BodyOptions("m", "completions"))
    assert (body["prompt"], body["max_tokens"]) == ("be brief\nhi", 9)
    assert "messages" not in body


def test_responses_have_names_of_their_own() -> None:
    body = request_body(REQUEST, BodyOptions("m", "responses"))
    assert body == {
        "model": "m",
        "stream": True,
        "input": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "max_output_tokens": 9,
    }


def test_optional_fields_are_each_on_their_own() -> None:
    bare = BodyOptions("m", include_usage=False, ignore_eos=False, min_tokens=False)
    assert set(request_body(REQUEST, bare)) == {"model", "stream", "messages", "max_tokens"}
    running = request_body(REQUEST, BodyOptions("m", per_event_usage=True))
    assert running["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (
        request_body(REQUEST, BodyOptions("m", max_tokens_field="max_completion_tokens"))["max_completion_tokens"] == 9
    )


def test_the_users_fields_win_over_the_classs_and_none_removes() -> None:
    request = Request("r", (Message("user", "hi"),), 1, 9, body={"model": "lora", "temperature": 1, "top_p": 0.5})
    body = request_body(request, BodyOptions("m", extra={"temperature": 0, "ignore_eos": None, "min_tokens": None}))
    assert (body["model"], body["temperature"], body["top_p"]) == ("lora", 0, 0.5)
    assert not {"ignore_eos", "min_tokens"} & set(body)


LAID = [
    ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
    ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
    ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
    ({}, {"a": None}, {"a": None}),
]


@pytest.mark.parametrize(("base", "change", "expected"), LAID)
def test_laid_over(base: dict[str, object], change: dict[str, object], expected: dict[str, object]) -> None:
    assert laid_over(base, change) == expected


def test_a_nested_none_removes_a_nested_field() -> None:
    body = request_body(REQUEST, BodyOptions("m", extra={"stream_options": {"include_usage": None, "x": 1}}))
    assert body["stream_options"] == {"x": 1}
