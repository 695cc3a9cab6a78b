"""Whatever a server sends, however the network cuts it: one request, one record that holds together, and no exception.

The long version is tests/bench/fuzz, over TCP; here the answers come through a pair of sockets in the same loop, or go
straight to an Exchange. And whatever a run directory says that others wrote: it is read, or one line tells why not.
"""

import asyncio
import gzip
import json
import random
import re
import shutil
import socket
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from analysis.record import RequestRecord
from loadgen.cli import app
from loadgen.clock import RunClock
from loadgen.connection import Connection
from loadgen.error_text import MAX_MESSAGE_CHARS, error_message
from loadgen.exchange import Exchange, Limits
from loadgen.inflate import Inflater
from loadgen.openai_api import READERS
from loadgen.poller import Poller
from loadgen.sse import SseParser
from tests.bench.fuzz.check import faults
from tests.bench.fuzz.mutate import BODY_MUTATIONS, CORPUS, WIRE_MUTATIONS, framed, mutated
from tests.loadgen.virtual import VirtualClock, run_virtual

ENDPOINTS = st.sampled_from(["chat", "responses"])
CUTS = st.lists(st.integers(0, 4000), max_size=12)
NO_LIMITS = Limits(connect_s=None)
FIXED_NS = 1_000
SENDABLE = 16_384  # bytes that a socket takes without anyone reading

SAMPLE_RUNS = Path(__file__).parents[2] / "sample_runs"


def fixed_clock() -> RunClock:
    """A clock that stands still: records of the same answer are then the same to the last field."""
    return RunClock(origin_ns=0, monotonic_ns=lambda: FIXED_NS, realtime_ns=lambda: FIXED_NS)


def cut(data: bytes, marks: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted(min(mark, len(data)) for mark in marks), len(data)]
    return [data[low:high] for low, high in pairwise(bounds) if low < high]


def exchange_for(endpoint: str) -> Exchange:
    record = RequestRecord("r", sent_ns=0)
    return Exchange(record, READERS[endpoint](record, True), fixed_clock(), NO_LIMITS)


# --- over a connection ------------------------------------------------------------------------------------------------


async def play(pieces: Sequence[bytes], endpoint: str) -> Exchange:
    """The exchange after a server has written each piece on its own, and closed."""
    poller = Poller(gather=True)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, poller, fixed_clock(), None, kernel_stamps=False)
    exchange = exchange_for(endpoint)
    with theirs:
        await connection.send(b"request", exchange)
        for piece in (part for whole in pieces for part in cut(whole, range(SENDABLE, len(whole), SENDABLE))):
            if connection.closed:
                break
            theirs.sendall(piece)
            for _ in range(3):  # turns of the loop: one to poll, one to read, one to spare
                await asyncio.sleep(0)
        theirs.shutdown(socket.SHUT_WR)
        while not connection.closed:
            await asyncio.sleep(0)
    poller.close()
    return exchange


def played(pieces: Sequence[bytes], endpoint: str) -> RequestRecord:
    problems: list[dict[str, Any]] = []

    async def run() -> Exchange:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        return await play(pieces, endpoint)

    exchange = asyncio.run(run())
    assert not problems
    assert exchange.finished.done()
    assert not faults(exchange.record)
    return exchange.record


def but_for_reads(record: RequestRecord) -> dict[str, Any]:
    return asdict(record) | {"read_id": None}


@pytest.mark.parametrize("answer", CORPUS, ids=lambda answer: answer.name)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 9), marks=CUTS)
def test_any_split_of_an_answer_gives_the_same_record(answer: Any, seed: int, marks: list[int]) -> None:
    wire = framed(random.Random(seed), answer.head, answer.body)
    in_pieces, at_once = (played(pieces, answer.endpoint) for pieces in (cut(wire, marks), [wire]))
    assert but_for_reads(in_pieces) == but_for_reads(at_once)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), marks=CUTS)
