"""Runs that keep few token events, or none: what is counted of each request before its events are dropped.

What follows from one request alone (TTFT, TPOT, E2E, token counts) is computed from all of its events first, and stays
exact. Its gaps are sorted into cells, each RATIO times as wide as the one before and apart by the tokens of the event
that ended the gap; a cell keeps how many gaps fell into it and their mean, so that a gap is known to within 1 % and
their sum exactly. As each request has cells of its own, percentiles have their intervals, classes, turns and stages,
and limits per request hold, as if every event were there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.arrow import coded, column_of
from analysis.columns import DERIVED, REQUESTS, ROW_FIELDS, Row, array_of, whole
from analysis.columns import tables_of as raw_tables_of
from analysis.events import Events, Gaps
from analysis.quantiles import Bools, Floats, Ints, segment_quantile
from analysis.record import UNKNOWN

ALL, STALLS, NONE = KEEPS = ("all", "stalls", "none")
RATIO = 1.01
AROUND = 4
"""Events kept on each side of a gap that may be part of a stall."""
BURST_NS = 2_000_000
"""What comes within this of its end is kept as well: it tells whether bytes were held back."""

COUNTED = {"events": "Int64", "reads": "Int64"}
"""Columns that the requests of a thinned run have on top: token events that came, and reads that completed them."""
CELLS = {"request_id": "category", "gap_ns": "int64", "n_tokens": "Int32", "count": "int32"}
"""Columns of gaps.parquet; `n_tokens` is null where nobody said how many tokens the ending events hold."""

_FACTS = (*sorted(DERIVED), *COUNTED)
_ARRAYS = {"seq": "i4", "gap_ns": "i8", "n_tokens": "i4", "count": "i4"}
TAIL = (*_FACTS, *_ARRAYS)
"""What follows ROW_FIELDS in the row of a thinned request."""

_KEPT_EVENTS = {"arrival_ns": "i8", "n_tokens": "i4", "kind": "i1", "chars": "i4", "read_id": "i4"}
_LOST = {
    STALLS: ("only the events around stalls were kept", ("fluidity",)),
    NONE: ("no token events were kept", ("stalls", "episodes", "fluidity")),
}


@dataclass(frozen=True)
class Cells:
    """Gaps between token events, alike ones of a request together.

    Attributes:
        row: Position of the request in `Run.requests`, ascending; within it `gap_ns` ascends as well.
        gap_ns: Mean of the gaps of the cell.
        tokens: Of the event that ended each, UNKNOWN where nobody said.
        counts: How many gaps there were.
        starts: The cells of request i are `starts[i]` up to `starts[i + 1]`.
    """

    row: Ints
    gap_ns: Ints
    tokens: Ints
    counts: Ints
    starts: Ints

    @cached_property
    def sizes(self) -> Ints:
        """Gaps of each request."""
        total = np.concatenate([[0], np.cumsum(self.counts)])
        return np.asarray(np.diff(total[self.starts]))

    @cached_property
    def unknown(self) -> Bools:
        """The requests with a gap that ended in an event of an unknown number of tokens."""
        found: Bools = np.bincount(self.row, self.tokens == UNKNOWN, len(self.starts) - 1) > 0
        return found

    @cached_property
    def longest_ns(self) -> Ints:
        """The longest gap of each request, 0 without any."""
        longest = np.zeros(len(self.starts) - 1, dtype=np.int64)
        np.maximum.at(longest, self.row, self.gap_ns)
        return longest

    def samples(self, rows: Bools, per_token: bool) -> tuple[Floats, Ints, Ints]:
        """Seconds, how often each counts, and the row of each, over the requests in a mask."""
        at = np.flatnonzero(rows[self.row])
        seconds, counts = self.gap_ns[at] / 1e9, self.counts[at]
        if per_token:
            seconds, counts = seconds / self.tokens[at], counts * self.tokens[at]
        return seconds, counts, self.row[at]

    def quantile_ns(self, q: float) -> Floats:
        """A quantile of the gaps of each request; NaN for one without."""
        result, filled = np.full(len(self.sizes), np.nan), self.sizes > 0
        cumulated, position = np.cumsum(self.counts), (self.sizes[filled] - 1) * q
        low = np.floor(position).astype(np.int64)
        first = (np.cumsum(self.sizes) - self.sizes)[filled]
        last = first + self.sizes[filled] - 1
        at = [np.searchsorted(cumulated, np.minimum(first + each, last), side="right") for each in (low, low + 1)]
        below, above = (self.gap_ns[each].astype(np.float64) for each in at)
        result[filled] = below + (above - below) * (position - low)
        return result

    def table(self, ids: Sequence[str]) -> pa.Table:
        """The columns of CELLS."""
        return pa.table({
            "request_id": coded(self.row, ids),
            "gap_ns": column_of(self.gap_ns),
            "n_tokens": column_of(self.tokens.astype(np.int32), self.tokens == UNKNOWN),
            "count": column_of(self.counts.astype(np.int32)),
        })  # fmt: skip


def cells_of(table: pa.Table, row: Ints, requests: int) -> Cells:
    """The cells of a table; `row` has the position of each one's request. ValueError for what cannot be a cell."""
    gap_ns, counts = (whole(table, name).astype(np.int64) for name in ("gap_ns", "count"))
    tokens = whole(table, "n_tokens", UNKNOWN).astype(np.int64)
    if bool((gap_ns < 0).any() or (counts < 1).any() or (tokens < UNKNOWN).any()):
        raise ValueError("a gap that is negative, or was counted less than once")
    order = np.lexsort((gap_ns, row))
    starts = np.searchsorted(row[order], np.arange(requests + 1))
    return Cells(row[order], gap_ns[order], tokens[order], counts[order], starts)


