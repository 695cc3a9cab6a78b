"""What each event of a chat or completions stream means: METRICS section 1, event by event."""

import json
from typing import Any

import pytest

from analysis.record import KINDS, UNKNOWN, RequestRecord
from loadgen.chunk_reader import ChunkReader


def read(*events: Any, keep_text: bool = False) -> tuple[RequestRecord, ChunkReader]:
    record = RequestRecord("r")
    reader = ChunkReader(record, keep_text)
    for number, event in enumerate(events):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        reader.read(b"", data, 1000 * (number + 1), number)
    return record, reader


def delta(finish: str | None = None, usage: int | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return {"choices": [choice]} | ({} if usage is None else {"usage": used(usage)})


def used(completion: int, prompt: int = 5) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": content, "finish_reason": finish}]}


NO_TOKEN = {
    "role only": delta(role="assistant", content=""),
    "role with null content": delta(role="assistant", content=None),
    "empty delta": delta(),
    "empty content": delta(content=""),
    "finish only": delta(finish="stop"),
    "usage only, empty choices": {"choices": [], "usage": used(3)},
    "usage only, null choices": {"choices": None, "usage": used(3)},
    "usage only, no choices": {"usage": used(3)},
    "filter results, empty choices": {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
    "finish with the final usage": delta(finish="length", usage=9),
    "null delta": {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
    "empty completions text": text(""),
    "empty tool list": delta(tool_calls=[]),
    "done": b"[DONE]",
}


@pytest.mark.parametrize("case", NO_TOKEN)
def test_no_token(case: str) -> None:
    record, _ = read(NO_TOKEN[case])
    assert len(record.arrival_ns) == 0


TOKENS = {
    "answer": (delta(content="ab"), "answer", 2),
    "completions": (text("abc"), "answer", 3),
    "reasoning_content": (delta(reasoning_content="ab"), "thinking", 2),
    "reasoning": (delta(reasoning="ab"), "thinking", 2),
    "both names, same text, counts once": (delta(reasoning="ab", reasoning_content="ab"), "thinking", 2),
    "tool name": (delta(tool_calls=[{"index": 0, "function": {"name": "look_up", "arguments": ""}}]), "tool", 7),
    "tool arguments": (delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a'}}]), "tool", 3),
    "old function call": (delta(function_call={"name": "f", "arguments": "{}"}), "tool", 3),
    "refusal": (delta(refusal="no"), "refusal", 2),
    "white space": (delta(content=" "), "answer", 1),
    "invisible": (delta(content="\u200b"), "answer", 1),
    "with the finish reason": (delta(finish="length", content="a"), "answer", 1),
    "with the role": (delta(role="assistant", content="a"), "answer", 1),
    "content in parts": (delta(content=[{"type": "text", "text": "abc"}]), "answer", 3),
    "a neighbour of a strange type": (delta(content="ab", refusal=5), "answer", 2),
}


@pytest.mark.parametrize("case", TOKENS)
def test_token(case: str) -> None:
    event, kind, chars = TOKENS[case]
    record, _ = read(event)
    assert [KINDS[code] for code in record.kind] == [kind]
    assert list(record.chars) == [chars]
    assert list(record.arrival_ns) == [1000]


PLAIN = delta(content="hello")
ODD = {
    **{name: event for name, (event, _, _) in TOKENS.items()},
    **NO_TOKEN,
    "another choice": {"choices": [{"index": 1, "delta": {"content": "ab"}}]},
    "two choices": {"choices": [{"index": i, "delta": {"content": "ab"}} for i in (0, 1)]},
    "text and a call": delta(content="ab", tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}]),
    "text and a thought": delta(content="ab", reasoning="cd"),
    "running usage": delta(content="ab", usage=4),
    "ids": {"choices": [{"index": 0, "delta": {"content": "ab"}, "token_ids": [7, 8]}]},
    "logprobs": {"choices": [{"index": 0, "delta": {"content": "ab"}, "logprobs": {"content": [{"token": "a"}]}}]},
    "an error": {"error": {"message": "out of memory"}},
    "no JSON": b"{",
    "two values": json.dumps(PLAIN).encode() + b"," + json.dumps(PLAIN).encode(),
    "half of an array": b"1],[2",
    "nothing": b"",
    "deep": b"[" * 3000,
}


@pytest.mark.parametrize("keep_text", [False, True])
@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("case", ODD)
def test_many_events_read_together_are_read_as_one_by_one(case: str, before: int, keep_text: bool) -> None:
    events = [*[PLAIN] * before, ODD[case], PLAIN, delta(finish="stop")]
    whole = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    batch = [(b"data: " + data + b"\n\n", 1000 * (number + 1), number) for number, data in enumerate(whole)]
    together = ChunkReader(RequestRecord("r"), keep_text)
    done = together.read_plain(batch)
    for data, arrival_ns, number in batch[done:]:
        if together.done:
            break
        together.read(b"", data[6:-2], arrival_ns, number)
    record = RequestRecord("r")
    alone = ChunkReader(record, keep_text)
    for data, arrival_ns, number in batch:
        if not alone.done:
            alone.read(b"", data[6:-2], arrival_ns, number)
    assert together.record == record
    assert (together.text(), together.unsaid_text()) == (alone.text(), alone.unsaid_text())
    assert done >= before


RUNNING = [delta(content="a", usage=1), delta(content="b", usage=5), delta(content="c", usage=6)]
SILENT_GROWTH = [delta(content="a", usage=1), delta(usage=3), delta(content="b", usage=4)]
K = {
    "running usage": (RUNNING, [1, 4, 1]),
    "running usage from the role on": ([delta(role="assistant", usage=0), delta(content="a", usage=2)], [2]),
    "running usage that grows without text": (SILENT_GROWTH, [1, 2, 1]),
    "running usage that stands still": ([delta(content="a", usage=1), delta(content="b", usage=1)], [1, 0]),
    "final usage on the last token": ([delta(content="a"), delta(content="b", usage=9)], [UNKNOWN, UNKNOWN]),
    "usage that falls": ([delta(content="a", usage=5), delta(content="b", usage=2)], [5, UNKNOWN]),
    "nothing told": ([delta(content="a b c")], [UNKNOWN]),
}


@pytest.mark.parametrize("case", K)
def test_tokens_told_by_usage(case: str) -> None:
    events, expected = K[case]
    record, _ = read(*events)
    assert list(record.n_tokens) == expected


def test_tokens_told_by_ids_and_logprobs() -> None:
    ids = {"choices": [{"index": 0, "delta": {"content": "ab"}, "token_ids": [7, 8, 9]}]}
    silent = {"choices": [{"index": 0, "delta": {"content": ""}, "token_ids": [4]}]}
    chat_logprobs = {"content": [{"token": "a"}, {"token": "b"}]}
    chat = {"choices": [{"index": 0, "delta": {"content": "ab"}, "logprobs": chat_logprobs}]}
    text_logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1, -2]}
    completions = {"choices": [{"index": 0, "text": "ab", "logprobs": text_logprobs}]}
    record, _ = read(ids, silent, chat, completions)
    assert list(record.n_tokens) == [3, 1, 2, 2]
    assert list(record.chars) == [2, 0, 2, 2]


