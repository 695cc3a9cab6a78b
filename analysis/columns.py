"""The columns of a run: their names, order and types, and how records become them.

Arrow tables hold them. What pandas is for (see `analysis.frames`) a run that is measured and reported does without: to
import it takes longer than all the rest.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.arrow import coded, column_of, texts_of, values_of
from analysis.quantiles import Floats, Ints
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

ARROW = {
    "string": pa.string(), "category": pa.dictionary(pa.int32(), pa.string()), "boolean": pa.bool_(),
    "Int64": pa.int64(), "Int32": pa.int32(), "Float64": pa.float64(), "int64": pa.int64(), "int32": pa.int32(),
}  # fmt: skip
"""The Arrow type of each pandas type."""

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


def tables_of(rows: Sequence[Row]) -> tuple[pa.Table, pa.Table]:
    """Raw requests and chunks of rows whose token events are arrays, or the bytes of such arrays.

    ValueError if a row's event arrays differ in length or two rows share a request id.
    """
    columns = dict(zip(ROW_FIELDS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(ROW_FIELDS, ())
    columns["class"] = columns.pop("class_name")
    raw = {name: array_of(columns[name], dtype) for name, dtype in REQUESTS.items() if name not in DERIVED}
    if any(text is not None for text in columns["text"]):
        raw["text"] = array_of(columns["text"], "string")
    return pa.table(raw), _chunks(columns)


def array_of(values: Sequence[Any], dtype: str) -> pa.Array:
    """Plain values, None where missing, in the type of a column."""
    if dtype == "string":
        return texts_of(values)
    if dtype == "category":
        known = sorted({each for each in values if each is not None})
        number = {None: -1} | {word: i for i, word in enumerate(known)}
        return coded(np.array([number[each] for each in values], dtype=np.int32), known)
    missing = np.array([each is None for each in values], dtype=bool)
    given = np.array([0 if each is None else each for each in values])
    found = given.astype("bool" if dtype == "boolean" else dtype.lower())
    if not np.array_equal(found, given, equal_nan=True):
        raise ValueError(f"expected a column of {dtype.lower()}")
    return column_of(found, missing)


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, null where the table has none."""
    known = set(table.column_names)
    columns = [table[each.name] if each.name in known else pa.nulls(len(table), each.type) for each in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema([pa.field(name, ARROW[dtype]) for name, dtype in columns.items()])


def numbers(table: pa.Table, name: str) -> Floats:
    """A column as floats, NaN where missing (instants are exact up to 104 days)."""
    values, missing = values_of(table[name])
    return values.astype(np.float64) if missing is None else np.where(missing, np.nan, values)


def whole(table: pa.Table, name: str, missing: int | None = None) -> Ints:
    """A column of whole numbers, `missing` where there is none; ValueError where that is not given and one is."""
    values, absent = values_of(table[name])
    if absent is None or not absent.any():
        return values
    if missing is None:
        raise ValueError(f"the column {name!r} has no number in row {int(np.argmax(absent))}")
    return np.where(absent, values.dtype.type(missing), values)


def words(table: pa.Table, name: str) -> tuple[Ints, list[str]]:
    """A column of words as the number of each row's word, -1 where missing, and the words by their number."""
    column = table[name]
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return np.empty(0, dtype=np.int64), []
    parts = [values_of(part.indices) for part in column.chunks]
    codes = [values if missing is None else np.where(missing, -1, values) for values, missing in parts]
    return np.concatenate(codes).astype(np.int64), column.chunk(0).dictionary.to_pylist()


def nullable(values: Floats, dtype: str) -> pa.Array:
    """Floats as a column, missing where NaN."""
    missing = np.isnan(values)
    if dtype == "Float64":
        return column_of(values, missing)
    return column_of(np.where(missing, 0, values).astype(dtype.lower()), missing)


def first_twice(ids: Sequence[str]) -> str | None:
    """The first that is there again; None where all differ."""
    return None if len(set(ids)) == len(ids) else next(each for each, n in Counter(ids).items() if n > 1)


def _chunks(columns: dict[str, Any]) -> pa.Table:
    events = {name: np.frombuffer(b"".join(columns[name]), dtype=kind) for name, kind in _EVENTS.items()}
    counts = np.array([memoryview(each).nbytes for each in columns["kind"]], dtype=np.int64)
    if len({len(values) for values in events.values()}) > 1:
        raise ValueError("the token events of a request do not run parallel")
    row = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    small = np.int32 if len(row) < 2**31 else np.int64
    first = np.repeat((np.cumsum(counts) - counts).astype(small), counts)
    if (twice := first_twice(columns["request_id"])) is not None:
        raise ValueError(f"the request id {twice!r} occurs twice")
    told = events["n_tokens"]
    return pa.table({
        "request_id": coded(row, columns["request_id"]),
        "seq": column_of((np.arange(len(row), dtype=small) - first).astype(np.int32, copy=False)),
        "arrival_ns": column_of(events["arrival_ns"]),
        "kind": coded(events["kind"], KINDS),
        "n_tokens": column_of(told, told == UNKNOWN),
        "chars": column_of(events["chars"]),
        "read_id": column_of(events["read_id"]),
    })  # fmt: skip
