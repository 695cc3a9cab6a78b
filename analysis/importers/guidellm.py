"""GuideLLM's `benchmarks.json`: benchmarks, each with its requests by how they ended.

Field names and meaning are those of GuideLLM 0.2 to 0.6 (schemas/request_stats.py, schemas/info.py, and before 0.4
benchmark/benchmark.py): instants are seconds of the wall clock. Of the tokens of a request only the first and the last
have one; GuideLLM itself spaces the others evenly. Each benchmark becomes a stage.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from analysis.importers.decode import Document, decode
from analysis.importers.failures import Failure, failure
from analysis.importers.imported import (
    CLASS,
    ENDS_ONLY,
    NO_CONNECTS,
    NO_DUE,
    NO_KINDS,
    NO_TOKENS,
    Imported,
    Source,
    add_events,
    check_tokens,
    counted,
    last_instant,
    merged,
    stage,
    started_at,
    to_ns,
)
from analysis.record import RequestRecord

OPEN = ("constant", "poisson", "async", "trace", "replay")
"""Strategies in which a request has a due time; the others aim at as soon as possible."""

_TOKEN_KEYS = ("first_token_iteration", "first_output_token_iteration", "last_token_iteration")
_LAST_EPOCH_S = 4e9
_CLOCK = (
    "GuideLLM's TTFT starts before its HTTP client gets the request, so opening a connection is part of it; instants "
    "are those of the wall clock, which may step"
)


class Timings(msgspec.Struct):
    targeted_start: float | None = None
    request_start: float | None = None
    first_token_iteration: float | None = None
    first_output_token_iteration: float | None = None
    last_token_iteration: float | None = None
    first_iteration: float | None = None
    last_iteration: float | None = None
    request_end: float | None = None
    token_iterations: int | None = None


class Info(msgspec.Struct):
    timings: Timings | None = None
    request_timings: Timings | None = None
    error: str | None = None
    conversation_id: str | None = None
    turn_index: int = 0


class Usage(msgspec.Struct):
    text_tokens: int | None = None
    cached_tokens: int | None = None


class Request(msgspec.Struct):
    request_id: str | None = None
    info: Info | None = None
    scheduler_info: Info | None = None
    input_metrics: Usage | None = None
    output_metrics: Usage | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    start_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    end_time: float | None = None
    error: str | None = None


class ByStatus(msgspec.Struct):
    successful: list[Request] | None = None
    errored: list[Request] | None = None
    incomplete: list[Request] | None = None


class Strategy(msgspec.Struct):
    type_: str | None = None
    rate: float | None = None
    streams: int | None = None
    max_concurrency: int | None = None


class Backend(msgspec.Struct):
    target: str | None = None
    model: str | None = None


class Config(msgspec.Struct):
    strategy: Strategy | None = None
    backend: Backend | None = None


class Totals(msgspec.Struct):
    total: int | None = None


class Measured(msgspec.Struct):
    request_totals: Totals | None = None


class Benchmark(msgspec.Struct):
    requests: ByStatus
    config: Config | None = None
    args: Config | None = None
    scheduler: Config | None = None
    start_time: float | None = None
    end_time: float | None = None
    metrics: Measured | None = None
    request_totals: Totals | None = None


class Versions(msgspec.Struct):
    guidellm_version: str | None = None


class Report(msgspec.Struct):
    benchmarks: list[Benchmark]
    args: Backend | None = None
    metadata: Versions | None = None


class Listed(NamedTuple):
    """A request where it stands: its place in the file, its benchmark, and under which status."""

    where: str
    benchmark: int
    status: str
    request: Request
    times: Timings


def parse(document: Document, file: str) -> Imported:
    """The run in a result, all benchmarks of it. ValueError (one line: file, key) where there is none."""
    report = decode(document, file, Report)
    listed = list(_listed(report, file))
    if not listed:
        raise ValueError(f"{file}: benchmarks: no request in any of them: nothing to import")
    strategies = [_strategy(each) for each in report.benchmarks]
    names = _stage_names(strategies)
    origin_s = _origin_s(listed, report.benchmarks, file)
    conversations: dict[str, int] = {}
    records = []
    for each in listed:
        record = _record(each, origin_s)
        _place(record, each, names, strategies, origin_s)
        info = each.request.info or Info()
        record.session = conversations.setdefault(info.conversation_id or each.where, len(conversations))
        records.append(record)
    undefined = _undefined(records, listed)
    _tell_apart(records)
    records.sort(key=lambda each: each.sent_ns or 0)
    return Imported(_source(report, file, origin_s, strategies, records, undefined).meta(), records)


def _listed(report: Report, file: str) -> Iterator[Listed]:
    for number, benchmark in enumerate(report.benchmarks):
        for status in ("successful", "errored", "incomplete"):
            for position, request in enumerate(getattr(benchmark.requests, status) or ()):
                where = f"{file}: benchmarks[{number}].requests.{status}[{position}]"
                yield Listed(where, number, status, request, _times(request))


def _times(request: Request) -> Timings:
    """The instants of a request, under their newest names."""
    info = request.info or request.scheduler_info or Info()
    times = info.timings or info.request_timings
    if times is None:
        return Timings(
            request_start=request.start_time,
            first_token_iteration=request.first_token_time,
            last_token_iteration=request.last_token_time,
            request_end=request.end_time,
        )
    if times.first_token_iteration is None:
        times.first_token_iteration, times.last_token_iteration = times.first_iteration, times.last_iteration
    return times


_LONGEST_START_S = 3600.0
"""A benchmark that is said to have begun longer before its first request says something else."""


def _origin_s(listed: list[Listed], benchmarks: list[Benchmark], file: str) -> float:
    """When the first benchmark began, or the first request of all where that is not told."""
    starts = [each.times.request_start for each in listed if each.times.request_start is not None]
    if not starts:
        raise ValueError(f"{file}: no request has a request_start: there is no time to import")
    targets = [each.times.targeted_start for each in listed if each.times.targeted_start is not None]
    first_s = min(*starts, *targets) if targets else min(starts)
    begun = [each.start_time for each in benchmarks if each.start_time is not None]
    origin_s = min((at_s for at_s in begun if first_s - _LONGEST_START_S <= at_s <= first_s), default=first_s)
    if not 0 <= origin_s < _LAST_EPOCH_S:
        raise ValueError(f"{file}: request_start: {origin_s:g}: expected seconds of the wall clock")
    return origin_s


def _record(listed: Listed, origin_s: float) -> RequestRecord:
    request, where = listed.request, listed.where
    usage, prompt = request.output_metrics, request.input_metrics or Usage()
    for count in (request.prompt_tokens, request.output_tokens, prompt.text_tokens, prompt.cached_tokens):
        check_tokens(count, f"{where}: tokens")
    ended = _outcome(listed)
    counted_by_server = usage is None or usage.text_tokens is not None
    record = RequestRecord(
        request_id=request.request_id or where.rpartition("benchmarks")[2],
        turn=(request.info.turn_index if request.info else 0) + 1,
        class_name=CLASS,
        tries=1,
        sent_ns=_instant_ns(listed, "request_start", origin_s),
        end_ns=_instant_ns(listed, "request_end", origin_s),
        outcome=ended.outcome,
        status=ended.status,
        error=ended.message,
        prompt_tokens=request.prompt_tokens if request.prompt_tokens is not None else prompt.text_tokens,
        cached_tokens=prompt.cached_tokens,
        completion_tokens=request.output_tokens if counted_by_server else None,
        tokenizer_tokens=None if counted_by_server else request.output_tokens,
    )
    _add_ends(record, listed, origin_s)
    return record


def _outcome(listed: Listed) -> Failure:
    if listed.status == "incomplete":
        return Failure("cancelled", None, None)
    if listed.status == "errored":
        info = listed.request.info or listed.request.scheduler_info or Info()
        return failure(listed.request.error or info.error or "")
    return Failure("ok" if listed.times.first_token_iteration is not None else "not_streamed", None, None)


def _instant_ns(listed: Listed, key: str, origin_s: float) -> int | None:
    instant_s = getattr(listed.times, key)
    if instant_s is None:
        return None
    return int(to_ns(np.array([instant_s - origin_s]), lambda _: f"{listed.where}: {key} after the first request")[0])


def _add_ends(record: RequestRecord, listed: Listed, origin_s: float) -> None:
    """The first token, the first of the answer, and the last."""
    first, answer, last = (_instant_ns(listed, key, origin_s) for key in _TOKEN_KEYS)
    if first is None or record.sent_ns is None:
        return
    for key, instant in zip(_TOKEN_KEYS, (first, answer, last), strict=True):
        if instant is not None and instant < (record.sent_ns if key == _TOKEN_KEYS[0] else first):
            raise ValueError(f"{listed.where}: {key}: before what comes first")
    arrival_ns = np.unique([each for each in (first, answer, last) if each is not None])
    add_events(record, arrival_ns, answer_ns=answer)


def _ends_alone(record: RequestRecord, listed: Listed) -> bool:
    """Whether tokens came between the first and the last that are not listed."""
    count = listed.times.token_iterations or listed.request.output_tokens
    return len(record.arrival_ns) > 0 and count != len(record.arrival_ns)


def _place(
    record: RequestRecord, listed: Listed, names: list[str], strategies: list[Strategy], origin_s: float
) -> None:
    record.stage = names[listed.benchmark]
    if strategies[listed.benchmark].type_ in OPEN:
        record.due_ns = _instant_ns(listed, "targeted_start", origin_s)


def _strategy(benchmark: Benchmark) -> Strategy:
    configs = (benchmark.config, benchmark.args, benchmark.scheduler)
    return next((each.strategy for each in configs if each and each.strategy), Strategy())


def _stage_names(strategies: list[Strategy]) -> list[str]:
    """`poisson 4/s`, `concurrent 32`, told apart by a number where they are alike."""
    plain = []
    for each in strategies:
        load = f" {each.rate:g}/s" if each.type_ in OPEN and each.rate else f" {each.streams}" if each.streams else ""
        plain.append(f"{each.type_ or 'benchmark'}{load}")
    return [f"{name} #{i + 1}" if plain.count(name) > 1 else name for i, name in enumerate(plain)]


def _tell_apart(records: list[RequestRecord]) -> None:
    """The same request in several benchmarks becomes several requests."""
    seen: dict[str, int] = {}
    for record in records:
        name = record.request_id
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            record.request_id = f"{name}#{seen[name]}"


def _undefined(records: list[RequestRecord], listed: list[Listed]) -> dict[str, str]:
    due = any(each.due_ns is not None for each in records)
    answers_told = any(each.times.first_output_token_iteration is not None for each in listed)
    ends_alone = any(map(_ends_alone, records, listed))
    return merged(
        dict.fromkeys(("ttft_due", "e2e_due", "send_lag"), None if due else NO_DUE),
        dict.fromkeys(ENDS_ONLY, NO_TOKENS if ends_alone else None),
        {"ttfat": None if answers_told else NO_KINDS, "connect": NO_CONNECTS},
    )


def _source(
    report: Report,
    file: str,
    origin_s: float,
    strategies: list[Strategy],
    records: list[RequestRecord],
    undefined: dict[str, str],
) -> Source:
    config = next((each.config.backend for each in report.benchmarks if each.config and each.config.backend), None)
    backend = config or report.args or Backend()
    silent = sum(each.outcome == "not_streamed" for each in records)
    return Source(
        kind="guidellm",
        file=file,
        loop="open" if any(each.type_ in OPEN for each in strategies) else "closed",
        stages=_stages(report, origin_s, strategies, records),
        model=backend.model,
        target=backend.target,
        tool_version=report.metadata.guidellm_version if report.metadata else None,
        started_at=started_at(int(origin_s * 1e9)),
        epoch_ns_at_start=int(origin_s * 1e9),
        undefined=undefined,
        notes=[
            _CLOCK,
            *([f"{NO_TOKENS}: {', '.join(ENDS_ONLY)} are undefined"] if "gap" in undefined else []),
            *counted(silent, len(records), "have no time of a first token: they count as not streamed"),
            *_samples(report, len(records)),
        ],
    )


def _samples(report: Report, listed: int) -> list[str]:
    totals = [(each.metrics and each.metrics.request_totals) or each.request_totals for each in report.benchmarks]
    made = sum(each.total or 0 for each in totals if each)
    return [f"the result lists {listed} of the {made} requests that were made: a sample"] if made > listed else []


def _stages(
    report: Report, origin_s: float, strategies: list[Strategy], records: list[RequestRecord]
) -> list[dict[str, object]]:
    """Each benchmark as long as GuideLLM measured, or else from its first request to the last thing in it."""
    found = []
    for benchmark, strategy, name in zip(report.benchmarks, strategies, _stage_names(strategies), strict=True):
        mine = [each for each in records if each.stage == name]
        start_ns, end_ns = _ns_or(benchmark.start_time, origin_s), _ns_or(benchmark.end_time, origin_s)
        first_ns = min((each.sent_ns for each in mine if each.sent_ns is not None), default=0)
        if start_ns is None or end_ns is None or end_ns <= start_ns:
            start_ns, end_ns = first_ns, max(first_ns, last_instant(mine))
        found.append(stage(name, start_ns, end_ns, strategy.rate if strategy.type_ in OPEN else None))
    return found


def _ns_or(instant_s: float | None, origin_s: float) -> int | None:
    """An instant on the run's timeline, at its start at the earliest; None where it is not set (-1 before 0.4)."""
    if instant_s is None or instant_s <= 0 or instant_s - origin_s > 9e6:
        return None
    return max(0, round((instant_s - origin_s) * 1e9))
