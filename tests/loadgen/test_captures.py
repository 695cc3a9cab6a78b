"""Bytes that vLLM 0.32 and llama.cpp (Gemma 3 270M) really sent, read by read, through the whole engine.

A file of tests/data/captures has a line for each read of one answer, in base64, HTTP head and chunk framing included.
The counts were taken from the raw text, not from this program.
"""

import asyncio
import base64
from pathlib import Path

import pytest

from analysis.record import KINDS, RequestRecord
from loadgen.clock import RunClock
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions
from loadgen.target import parse_target
from tests.loadgen.scripted import CLOSE, ScriptedServer, Step
from workloads.request import Message, Request

CAPTURES = Path(__file__).parents[1] / "data" / "captures"

STREAMS = {  # token events, completion tokens, prompt tokens, cached tokens, reason to finish
    "vllm-chat_usage": (48, 48, 20, 0, "length"),
    "vllm-chat_usage_continuous": (8, 8, 20, 0, "length"),
    "vllm-chat_logprobs": (4, None, None, None, "length"),
    "vllm-chat_n2": (12, 12, 20, 0, "length"),
    "vllm-chat_max1": (1, 1, 20, 0, "length"),
    "vllm-chat_stop": (1, 1, 20, 0, "stop"),
    "vllm-completions": (46, 48, 4, 0, "length"),  # two tokens were parts of a character and came without text
    "vllm-tool_required": (20, 48, 148, 128, "length"),
    "vllm-tool_auto": (48, 48, 148, 0, "length"),
    "vllm-ngram-spec-chat_usage": (20, 48, 16, None, "length"),  # speculative decoding: several tokens an event
    "llamacpp-chat_usage": (48, 48, 16, 11, "length"),
    "llamacpp-chat_plain": (48, None, None, None, "length"),
    "llamacpp-completions": (48, 48, 4, 1, "length"),
    "llamacpp-chat_utf8": (40, None, None, None, "length"),
    "llamacpp-chat_max1": (1, 1, 16, 11, "length"),
    "llamacpp-sse-ping1-chat_long_prompt_ping": (48, None, None, None, "length"),  # comments during prefill
    "llamacpp-hermes-tools-tool_required": (46, 48, 159, 154, "length"),
}
REFUSALS = {
    "vllm-err_unknown_model": (404, "The model `no-such-model` does not exist"),
    "vllm-err_prompt_too_long": (400, "maximum context length is 16384 tokens"),
    "vllm-err_malformed_json": (400, "JSON decode error"),
    "vllm-err_invalid_param": (400, "Input should be a valid number"),
    "vllm-err_unknown_path": (404, "Not Found"),
    "vllm-err_get_on_post": (405, "Method Not Allowed"),
    "llamacpp-err_prompt_too_long": (400, "exceeds the available context size (4096 tokens)"),
    "llamacpp-err_malformed_json": (400, "parse error at line 1"),
    "llamacpp-err_max_tokens_neg": (400, "Field 'max_tokens': Value must be between"),
}


def replay(name: str) -> RequestRecord:
    steps: list[Step] = [base64.b64decode(line) for line in (CAPTURES / f"{name}.b64").read_text().split()]
    endpoint = "completions" if "completions" in name else "chat"

    async def run() -> RequestRecord:
        async with ScriptedServer([*steps, CLOSE]) as server:
            target = parse_target(server.url, endpoint)
            async with HttpEngine(target, BodyOptions("m", endpoint), HttpOptions(), RunClock()) as engine:
                return await engine.send(Request("r", (Message("user", "hi"),), 1, 48))

    return asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str) -> None:
    record = replay(name)
    told = (record.completion_tokens, record.prompt_tokens, record.cached_tokens, record.finish_reason)
    assert (record.outcome, record.error, record.events_dropped) == ("ok", None, 0)
    assert (len(record.arrival_ns), *told) == STREAMS[name]


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    status, words = REFUSALS[name]
    record = replay(name)
    assert (record.outcome, record.status, len(record.arrival_ns)) == ("http_error", status, 0)
    assert words in (record.error or "")


def test_tokens_told_by_running_usage_and_logprobs() -> None:
    assert list(replay("vllm-chat_usage_continuous").n_tokens) == [1] * 8
    assert list(replay("vllm-chat_logprobs").n_tokens) == [1] * 4


def test_tool_calls_are_tokens_of_their_own_kind() -> None:
    assert {KINDS[code] for code in replay("vllm-tool_required").kind} == {"tool"}


def test_choices_are_counted() -> None:
    assert replay("vllm-chat_n2").choices == 2


def test_one_json_body_is_no_stream() -> None:
    assert replay("vllm-chat_nonstream").outcome == "not_streamed"
