"""The engine over real TCP and TLS, against scripted servers: every way in which an answer comes, and its outcome."""

import asyncio
import gzip
import json
import platform
import ssl
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from analysis.record import RequestRecord
from loadgen.chunk_reader import ChunkReader
from loadgen.clock import RunClock
from loadgen.exchange import Limits
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions, level_arrivals
from loadgen.target import parse_target
from tests.loadgen.scripted import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    RESET,
    Certificate,
    ScriptedServer,
    Step,
    answer,
    chunk,
    comment,
    content,
    error,
    finish,
    head,
    json_answer,
    reasoning,
    role,
    split,
    sse,
    usage,
    wire,
    with_line_ends,
)
from workloads.request import Message, Request

WHOLE = (role(), content("Hello"), content(" world"), finish(), usage(5, 2), DONE)
QUICK = Limits(connect_s=5.0, first_token_s=None, idle_s=None, total_s=None)


def request(number: int = 0, **fields: Any) -> Request:
    return Request(f"r{number}", (Message("user", "hi"),), 1, 2, **fields)


def engine_for(url: str, endpoint: str = "chat", **options: Any) -> HttpEngine:
    clock = RunClock()
    return HttpEngine(parse_target(url, endpoint), BodyOptions("m", endpoint), HttpOptions(**options), clock)


def ask(
    *answers: Any, times: int = 1, endpoint: str = "chat", **options: Any
) -> tuple[list[RequestRecord], ScriptedServer]:
    """The records of `times` requests, one after the other, and the server that answered them."""

    async def run() -> tuple[list[RequestRecord], ScriptedServer]:
        server = ScriptedServer(*answers, tls=options.pop("server_tls", None))
        async with server, engine_for(server.url, endpoint, **options) as engine:
            records = [await engine.send(request(number)) for number in range(times)]
        return records, server

    return asyncio.run(asyncio.wait_for(run(), 30))


def one(*answers: Any, **options: Any) -> RequestRecord:
    return ask(*answers, **options)[0][0]


# --- what a good answer gives -----------------------------------------------------------------------------------------


def test_a_whole_answer() -> None:
    record = one(answer(*WHOLE))
    assert (record.outcome, record.status, record.error, record.finish_reason) == ("ok", 200, None, "stop")
    assert (record.prompt_tokens, record.completion_tokens) == (5, 2)
    assert list(record.chars) == [5, 6]
    assert record.read_id[0] < record.read_id[1]
    instants = [record.sent_ns, record.headers_ns, *record.arrival_ns, record.end_ns]
    assert instants == sorted(instants)  # type: ignore[type-var]
    assert record.tries == 1
    assert record.reused_connection is False
    assert record.connect_s is not None
    assert record.tls_s is None


def test_what_is_sent() -> None:
    _, server = ask(answer(*WHOLE), api_key="secret", headers={"X-Team": "blue"})
    sent = server.requests[0]
    assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
    assert sent.headers["authorization"] == "Bearer secret"
    assert sent.headers["x-team"] == "blue"
    assert sent.headers["x-request-id"] == "r0"
    assert sent.headers["traceparent"].startswith("00-")
    assert sent.json == {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": 2,
    }


def test_the_planned_share_of_thinking_is_told_in_a_header() -> None:
    async def run() -> tuple[str | None, str | None]:
        async with ScriptedServer(answer(*WHOLE)) as server, engine_for(server.url) as engine:
            await engine.send(request(1))
            await engine.send(request(2, thinking_tokens=7))
            first, second = (one.headers.get("x-loadgen-thinking-tokens") for one in server.requests)
            return first, second

    assert asyncio.run(asyncio.wait_for(run(), 30)) == (None, "7")


def test_one_connection_serves_many_requests() -> None:
    records, server = ask(answer(*WHOLE), times=5)
    assert [record.outcome for record in records] == ["ok"] * 5
    assert [record.reused_connection for record in records] == [False, True, True, True, True]
    assert [record.connect_s is None for record in records] == [False, True, True, True, True]
    assert server.connections == 1


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    records, server = ask([*answer(*WHOLE), CLOSE], times=3)
    assert [record.outcome for record in records] == ["ok"] * 3
    assert server.connections == 3


