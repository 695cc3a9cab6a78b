"""Columns from and to numpy by their buffers.

What pyarrow has for that (`pa.array`, `to_numpy`) imports pandas, which takes longer than a report.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.quantiles import Bools

Values = npt.NDArray[Any]

_DTYPES = {pa.int64(): np.int64, pa.int32(): np.int32, pa.float64(): np.float64}
_TYPES = {np.dtype(dtype): kind for kind, dtype in _DTYPES.items()}
_LONGEST = 2**31 - 1
"""Bytes of all texts of an array."""


def column_of(values: Values, missing: Bools | None = None) -> pa.Array:
    """An array of int64, int32, float64 or bool as a column, null where `missing`."""
    known = None if missing is None or not missing.any() else pa.py_buffer(_bits(~missing))
    kind = pa.bool_() if values.dtype == np.bool_ else _TYPES[values.dtype]
    data = _bits(values) if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(data)])


def texts_of(values: Sequence[str | None]) -> pa.Array:
    """Texts as a column, null where None."""
    encoded = [b"" if each is None else each.encode() for each in values]
    ends = np.cumsum([0, *map(len, encoded)])
    if ends[-1] > _LONGEST:
        return pa.array(values, pa.string())  # in chunks
    missing = np.array([each is None for each in values], dtype=bool)
    known = pa.py_buffer(_bits(~missing)) if missing.any() else None
    buffers = [known, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def coded(codes: Values, words: Sequence[str]) -> pa.Array:
    """A column of words, each by its number; null where that is negative."""
    codes = codes.astype(np.int32)
    return pa.DictionaryArray.from_arrays(column_of(codes, codes < 0), texts_of(words))


def values_of(column: "pa.Array | pa.ChunkedArray") -> tuple[Values, Bools | None]:
    """The values of a column of numbers, and where they are missing (None: nowhere) and mean nothing."""
    parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if pa.types.is_null(column.type) or not parts:
        return np.zeros(len(column)), np.ones(len(column), dtype=bool)
    values = [_part(each) for each in parts]
    missing = np.concatenate([_missing(each) for each in parts]) if column.null_count else None
    return values[0] if len(values) == 1 else np.concatenate(values), missing


def _part(part: pa.Array) -> Values:
    data = part.buffers()[1]
    if pa.types.is_boolean(part.type):
        return _flags(data, part)
    if part.type not in _DTYPES:  # of another writer
        return np.asarray(part.fill_null(0).to_numpy(zero_copy_only=False))
    return np.frombuffer(data or b"", dtype=_DTYPES[part.type])[part.offset : part.offset + len(part)]


def _missing(part: pa.Array) -> Bools:
    known = part.buffers()[0]
    return np.zeros(len(part), dtype=bool) if known is None else ~_flags(known, part)


def _flags(bits: "pa.Buffer | None", part: pa.Array) -> Bools:
    found = np.unpackbits(np.frombuffer(bits or b"", dtype=np.uint8), bitorder="little")
    return found[part.offset : part.offset + len(part)].astype(bool)


def _bits(flags: Bools) -> npt.NDArray[np.uint8]:
    return np.packbits(flags, bitorder="little")
