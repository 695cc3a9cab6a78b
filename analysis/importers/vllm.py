"""Results of `vllm bench serve --save-result --save-detailed`.

Field names and meaning are those of vLLM 0.32 (vllm/benchmarks/serve.py and lib/endpoint_request_func.py). Results of
the older benchmark_serving.py have the same lists; `start_times` and `queue_times` came later. `itls` has an entry for
each chunk after the first that had `choices`, with text or without: a gap of ours, not a token.
"""

import re

import msgspec
import numpy as np

from analysis.importers.decode import Document, decode
from analysis.importers.imported import Imported, counted
from analysis.importers.serving import Chunks, Lists, add_chunks, check_length, chunks_of, records_of, source_of
from analysis.quantiles import Ints
from analysis.record import RequestRecord
from analysis.tokens import ESTIMATED

_CLOCK = (
    "vLLM's TTFT starts before its HTTP client gets the request, so opening a connection is part of it, and its first "
    "token is the first chunk with choices, even one with a role alone; chunks are stamped once they are parsed"
)
_ROLES = "what vLLM calls ITL is the gap between chunks, and in a chat a role alone makes a chunk"
_WAIT_NOTED_S = 0.02


class Extras(msgspec.Struct):
    """What `analysis.report.vllm` adds to vLLM's shape, so that our own numbers survive the way there and back."""

    tokens_sources: list[str | None]
    choices: list[int] | None = None
    event_tokens: list[list[int] | None] | None = None


class Result(Lists):
    date: str | None = None
    model_id: str | None = None
    num_prompts: int | None = None
    queue_times: list[float | None] | None = None
    loadgen: Extras | None = None


def parse(document: Document, file: str) -> Imported:
    """The run in a result. ValueError (one line: file, key) where there is none."""
    result = decode(document, file, Result)
    chunks = chunks_of(result, file)
    _check_extras(result, chunks, file)
    records = list(records_of(result, chunks))
    for i, record in enumerate(records):
        add_chunks(record, chunks, i, _event_tokens(result.loadgen, i))
        _count_tokens(record, result.output_lens[i], result.loadgen, i)
    source = source_of("vllm", result, file, records)
    source.model, source.started_at = result.model_id, _started_at(result.date)
    source.notes = [_CLOCK, *source.notes, *_notes(result, records, source.loop)]
    if _has_roles(result):
        source.undefined["itl"] = _ROLES
    return Imported(source.meta(), records)


def _check_extras(result: Result, chunks: Chunks, file: str) -> None:
    extras, count = result.loadgen, len(result.ttfts)
    check_length(result.queue_times, count, f"{file}: queue_times")
    for key in ("tokens_sources", "choices", "event_tokens"):
        check_length(getattr(extras, key, None), count, f"{file}: loadgen.{key}")
    for i, told in enumerate((extras.event_tokens if extras else None) or ()):
        events = 1 + int(chunks.starts[i + 1] - chunks.starts[i])
        if told is not None and (len(told) != events or not all(0 <= each < 2**31 for each in told)):
            raise ValueError(f"{file}: loadgen.event_tokens[{i}]: expected {events} numbers of tokens, as in itls")


def _event_tokens(extras: Extras | None, request: int) -> Ints | None:
    told = extras.event_tokens[request] if extras and extras.event_tokens else None
    return None if told is None else np.array(told, dtype=np.int64)


def _count_tokens(record: RequestRecord, output_len: int | None, extras: Extras | None, request: int) -> None:
    """vLLM's output length is the server's usage, or else the tokenizer's count of the text: it does not say which.

    Chunks without a token (a role alone, a closing one) can outnumber the tokens; that is no lie of the server's.
    """
    if not record.arrival_ns or (record.outcome != "ok" and not output_len):
        return
    if extras is None:
        own_count = output_len is not None and output_len < len(record.arrival_ns)
    else:
        own_count = extras.tokens_sources[request] == ESTIMATED
        record.choices = extras.choices[request] if extras.choices else 1
    if own_count:
        record.tokenizer_tokens = output_len
    else:
        record.completion_tokens = output_len


def _has_roles(result: Result) -> bool:
    """Whether a chunk with a role alone may be among the chunks, so that their number says nothing of their tokens."""
    return result.loadgen is None and "chat" in (result.backend or "")


def _notes(result: Result, records: list[RequestRecord], loop: str | None) -> list[str]:
    total = len(records)
    wordless = 0 if result.loadgen else sum(each.tokenizer_tokens is not None for each in records)
    waited_s = [each for each in result.queue_times or () if each is not None and each > _WAIT_NOTED_S]
    unlisted = (result.num_prompts or 0) - total
    late = len(waited_s) if loop == "open" and result.loadgen is None else 0
    return [
        *([f"{_ROLES}: itl is undefined"] if _has_roles(result) else []),
        *counted(wordless, total, "have more chunks than tokens: their length holds, but not itl"),
        *counted(late, total, f"waited up to {max(waited_s, default=0):.2f} s in vLLM's own queue, outside of TTFT"),
        *([f"the result lists {total} requests of {result.num_prompts} prompts"] if unlisted > 0 else []),
    ]


def _started_at(date: str | None) -> str | None:
    """`20260131-120000`, on an unknown clock, as ISO 8601 without a zone."""
    match = re.fullmatch(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)", date or "")
    return "{}-{}-{}T{}:{}:{}".format(*match.groups()) if match else None
