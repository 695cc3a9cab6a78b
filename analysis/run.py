"""One run as columns, and every number that follows from one request alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis import tokens
from analysis.columns import DERIVED, REQUESTS, frames_of, nullable, numbers, rows_of
from analysis.events import Events, Gaps, gaps_of
from analysis.quantiles import Bools, Floats, Ints, quantile
from analysis.record import KINDS, NEVER_SENT, THINKING, UNKNOWN, RequestRecord
from analysis.thin import Cells, cells_of, neighbours

PLAYED_BACK_SHARE, PLAYED_BACK_TOKENS = 0.95, 10
"""A stream of more tokens than this whose first came after more than this share of e2e was not streamed."""


@dataclass(frozen=True)
class Run:
    """What one run measured. The frames have the columns of `analysis.columns`; chunks follow the order of requests.

    A run that did not keep all events has its gaps in `counted` (columns `thin.CELLS`), and what is derived from the
    events as it was when they were all there.
    """

    meta: Mapping[str, Any]
    requests: pd.DataFrame
    chunks: pd.DataFrame
    server: pd.DataFrame | None = None
    client: pd.DataFrame | None = None
    counted: pd.DataFrame | None = None

    @classmethod
    def from_records(
        cls,
        meta: Mapping[str, Any],
        records: Iterable[RequestRecord],
        server: pd.DataFrame | None = None,
        client: pd.DataFrame | None = None,
    ) -> "Run":
        return cls.from_frames(meta, *frames_of(rows_of(records)), server, client)

    @classmethod
    def from_frames(
        cls,
        meta: Mapping[str, Any],
        requests: pd.DataFrame,
        chunks: pd.DataFrame,
        server: pd.DataFrame | None = None,
        client: pd.DataFrame | None = None,
        counted: pd.DataFrame | None = None,
    ) -> "Run":
        """A run from raw columns; derived ones, present or not, are computed anew. ValueError if they do not fit."""
        if counted is not None:
            chunks, _ = _in_order(requests, chunks)
            return cls(meta, requests.reset_index(drop=True), chunks, server, client, counted)
        requests, chunks, events = derive(requests, chunks)
        run = cls(meta, requests, chunks, server, client)
        run.__dict__["events"] = events  # where the property keeps what it has found
        return run

    def column(self, name: str) -> Floats:
        """A numeric column of the requests, NaN where missing."""
        if name not in self._columns:
            self._columns[name] = numbers(self.requests, name)
        return self._columns[name]

    def where(self, name: str, *values: str) -> Bools:
        """Mask of the requests whose column is one of `values`."""
        if (name, values) not in self._masks:
            found: Bools = self.requests[name].isin(values).to_numpy(dtype=bool)
            found.setflags(write=False)
            self._masks[name, values] = found
        return self._masks[name, values]

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
        found = _events(self.requests, self.chunks, _request_rows(self.requests, self.chunks))
        if self.counted is None:
            return found
        came, came_in = (np.nan_to_num(self.column(name)).astype(np.int64) for name in ("events", "reads"))
        return replace(found, seq=self.chunks["seq"].to_numpy(dtype=np.int64), came=came, came_in=came_in)

    @cached_property
    def cells(self) -> Cells | None:
        """All gaps, of a run that did not keep all events."""
        if self.counted is None:
            return None
        return cells_of(self.counted, _request_rows(self.requests, self.counted), len(self.requests))

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
        names = sorted(self.requests["class"].dropna().unique())
        return {str(name): self.where("class", name) for name in names}

    @property
    def stages(self) -> list[dict[str, Any]]:
        return list(self.meta.get("stages") or [])

    @cached_property
    def measured(self) -> Bools:
        """The requests of measured stages: all of them where a run names no stages."""
        if not self.stages:
            return np.ones(len(self.requests), dtype=bool)
        return self.where("stage", *(stage["name"] for stage in self.stages if stage.get("measured", True)))


def derive(requests: pd.DataFrame, chunks: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, Events]:
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
    derived["tokens_source"] = pd.Series(resolved.source, dtype="object").astype("category")
    derived["not_streamed"] = pd.Series(played_back).astype("boolean")
    kept = {name: requests[name].reset_index(drop=True) for name in requests.columns if name not in DERIVED}
    known = {name: (derived | kept)[name] for name in REQUESTS}
    count = pd.arrays.IntegerArray(np.maximum(events.tokens, 0), events.tokens == UNKNOWN)
    return pd.DataFrame(known | kept), chunks.assign(n_tokens=count), events


def _instants(events: Events) -> dict[str, Floats]:
    first = events.first()
    if bool((events.kind != THINKING).all()):
        return {"first_token_ns": first, "first_answer_ns": first, "last_token_ns": events.last()}
    answer = np.append(np.flatnonzero(events.kind != THINKING), len(events.kind))
    at = answer[np.searchsorted(answer, events.starts[:-1])]
    first_answer = np.where(at < events.starts[1:], np.append(events.arrival_ns, 0)[at], np.nan)
    return {"first_token_ns": first, "first_answer_ns": first_answer, "last_token_ns": events.last()}


def _durations(requests: pd.DataFrame, at: dict[str, Floats], events: Events) -> dict[str, Floats]:
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


def _request_rows(requests: pd.DataFrame, chunks: pd.DataFrame) -> Ints:
    """The position in `requests` of the request of each chunk."""
    ids = pd.Index(requests["request_id"].astype("object"))
    if not ids.is_unique:
        raise ValueError(f"the request id {ids[ids.duplicated()][0]!r} occurs twice")
    owner = chunks["request_id"].astype("category").cat
    codes = owner.codes.to_numpy()
    if not len(codes):
        return np.empty(0, dtype=np.int64)
    known = ids.get_indexer(owner.categories.astype("object")).astype(np.int64)
    rows = codes.astype(np.int64) if np.array_equal(known, np.arange(len(known))) else known[codes]
    if codes.min() < 0 or rows.min() < 0:
        raise ValueError("there are token events of requests that are not listed")
    return rows


def _in_order(requests: pd.DataFrame, chunks: pd.DataFrame) -> tuple[pd.DataFrame, Ints]:
    """The chunks in order of their requests, and the position of each one's request."""
    row, seq = _request_rows(requests, chunks), chunks["seq"].to_numpy()
    on, back = row[1:] > row[:-1], row[1:] < row[:-1]
    if not back.any() and bool((on | (seq[1:] > seq[:-1])).all()):
        return chunks.reset_index(drop=True), row
    order = np.lexsort((seq, row))
    return chunks.take(order).reset_index(drop=True), row[order]


def _events(requests: pd.DataFrame, chunks: pd.DataFrame, row: Ints) -> Events:
    return Events(
        row,
        chunks["arrival_ns"].to_numpy(dtype=np.int64),
        chunks["n_tokens"].to_numpy(dtype=np.int32, na_value=UNKNOWN),
        chunks["kind"].astype("category").cat.set_categories(list(KINDS)).cat.codes.to_numpy().astype(np.int8),
        chunks["read_id"].to_numpy(dtype=np.int32),
        np.searchsorted(row, np.arange(len(requests) + 1)),
    )
