"""What an endpoint can do, found out by asking it: a handful of small requests, none of them in any number.

Optional fields of the body are tried together first; only where the server refuses that are they tried one by one, so
that a healthy server sees one request more than the calibration's.
"""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from analysis.record import KINDS, RequestRecord
from loadgen.access import Access
from loadgen.calibrate import list_models
from loadgen.error_text import words_of
from loadgen.openai_api import READERS, BodyOptions, request_body
from loadgen.sse import SseParser
from workloads.request import Message, Request

PROBE_TOKENS = 16
QUESTION = "Count slowly from one to twenty."
REFUSALS = frozenset({400, 404, 415, 422, 501})
OPTIONAL = ("include_usage", "per_event_usage", "ignore_eos", "min_tokens")
FIELD_NAMES = {
    "include_usage": "stream_options.include_usage",
    "per_event_usage": "stream_options.continuous_usage_stats",
    "ignore_eos": "ignore_eos",
    "min_tokens": "min_tokens",
}


@dataclass
class Answer:
    """What one streamed probe showed. `problem` is set where the server refused it."""

    status: int
    record: RequestRecord
    problem: str | None = None
    http_version: str | None = None
    server: str | None = None
    content_type: str | None = None
    local_port: int | None = None
    first_s: float | None = None
    last_s: float | None = None
    reads: int = 0
    thinking_field: str | None = None

    @property
    def refused(self) -> bool:
        return self.status in REFUSALS


@dataclass
class Findings:
    """What is known of an endpoint. None: not found out."""

    models: list[str] | None = None
    round_trip_s: float | None = None
    http_version: str | None = None
    server: str | None = None
    problem: str | None = None
    streams: bool | None = None
    usage: bool | None = None
    running_usage: bool | None = None
    reused_connection: bool | None = None
    events: int | None = None
    tokens: int | None = None
    events_per_read: float | None = None
    ttft_s: float | None = None
    channels: list[str] = field(default_factory=list)
    thinking_field: str | None = None
    refused: list[str] = field(default_factory=list)
    max_tokens_field: str = "max_tokens"
    options: BodyOptions | None = None


async def find_options(access: Access, wanted: BodyOptions) -> tuple[BodyOptions, list[str]]:
    """The body that the server takes, as near to the wanted one as it can be, and a note on each difference.

    Raises:
        NoVerdictError: the server cannot be reached.
    """
    async with access.client() as client:
        options, refused, _ = await _settle(client, access, wanted)
    return options, notes(refused)


async def explore(access: Access, wanted: BodyOptions) -> Findings:
    """Everything that `loadgen probe` shows. Raises NoVerdictError where the server cannot be reached."""
    found = Findings()
    async with access.client() as client:
        await _look_at_models(client, access, found)
        everything = replace(wanted, per_event_usage=True)
        found.options, found.refused, first = await _settle(client, access, everything)
        found.max_tokens_field = found.options.max_tokens_field
        second = await _ask(client, access, found.options)
    _describe(found, first, second)
    return found


def notes(refused: list[str]) -> list[str]:
    """What the user is told of the fields that were left out."""
    told = []
    for name in refused:
        if name == "max_tokens":
            told.append("the server refuses max_tokens: max_completion_tokens is sent instead")
        elif name in ("ignore_eos", "min_tokens"):
            told.append(f"the server refuses {name}: left out, so answers may be shorter than planned")
        else:
            told.append(f"the server refuses {FIELD_NAMES[name]}: left out")
    return told


# --- which body -------------------------------------------------------------------------------------------------------


