"""Tables as pandas frames, and frames as tables: for those who want to look at a run, or made one of their own."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from analysis.columns import ARROW

_NULLABLE = {
    pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype(),
}  # fmt: skip


def frame_of(table: pa.Table, columns: Mapping[str, str]) -> pd.DataFrame:
    """A table with the pandas types of `columns`, nullable ones for further columns."""
    frame: pd.DataFrame = table.to_pandas(types_mapper=_NULLABLE.get)
    return frame.astype({name: dtype for name, dtype in columns.items() if name in frame})


def table_of(frame: pd.DataFrame, columns: Mapping[str, str]) -> pa.Table:
    """A frame with the Arrow types of `columns`, those that fit for further columns."""
    return pa.table({str(name): _array(frame[name], columns.get(str(name))) for name in frame})


def _array(column: "pd.Series[Any]", dtype: str | None) -> pa.Array:
    if isinstance(column.dtype, pd.CategoricalDtype) and dtype not in (None, "category"):
        column = column.astype("object")
    elif dtype == "category":
        column = column.astype("category")
    if not isinstance(column.dtype, pd.CategoricalDtype):
        found = pa.array(column, type=dtype and ARROW[dtype], from_pandas=True)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    codes = column.cat.codes.to_numpy().astype("int32")
    words = pa.array([str(each) for each in column.cat.categories], type=pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), words)
