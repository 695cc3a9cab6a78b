"""Calibration and probe against servers that count, refuse and answer in different ways."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen import access as access_module
from loadgen.access import Access
from loadgen.calibrate import calibrate, find_model, prime
from loadgen.errors import NoVerdictError, UsageError
from loadgen.openai_api import BodyOptions, request_body
from loadgen.probe import Findings, explore, find_options
from loadgen.probe_text import findings_json, render_findings
from loadgen.target import parse_target
from tests.loadgen.scripted import (
    DONE,
    Received,
    ScriptedServer,
    Step,
    answer,
    content,
    finish,
    json_answer,
    reasoning,
    refused_url,
    role,
    usage,
)
from workloads.prompts import Prompter, words
from workloads.request import Message, Passage, Request, Turn
from workloads.schedule import build
from workloads.spec import Workload

Server = Callable[[Received], list[Step]]
TEMPLATE = {"system": 5, "user": 7, "assistant": 4}


def by_words(text: str) -> int:
    return len(text.split())


def by_syllables(text: str) -> int:
    """A tiny vocabulary: a word is as many tokens as it has pieces of three letters."""
    return sum(-(-len(word) // 3) for word in text.split())


def counting(tokens: Callable[[str], int], tokenize: bool = False) -> Server:
    def serve(request: Received) -> list[Step]:
        if request.path == "/tokenize":
            return json_answer({"tokens": pieces(request.json["prompt"])} if tokenize else {}, 200 if tokenize else 404)
        messages = request.json["messages"]
        count = 10 + sum(TEMPLATE[m["role"]] + tokens(m["content"]) for m in messages)
        return json_answer({"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": 1}})

    return serve


def pieces(text: str) -> list[int]:
    """As by_syllables; token 1 is the line break, every other piece has a number of its own."""
    numbers = itertools.count(2)
    lines = [[next(numbers) for _ in range(by_syllables(line))] for line in text.split("\n")]
    return [token for n, line in enumerate(lines) for token in ([1, *line] if n else line)]


def with_server(serve: Any, act: Callable[[Access], Any]) -> tuple[Any, ScriptedServer]:
    async def run() -> tuple[Any, ScriptedServer]:
        async with ScriptedServer(serve) as server:
            return await act(Access(parse_target(server.url, "chat"))), server

    return asyncio.run(asyncio.wait_for(run(), 30))


COUNTS = {
    "one token a word": (by_words, False),
    "pieces, told by /tokenize": (by_syllables, True),
    "four characters a token": (lambda text: len(text) // 4, False),
}


@pytest.mark.parametrize("case", COUNTS)
@pytest.mark.parametrize("tokens", [60, 500, 2000])
def test_prompts_come_out_at_the_planned_length(case: str, tokens: int) -> None:
    count, tokenize = COUNTS[case]
    (calibration, notes), server = with_server(
        counting(count, tokenize), lambda access: calibrate(access, BodyOptions("m"))
    )
    assert notes == []
    assert all(request.headers["x-loadgen-probe"] == "1" for request in server.requests)
    prompter = Prompter(1, calibration)
    for number in range(20):
        passages = (Passage("system", (number, 0), 20), Passage("user", (number, 1), tokens - 20))
        request = prompter.request(Turn("r", 1, passages, tokens, 1), (), keep_text=False)
        got = 10 + sum(TEMPLATE[m.role] + count(m.content) for m in request.messages)
        assert abs(got - tokens) <= max(2, tokens / 100)


def test_a_server_without_counts_is_said_to_have_none() -> None:
    (calibration, notes), _ = with_server(
        lambda _: json_answer({"choices": []}), lambda access: calibrate(access, BodyOptions("m"))
    )
    assert calibration.word_tokens is None
    assert notes == ["prompt lengths are not calibrated: the server states no usage"]


def test_every_word_is_counted_by_tokenize() -> None:
    (calibration, _), _ = with_server(counting(by_syllables, True), lambda access: calibrate(access, BodyOptions("m")))
    assert np.array_equal(calibration.word_tokens, [by_syllables(word) for word in words()])


def counting_tools(count: Callable[[str], int], refuse: bool = False, leave_out: bool = False) -> Server:
    """A template that writes out definitions, calls and results, each with a frame of its own."""

    def total(body: Mapping[str, Any]) -> int:
        made = [call["function"]["arguments"] for m in body["messages"] for call in m.get("tool_calls", ())]
        described = [tool["function"]["description"] for tool in body.get("tools", ())]
        tools = 0 if leave_out or not described else 25 + sum(17 + count(text) for text in described)
        talk = sum(TEMPLATE.get(m["role"], 6) + count(m["content"]) for m in body["messages"])
        return 10 + talk + tools + sum(12 + count(text) for text in made)

    def serve(request: Received) -> list[Step]:
        if refuse and "tools" in request.json:
            return json_answer({"error": {"message": "no tool parser"}}, 400)
        count_ = total(request.json)
        return json_answer({"choices": [], "usage": {"prompt_tokens": count_, "completion_tokens": 1}})

    serve.total = total  # type: ignore[attr-defined]
    return serve


@pytest.mark.parametrize("history", ["live", "scripted"])
def test_an_agent_s_prompts_come_out_at_the_planned_length(history: str) -> None:
    serve = counting_tools(by_words)
    (known, notes), _ = with_server(serve, lambda access: calibrate(access, BodyOptions("m"), tools=True))
    assert notes == []
    spec = {"shape": "agent", "tools": 3, "steps": 4, "system_tokens": 50, "history": history, "output_tokens": 30}
    schedule = build(Workload.model_validate({"requests": 4, "classes": {"a": spec}}), 1)
    prompter, said = Prompter(1, known), ()
    for this in next(schedule.sessions()).rounds:
        (turn,) = this.turns
        request = prompter.request(turn, said, keep_text=False)
        got = serve.total(request_body(request, BodyOptions("m")))  # type: ignore[attr-defined]
        assert abs(got - turn.input_tokens) <= max(2, turn.input_tokens / 100)
        said = prompter.history(said, this.turns, [request], [(" ".join(["word"] * 30), None)])


@pytest.mark.parametrize(
    ("how", "why"),
    [({"refuse": True}, "HTTP 400: no tool parser"), ({"leave_out": True}, "the model's template leaves them out")],
)
def test_tools_that_a_server_does_not_take_are_told_in_words(how: dict[str, bool], why: str) -> None:
    (known, notes), _ = with_server(
        counting_tools(by_words, **how), lambda access: calibrate(access, BodyOptions("m"), tools=True)
    )
    assert known.tools is None
    assert notes == [f"tools are told in the prompt's words, not in the API's fields: {why}"]


# --- which fields -----------------------------------------------------------------------------------------------------

WHOLE = answer(role(), reasoning("hm"), content("Hello"), content(" world"), finish(), usage(5, 3), DONE)


def refusing(*names: str) -> Server:
    def serve(request: Received) -> list[Step]:
        flat = request.json | (request.json.get("stream_options") or {})
        bad = [name for name in names if name in flat]
        return json_answer({"error": {"message": f"unknown field {bad[0]}"}}, 400) if bad else WHOLE

    return serve


REFUSED = {
    (): [],
    ("ignore_eos",): ["ignore_eos"],
    ("ignore_eos", "min_tokens"): ["ignore_eos", "min_tokens"],
    ("stream_options",): ["stream_options.include_usage"],
    ("max_tokens",): ["max_completion_tokens is sent instead"],
    ("max_tokens", "min_tokens"): ["max_completion_tokens is sent instead", "min_tokens"],
}


@pytest.mark.parametrize("names", REFUSED)
def test_refused_fields_are_left_out_and_told(names: tuple[str, ...]) -> None:
    (options, notes), _ = with_server(refusing(*names), lambda access: find_options(access, BodyOptions("m")))
    assert len(notes) == len(REFUSED[names])
    assert all(words in note for words, note in zip(REFUSED[names], notes, strict=True))
    assert options.ignore_eos is ("ignore_eos" not in names)
    assert options.min_tokens is ("min_tokens" not in names)
    assert options.include_usage is ("stream_options" not in names)


def test_a_server_that_refuses_everything_is_left_to_the_run() -> None:
    (options, notes), _ = with_server(refusing("messages"), lambda access: find_options(access, BodyOptions("m")))
    assert (options, notes) == (BodyOptions("m"), [])


def test_explore() -> None:
    def serve(request: Received) -> list[Step]:
        return json_answer({"data": [{"id": "m"}]}) if request.method == "GET" else WHOLE

    (access, found), _ = with_server(serve, lambda access: both(access))
    text = render_findings(access, found)
    assert "models          m" in text
    assert "answer, thinking (field reasoning_content)" in text
    assert "kept and used again" in text
    facts = findings_json(access, found)
    assert (facts["events"], facts["output_tokens"], facts["usage"], facts["running_usage"]) == (3, 3, True, False)


async def both(access: Access) -> tuple[Access, Any]:
    return access, await explore(access, BodyOptions("m"))


@pytest.mark.parametrize(
    ("headers", "engine"),
    [
        ({}, None),
        ({"x-loadgen-engine": "one simulated h100"}, "one simulated h100"),
        ({"x-loadgen-engine": "\x1b sk-very-secret"}, "<secret>"),
    ],
)
def test_a_server_may_say_that_it_is_simulated(headers: dict[str, str], engine: str | None) -> None:
    async def ask(access: Access) -> list[str | None]:
        asked = replace(access, api_key="sk-very-secret", said=set())
        return [asked.engine, await find_model(asked), asked.engine]

    told, _ = with_server(json_answer({"data": [{"id": "m"}]}, headers=headers), ask)
    assert told == [None, "m", engine]


def test_the_probe_shows_it() -> None:
    access = Access(parse_target("x", "chat"), said={"one simulated h100", "2 simulated h100"})
    assert "engine     2 simulated h100, one simulated h100" in render_findings(access, Findings())
    assert findings_json(access, Findings())["engine"] == "2 simulated h100, one simulated h100"


# --- which model ------------------------------------------------------------------------------------------------------


def test_the_one_model_is_found() -> None:
    assert with_server(json_answer({"data": [{"id": "m"}]}), find_model)[0] == "m"


LISTS = [json_answer({}, 404), json_answer({"data": []}), json_answer({"data": [{"id": "a"}, {"id": "b"}]})]


@pytest.mark.parametrize("listed", LISTS)
def test_no_or_several_models_need_a_choice(listed: list[Step]) -> None:
    with pytest.raises(UsageError, match="--model"):
        with_server(listed, find_model)


def test_a_server_that_is_not_there() -> None:
    access = Access(parse_target(refused_url(), "chat"))
    with pytest.raises(NoVerdictError, match="Connection refused"):
        asyncio.run(find_model(access))


# --- servers that mean no good ----------------------------------------------------------------------------------------

KEY = "sk-very-secret-0123456789"


async def primed(access: Access) -> int:
    request = Request("p", (Message("user", "a"),), 1, 1, body={})
    return await prime(replace(access, api_key=KEY), BodyOptions("m"), [request])


@pytest.mark.parametrize("before", [0, 470, 485, 600])
def test_a_refusal_that_repeats_the_key_does_not_show_it(before: int) -> None:
    refusal = json_answer({"error": {"message": f"{'x' * before} bad key {KEY}"}}, 401)
    with pytest.raises(UsageError, match="HTTP 401") as caught:
        with_server(refusal, primed)
    assert KEY[:6] not in str(caught.value)


ENDLESS = [b"HTTP/1.1 200 OK\r\n\r\n", *[b'{"data": [' + b" " * 1000] * 40]
NO_GZIP = [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"]


@pytest.mark.parametrize(("listed", "said"), [(ENDLESS, "had no end after"), (NO_GZIP, "cannot be unpacked")])
def test_answers_without_end_or_sense_are_one_line(
    monkeypatch: pytest.MonkeyPatch, listed: list[Step], said: str
) -> None:
    monkeypatch.setattr(access_module, "LARGEST_ANSWER_BYTES", 20_000)
    for ask in (find_model, primed, lambda access: explore(access, BodyOptions("m"))):
        with pytest.raises(NoVerdictError, match=said) as caught:
            with_server(listed, ask)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("listed", [b"{", b"[" * 100_000, b'{"data": 5}', b'{"data": [5]}', b"\xff"])
def test_a_list_of_models_that_is_none_asks_for_a_name(listed: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(listed)
    with pytest.raises(UsageError, match="lists no models; name one with --model"):
        with_server([head + listed], find_model)


def test_names_of_models_are_shown_in_one_line_each() -> None:
    names = [{"id": "a\x1b[31m\nb"}, {"id": "c" * 100_000}]
    with pytest.raises(UsageError, match="lists 2 models") as caught:
        with_server(json_answer({"data": names}), find_model)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700
