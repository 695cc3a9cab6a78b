"""The server over real TCP, on this process' loop."""

import asyncio
import gc
import json
from itertools import pairwise

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.sim.books import Books
from loadgen.sim.options import Options
from tests.loadgen.sim.serving import CHAT, HELLO, ask, events, raw_connection, run, served, talk

BODY = {**HELLO, "max_tokens": 4}
STREAM = {**BODY, "stream": True}
USAGE = {"stream_options": {"include_usage": True}}
FIND = {"type": "function", "function": {"name": "find", "parameters": {"properties": {"q": {"type": "string"}}}}}


def with_faults(*faults):
    return Options(speed=10_000, inject=faults)


def metrics(text):
    return {
        (s.name, s.labels.get("finished_reason")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


# --- what a client of the OpenAI API sees -----------------------------------------------------------------------------


def test_a_streamed_answer_is_events_up_to_done():
    answer = ask({**STREAM, **USAGE})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(answer.text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 4 + ["length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_an_answer_in_one_piece():
    chat, text = ask(BODY), ask({"prompt": "a b", "max_tokens": 2}, "/v1/completions")
    assert chat.json()["object"] == "chat.completion"
    assert chat.json()["usage"]["total_tokens"] == 9 + 4
    assert len(chat.json()["choices"][0]["message"]["content"].split()) == 4
    assert len(text.json()["choices"][0]["text"].split()) == 2


def test_the_clients_id_is_taken_over_as_soon_as_it_is_free():
    async def twice(client):
        return [(await client.post(CHAT, json=BODY, headers={"x-request-id": "mine"})).json()["id"] for _ in range(2)]

    async def at_once(client):
        # So long that its hashes are taken in turns with the other's.
        body = {"messages": [{"role": "user", "content": "word " * 5000}], "max_tokens": 50}
        both = (client.post(CHAT, json=body, headers={"x-request-id": "mine"}) for _ in range(2))
        return {answer.json()["id"] for answer in await asyncio.gather(*both)}

    assert talk(twice) == ["chatcmpl-mine"] * 2
    assert len(talk(at_once)) == 2


def test_choices_are_interleaved_and_add_up():
    answer = ask({**STREAM, **USAGE, "n": 3, "max_tokens": 5}, options=Options())
    chunks = events(answer.text)
    assert [c["choices"][0]["index"] for c in chunks[:3]] == [0, 1, 2]  # the roles
    order = [c["choices"][0]["index"] for c in chunks[3:-1]]
    assert sorted(order) == [0] * 5 + [1] * 5 + [2] * 5
    assert order != sorted(order)
    finishes = [c["choices"][0]["finish_reason"] for c in chunks[3:-1] if c["choices"][0]["finish_reason"]]
    assert finishes == ["length"] * 3
    assert chunks[-1]["usage"]["completion_tokens"] == 15
    assert chunks[-1]["usage"]["total_tokens"] == 9 + 15
    whole = ask({**BODY, "n": 3, "max_tokens": 5}).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in whole["choices"]}) == 3
    assert whole["usage"]["completion_tokens"] == 15


def test_choices_that_stop_at_different_tokens():
    chunks = events(ask({**STREAM, **USAGE, "n": 4, "max_tokens": 300, "stop": ["prompt"]}).text)
    texts = dict.fromkeys(range(4), "")
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"]["content"]
    assert all("prompt" not in text for text in texts.values())
    assert {c["choices"][0].get("stop_reason") for c in chunks[:-1] if c["choices"][0]["finish_reason"]} == {"prompt"}
    words = sum(len(text.split()) for text in texts.values())
    assert words + 4 == chunks[-1]["usage"]["completion_tokens"] < 1200


def test_tools_are_called():
    tools = {"tools": [FIND], "tool_choice": "required"}
    chunks = events(ask({**STREAM, **USAGE, **tools, "max_tokens": 6}).text)
    calls = [call for c in chunks[1:-2] for call in c["choices"][0]["delta"]["tool_calls"]]
    assert calls[0]["function"]["name"] == "find"
    assert len(json.loads("".join(call["function"]["arguments"] for call in calls))["q"].split()) == 5
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    whole = ask({**BODY, **tools}).json()["choices"][0]
    assert whole["message"]["tool_calls"][0]["function"]["name"] == "find"
    assert whole["message"]["content"] is None


@pytest.mark.parametrize(
    ("options", "body", "headers", "called"),
    [
        (Options(speed=10_000), {}, {}, False),
        (Options(speed=10_000), {}, {"x-loadgen-tool-calls": "1"}, True),
        (Options(speed=10_000), {"chat_template_kwargs": {"tool_calls": 1}}, {}, True),
        (Options(speed=10_000, auto_tool_calls=1), {}, {}, True),
        (Options(speed=10_000, auto_tool_calls=1), {"tool_choice": "none"}, {}, False),
    ],
)
def test_with_auto_tools_are_called_only_where_someone_asks(options, body, headers, called):
    answer = ask({**BODY, "tools": [FIND], **body}, options=options, headers=headers).json()
    assert ("tool_calls" in answer["choices"][0]["message"]) == called
    assert answer["choices"][0]["finish_reason"] == ("tool_calls" if called else "length")


def test_a_call_is_as_long_in_the_next_prompt_as_it_was_as_an_answer():
    tools = {"tools": [FIND], "tool_choice": "required"}

    async def two_turns(client):
        first = (await client.post(CHAT, json={**HELLO, **tools, "max_tokens": 12})).json()
        said = [*HELLO["messages"], first["choices"][0]["message"]]
        second = (await client.post(CHAT, json={"messages": said, **tools, "max_tokens": 12})).json()
        return first["usage"], second["usage"]

    first, second = talk(two_turns)
    assert second["prompt_tokens"] == first["prompt_tokens"] + 12 + 4  # <|end|> <|start|> assistant <|message|>


def test_a_conversation_with_tools_goes_on():
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
    messages = [
        *HELLO["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "found it"},
    ]
    answer = ask({"messages": messages, "max_tokens": 3, "tools": [FIND]}).json()
    assert (
        answer["usage"]["prompt_tokens"] > ask({"messages": messages, "max_tokens": 3}).json()["usage"]["prompt_tokens"]
    )
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_under_either_name(field):
    options = Options(speed=10_000, thinking_field=field)
    chunks = events(ask({**STREAM, **USAGE, "reasoning_effort": "medium"}, options=options).text)
    assert [set(c["choices"][0]["delta"]) for c in chunks[1:-1]] == [{field}] * 2 + [{"content"}] * 2
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_the_next_turn_finds_prompt_and_answer_in_the_cache():
    async def two_turns(client):
        said = [{"role": "user", "content": "word " * 50}]
        first = (await client.post(CHAT, json={"messages": said, "max_tokens": 40})).json()
        said += [first["choices"][0]["message"], {"role": "user", "content": "more"}]
        second = (await client.post(CHAT, json={"messages": said, "max_tokens": 4})).json()
        return first["usage"], second["usage"], metrics((await client.get("/metrics")).text)

    first, second, seen = talk(two_turns)
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    # 57 tokens of prompt and 40 of answer: six whole blocks of 16. The last token of an answer has no keys and values.
    assert second["prompt_tokens_details"]["cached_tokens"] == 96
    assert seen["vllm:prefix_cache_hits_total", None] == 96
    assert seen["vllm:prefix_cache_queries_total", None] == first["prompt_tokens"] + second["prompt_tokens"]
    first, second, _ = talk(two_turns, Options(speed=10_000, prefix_cache=False))
    assert second["prompt_tokens_details"]["cached_tokens"] == 0


def test_speculation_gives_events_of_several_tokens():
    options = Options(speed=10_000, speculative="4:0.9")
    body = {**STREAM, "max_tokens": 60, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chunks = events(ask(body, options=options).text)
    totals = [c["usage"]["completion_tokens"] for c in chunks]
    assert totals[-1] == totals[-2] == 60
    assert max(b - a for a, b in pairwise(totals)) > 1
    text = "".join(c["choices"][0]["delta"]["content"] for c in chunks[:-1])
    assert len(text.split()) == 60


@pytest.mark.parametrize(
    ("method", "path", "rest", "status"),
    [
        ("POST", CHAT, {"content": b"{"}, 400),
        ("POST", CHAT, {"json": {"messages": []}}, 400),
        ("POST", CHAT, {"json": {**BODY, "model": "x"}}, 404),
        ("POST", "/v1/completions", {"json": {"prompt": "w " * 40, "max_tokens": 9}}, 400),
        ("POST", "/tokenize", {"json": {}}, 400),
        ("GET", "/v1/nothing", {}, 404),
        ("GET", CHAT, {}, 405),
    ],
)
def test_errors_are_error_objects(method, path, rest, status):
    async def one(client):
        return await client.request(method, path, **rest)

    answer = talk(one, Options(kv_tokens=48, speed=10_000))
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
    assert answer.json()["error"]["message"]


def test_what_stands_beside_the_answers():
    async def look(client):
        tokens = await client.post("/tokenize", json={"prompt": "a b c"})
        return await client.get("/v1/models"), await client.get("/health"), tokens

    models, health, tokens = talk(look)
    assert [entry["id"] for entry in models.json()["data"]] == ["llama-3.1-8b"]
    assert models.json()["data"][0]["max_model_len"] == tokens.json()["max_model_len"] == 131_072
    assert (health.status_code, health.text) == (200, "")
    assert tokens.json()["count"] == len(tokens.json()["tokens"]) == 3


def test_metrics_count():
    async def three(client):
        for _ in range(3):
            await client.post(CHAT, json=BODY)
        return metrics((await client.get("/metrics")).text)

    seen = talk(three)
    assert seen["vllm:prompt_tokens_total", None] == 3 * 9
    assert seen["vllm:generation_tokens_total", None] == 3 * 4
    assert seen["vllm:num_requests_running", None] == seen["vllm:num_requests_waiting", None] == 0
    assert seen["vllm:kv_cache_usage_perc", None] == seen["vllm:num_preemptions_total", None] == 0
    assert seen["vllm:request_success_total", "length"] == 3
    for name in ("time_to_first_token", "request_prefill_time", "request_queue_time", "e2e_request_latency"):
        assert seen[f"vllm:{name}_seconds_count", None] == 3
    assert seen["vllm:request_prefill_time_seconds_sum", None] > 0
    assert seen["loadgen:lateness_seconds_count", None] == 12


# --- the connection ---------------------------------------------------------------------------------------------------


def test_connections_are_kept_and_used_again():
    async def main():
        async with served() as (client, _):
            for body in (STREAM, BODY, STREAM):
                assert (await client.post(CHAT, json=body)).status_code == 200
            (connection,) = client._transport._pool.connections
            return connection.info()

    assert "Request Count: 3" in run(main())


def test_a_client_that_leaves_frees_its_place():
    async def main():
        async with served(Options()) as (client, app):
            async with client.stream("POST", CHAT, json={**STREAM, "max_tokens": 5000, "n": 2}) as answer:
                async for _ in answer.aiter_raw():
                    break
            while app.books.ends.abort < 2:
                await asyncio.sleep(0)
            return app

    core = run(main()).engine.core
    assert (core.running, core.waiting, core.kv_used_share, core.totals.cancelled) == (0, 0, 0, 2)


def test_a_client_that_leaves_before_its_request_is_whole_gets_nothing():
    async def main():
        async with served() as (client, app):
            _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            assert (await client.post(CHAT, json=BODY)).status_code == 200
            return app.engine.core.totals.finished

    assert run(main()) == 1


# --- injected faults --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("body", [STREAM, BODY])
def test_a_rejected_request_is_told_when_to_come_again(status, body):
    answer = ask(body, options=with_faults(f"reject:status={status},retry-after=3s"))
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "3")
    assert answer.json()["error"]["code"] == status


def test_probes_are_not_hit():
    options = with_faults("reject", "error:after=0")
    assert ask(BODY, options=options, headers={"x-loadgen-probe": "1"}).status_code == 200


def test_the_same_requests_are_hit_again():
    async def twenty(client):
        answers = [await client.post(CHAT, json=BODY, headers={"x-request-id": f"r{i}"}) for i in range(20)]
        return [answer.status_code for answer in answers]

    options = with_faults("reject:share=50%,seed=4")
    first = talk(twenty, options)
    assert set(first) == {200, 429}
    assert talk(twenty, options) == first != talk(twenty, with_faults("reject:share=50%,seed=5"))


async def drain(client, got):
    async with client.stream("POST", CHAT, json={**STREAM, "max_tokens": 50}) as answer:
        async for piece in answer.aiter_raw():
            got.append(piece)


@pytest.mark.parametrize("after", [1, 3])
def test_a_connection_that_is_reset(after):
    async def read(client):
        got = []
        with pytest.raises(httpx.ReadError):
            await drain(client, got)
        assert (await client.get("/health")).status_code == 200
        return b"".join(got)

    # What had not been read when the reset came is lost.
    got = talk(read, Options(inject=(f"reset:after={after}",), speed=0.2))
    assert got.count(b'"content":" ') == after
    assert b"[DONE]" not in got


@pytest.mark.parametrize("after", [0, 2])
def test_an_error_in_the_stream_ends_it(after):
    answer = ask({**STREAM, "max_tokens": 50}, options=with_faults(f"error:after={after}"))
    assert answer.status_code == 200
    *tokens, error = events(answer.text)
    assert error["error"]["code"] == 500
    assert len([token for token in tokens if token["choices"][0]["delta"]["content"]]) == after
    assert ask(BODY, options=with_faults(f"error:after={after}")).status_code == 500


def test_a_request_that_fails_leaves_the_engine():
    async def main():
        async with served(Options(inject=("error:after=2",))) as (client, app):
            await client.post(CHAT, json={**STREAM, "max_tokens": 50_000})
            return app

    app = run(main())
    assert (app.engine.core.running, app.engine.core.totals.cancelled) == (0, 1)
    assert (app.books.ends.error, app.books.ends.abort) == (1, 0)


@pytest.mark.parametrize(("fault", "writes"), [("burst", 1), ("burst:tokens=4", 3), ("buffer:bytes=1000000", 1)])
def test_what_is_held_back_comes_in_one_piece(fault, writes):
    async def read(client):
        async with raw_connection(client) as exchange:
            return await exchange({**STREAM, "max_tokens": 12})

    pieces = talk(read, Options(inject=(fault,)))
    assert b"".join(pieces).count(b"data: ") == 14
    assert len([piece for piece in pieces if b"data: " in piece]) == writes


@pytest.mark.parametrize("body", [STREAM, BODY])
def test_a_late_head(body):
    async def main():
        loop = asyncio.get_running_loop()
        async with served(with_faults("slow-headers:for=120ms")) as (client, app):
            start_s = loop.time()
            async with client.stream("POST", CHAT, json=body) as answer:
                headers_s = loop.time() - start_s
                await answer.aread()
            return headers_s, answer, app

    headers_s, answer, app = run(main())
    assert headers_s >= 0.12
    assert answer.status_code == 200
    assert app.engine.core.totals.finished == 1


def test_the_engine_pauses_in_turns():
    async def read(client):
        await client.post(CHAT, json={**STREAM, "max_tokens": 60})

    class Kept(list):
        def add(self, rows):
            self.extend(rows)

    truth = Kept()
    talk(read, Options(inject=("pause:every=100ms,for=70ms",)), Books(truth))
    injected = [row for row in truth if row.cause == "injected"]
    assert len(injected) >= 3
    assert all(row.delay_ns % 70_000_000 == 0 for row in injected)  # twice, where this process was held up
    gaps = [b.due_ns - a.due_ns for a, b in pairwise(truth)]
    assert sum(gap > 70e6 for gap in gaps) == len(injected)


# --- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [STREAM, BODY, {**STREAM, "n": 2}, {**BODY, "model": "x"}])
def test_a_request_leaves_no_cycles_behind(body):
    """The server runs without garbage collection: what refers to itself would stay for good."""

    async def main():
        async with served() as (client, _), raw_connection(client) as exchange:
            await exchange(body)
            gc.collect()
            gc.disable()
            try:
                for _ in range(10):
                    await exchange(body)
                return gc.collect()
            finally:
                gc.enable()

    assert run(main()) == 0
