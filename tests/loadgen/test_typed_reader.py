"""The events of the responses endpoint."""

import json
from typing import Any

import pytest

from analysis.record import KINDS, RequestRecord
from loadgen.typed_reader import TypedReader


def read(*events: dict[str, Any], keep_text: bool = False) -> tuple[RequestRecord, TypedReader]:
    record = RequestRecord("r")
    reader = TypedReader(record, keep_text)
    for number, event in enumerate(events):
        reader.read(event.get("type", "").encode(), json.dumps(event).encode(), 1000 * (number + 1), number)
    return record, reader


def completed(kind: str = "response.completed", **response: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 20},
    }
    return {"type": kind, "response": {"usage": usage, **response}}


def test_a_whole_answer() -> None:
    record, reader = read(
        {"type": "response.created", "response": {"id": "x"}},
        {"type": "response.output_item.added", "item": {"type": "reasoning"}},
        {"type": "response.reasoning_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "Hello"},
        {"type": "response.output_text.delta", "delta": ""},
        {"type": "response.output_text.done", "text": "Hello"},
        completed(),
        keep_text=True,
    )
    assert [KINDS[code] for code in record.kind] == ["thinking", "answer"]
    assert list(record.arrival_ns) == [3000, 4000]
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens, record.reasoning_tokens) == (
        12,
        8,
        30,
        20,
    )
    assert (reader.done, reader.failed, record.finish_reason, reader.text()) == (True, False, "stop", "Hello")


def test_tool_calls_and_refusals() -> None:
    record, _ = read(
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "look_up"}},
        {"type": "response.function_call_arguments.delta", "delta": "{}"},
        {"type": "response.refusal.delta", "delta": "no"},
    )
    assert [KINDS[code] for code in record.kind] == ["tool", "tool", "refusal"]
    assert list(record.chars) == [7, 2, 2]


def test_a_length_limit_is_named_as_everywhere() -> None:
    record, _ = read(completed("response.incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert record.finish_reason == "length"


FAILURES = [
    ({"type": "error", "message": "overloaded", "code": "x"}, "overloaded"),
    (
        {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "died"}}},
        "died (server_error)",
    ),
    ({"type": "error", "error": {"message": "late"}}, "late"),
]


@pytest.mark.parametrize(("event", "words"), FAILURES)
def test_failures(event: dict[str, Any], words: str) -> None:
    record, reader = read(event)
    assert reader.failed
    assert record.error is not None
    assert words in record.error


def test_unreadable_events_are_counted() -> None:
    record = RequestRecord("r")
    reader = TypedReader(record)
    for data in (b"{", b"[]", b'{"type": 5}'):  # the last is an event, if of no known type
        reader.read(b"", data, 1, 0)
    assert record.events_dropped == 2