STREAM = b"".join(WHOLE)
CHUNKED = {"transfer-encoding": "chunked"}
GZIP, DEFLATE = {"content-encoding": "gzip"}, {"content-encoding": "deflate"}
RAW_DEFLATE = zlib.compress(STREAM, wbits=-15)
FRAMES = {
    "chunked": answer(*WHOLE),
    "length": answer(*WHOLE, framing="length"),
    "close": answer(*WHOLE, framing="close"),
    "one write": [wire(answer(*WHOLE))],
    "one byte at a time": split(wire(answer(STREAM)), *range(1, len(wire(answer(STREAM))))),
    "crlf": answer(with_line_ends(STREAM, b"\r\n")),
    "cr": answer(with_line_ends(STREAM, b"\r")),
    "a 100 before": [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n", *answer(*WHOLE)],
    "status 201": answer(*WHOLE, status=201),
    "comments between": answer(comment(), role(), comment(), content("Hello"), comment(), *WHOLE[2:]),
    "chunk extensions": [head(headers=CHUNKED), b"%x;a=b\r\n%b\r\n" % (len(STREAM), STREAM), LAST_CHUNK],
    "no content type": [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(STREAM), STREAM],
    "text/plain": [head(headers={"content-length": str(len(STREAM))}, media="text/plain"), STREAM],
    "gzip": [head(headers={"content-encoding": "gzip", "connection": "close"}), gzip.compress(STREAM), CLOSE],
    "deflate": [head(headers={"content-encoding": "deflate", "connection": "close"}), zlib.compress(STREAM), CLOSE],
    "no blank line after done": answer(*WHOLE[:-1], b"data: [DONE]"),
    "no done": answer(*WHOLE[:-1]),
    "done but no end": [*answer(*WHOLE)[:-1], HANG],
    "no finish reason": answer(role(), content("Hello"), content(" world"), usage(5, 2), DONE),
    "reset after the finish": [*answer(*WHOLE[:-1])[:-1], RESET],
    "tokens after done": answer(*WHOLE, content("more"), finish("length"), usage(9, 9)),
    "trailers": [*answer(*WHOLE)[:-1], b"0\r\nx-checksum: 1\r\ncontent-length: 3\r\n\r\n"],
    "chunked, but not at last": [head(headers={"transfer-encoding": "chunked, identity"}), STREAM, CLOSE],
    "no content type, one byte at a time": [b"HTTP/1.1 200 OK\r\n\r\n", *split(STREAM, *range(1, len(STREAM))), CLOSE],
    "two gzip members": [head(headers=GZIP), gzip.compress(STREAM[:300]) + gzip.compress(STREAM[300:]), CLOSE],
    "raw deflate, one byte at a time": [head(headers=DEFLATE), *split(RAW_DEFLATE, *range(1, len(RAW_DEFLATE))), CLOSE],
    "broken gzip after done": [head(headers=GZIP), gzip.compress(STREAM), b"stray bytes", CLOSE],
}  # fmt: skip


@pytest.mark.parametrize("case", FRAMES)
def test_framing_makes_no_difference(case: str) -> None:
    record = one(FRAMES[case])
    assert (record.outcome, record.error) == ("ok", None)
    assert list(record.chars) == [5, 6]
    assert (record.prompt_tokens, record.completion_tokens) == (5, 2)


# --- what a bad one gives ---------------------------------------------------------------------------------------------

BEGUN = answer(role(), content("a"), content("b"))[:-1]
BAD: dict[str, tuple[list[Step], str, str]] = {
    "empty with finish": (answer(role(), finish(), DONE), "empty", "no token"),
    "only done": (answer(DONE), "empty", "no token"),
    "no event at all": (answer(), "truncated", "before a token"),
    "no end": (answer(role(), content("a")), "truncated", "without finish_reason"),
    "cut in a chunk": ([*BEGUN, b"400\r\ndata: {", CLOSE], "broken", "inside the answer"),
    "cut between chunks": ([*BEGUN, CLOSE], "broken", "inside the answer"),
    "cut before the length": ([head(headers={"content-length": "999"}), content("a"), CLOSE], "broken", "inside"),
    "reset in mid-stream": ([*BEGUN, RESET], "broken", "lost"),
    "reset before the header": ([RESET], "broken", "lost"),
    "closed before the header": ([CLOSE], "broken", "before it answered"),
    "error object": (answer(error("deadline passed", 504), DONE), "stream_error", "deadline passed"),
    "error after tokens": (answer(content("a"), error("out of memory"), DONE), "stream_error", "out of memory"),
    "error then a cut": ([*BEGUN, chunk(error("preempted")), RESET], "stream_error", "preempted"),
    "named error": (answer(sse('{"message": "no worker"}', event="error")), "stream_error", "no worker"),
    "json error under 200": (json_answer({"error": {"message": "no quota"}}), "stream_error", "no quota"),
    "one json body": (json_answer({"choices": [{"message": {"content": "hi"}}]}), "not_streamed", "one JSON body"),
    "html under 200": ([head(media="text/html"), b"<b>Sorry</b>", CLOSE], "malformed", "Sorry"),
    "json under an event type": (answer(b'{"error": {"message": "late"}}'), "stream_error", "late"),
    "unreadable events": (answer(b"data: {\n\n", b"data: nope\n\n"), "malformed", "none of 2 events"),
    "not http": ([b"SSH-2.0-OpenSSH_9.0\r\n\r\n"], "malformed", "not an HTTP answer"),
    "broken chunk size": ([head(headers={"transfer-encoding": "chunked"}), b"zz\r\n"], "malformed", "not an HTTP"),
    "unknown encoding": (answer(*WHOLE, headers={"content-encoding": "br"}), "malformed", "compressed with br"),
    "broken gzip": (answer(*WHOLE, headers={"content-encoding": "gzip"}), "malformed", "compressed answer"),
    "500": (json_answer({"error": {"message": "internal"}}, 500), "http_error", "internal"),
    "503 without a body": ([head(503, {"content-length": "0"})], "http_error", "Service Unavailable"),
    "502 html": ([head(502, {"content-length": "17"}, "text/html"), b"<h1>Bad gate</h1>"], "http_error", "Bad gate"),
    "404 detail": (json_answer({"detail": "Not Found"}, 404), "http_error", "Not Found"),
    "422 list": (json_answer({"detail": [{"msg": "field required"}]}, 422), "http_error", "field required"),
    "400 and reset": ([*json_answer({"error": "bad"}, 400), RESET], "http_error", "bad"),
    "429": (json_answer({"error": {"message": "slow down"}}, 429), "rate_limited", "slow down"),
    "redirect elsewhere": ([head(307, {"location": "http://other/", "content-length": "0"})], "http_error", "http://other/"),
    "redirect of another kind": ([head(301, {"location": "/x", "content-length": "0"})], "http_error", "--target"),
    "204": ([head(204)], "truncated", "before a token"),
    "upgrade": ([b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"], "malformed", "protocol"),
    "interim answer with a body": ([b"HTTP/1.1 199 X\r\ncontent-length: 3\r\n\r\nx\n\n", HANG], "malformed", "interim"),
    "header without end": ([b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"b" * 300_000], "malformed", "a header of more than"),
    "trailers without end": ([*BEGUN, b"0\r\n" + b"x-a: b\r\n" * 40_000], "malformed", "a header of more than"),
    "comments without end": (answer(b":\n" * 70_000), "malformed", "lines without an event"),
    "status 000": ([b"HTTP/1.1 000 None\r\ncontent-length: 1\r\n\r\nx"], "malformed", "status 0"),
    "an empty reason is none": (answer(content("a"), finish("")), "truncated", "without finish_reason"),
    "an error without words": (answer(error("\n")), "stream_error", "(500)"),
    "an error of many lines": (answer(error("a\nb", "c\nd")), "stream_error", "a b (c d)"),
    "a bomb": ([head(headers=GZIP), gzip.compress(b"x" * 9_000_000), CLOSE], "malformed", "unpacks to more than"),
    "redirect to another line": ([head(307, {"location": "/a b", "content-length": "0"})], "http_error", "/a b"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_outcomes(case: str) -> None:
    steps, outcome, words = BAD[case]
    records, server = ask(steps, answer(*WHOLE), times=2)
    assert (records[0].outcome, records[1].outcome) == (outcome, "ok")  # and it harms no other request
    assert words in (records[0].error or "")
    assert len(server.requests) == 2


UNASKED = {"whole": wire(answer(*WHOLE)), "cut": wire(answer(*WHOLE))[:300], "no HTTP": b"stray"}


@pytest.mark.parametrize("case", UNASKED)
def test_what_follows_the_end_is_not_taken_for_the_next_answer(case: str) -> None:
    """It came with the end in one read; what of it comes later would otherwise answer the next request."""
    first = wire(answer(role(), content("a"), finish(), DONE)) + UNASKED[case]
    records, server = ask([first], answer(content("b"), content("c"), finish(), DONE), times=2)
    assert [(record.outcome, list(record.chars)) for record in records] == [("ok", [1]), ("ok", [1, 1])]
    assert server.connections == 2


USAGE_LIES = {
    "negative": (-1, -5, None, None),
    "larger than any column": (10**30, 2**63, None, None),
    "one of them": (5, 2**31, 5, None),
}


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
@pytest.mark.parametrize("case", USAGE_LIES)
def test_counts_that_cannot_be_are_not_measured(case: str, endpoint: str) -> None:
    prompt, completion, *believed = USAGE_LIES[case]
    told = {"usage": {"input_tokens": prompt, "output_tokens": completion}}
    typed = [{"type": "response.output_text.delta", "delta": "a"}, {"type": "response.completed", "response": told}]
    events = [sse(json.dumps(one)) for one in typed]
    whole = events if endpoint == "responses" else [content("a"), finish(), usage(prompt, completion), DONE]
    record = one(answer(*whole), endpoint=endpoint)
    assert (record.outcome, [record.prompt_tokens, record.completion_tokens]) == ("ok", believed)


def test_a_reason_to_finish_is_one_short_line() -> None:
    assert one(answer(content("a"), finish("x\n" * 1000))).finish_reason == ("x " * 30)
    assert one(answer(content("a"), finish("\x00"), finish("length"))).finish_reason == "length"


def test_an_answer_that_was_over_before_the_request_was_sent() -> None:
    async def run() -> RequestRecord:
        async with ScriptedServer([], greeting=answer(*WHOLE)) as server, engine_for(server.url) as engine:
            return await engine.send(Request("r", (Message("user", "word " * 4_000_000),), 1, 2))

    record = asyncio.run(asyncio.wait_for(run(), 30))
    assert (record.outcome, record.sent_ns) == ("malformed", None)
    assert "before the request had been sent" in (record.error or "")


def test_a_fault_of_ours_ends_its_own_request_and_is_told_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ChunkReader, *_: object) -> None:
        raise RuntimeError("a bug")

    async def run(answers: list[Step]) -> RequestRecord:
        async with ScriptedServer(answers) as server:
            return await send_one(server.url)

    monkeypatch.setattr(ChunkReader, "read", broken)
    for body in (b"data: x\n\n", b"data: x"):  # while it is read, and at its end
        for framing in ("chunked", "close"):  # in the parser's callbacks, and outside
            record = asyncio.run(asyncio.wait_for(run(answer(body, framing=framing)), 30))
            assert (record.outcome, record.error) == ("client_error", "RuntimeError: a bug")


def test_a_read_that_the_kernel_left_unstamped_does_not_lie_after_the_next() -> None:
    record = RequestRecord("r", sent_ns=10, headers_ns=25, end_ns=50)
    record.arrival_ns.extend([25, 25, 44, 30, 40])
    level_arrivals(record)
    assert list(record.arrival_ns) == [25, 25, 30, 30, 40]
    late = RequestRecord("r", headers_ns=60, end_ns=50)
    late.arrival_ns.extend([60, 45])
    level_arrivals(late)
    assert (late.headers_ns, list(late.arrival_ns)) == (45, [45, 45])


def test_the_end_of_a_stream_is_no_read_without_a_stamp() -> None:
    async def run() -> HttpEngine:
        async with ScriptedServer(answer(*WHOLE, framing="close")) as server, engine_for(server.url) as engine:
            for number in range(20):
                await engine.send(request(number))
        return engine

    engine = asyncio.run(asyncio.wait_for(run(), 30))
    assert (engine.timestamp_source == "kernel") == (platform.system() == "Linux")


def test_tokens_of_a_failed_request_are_kept() -> None:
    record = one([*BEGUN, RESET])
    assert (record.outcome, len(record.arrival_ns), record.completion_tokens) == ("broken", 2, None)


def test_a_refused_connection() -> None:
    async def run() -> RequestRecord:
        async with ScriptedServer(answer(*WHOLE)) as server:
            url = server.url
        return await send_one(url)

    record = asyncio.run(run())
    assert record.outcome == "connect_failed"
    assert "refused" in (record.error or "")
    assert record.sent_ns is None


def test_an_unknown_host() -> None:
    record = asyncio.run(send_one("http://no-such-host.invalid:1"))
    assert record.outcome == "connect_failed"
    assert "no-such-host.invalid" in (record.error or "")


async def send_one(url: str, keep_text: bool = False, **options: Any) -> RequestRecord:
    async with engine_for(url, **options) as engine:
        return await engine.send(request(keep_text=keep_text))


# --- limits -----------------------------------------------------------------------------------------------------------

LIMITS = {
    "first token": ([head(headers=CHUNKED), HANG], Limits(first_token_s=0.05), "timeout_first_token"),
    "no header": ([HANG], Limits(first_token_s=0.05), "timeout_first_token"),
    "idle": ([*BEGUN, HANG], Limits(idle_s=0.05), "timeout_idle"),
    "idle, late first token": ([*BEGUN, HANG], Limits(first_token_s=60, idle_s=0.05), "timeout_idle"),
    "total": ([*BEGUN, HANG], Limits(idle_s=30, total_s=0.05), "timeout_total"),
    "redirect without end": ([head(307, {"location": "/x"}), HANG], Limits(total_s=0.05), "http_error"),
    "hang after the finish": ([*answer(*WHOLE[:-1])[:-1], HANG], Limits(idle_s=0.05), "ok"),
}  # fmt: skip


@pytest.mark.parametrize("case", LIMITS)
def test_limits(case: str) -> None:
    steps, limits, outcome = LIMITS[case]
    records, server = ask(steps, answer(*WHOLE), times=2, limits=limits)
    assert [record.outcome for record in records] == [outcome, "ok"]
    assert server.client_closed[0] == 0  # the connection of the first request was cut by us


# --- retries and redirects --------------------------------------------------------------------------------------------


def test_a_retry_counts_from_the_first_try() -> None:
    record = one(json_answer({}, 429, {"retry-after": "0"}), answer(*WHOLE), retries=1)
    assert (record.outcome, record.tries, record.status) == ("ok", 2, 200)
    assert record.sent_ns is not None
    assert record.headers_ns is not None
    assert record.sent_ns < record.headers_ns


def test_retries_end() -> None:
    record = one(json_answer({"error": "busy"}, 429, {"retry-after": "0"}), retries=2)
    assert (record.outcome, record.tries, record.retry_after_s, record.error) == ("rate_limited", 3, 0.0, "busy")


def test_a_bad_request_is_not_tried_again() -> None:
    assert one(json_answer({}, 400), answer(*WHOLE), retries=5).tries == 1


def test_what_a_failed_try_left_does_not_mix_with_the_next() -> None:
    first = json_answer({}, 503, {"retry-after": "0"})
    record = one(first, answer(reasoning("hm"), content("a"), finish(), DONE), retries=1)
    assert (record.outcome, record.error, list(record.kind)) == ("ok", None, [0, 1])


def test_a_redirect_within_the_host_is_followed_and_remembered() -> None:
    moved = [head(307, {"location": "/other/path", "content-length": "0"})]
    records, server = ask(moved, answer(*WHOLE), times=2)
    assert [record.outcome for record in records] == ["ok", "ok"]
    assert [one.path for one in server.requests] == ["/v1/chat/completions", "/other/path", "/other/path"]


def test_a_redirect_that_led_nowhere_is_not_remembered() -> None:
    moved = [head(307, {"location": "/other/path", "content-length": "0"})]
    records, server = ask(moved, json_answer({}, 404), answer(*WHOLE), times=2)
    assert [record.outcome for record in records] == ["http_error", "ok"]
    assert server.requests[2].path == "/v1/chat/completions"


def test_a_circle_of_redirects_ends() -> None:
    record = one([head(307, {"location": "/v1/chat/completions", "content-length": "0"})])
    assert record.outcome == "http_error"


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("tls"))


def test_tls(certificate: Certificate) -> None:
    trusting = ssl.create_default_context(cafile=certificate.file)
    records, server = ask(answer(*WHOLE), times=3, server_tls=certificate.context(), tls=trusting)
    assert [record.outcome for record in records] == ["ok"] * 3
    assert server.connections == 1
    assert records[0].tls_s is not None
    assert list(records[2].chars) == [5, 6]


def test_tls_that_is_not_trusted(certificate: Certificate) -> None:
    record = one(answer(*WHOLE), server_tls=certificate.context(), tls=ssl.create_default_context())
    assert record.outcome == "tls_failed"
    assert "certificate" in (record.error or "")


def test_tls_against_a_plain_server() -> None:
    async def run() -> RequestRecord:
        async with ScriptedServer([b"HTTP/1.1 400 Bad Request\r\n\r\n", CLOSE]) as server:
            return await send_one(server.url.replace("http:", "https:"), limits=QUICK)

    assert asyncio.run(run()).outcome in ("tls_failed", "timeout_connect")


# --- many at once, and cut by us --------------------------------------------------------------------------------------


def test_many_streams_at_once_each_on_its_own_connection() -> None:
    gate: list[asyncio.Event] = []

    def held(_: object) -> list[Step]:
        return answer(role(), content("a"), gate[0], content("b"), finish(), DONE)

    async def run() -> tuple[list[RequestRecord], int]:
        gate.append(asyncio.Event())
        async with ScriptedServer(held) as server:
            engine = engine_for(server.url)
            sends = [asyncio.create_task(engine.send(request(number))) for number in range(50)]
            while len(server.requests) < 50:
                await asyncio.sleep(0)
            gate[0].set()
            records = await asyncio.gather(*sends)
            await engine.close()
            return records, server.connections

    records, connections = asyncio.run(asyncio.wait_for(run(), 30))
    assert [record.outcome for record in records] == ["ok"] * 50
    assert connections == 50


def cut_when(ready: Callable[[ScriptedServer], Awaitable[None]], *answers: Any) -> tuple[RequestRecord, ScriptedServer]:
    async def run() -> tuple[RequestRecord, ScriptedServer]:
        async with ScriptedServer(*answers) as server:
            engine = engine_for(server.url)
            sending = asyncio.create_task(engine.send(request()))
            await ready(server)
            sending.cancel()
            record = await sending
            await engine.close()
            return record, server

    return asyncio.run(asyncio.wait_for(run(), 30))


def test_a_cancelled_request_gives_its_record_with_what_had_come() -> None:
    async def begun(server: ScriptedServer) -> None:
        while not server.requests:
            await asyncio.sleep(0)
        for _ in range(50):  # turns of the loop: enough for the two tokens to be read
            await asyncio.sleep(0)

    record, _ = cut_when(begun, [*BEGUN, HANG])
    assert (record.outcome, len(record.arrival_ns)) == ("cancelled", 2)


def test_an_answer_that_was_whole_before_the_cut_is_no_cut_answer() -> None:
    async def run() -> RequestRecord:
        async with ScriptedServer(answer(*WHOLE)) as server, engine_for(server.url) as engine:
            passes = engine._turns
            let_begin = iter([True])

            async def take() -> None:
                if not next(let_begin, False):
                    ended.set()
                    await asyncio.Event().wait()

            ended, passes.take = asyncio.Event(), take  # type: ignore[method-assign]
            task = asyncio.create_task(engine.send(request()))
            await ended.wait()
            task.cancel()
            return await task

    record = asyncio.run(asyncio.wait_for(run(), 30))
    assert (record.outcome, record.error) == ("ok", None)


def test_a_large_prompt_goes_out_whole() -> None:
    async def run() -> tuple[RequestRecord, int]:
        async with ScriptedServer(answer(*WHOLE)) as server:
            engine = engine_for(server.url)
            large = Request("r", (Message("user", "word " * 1_000_000),), 1, 2)
            record = await engine.send(large)
            await engine.close()
            return record, len(server.requests[0].body)

    record, size = asyncio.run(asyncio.wait_for(run(), 30))
    assert record.outcome == "ok"
    assert size > 5_000_000


def test_text_is_kept_on_request() -> None:
    async def run(keep: bool) -> RequestRecord:
        async with ScriptedServer(answer(*WHOLE)) as server:
            return await send_one(server.url, keep)

    assert asyncio.run(run(True)).text == "Hello world"
    assert asyncio.run(run(False)).text is None
