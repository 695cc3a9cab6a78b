"""AIPerf's `profile_export.jsonl`: one request a line.

Field names and meaning are those of AIPerf 0.1 to 0.14 (common/models/record_models.py, metrics/types/*.py): instants
are nanoseconds of the wall clock, every metric carries its unit, `inter_chunk_latency` lists the gaps between the
responses with content. The file does not say how the load was made, nor for which model.
"""

import re
from array import array
from collections.abc import Iterator

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
    from_start,
    last_instant,
    merged,
    stage,
    started_at,
    to_ns,
)
from analysis.quantiles import Ints
from analysis.record import THINKING, RequestRecord

_CLOCK = (
    "AIPerf's TTFT starts before its HTTP client gets the request, so opening a connection is part of it, and its "
    "first token is the first response with content; responses are stamped in user space"
)
_OWN_COUNT = "AIPerf counted the output tokens with its own tokenizer"
_NS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9, "seconds": 1e9}


class Metadata(msgspec.Struct):
    request_start_ns: int
    request_end_ns: int | None = None
    request_ack_ns: int | None = None
    session_num: int = 0
    turn_index: int | None = None
    x_request_id: str | None = None
    worker_id: str | None = None
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class Value(msgspec.Struct):
    value: float
    unit: str = ""


class Count(msgspec.Struct):
    value: int


class Values(msgspec.Struct):
    value: list[float]
    unit: str = ""


class Metrics(msgspec.Struct):
    time_to_first_token: Value | None = None
    time_to_first_output_token: Value | None = None
    inter_chunk_latency: Values | None = None
    request_latency: Value | None = None
    input_sequence_length: Count | None = None
    usage_prompt_tokens: Count | None = None
    error_isl: Count | None = None
    output_sequence_length: Count | None = None
    usage_completion_tokens: Count | None = None
    reasoning_token_count: Count | None = None


class Error(msgspec.Struct):
    code: int | None = None
    type: str | None = None
    message: str | None = None


class Line(msgspec.Struct):
    metadata: Metadata
    metrics: Metrics | None = None
    error: Error | None = None


def parse(document: Document, file: str) -> Imported:
    """The run in a result. ValueError (one line: file, line, key) where there is none."""
    numbered = sorted(_lines(document, file), key=lambda each: each[1].metadata.request_start_ns)
    if not numbered:
        raise ValueError(f"{file}: empty: the tool wrote no result")
    starts = np.array([line.metadata.request_start_ns for _, line in numbered], dtype=np.int64)
    sent_ns = from_start(starts, lambda i: f"{numbered[i][0]}: metadata.request_start_ns")
    answers_told = any(line.metrics and line.metrics.time_to_first_output_token for _, line in numbered)
    workers: dict[str | None, int] = {}
    records = []
    for (where, line), at_ns in zip(numbered, sent_ns.tolist(), strict=True):
        worker = workers.setdefault(line.metadata.worker_id, len(workers))
        record = _record(line, at_ns, int(starts[0]), worker, where)
        if answers_told and record.reasoning_tokens and (line.metrics or Metrics()).time_to_first_output_token is None:
            record.kind = array("b", [THINKING] * len(record.kind))  # the answer never began
        records.append(record)
    _check_ids(records, file)
    ends_only = any(map(_ends_alone, records, [line for _, line in numbered]))
    return Imported(_source(file, int(starts[0]), records, answers_told, ends_only).meta(), records)


def _lines(document: Document, file: str) -> Iterator[tuple[str, Line]]:
    for number, match in enumerate(re.finditer(rb"[^\r\n]+", document), 1):
        if match[0].strip():
            where = f"{file}: line {number}"
            yield where, decode(match[0], where, Line)


def _record(line: Line, sent_ns: int, origin_ns: int, worker: int, where: str) -> RequestRecord:
    about, metrics = line.metadata, line.metrics or Metrics()
    ended = _outcome(line)
    record = RequestRecord(
        request_id=about.x_request_id or where.rpartition(" ")[2],
        session=about.session_num,
        turn=(about.turn_index or 0) + 1,
        class_name=CLASS,
        stage=about.benchmark_phase,
        worker=worker,
        sent_ns=sent_ns,
        headers_ns=_since(about.request_ack_ns, origin_ns, sent_ns, f"{where}: metadata.request_ack_ns"),
        end_ns=_since(about.request_end_ns, origin_ns, sent_ns, f"{where}: metadata.request_end_ns"),
        tries=1,
        outcome=ended.outcome,
        status=ended.status,
        error=ended.message,
        prompt_tokens=_tokens(where, metrics, "usage_prompt_tokens", "input_sequence_length", "error_isl"),
        reasoning_tokens=_tokens(where, metrics, "reasoning_token_count"),
        completion_tokens=_tokens(where, metrics, "usage_completion_tokens"),
        tokenizer_tokens=_tokens(where, metrics, "output_sequence_length"),
    )
    _add_responses(record, sent_ns, metrics, where)
    return record


