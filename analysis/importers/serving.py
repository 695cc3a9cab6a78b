"""What the results of vLLM's and SGLang's serving benchmarks have in common: parallel lists, an entry a request."""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np

from analysis.importers.failures import failure
from analysis.importers.imported import (
    CLASS,
    NO_CONNECTS,
    NO_DUE,
    NO_KINDS,
    NO_STARTS,
    STAGE,
    Source,
    add_events,
    check_tokens,
    counted,
    last_instant,
    merged,
    stage,
    to_ns,
)
from analysis.quantiles import Floats, Ints
from analysis.record import RequestRecord


class Lists(msgspec.Struct):
    """The lists of a result (seconds, tokens) and what it says of the load."""

    ttfts: list[float]
    itls: list[list[float]]
    output_lens: list[int | None]
    input_lens: list[int | None] | None = None
    errors: list[str | None] | None = None
    start_times: list[float] | None = None
    backend: str | None = None
    duration: float | None = None
    request_rate: float | str | None = None
    max_concurrency: int | None = None


@dataclass(frozen=True)
class Chunks:
    """What arrived, and when.

    Attributes:
        sent_ns: By request, from the first one.
        ttft_ns: By request; 0 = nothing came.
        gap_ns: By chunk, without the first one of each request.
        tokens: How many of a request's entries each of these chunks stands for.
        starts: The chunks of request i are `starts[i]` up to `starts[i + 1]`.
    """

    sent_ns: Ints
    ttft_ns: Ints
    gap_ns: Ints
    tokens: Ints
    starts: Ints

    def of(self, request: int) -> slice:
        return slice(int(self.starts[request]), int(self.starts[request + 1]))


def chunks_of(lists: Lists, file: str, divided: bool = False) -> Chunks:
    """The chunks, once everything in the lists is known to be right. Empties `lists.itls`, which is most of a result.

    `divided`: the tool divides the gap before a chunk of n tokens into n equal entries, which become one chunk again.
    ValueError (file, key) for lists of different lengths, for no request at all, and for what is no time or no number
    of tokens.
    """
    _check_lengths(lists, file)
    starts = np.concatenate([[0], np.cumsum([len(each) for each in lists.itls], dtype=np.int64)])
    gap_s = np.fromiter(chain.from_iterable(lists.itls), dtype=np.float64, count=int(starts[-1]))
    lists.itls.clear()

    def entry(position: int) -> str:
        request = int(np.searchsorted(starts, position, side="right")) - 1
        return f"{file}: itls[{request}][{position - starts[request]}]"

    to_ns(gap_s, entry)
    for key in ("input_lens", "output_lens"):
        for position, count in enumerate(getattr(lists, key) or ()):
            check_tokens(count, f"{file}: {key}[{position}]")
    ttft_ns = to_ns(np.array(lists.ttfts), lambda position: f"{file}: ttfts[{position}]")
    begins = _equal_runs(gap_s, starts) if divided else np.arange(len(gap_s) + 1)
    tokens = np.diff(begins)
    gap_ns = np.rint(gap_s[begins[:-1]] * tokens * 1e9).astype(np.int64)
    return Chunks(_sent_ns(lists, file), ttft_ns, gap_ns, tokens, np.searchsorted(begins, starts))


def _check_lengths(lists: Lists, file: str) -> None:
    count = len(lists.ttfts)
    if not count:
        raise ValueError(f"{file}: ttfts: empty: no request was made")
    for key in ("itls", "output_lens", "input_lens", "errors", "start_times"):
        check_length(getattr(lists, key), count, f"{file}: {key}")


def check_length(entries: Sized | None, count: int, where: str) -> None:
    if entries is not None and len(entries) != count:
        raise ValueError(f"{where}: {len(entries)} entries, but ttfts has {count}: the lists do not belong together")


def _sent_ns(lists: Lists, file: str) -> Ints:
    if lists.start_times is None:
        return np.zeros(len(lists.ttfts), dtype=np.int64)
    start_s = np.array(lists.start_times)
    return to_ns(start_s - start_s.min(), lambda position: f"{file}: start_times[{position}] after the first one")


def _equal_runs(values: Floats, starts: Ints) -> Ints:
    """Where each run of equal neighbours within a request begins, and the end."""
    begins = np.ones(len(values) + 1, dtype=bool)
    begins[1:-1] = values[1:] != values[:-1]
    begins[starts] = True
    return np.flatnonzero(begins)


def records_of(lists: Lists, chunks: Chunks) -> Iterator[RequestRecord]:
    """The requests in the order of the lists, without token events and output length.

    One with neither an error nor a first token counts as empty.
    """
    for i, sent_ns in enumerate(chunks.sent_ns.tolist()):
        error = (lists.errors[i] if lists.errors is not None else None) or ""
        failed = failure(error) if error else None
        answered = chunks.ttft_ns[i] > 0 or chunks.starts[i] < chunks.starts[i + 1]
        yield RequestRecord(
            request_id=str(i),
            session=i,
            class_name=CLASS,
            stage=STAGE,
            sent_ns=sent_ns,
            tries=1,
            outcome=failed.outcome if failed else "ok" if answered else "empty",
            status=failed.status if failed else None,
            error=failed.message if failed else None,
            prompt_tokens=lists.input_lens[i] if lists.input_lens is not None else None,
        )


def add_chunks(record: RequestRecord, chunks: Chunks, request: int, tokens: Ints | None = None) -> None:
    """The token events of one request, of `tokens` each: the first one after its TTFT, each other after its gap."""
    ttft_ns, gap_ns = chunks.ttft_ns[request], chunks.gap_ns[chunks.of(request)]
    if ttft_ns or len(gap_ns):
        arrival_ns = chunks.sent_ns[request] + ttft_ns + np.concatenate([[0], np.cumsum(gap_ns)])
        add_events(record, arrival_ns, tokens)


def source_of(kind: str, lists: Lists, file: str, records: list[RequestRecord]) -> Source:
    """What run.json can say of such a result."""
    rate = lists.request_rate if isinstance(lists.request_rate, int | float) else None
    lasted_ns = int(to_ns(np.array([lists.duration or 0.0]), lambda _: f"{file}: duration")[0])
    starts = lists.start_times is not None
    return Source(
        kind=kind,
        file=file,
        loop="open" if rate or lists.request_rate == "trace" else "closed",
        stages=[stage(STAGE, 0, max(lasted_ns, last_instant(records)), rate or None)],
        endpoint=lists.backend,
        concurrency=lists.max_concurrency,
        undefined=merged(
            dict.fromkeys(("ttft_due", "e2e_due", "send_lag"), NO_DUE),
            {"ttfat": NO_KINDS, "connect": NO_CONNECTS, "episodes": None if starts else NO_STARTS},
        ),
        notes=_notes(starts, records),
    )


def _notes(starts: bool, records: list[RequestRecord]) -> list[str]:
    silent = sum(each.outcome == "empty" and each.error is None for each in records)
    timeless = [] if starts else [
        f"{NO_STARTS}: all of them lie at its start; TTFT, gaps and rates over the whole run hold, but which stalls "
        "happened together, their causes, and whatever goes by time do not"
    ]  # fmt: skip
    return timeless + counted(silent, len(records), "have neither an error nor a first token: they count as empty")