def test_usage_is_a_running_total_and_the_last_one_counts() -> None:
    record, _ = read(delta(content="a", usage=1), delta(content="b", usage=2), {"choices": [], "usage": used(2)})
    assert (record.prompt_tokens, record.completion_tokens) == (5, 2)


def test_usage_details() -> None:
    usage = used(300) | {
        "prompt_tokens_details": {"cached_tokens": 128, "audio_tokens": None},
        "completion_tokens_details": {"reasoning_tokens": 220},
    }
    record, _ = read(delta(content="a"), {"choices": [], "usage": usage})
    assert (record.cached_tokens, record.reasoning_tokens, record.completion_tokens) == (128, 220, 300)


def test_null_details_are_not_measured() -> None:
    usage = used(3) | {"prompt_tokens_details": None, "completion_tokens_details": None}
    record, _ = read({"choices": [], "usage": usage})
    assert (record.cached_tokens, record.reasoning_tokens) == (None, None)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"error": {"message": "deadline passed", "code": 504}}, "deadline passed (504)"),
        ({"error": "no worker"}, "no worker"),
        ({"object": "error", "message": "out of memory", "type": "Internal"}, "out of memory (Internal)"),
        (delta(finish="error"), "the server ended the answer with finish_reason 'error'"),
        (delta(finish="abort"), "the server ended the answer with finish_reason 'abort'"),
    ],
)
def test_errors_inside_the_stream(event: dict[str, Any], message: str) -> None:
    record, reader = read(delta(content="a"), event)
    assert reader.failed
    assert record.error == message