def _outcome(line: Line) -> Failure:
    metrics = line.metrics or Metrics()
    if line.metadata.was_cancelled:
        return Failure("cancelled", None, None)
    if line.error is not None:
        text = ": ".join(part for part in (line.error.type, line.error.message) if part)
        return failure(text, line.error.code)
    if metrics.time_to_first_token is None:
        return Failure("not_streamed" if metrics.request_latency else "empty", None, None)
    return Failure("ok", None, None)


def _since(instant_ns: int | None, origin_ns: int, sent_ns: int, where: str) -> int | None:
    if instant_ns is None:
        return None
    if not 0 <= instant_ns - origin_ns - sent_ns <= 9e15:
        raise ValueError(f"{where}: {instant_ns}: expected an instant after request_start_ns")
    return instant_ns - origin_ns


def _tokens(where: str, metrics: Metrics, *names: str) -> int | None:
    """The first of some counts that is there."""
    for name in names:
        if (found := getattr(metrics, name)) is not None:
            check_tokens(found.value, f"{where}: metrics.{name}")
            return int(found.value)
    return None


def _add_responses(record: RequestRecord, sent_ns: int, metrics: Metrics, where: str) -> None:
    first_ns = _duration_ns(metrics.time_to_first_token, f"{where}: metrics.time_to_first_token")
    if not len(first_ns):
        return
    gaps_ns = _duration_ns(metrics.inter_chunk_latency, f"{where}: metrics.inter_chunk_latency")
    latency_ns = _duration_ns(metrics.request_latency, f"{where}: metrics.request_latency")
    answer_ns = _duration_ns(metrics.time_to_first_output_token, f"{where}: metrics.time_to_first_output_token")
    if not len(gaps_ns) and len(latency_ns) and latency_ns[0] > first_ns[0]:
        gaps_ns = latency_ns - first_ns
    arrival_ns = sent_ns + first_ns[0] + np.concatenate([[0], np.cumsum(gaps_ns)])
    add_events(record, arrival_ns, answer_ns=sent_ns + int(answer_ns[0]) if len(answer_ns) else None)


def _duration_ns(given: Value | Values | None, where: str) -> Ints:
    """The durations of a metric; none where it is not there."""
    if given is None:
        return np.empty(0, dtype=np.int64)
    if given.unit not in _NS:
        raise ValueError(f"{where}: unit {given.unit!r}: expected one of {', '.join(_NS)}")
    seconds = np.atleast_1d(np.array(given.value, dtype=np.float64)) * (_NS[given.unit] / 1e9)
    return to_ns(seconds, lambda _: where)


def _check_ids(records: list[RequestRecord], file: str) -> None:
    seen: set[str] = set()
    for record in records:
        if record.request_id in seen:
            raise ValueError(f"{file}: metadata.x_request_id: {record.request_id} occurs twice")
        seen.add(record.request_id)


def _ends_alone(record: RequestRecord, line: Line) -> bool:
    """Whether tokens came between the first and the last that are not listed."""
    listed = (line.metrics or Metrics()).inter_chunk_latency is not None
    return not listed and len(record.arrival_ns) == 2 and record.tokenizer_tokens != 2


def _source(file: str, origin_ns: int, records: list[RequestRecord], answers_told: bool, ends_only: bool) -> Source:
    silent = sum(each.outcome == "not_streamed" for each in records)
    own_count = any(each.tokenizer_tokens is not None and each.completion_tokens is None for each in records)
    ends = dict.fromkeys(ENDS_ONLY, NO_TOKENS if ends_only else None)
    return Source(
        kind="aiperf",
        file=file,
        loop=None,
        stages=_stages(records),
        epoch_ns_at_start=origin_ns,
        started_at=started_at(origin_ns),
        undefined=merged(
            dict.fromkeys(("ttft_due", "e2e_due", "send_lag"), NO_DUE),
            {"ttfat": None if answers_told else NO_KINDS, "connect": NO_CONNECTS},
            ends,
        ),
        notes=[
            _CLOCK,
            *([f"{NO_TOKENS}: {', '.join(ENDS_ONLY)} are undefined"] if ends_only else []),
            *([_OWN_COUNT] if own_count else []),
            *counted(silent, len(records), "have no time to first token: they count as not streamed"),
        ],
    )


def _stages(records: list[RequestRecord]) -> list[dict[str, object]]:
    """The phases in order of their start, each from its first request to the last thing that happened in it."""
    found = []
    for name in dict.fromkeys(each.stage for each in records):
        mine = [each for each in records if each.stage == name]
        found.append(stage(name, mine[0].sent_ns or 0, last_instant(mine), None, measured=name != "warmup"))
    return found