def test_any_split_of_a_spoilt_answer_gives_the_same_record(seed: int, marks: list[int]) -> None:
    rng = random.Random(seed)
    answer = rng.choice([one for one in CORPUS if b"content-encoding" not in one.head])
    wire = framed(rng, answer.head, mutated(rng, answer.body, BODY_MUTATIONS))
    wire = mutated(rng, wire, WIRE_MUTATIONS) if rng.random() < 0.5 else wire
    if b"content-encoding" not in wire:  # what a broken piece unpacks to before its fault is lost with it
        in_pieces, at_once = (played(pieces, answer.endpoint) for pieces in (cut(wire, marks), [wire]))
        assert but_for_reads(in_pieces) == but_for_reads(at_once)


# --- straight to an exchange ------------------------------------------------------------------------------------------

HEADERS = st.fixed_dictionaries(
    {},
    optional={
        b"content-type": st.sampled_from([b"text/event-stream", b"application/json", b"\xff\n", b""]),
        b"content-encoding": st.sampled_from([b"gzip", b"deflate", b"br", b"identity", b""]),
        b"retry-after": st.sampled_from([b"1", b"nan", b"-1", b"1e999", b"\xff"]),
        b"location": st.binary(max_size=8),
    },
)
FRAGMENTS = st.sampled_from([
    b"data: ", b"data", b"event: error", b"event: response.completed", b": c", b"[DONE]", b"{}", b"{", b"\r", b"\n",
    b"\n\n", b"\r\n\r\n", b"\xef\xbb\xbf", b"\xff", b"<script>", b'data: {"error":"x"}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"a"}\n\n', b'data: {"choices":[{"finish_reason":"stop"}]}\n\n',
])  # fmt: skip
BODIES = st.one_of(st.binary(max_size=300), st.lists(FRAGMENTS, max_size=30).map(b"".join))


def received(endpoint: str, status: int, headers: dict[bytes, bytes], pieces: Sequence[bytes]) -> RequestRecord:
    async def run() -> RequestRecord:
        exchange = exchange_for(endpoint)
        exchange.on_head(status, headers, FIXED_NS)
        for number, piece in enumerate(pieces):
            exchange.on_body(piece, FIXED_NS, number)
        exchange.on_complete(FIXED_NS)
        assert exchange.finished.done()
        return exchange.record

    return asyncio.run(run())


@settings(max_examples=300, deadline=None)
@given(ENDPOINTS, st.integers(200, 599), HEADERS, BODIES, CUTS, st.booleans())
def test_any_bytes_end_in_one_outcome(
    endpoint: str, status: int, headers: dict[bytes, bytes], body: bytes, marks: list[int], packed: bool
) -> None:
    data = gzip.compress(body) if packed else body
    assert not faults(received(endpoint, status, headers, cut(data, marks)))


NAMES = [
    "choices", "delta", "content", "text", "index", "finish_reason", "usage", "completion_tokens", "prompt_tokens",
    "token_ids", "logprobs", "reasoning", "tool_calls", "function", "arguments", "name", "error", "message", "code",
    "type", "response", "item", "incomplete_details", "reason", "input_tokens", "output_tokens",
    "completion_tokens_details", "reasoning_tokens", "object",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5),
    st.sampled_from(["response.completed", "response.output_text.delta", "error", "abort", "stop", 2**31, 2**63, -1]),
)  # fmt: skip
JSONS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None)
@given(ENDPOINTS, st.lists(JSONS, max_size=4))
def test_any_json_is_read(endpoint: str, values: list[Any]) -> None:
    body = b"".join(b"data: %b\n\n" % json.dumps(value).encode() for value in values)
    assert not faults(received(endpoint, 200, {b"content-type": b"text/event-stream"}, [body]))


@given(JSONS)
def test_an_error_is_one_short_line(value: Any) -> None:
    for error in (value, json.dumps(value).encode(), str(value)):
        message = error_message(error)
        assert message.isprintable()
        assert len(message) <= MAX_MESSAGE_CHARS


@pytest.mark.parametrize(("opening", "closing"), [(b'{"error":', b"}"), (b"[", b"]"), (b'{"x":', b"}")])
@pytest.mark.parametrize("depth", [5, 100, 600, 900, 100_000])
def test_an_error_nested_deep(opening: bytes, closing: bytes, depth: int) -> None:
    error = opening * depth + b"1" + closing * depth
    assert error_message(error)
    assert not faults(received("chat", 200, {}, [b'data: {"error":' + error + b"}\n\n"]))


