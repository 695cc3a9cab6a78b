import asyncio
import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.errors import UsageError
from loadgen.sim.app import build_app
from loadgen.sim.core import SimRequest
from loadgen.sim.options import Options
from loadgen.sim.realtime import Engine, new_event_loop
from loadgen.sim.server import serve

CHAT = {"messages": [{"role": "user", "content": "two words"}], "max_tokens": 4}
FAST = Options(speed=10_000)


def run(coroutine):
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(coroutine)


def exchange(*requests, options=FAST):
    """Answers to requests that are sent one after the other."""

    async def talk():
        transport = httpx.ASGITransport(build_app(options.config(), options.stop_early_tokens))
        async with httpx.AsyncClient(transport=transport, base_url="http://sim") as client:
            return [await client.request(method, path, **rest) for method, path, rest in requests]

    return run(talk())


def post(path, body, **rest):
    return ("POST", path, {"json": body, **rest})


def get(path):
    return ("GET", path, {})


def test_a_streamed_answer_is_events_up_to_done():
    (answer,) = exchange(post("/v1/chat/completions", {**CHAT, "stream": True}))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_an_answer_in_one_piece():
    short = {"prompt": "a b", "max_tokens": 2}
    chat, text = exchange(post("/v1/chat/completions", CHAT), post("/v1/completions", short))
    assert chat.json()["usage"]["total_tokens"] == 9 + 4
    assert len(chat.json()["choices"][0]["message"]["content"].split()) == 4
    assert len(text.json()["choices"][0]["text"].split()) == 2
    assert chat.json()["id"] != text.json()["id"]


def test_the_clients_id_is_taken_over():
    first, second = exchange(*[post("/v1/chat/completions", CHAT, headers={"x-request-id": "mine"})] * 2)
    assert first.json()["id"] == second.json()["id"] == "chatcmpl-mine"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (("POST", "/v1/chat/completions", {"content": b"{"}), 400),
        (post("/v1/chat/completions", {"messages": []}), 400),
        (post("/v1/chat/completions", {**CHAT, "model": "x"}), 404),
        (post("/v1/completions", {"prompt": "w " * 40, "max_tokens": 9}), 400),
        (post("/tokenize", {}), 400),
        (get("/v1/nothing"), 404),
        (get("/v1/chat/completions"), 405),
    ],
)
def test_errors_are_error_objects(request_, status):
    (answer,) = exchange(request_, options=Options(kv_tokens=48, speed=10_000))
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
    assert answer.json()["error"]["message"]


def test_what_stands_beside_the_answers():
    models, health, tokens = exchange(get("/v1/models"), get("/health"), post("/tokenize", {"prompt": "a b c"}))
    assert [entry["id"] for entry in models.json()["data"]] == ["llama-3.1-8b"]
    assert models.json()["data"][0]["max_model_len"] == tokens.json()["max_model_len"] == 131_072
    assert (health.status_code, health.text) == (200, "")
    assert tokens.json()["count"] == len(tokens.json()["tokens"]) == 3


def test_metrics_can_be_parsed_and_count():
    *_, answer = exchange(*[post("/v1/chat/completions", CHAT)] * 3, get("/metrics"))
    samples = {s.name: s.value for family in text_string_to_metric_families(answer.text) for s in family.samples}
    assert samples["vllm:prompt_tokens_total"] == 3 * 9
    assert samples["vllm:generation_tokens_total"] == 3 * 4
    assert samples["vllm:num_requests_running"] == samples["vllm:num_requests_waiting"] == 0
    assert samples["vllm:kv_cache_usage_perc"] == samples["vllm:num_preemptions_total"] == 0
    assert samples["vllm:request_prefill_time_seconds_count"] == 3
    assert samples["vllm:request_prefill_time_seconds_sum"] > 0


def test_a_client_that_leaves_frees_its_place(monkeypatch):
    engines = []
    original = Engine.__init__
    monkeypatch.setattr(Engine, "__init__", lambda self, *a: (engines.append(self), original(self, *a))[1])

    async def leave_after_the_first_event():
        first_event = asyncio.Event()
        body = json.dumps({**CHAT, "max_tokens": 5000, "stream": True}).encode()
        messages = iter([{"type": "http.request", "body": body}])

        async def receive():
            for message in messages:
                return message
            await first_event.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if message["type"] == "http.response.body":
                first_event.set()

        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        await build_app(FAST.config())(scope, receive, send)

    sent = []
    run(leave_after_the_first_event())
    (engine,) = engines
    assert len(sent) < 100
    assert all(message.get("more_body", True) for message in sent)
    assert (engine.core.running, engine.core.pool.used, engine.core.totals.cancelled) == (0, 0, 1)


def test_a_client_that_leaves_before_its_request_is_whole_gets_nothing():
    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    run(build_app(FAST.config())(scope, receive, send))


def test_an_engine_that_breaks_ends_its_streams_and_says_so():
    reports = []

    def broken(token):
        raise ArithmeticError("by hand")

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context["exception"]))
        engine = Engine(FAST.config())
        stream = engine.open(SimRequest("a", 5, 5), broken)
        assert await stream.take() == []
        assert stream.closed

    run(main())
    assert [str(error) for error in reports] == ["by hand"]


def test_options_survive_the_command_line():
    import argparse

    options = Options("h200", "qwen2.5-7b", 0, 7, 4096, 2.5, 99)
    parser = argparse.ArgumentParser()
    Options.add_flags(parser)
    assert Options.from_flags(parser.parse_args(options.argv())) == options


@pytest.mark.parametrize(
    ("options", "port", "message"),
    [
        (Options(gpu="nope"), 0, "unknown gpu 'nope'"),
        (Options(gpu="l4", model="qwen2.5-32b"), 0, "does not fit on one l4"),
        (Options(speed=0), 0, "speed above 0"),
        (Options(), 70_000, "cannot listen on 127.0.0.1:70000"),
    ],
)
def test_what_cannot_be_served_is_one_line(options, port, message):
    with pytest.raises(UsageError, match=f"^.*{message}[^\n]*$"):
        serve(options, "127.0.0.1", port, lambda where: pytest.fail(f"serves at {where}"))
