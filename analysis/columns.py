"""The columns of a run: their names, order and types, and how records become them."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from analysis.quantiles import Floats
from analysis.record import KINDS, UNKNOWN, RequestRecord

REQUESTS = {
    "request_id": "string", "session": "Int64", "turn": "Int64", "class": "category", "stage": "category",
    "worker": "Int64", "due_ns": "Int64", "sent_ns": "Int64", "headers_ns": "Int64", "first_token_ns": "Int64",
    "first_answer_ns": "Int64", "last_token_ns": "Int64", "end_ns": "Int64", "outcome": "category",
    "status": "Int64", "error": "string", "tries": "Int64", "reused_connection": "boolean",
    "prompt_tokens": "Int64", "cached_tokens": "Int64", "output_tokens": "Int64", "reasoning_tokens": "Int64",
    "tokens_source": "category", "asked_input_tokens": "Int64", "asked_output_tokens": "Int64",
    "finish_reason": "category", "connect_s": "Float64", "ttft_s": "Float64", "ttft_due_s": "Float64",
    "ttfat_s": "Float64", "tpot_s": "Float64", "e2e_s": "Float64",
    "choices": "Int64", "events_dropped": "Int64", "retry_after_s": "Float64", "dns_s": "Float64", "tls_s": "Float64",
    "completion_tokens": "Int64", "tokenizer_tokens": "Int64",
    "e2e_due_s": "Float64", "send_lag_s": "Float64", "not_streamed": "boolean",
}  # fmt: skip
"""Columns of requests.parquet, in order, with their pandas type."""

DERIVED = frozenset({
    "first_token_ns", "first_answer_ns", "last_token_ns", "output_tokens", "tokens_source", "ttft_s", "ttft_due_s",
    "ttfat_s", "tpot_s", "e2e_s", "e2e_due_s", "send_lag_s", "not_streamed",
})  # fmt: skip
"""Columns that `analysis.run.derive` computes from the others and from the chunks."""

OPTIONAL = {"choices": 1, "events_dropped": 0, "completion_tokens": None, "tokenizer_tokens": None,
            "retry_after_s": None, "dns_s": None, "tls_s": None}  # fmt: skip
"""What stands for a raw column that a file of another writer may leave out."""

CHUNKS = {
    "request_id": "category", "seq": "int32", "arrival_ns": "int64", "kind": "category", "n_tokens": "Int32",
    "chars": "int32", "read_id": "int32",
}  # fmt: skip

_EVENTS = {"arrival_ns": "i8", "n_tokens": "i4", "kind": "i1", "chars": "i4", "read_id": "i4"}
_PASSING = ("tool_calls", "unsaid_text")
_SCALARS = tuple(field.name for field in fields(RequestRecord) if field.name not in (*_EVENTS, *_PASSING))
ROW_FIELDS = (*_SCALARS, *_EVENTS)
_row = attrgetter(*ROW_FIELDS)

Row = tuple[Any, ...]


def rows_of(records: Iterable[RequestRecord]) -> list[Row]:
    """One tuple per record in the order of ROW_FIELDS; the token events stay arrays."""
    return [_row(record) for record in records]


def frames_of(rows: Sequence[Row]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Raw requests and chunks of rows whose token events are arrays, or the bytes of such arrays.

    ValueError if a row's event arrays differ in length or two rows share a request id.
    """
    columns = dict(zip(ROW_FIELDS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(ROW_FIELDS, ())
    columns["class"] = columns.pop("class_name")
    raw = {name: typed(columns[name], dtype) for name, dtype in REQUESTS.items() if name not in DERIVED}
    if any(text is not None for text in columns["text"]):
        raw["text"] = typed(columns["text"], "string")
    return pd.DataFrame(raw), _chunks(columns)


def typed(values: Any, dtype: str) -> "pd.Series[Any]":
    return pd.Series(list(values), dtype="object").astype(dtype)  # type: ignore[call-overload,no-any-return]


def numbers(frame: pd.DataFrame, name: str) -> Floats:
    """A column as floats, NaN where missing (instants are exact up to 104 days)."""
    return frame[name].to_numpy(dtype="float64", na_value=np.nan)


def nullable(values: Floats, dtype: str) -> "pd.Series[Any]":
    """Floats as a nullable column, missing where NaN."""
    missing = np.isnan(values)
    if dtype == "Float64":
        return pd.Series(pd.arrays.FloatingArray(values.astype(np.float64), missing))
    whole = np.where(missing, 0, values).astype(dtype.lower())
    return pd.Series(pd.arrays.IntegerArray(whole, missing))


def _chunks(columns: dict[str, Any]) -> pd.DataFrame:
    events = {name: np.frombuffer(b"".join(columns[name]), dtype=kind) for name, kind in _EVENTS.items()}
    counts = np.array([memoryview(each).nbytes for each in columns["kind"]], dtype=np.int64)
    if len({len(values) for values in events.values()}) > 1:
        raise ValueError("the token events of a request do not run parallel")
    row = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    small = np.int32 if len(row) < 2**31 else np.int64
    first = np.repeat((np.cumsum(counts) - counts).astype(small), counts)
    ids = pd.Index(list(columns["request_id"]), dtype="object")
    if not ids.is_unique:
        raise ValueError(f"the request id {ids[ids.duplicated()][0]!r} occurs twice")
    told = events["n_tokens"]
    return pd.DataFrame({
        "request_id": pd.Categorical.from_codes(row, categories=ids),
        "seq": (np.arange(len(row), dtype=small) - first).astype(np.int32, copy=False),
        "arrival_ns": events["arrival_ns"],
        "kind": pd.Categorical.from_codes(events["kind"], categories=pd.Index(KINDS)),
        "n_tokens": pd.arrays.IntegerArray(np.maximum(told, 0), told == UNKNOWN),
        "chars": events["chars"],
        "read_id": events["read_id"],
    }, copy=False)  # fmt: skip