async def _settle(
    client: httpx.AsyncClient, access: Access, wanted: BodyOptions
) -> tuple[BodyOptions, list[str], Answer]:
    """The body that is taken, the names of what had to go, and the answer to it (or to the last try)."""
    answer = await _ask(client, access, wanted)
    if not answer.refused:
        return wanted, [], answer
    options, refused = _bare(wanted), []
    answer = await _ask(client, access, options)
    if answer.refused and options.endpoint != "responses" and options.max_tokens_field == "max_tokens":
        other = replace(options, max_tokens_field="max_completion_tokens")
        retried = await _ask(client, access, other)
        if not retried.refused:
            options, refused, answer = other, ["max_tokens"], retried
    if answer.refused:
        return wanted, [], answer  # no optional field is to blame: the run itself will show what is
    for name in OPTIONAL:
        if getattr(wanted, name):
            more = _with(options, name)
            tried = await _ask(client, access, more)
            if tried.refused:
                refused.append(name)
            else:
                options, answer = more, tried
    return options, refused, answer


def _bare(options: BodyOptions) -> BodyOptions:
    return replace(options, include_usage=False, per_event_usage=False, ignore_eos=False, min_tokens=False)


def _with(options: BodyOptions, name: str) -> BodyOptions:
    change: dict[str, Any] = {name: True}
    return replace(options, **change)


# --- one request ------------------------------------------------------------------------------------------------------


async def _ask(client: httpx.AsyncClient, access: Access, options: BodyOptions) -> Answer:
    """One short streamed answer."""
    record = RequestRecord("probe")
    body = request_body(Request("probe", (Message("user", QUESTION),), 0, PROBE_TOKENS), options)
    begin = time.perf_counter()
    async with access.ask(client, "POST", access.target.path, body) as reply:
        answer = Answer(reply.status_code, record, http_version=reply.http_version)
        answer.server = reply.headers.get("server")
        answer.content_type = reply.headers.get("content-type")
        answer.local_port = _local_port(reply)
        if reply.is_success:
            await _read(access.parts(reply), answer, options, begin)
        else:
            words = access.shown(words_of(await access.whole(reply)))
            answer.problem = f"HTTP {reply.status_code}: {words or reply.reason_phrase}"
    return answer


async def _read(parts: AsyncIterator[bytes], answer: Answer, options: BodyOptions, begin: float) -> None:
    parser, reader = SseParser(), READERS[options.endpoint](answer.record)
    async for data in parts:
        now_s = time.perf_counter() - begin
        before = len(answer.record.arrival_ns)
        for name, payload in parser.feed(data):
            reader.read(name, payload, int(now_s * 1e9), answer.reads)
            for thinking in ("reasoning_content", "reasoning"):
                if f'"{thinking}":"'.encode() in payload.replace(b" ", b""):
                    answer.thinking_field = answer.thinking_field or thinking
        if len(answer.record.arrival_ns) > before:
            answer.first_s = now_s if answer.first_s is None else answer.first_s
            answer.last_s = now_s
            answer.reads += 1
    if reader.failed:
        answer.problem = answer.record.error


def _local_port(reply: httpx.Response) -> int | None:
    stream = reply.extensions.get("network_stream")
    address = stream.get_extra_info("client_addr") if stream is not None else None
    return address[1] if isinstance(address, tuple) and len(address) > 1 else None


# --- what it means ----------------------------------------------------------------------------------------------------


async def _look_at_models(client: httpx.AsyncClient, access: Access, found: Findings) -> None:
    await list_models(client, access)  # opens the connection, so that the next one is a plain round trip
    begin = time.perf_counter()
    names = await list_models(client, access)
    found.models = None if names is None else [access.shown(name) for name in names]
    found.round_trip_s = time.perf_counter() - begin


def _describe(found: Findings, first: Answer, second: Answer) -> None:
    record = second.record
    found.http_version, found.server, found.problem = second.http_version, second.server, second.problem
    if first.local_port is not None and second.local_port is not None:
        found.reused_connection = first.local_port == second.local_port
    if second.problem is not None or not record.arrival_ns:
        return
    found.events, found.tokens = len(record.arrival_ns), record.completion_tokens
    found.events_per_read = found.events / max(1, second.reads)
    found.ttft_s = second.first_s
    found.streams = second.reads > 1
    found.usage = record.completion_tokens is not None
    found.running_usage = any(told > 0 for told in record.n_tokens)
    found.channels = sorted({KINDS[code] for code in record.kind})
    found.thinking_field = second.thinking_field