def test_a_last_event_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.exchange.SseParser", partial(SseParser, max_event_bytes=200))
    record = received("chat", 200, {}, [b"data: " + b"x" * 100 + b"\n", b"data: " + b"x" * 100])
    assert (record.outcome, record.error) == ("malformed", "the server sent an event of more than 200 bytes")


# --- packed -----------------------------------------------------------------------------------------------------------


def packed(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from([31, 15, -15]), CUTS)
def test_any_split_unpacks_to_the_same(data: bytes, wbits: int, marks: list[int]) -> None:
    inflater = Inflater(b"gzip" if wbits == 31 else b"deflate")
    assert b"".join(piece for part in cut(packed(data, wbits), marks) for piece in inflater.feed(part)) == data


def test_members_of_gzip_follow_one_another() -> None:
    inflater = Inflater(b"gzip")
    assert b"".join(inflater.feed(gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"cd"))) == b"abcd"


def test_a_piece_is_bounded_and_so_is_what_one_read_unpacks_to() -> None:
    fits, bomb = gzip.compress(b"x" * (3 << 20)), gzip.compress(b"x" * (64 << 20))
    assert [len(piece) for piece in Inflater(b"gzip").feed(fits)] == [1 << 20] * 3
    with pytest.raises(zlib.error, match="unpacks to more than"):
        list(Inflater(b"gzip").feed(bomb))


# --- a client that is late itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answered", "outcome"), [(True, "ok"), (False, "timeout_first_token")])
def test_a_limit_that_our_own_lateness_met_waits_for_what_is_still_to_be_read(answered: bool, outcome: str) -> None:
    body = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    async def run() -> RequestRecord:
        record, clock = RequestRecord("r"), VirtualClock()
        exchange = Exchange(record, READERS["chat"](record), clock, Limits(first_token_s=1.0))
        clock.block(3_000_000_000)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not exchange.finished.done()
        if answered:
            exchange.on_head(200, {}, 1)
            exchange.on_body(body, 1, 1)
        await exchange.finished
        return record

    assert run_virtual(run()).outcome == outcome


# --- a run directory that others wrote --------------------------------------------------------------------------------

COMMANDS = [
    *(["report", "RUN", "--format", kind] for kind in ("text", "json", "csv", "html", "junit", "markdown", "vllm")),
    ["stalls", "RUN"],
    ["compare", "RUN", "RUN"],
    ["compare", "RUN", "RUN", "--format", "html"],
]
each_command = pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words).replace(" RUN", ""))


def described(folder: Path, **changes: Any) -> Path:
    """A sample run whose description says something else here and there."""
    shutil.copytree(SAMPLE_RUNS / "interrupted", folder)
    told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps(told | changes), encoding="utf-8")
    return folder


def loadgen(words: Sequence[str], run: Path) -> Result:
    return CliRunner().invoke(app, [str(run) if word == "RUN" else word for word in words])


@each_command
def test_a_damaged_description_is_one_line_to_every_command(tmp_path: Path, words: list[str]) -> None:
    run = described(tmp_path / "run", stages=[{"name": "main", "offered_rps": "x"}])
    result = loadgen(words, run)
    assert result.exit_code == 2
    assert result.output == f"loadgen: {run / 'run.json'}: stages[0].offered_rps: expected a number\n"


@each_command
def test_no_command_shows_control_characters(tmp_path: Path, words: list[str]) -> None:
    bad = "\x1b[31mred\x9b2J\x07\r\nSLO: PASS"
    texts = dict.fromkeys(("id", "name", "model", "target", "engine", "interrupted_by", "started_at"), bad)
    result = loadgen(words, described(tmp_path / "run", **texts, warnings=[{"code": bad, "text": bad}]))
    assert result.exit_code in (0, 1, 3), result.output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]|^SLO: PASS", result.output, re.MULTILINE)


@each_command
def test_a_workload_that_is_but_a_name_is_read(tmp_path: Path, words: list[str]) -> None:
    assert loadgen(words, described(tmp_path / "run", workload="x")).exit_code in (0, 3)