def gathered(events: Events, gaps: Gaps) -> Cells:
    """All gaps of all events in cells."""
    tokens = events.tokens[gaps.end].astype(np.int64)
    width = np.floor(np.log(np.maximum(gaps.gap_ns, 1)) / math.log(RATIO)).astype(np.int64)
    cell = np.where(gaps.gap_ns > 0, width, -1)
    order = np.lexsort((tokens, cell, gaps.row))
    keys = np.stack([gaps.row[order], cell[order], tokens[order]])
    new = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=-2) != 0, axis=0))
    counts = np.diff(np.append(new, len(order)))
    sums = np.add.reduceat(gaps.gap_ns[order], new) if len(new) else np.empty(0, dtype=np.int64)
    row = keys[0][new]
    return Cells(row, sums // np.maximum(counts, 1), keys[2][new], counts, _starts(row, len(events.starts) - 1))


def neighbours(events: Events, seq: Ints) -> Gaps:
    """The gaps between kept events that followed one another."""
    within = np.zeros(len(events.row), dtype=bool)
    within[1:] = (np.diff(events.row) == 0) & (np.diff(seq) == 1)
    end = np.flatnonzero(within)
    row = events.row[end]
    gap_ns = np.maximum(events.arrival_ns[end] - events.arrival_ns[end - 1], 0)
    return Gaps(row, gap_ns, end, _starts(row, len(events.starts) - 1))


def _starts(row: Ints, requests: int) -> Ints:
    return np.searchsorted(row, np.arange(requests + 1))


# --- while a run lasts ------------------------------------------------------------------------------------------------


def thin(
    rows: Sequence[Row], requests: pa.Table, chunks: pa.Table, events: Events, gaps: Gaps, keep: Bools
) -> list[Row]:
    """Rows with the events in the mask `keep` alone, and their TAIL. The rest is what `derive` made of the rows."""
    cells = gathered(events, gaps)
    columns = {name: chunks[name].to_numpy() for name in ("seq", "chars")}
    columns |= {"arrival_ns": events.arrival_ns, "n_tokens": events.tokens, "kind": events.kind}
    columns["read_id"] = events.read_id
    ends = np.concatenate([[0], np.cumsum(keep)])[events.starts]
    kept = [_pieces(columns[name][keep], kind, ends) for name, kind in (_KEPT_EVENTS | {"seq": "i4"}).items()]
    counted = {"gap_ns": cells.gap_ns, "n_tokens": cells.tokens, "count": cells.counts}
    counts = [_pieces(counted[name], _ARRAYS[name], cells.starts) for name in counted]
    derived = (requests[name].to_pylist() for name in sorted(DERIVED))
    facts = [*derived, events.per_request.tolist(), events.reads.tolist()]
    scalars = len(ROW_FIELDS) - len(_KEPT_EVENTS)
    return [
        (*row[:scalars], *own[:-1], *told, own[-1], *cell)
        for row, own, told, cell in zip(
            rows, zip(*kept, strict=True), zip(*facts, strict=True), zip(*counts, strict=True), strict=True
        )
    ]


def worth_keeping(events: Events, gaps: Gaps, keep: str, floor_ns: float, factor: float) -> Bools:
    """The events that a run which keeps `keep` leaves on disk: the first and last of each request, and those around
    gaps of half the length of a stall, which is what a freeze of others may look like."""
    chosen = np.zeros(len(events.row), dtype=bool)
    if keep == NONE:
        return chosen
    ordered = gaps.ordered_ns
    limit_ns = np.maximum(floor_ns, factor * segment_quantile(ordered, gaps.starts, 0.5)) / 2
    filled = events.per_request > 0
    chosen[events.starts[:-1][filled]] = chosen[events.starts[1:][filled] - 1] = True
    long = gaps.end[gaps.gap_ns > limit_ns[gaps.row]]
    at = (long[:, None] + np.arange(-1 - AROUND, AROUND + 1)).clip(0, max(0, len(events.row) - 1))
    same = events.row[at] == events.row[long][:, None]
    chosen[at[same]] = True
    return chosen | _at_once(events, long)


def _at_once(events: Events, long: Ints) -> Bools:
    """The events that came within BURST_NS of the end of a long gap of their request."""
    ended = np.zeros(len(events.row), dtype=np.int64)
    ended[long] = long + 1
    before = np.maximum.accumulate(ended) - 1
    near = events.arrival_ns - events.arrival_ns[before] <= BURST_NS
    found: Bools = (before >= 0) & (events.row[before] == events.row) & near
    return found


def _pieces(values: Any, kind: str, bounds: Ints) -> list[bytes]:
    """The bytes of each request's part."""
    data, size = np.asarray(values).astype(kind).tobytes(), np.dtype(kind).itemsize
    return [data[size * low : size * high] for low, high in pairwise(bounds.tolist())]


# --- when it is read --------------------------------------------------------------------------------------------------


def is_thinned(rows: Sequence[Row]) -> bool:
    return bool(rows) and len(rows[0]) > len(ROW_FIELDS)


def tables_of(rows: Sequence[Row]) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Requests, kept chunks and cells of thinned rows."""
    requests, chunks = raw_tables_of([row[: len(ROW_FIELDS)] for row in rows])
    tail = dict(zip(TAIL, zip(*(row[len(ROW_FIELDS) :] for row in rows), strict=True), strict=True))
    facts = {name: array_of(tail[name], (REQUESTS | COUNTED)[name]) for name in _FACTS}
    kept = {name: requests[name] for name in requests.column_names if name not in facts}
    ordered = {name: (kept | facts)[name] for name in REQUESTS}
    arrays = {name: np.frombuffer(b"".join(tail[name]), dtype=kind) for name, kind in _ARRAYS.items()}
    sizes = np.array([len(each) // 4 for each in tail["count"]], dtype=np.int64)
    row = np.repeat(np.arange(len(rows)), sizes)
    cells = Cells(row, arrays["gap_ns"], arrays["n_tokens"].astype(np.int64), arrays["count"].astype(np.int64), row)
    seq = chunks.column_names.index("seq")
    chunks = chunks.set_column(seq, "seq", column_of(arrays["seq"]))
    return pa.table(ordered | kept | facts), chunks, cells.table(requests["request_id"].to_pylist())


def said(keep: str) -> dict[str, Any]:
    """What run.json says of a run that keeps so few events."""
    if keep == ALL:
        return {"keep_events": keep}
    what, lost = _LOST[keep]
    return {"keep_events": keep, "undefined": dict.fromkeys(lost, f"{what} (--keep-events {keep})")}


def notes(keep: str) -> list[dict[str, str]]:
    """What the report says of it."""
    if keep == ALL:
        return []
    what, lost = _LOST[keep]
    names = [name for name in lost if name != "episodes"]
    text = (
        f"{what} (--keep-events {keep}): ITL and gaps are known to within 1 %, tokens per second take each answer for "
        f"even, {' and '.join(names)} {'is' if len(names) == 1 else 'are'} undefined, and figures of single events are "
        "left out"
    )
    return [{"code": "events_not_kept", "text": text}]
