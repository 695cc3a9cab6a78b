"""Results of SGLang's `bench_serving --output-details`: one JSON document a line.

Field names and meaning are those of SGLang 0.4 and 0.5 (python/sglang/bench_serving.py, later benchmark/serving.py).
Only its native backend (/generate) counts tokens while they stream: it divides the gap before a chunk of n tokens into
n equal entries of `itls`. The others write an entry a chunk, and as output length what was asked for, unless the
server sends usage unasked; so there it is kept as what was asked, and the output is counted by its events.
"""

import msgspec
import numpy as np

from analysis.importers.decode import Document, decode
from analysis.importers.imported import Imported, counted
from analysis.importers.serving import Chunks, Lists, add_chunks, chunks_of, records_of, source_of
from analysis.quantiles import Ints
from analysis.record import RequestRecord

NATIVE = ("sglang", "sglang-native")
_CLOCK = (
    "SGLang's TTFT starts before a connection of its own is opened for each request, so that is part of it, and its "
    "first token is the first chunk with text; chunks are stamped once they are parsed"
)
_DIVIDED = (
    "SGLang divides the gap before a chunk evenly among its tokens: entries that are equal to the last digit are taken "
    "as one chunk"
)
_ASKED = (
    "SGLang writes the length asked for as output length with this backend: it is kept as that, and tokens are counted "
    "by chunks, so tpot is not SGLang's where a chunk holds several"
)


class ServerInfo(msgspec.Struct):
    model_path: str | None = None
    version: str | None = None


class Result(Lists):
    server_info: ServerInfo | None = None


def parse(document: Document, file: str) -> Imported:
    """The run in a result. ValueError (one line: file, key) where there is none."""
    result = decode(document, file, Result)
    native = result.backend in NATIVE
    chunks = chunks_of(result, file, divided=native)
    records = list(records_of(result, chunks))
    for i, record in enumerate(records):
        output_len = result.output_lens[i] or None
        add_chunks(record, chunks, i, _event_tokens(chunks, i, output_len) if native else None)
        _count_tokens(record, output_len, native)
    source = source_of("sglang", result, file, records)
    info = result.server_info or ServerInfo()
    source.model, source.tool_version = info.model_path, info.version
    source.notes = [_CLOCK, *source.notes, *_notes(native, chunks, records)]
    return Imported(source.meta(), records)


def _event_tokens(chunks: Chunks, request: int, output_len: int | None) -> Ints | None:
    """Tokens of each chunk; the first one has what the others leave of the whole. None if they leave nothing."""
    later = chunks.tokens[chunks.of(request)]
    first = (output_len or 0) - int(later.sum())
    return np.concatenate([[first], later]) if first > 0 else None


def _count_tokens(record: RequestRecord, output_len: int | None, native: bool) -> None:
    if native and record.arrival_ns:
        record.completion_tokens = output_len
    elif not native:
        record.asked_output_tokens = output_len


def _notes(native: bool, chunks: Chunks, records: list[RequestRecord]) -> list[str]:
    if not native:
        return [_ASKED]
    odd = sum(each.outcome == "ok" and each.n_tokens[0] < 1 for each in records)
    wordy = [_DIVIDED] if bool(np.any(chunks.tokens > 1)) else []
    return wordy + counted(
        odd, len(records), "list more latencies than tokens: how many a chunk holds is unknown there"
    )
