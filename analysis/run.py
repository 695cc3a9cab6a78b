"""One run as columns, and every number that follows from one request alone."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from analysis import tokens
from analysis.arrow import column_of
from analysis.columns import (
    CHUNKS,
    DERIVED,
    REQUESTS,
    array_of,
    first_twice,
    nullable,
    numbers,
    rows_of,
    tables_of,
    whole,
    words,
)
from analysis.events import Events, Gaps, gaps_of
from analysis.quantiles import Bools, Floats, Ints, quantile
from analysis.record import KINDS, NEVER_SENT, THINKING, UNKNOWN, RequestRecord
from analysis.thin import CELLS, Cells, cells_of, neighbours

if TYPE_CHECKING:
    import pandas as pd

Table: TypeAlias = "pa.Table | pd.DataFrame"

_COLUMNS = {"requests": REQUESTS, "chunks": CHUNKS, "counted": CELLS}

PLAYED_BACK_SHARE, PLAYED_BACK_TOKENS = 0.95, 10
"""A stream of more tokens than this whose first came after more than this share of e2e was not streamed."""


class Run:
    """What one run measured, in tables with the columns of `analysis.columns`; chunks follow the order of requests.

    A run that did not keep all events has its gaps in `counted` (columns `thin.CELLS`), and what is derived from the
    events as it was when they were all there. Tables may be given as pandas frames, and are shown as such.
    """

    def __init__(
        self,
        meta: Mapping[str, Any],
        requests: Table,
        chunks: Table,
        server: "Table | None" = None,
        client: "Table | None" = None,
        counted: "Table | None" = None,
    ) -> None:
        self.meta = meta
        self._given = {"requests": requests, "chunks": chunks, "server": server, "client": client, "counted": counted}
        self._tables: dict[str, pa.Table | None] = {}

    @classmethod
    def from_records(
        cls,
        meta: Mapping[str, Any],
        records: Iterable[RequestRecord],
        server: "Table | None" = None,
        client: "Table | None" = None,
    ) -> "Run":
        return cls.from_frames(meta, *tables_of(rows_of(records)), server, client)

    @classmethod
    def from_frames(
        cls,
        meta: Mapping[str, Any],
        requests: Table,
        chunks: Table,
        server: "Table | None" = None,
        client: "Table | None" = None,
        counted: "Table | None" = None,
    ) -> "Run":
        """A run from raw columns; derived ones, present or not, are computed anew. ValueError if they do not fit."""
        raw = cls(meta, requests, chunks, server, client, counted)
        requests, chunks = raw.table("requests"), raw.table("chunks")
        if counted is not None:
            return cls(meta, requests, _in_order(requests, chunks)[0], server, client, counted)
        requests, chunks, events = derive(requests, chunks)
        run = cls(meta, requests, chunks, server, client)
        run.__dict__["events"] = events  # where the property keeps what it has found
        return run

    def but(self, **changes: Any) -> "Run":
        """The same with another description (`meta`) or other tables."""
        return Run(**{"meta": self.meta, **self._given, **changes})

    def table(self, name: str) -> "pa.Table | None":
        """One of requests, chunks, server, client and counted; None of the latter three where there is none."""
        if name not in self._tables:
            self._tables[name] = _as_table(self._given[name], _COLUMNS.get(name, {}))
        return self._tables[name]

    def _frame(self, name: str) -> "pd.DataFrame | None":
        given = self._given[name]
        if not isinstance(given, pa.Table):
            return given
        from analysis.frames import frame_of

        return frame_of(given, _COLUMNS.get(name, {}))

    @cached_property
    def requests(self) -> "pd.DataFrame":
        return cast("pd.DataFrame", self._frame("requests"))

    @cached_property
    def chunks(self) -> "pd.DataFrame":
        return cast("pd.DataFrame", self._frame("chunks"))

    @cached_property
    def server(self) -> "pd.DataFrame | None":
        return self._frame("server")

    @cached_property
    def client(self) -> "pd.DataFrame | None":
        return self._frame("client")

    @cached_property
    def counted(self) -> "pd.DataFrame | None":
        return self._frame("counted")

    @cached_property
    def thinned(self) -> bool:
        """Whether not all token events were kept."""
        return self._given["counted"] is not None

    @property
    def size(self) -> int:
        """How many requests there are."""
        return len(cast(Table, self._given["requests"]))

    def value(self, name: str, row: int) -> Any:
        """One value of the requests, None where missing."""
        return cast(pa.Table, self.table("requests"))[name][row].as_py()

    def sampled(self, side: str, name: str) -> Floats | None:
        """A column of the samples of `client` or `server`, NaN where missing; None where there is no such column."""
        table = self.table(side)
        return None if table is None or name not in table.column_names else numbers(table, name)

    def column(self, name: str) -> Floats:
        """A numeric column of the requests, NaN where missing."""
        if name not in self._columns:
            self._columns[name] = numbers(self.table("requests"), name)
        return self._columns[name]

    def where(self, name: str, *values: str) -> Bools:
        """Mask of the requests whose column is one of `values`."""
        if (name, values) not in self._masks:
            codes, known = self.words(name)
            found: Bools = np.isin(codes, [number for number, word in enumerate(known) if word in values])
            found.setflags(write=False)
            self._masks[name, values] = found
        return self._masks[name, values]

    def words(self, name: str) -> tuple[Ints, list[str]]:
        """A column of words of the requests, as `columns.words` has it."""
        if name not in self._words:
            self._words[name] = words(self.table("requests"), name)
        return self._words[name]

    @cached_property
    def _words(self) -> dict[str, tuple[Ints, list[str]]]:
        return {}

    @cached_property
    def _columns(self) -> dict[str, Floats]:
        return {}

    @cached_property
    def _masks(self) -> dict[tuple[str, tuple[str, ...]], Bools]:
        return {}

    @property
    def undefined(self) -> Mapping[str, str]:
        """What cannot be known of a run that another tool measured: the reason by metric."""
        return self.meta.get("undefined") or {}

    @cached_property
    def events(self) -> Events:
        requests, chunks = cast(pa.Table, self.table("requests")), cast(pa.Table, self.table("chunks"))
        found = _events(requests, chunks, _request_rows(requests, chunks))
        if not self.thinned:
            return found
        came, came_in = (np.nan_to_num(self.column(name)).astype(np.int64) for name in ("events", "reads"))
        return replace(found, seq=whole(chunks, "seq").astype(np.int64), came=came, came_in=came_in)

    @cached_property
    def cells(self) -> Cells | None:
        """All gaps, of a run that did not keep all events."""
        counted = self.table("counted")
        if counted is None:
            return None
        return cells_of(counted, _request_rows(self.table("requests"), counted), self.size)

    def usual_gap_ns(self, rows: Bools) -> float:
        """The median gap of the requests in a mask; NaN without any."""
        if self.cells is not None:
            seconds, counts, _ = self.cells.samples(rows, per_token=False)
            return quantile(seconds, 0.5, counts) * 1e9
        found = self.gaps.gap_ns[self.gaps.of(rows)]
        return float(np.median(found)) if len(found) else np.nan

    @cached_property
    def gaps(self) -> Gaps:
        if self.events.seq is not None:
            return neighbours(self.events, self.events.seq)
        return gaps_of(self.events, all_known="gap" not in self.undefined)

    @cached_property
    def ok(self) -> Bools:
        return self.where("outcome", "ok")

    @cached_property
    def sent(self) -> Bools:
        return ~self.where("outcome", *NEVER_SENT)

    @cached_property
    def streamed(self) -> Bools:
        """The requests whose gaps are decode speed: ok, and not merely played back."""
        played_back: Bools = self.column("not_streamed") == 1
        return self.ok & ~played_back

    @cached_property
    def tokens_unknown(self) -> Bools:
        """The streams with gaps whose events hold unknown numbers of tokens: they have no inter-token latency."""
        if self.cells is not None:
            return self.streamed & self.cells.unknown
        told = np.append(self.events.tokens, UNKNOWN)[self.events.starts[:-1]]  # k is known for all events or none
        unknown: Bools = (told == UNKNOWN) & (np.diff(self.gaps.starts) > 0)
        return self.streamed & unknown

    @cached_property
    def classes(self) -> dict[str, Bools]:
        """The requests of each class."""
        codes, known = self.words("class")
        return {name: self.where("class", name) for name in sorted(known[code] for code in set(codes.tolist()) - {-1})}

    @property
    def stages(self) -> list[dict[str, Any]]:
        return list(self.meta.get("stages") or [])

    @cached_property
    def measured(self) -> Bools:
        """The requests of measured stages: all of them where a run names no stages."""
        if not self.stages:
            return np.ones(self.size, dtype=bool)
        return self.where("stage", *(stage["name"] for stage in self.stages if stage.get("measured", True)))


def _as_table(given: "Table | None", columns: Mapping[str, str]) -> pa.Table | None:
    if given is None or isinstance(given, pa.Table):
        return given
    from analysis.frames import table_of

    return table_of(given, columns)


def derive(requests: pa.Table, chunks: pa.Table) -> tuple[pa.Table, pa.Table, Events]:
    """Raw columns with the derived ones filled in: the one place where they are computed.

    Deriving again from the result changes nothing. Chunks come back in the order of the requests, and as `Events`.
    """
    chunks, row = _in_order(requests, chunks)
    raw = _events(requests, chunks, row)
    resolved = tokens.resolve(
        numbers(requests, "completion_tokens"),
        numbers(requests, "choices").astype(int),
        raw,
        numbers(requests, "tokenizer_tokens"),
    )
    events = Events(raw.row, raw.arrival_ns, resolved.tokens, raw.kind, raw.read_id, raw.starts)
    columns = _instants(events) | {"output_tokens": resolved.output_tokens}
    columns |= _durations(requests, columns, events)
    derived = {name: nullable(columns[name], REQUESTS[name]) for name in columns}
    played_back = _played_back(columns, events)
    derived["tpot_s"] = nullable(np.where(played_back, np.nan, columns["tpot_s"]), "Float64")
    derived["tokens_source"] = array_of(resolved.source.tolist(), "category")
    derived["not_streamed"] = column_of(played_back)
    kept = {name: requests[name] for name in requests.column_names if name not in DERIVED}
    known = {name: (derived | kept)[name] for name in REQUESTS}
    count = column_of(events.tokens, events.tokens == UNKNOWN)
    at = chunks.column_names.index("n_tokens")
    return pa.table(known | kept), chunks.set_column(at, "n_tokens", count), events


def _instants(events: Events) -> dict[str, Floats]:
    first = events.first()
    if bool((events.kind != THINKING).all()):
        return {"first_token_ns": first, "first_answer_ns": first, "last_token_ns": events.last()}
    answer = np.append(np.flatnonzero(events.kind != THINKING), len(events.kind))
    at = answer[np.searchsorted(answer, events.starts[:-1])]
    first_answer = np.where(at < events.starts[1:], np.append(events.arrival_ns, 0)[at], np.nan)
    return {"first_token_ns": first, "first_answer_ns": first_answer, "last_token_ns": events.last()}


def _durations(requests: pa.Table, at: dict[str, Floats], events: Events) -> dict[str, Floats]:
    sent, due = numbers(requests, "sent_ns"), numbers(requests, "due_ns")
    first, last = at["first_token_ns"], at["last_token_ns"]
    k_1 = np.ones(len(sent))
    filled = events.per_request > 0
    k_1[filled] = np.maximum(events.tokens[events.starts[:-1][filled]], 1)
    further = at["output_tokens"] - k_1
    return {
        "ttft_s": (first - sent) / 1e9,
        "ttft_due_s": (first - due) / 1e9,
        "ttfat_s": (at["first_answer_ns"] - sent) / 1e9,
        "tpot_s": (last - first) / 1e9 / np.where(further > 0, further, np.nan),
        "e2e_s": (last - sent) / 1e9,
        "e2e_due_s": (last - due) / 1e9,
        "send_lag_s": (sent - due) / 1e9,
    }


def _played_back(columns: dict[str, Floats], events: Events) -> Bools:
    output = columns["output_tokens"]
    length = np.where(np.isnan(output), events.per_request, output)
    return (columns["ttft_s"] > PLAYED_BACK_SHARE * columns["e2e_s"]) & (length > PLAYED_BACK_TOKENS)


def _request_rows(requests: pa.Table, chunks: pa.Table) -> Ints:
    """The position in `requests` of the request of each chunk."""
    ids = requests["request_id"].to_pylist()
    if (twice := first_twice(ids)) is not None:
        raise ValueError(f"the request id {twice!r} occurs twice")
    codes, owners = words(chunks, "request_id")
    if not len(codes):
        return codes
    at = {name: row for row, name in enumerate(ids)}
    rows = codes if owners == ids else np.array([at.get(name, -1) for name in owners], dtype=np.int64)[codes]
    if codes.min() < 0 or rows.min() < 0:
        raise ValueError("there are token events of requests that are not listed")
    return rows


def _in_order(requests: pa.Table, chunks: pa.Table) -> tuple[pa.Table, Ints]:
    """The chunks in order of their requests, and the position of each one's request."""
    row, seq = _request_rows(requests, chunks), whole(chunks, "seq")
    on, back = row[1:] > row[:-1], row[1:] < row[:-1]
    if not back.any() and bool((on | (seq[1:] > seq[:-1])).all()):
        return chunks, row
    order = np.lexsort((seq, row))
    return chunks.take(order), row[order]


def _events(requests: pa.Table, chunks: pa.Table, row: Ints) -> Events:
    kinds, known = words(chunks, "kind")
    number = np.array([*(KINDS.index(each) if each in KINDS else -1 for each in known), -1], dtype=np.int8)
    return Events(
        row,
        whole(chunks, "arrival_ns"),
        whole(chunks, "n_tokens", UNKNOWN).astype(np.int32, copy=False),
        number[kinds],
        whole(chunks, "read_id").astype(np.int32, copy=False),
        np.searchsorted(row, np.arange(len(requests) + 1)),
    )