def test_named_error_event_of_any_shape() -> None:
    for data, words in [(b'{"message": "no worker is free"}', "no worker is free"), (b"plain words", "plain words")]:
        record = RequestRecord("r")
        reader = ChunkReader(record)
        reader.read(b"error", data, 1, 0)
        assert reader.failed
        assert record.error == words


def test_unreadable_events_are_counted_and_harm_nothing() -> None:
    record, reader = read(delta(content="a"), b"{", b"[1, 2]", b"nonsense", b"[" * 5000, delta(content="b"), b"[DONE]")
    assert record.events_dropped == 4
    assert len(record.arrival_ns) == 2
    assert reader.done
    assert not reader.failed


def test_several_choices_are_counted_and_one_event_is_one() -> None:
    two = {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]}
    record, _ = read(two, {"choices": [{"index": 1, "delta": {"content": "c"}}]})
    assert record.choices == 2
    assert list(record.chars) == [2, 1]


def test_an_event_that_thinks_and_answers_begins_the_answer() -> None:
    record, _ = read(delta(reasoning="hm", content="so"))
    assert [KINDS[code] for code in record.kind] == ["answer"]
    assert list(record.chars) == [4]


def test_text_is_kept_only_when_asked_and_without_the_thinking() -> None:
    events = [delta(reasoning="hm"), delta(content="so "), delta(content="it is", finish="stop")]
    assert read(*events, keep_text=True)[1].text() == "so it is"
    assert read(*events)[1].text() is None


def test_finish_reason_is_the_first_one() -> None:
    assert read(delta(finish="length"), delta(finish="stop"))[0].finish_reason == "length"
    assert read({"choices": [{"index": 0, "delta": {}, "finish_reason": 3}]})[0].finish_reason == "3"


def test_calls_are_put_together_from_their_pieces_and_kept_only_where_text_is() -> None:
    def piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        name = more.pop("name", None)
        return {"index": index, **more, "function": {**({"name": name} if name else {}), "arguments": arguments}}

    events = [
        delta(tool_calls=[piece(0, "", id="a", name="look_up")]),
        delta(tool_calls=[piece(0, '{"q"')]),
        delta(tool_calls=[piece(0, ": 1}"), piece(1, "{}", id="b", name="read")]),
        delta(finish="tool_calls"),
    ]
    record, _ = read(*events, keep_text=True)
    assert record.tool_calls == [
        {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": '{"q": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "read", "arguments": "{}"}},
    ]
    assert read(*events)[0].tool_calls is None


def test_whole_calls_without_an_index_are_calls_of_their_own() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    record, _ = read(delta(tool_calls=[call]), delta(tool_calls=[{**call, "id": "b"}]), keep_text=True)
    assert record.tool_calls is not None
    assert [made["id"] for made in record.tool_calls] == ["a", "b"]
