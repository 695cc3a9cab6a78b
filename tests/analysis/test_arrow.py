"""Columns made of buffers are those that pyarrow makes, and a run is measured and reported without pandas."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.arrow import coded, column_of, texts_of, values_of
from analysis.columns import array_of, numbers, whole, words

NO_PANDAS = """
import sys
sys.modules["pandas"] = None
from pathlib import Path
from analysis.record import RequestRecord
from analysis.rundir import RunWriter, read_run
from analysis.summary import summarize
writer = RunWriter.create(Path(sys.argv[1]), {"id": "r", "stages": []})
record = RequestRecord("a", outcome="ok", sent_ns=0, end_ns=30, choices=1)
record.arrival_ns.extend([10, 30])
for each in (record.n_tokens, record.kind, record.chars, record.read_id):
    each.extend([1, 1])
writer.append([record])
writer.append_client({"t_ns": 1, "worker": 0, "loop_lag_max_s": 0.5, "cpu_share": 0.25, "oldest_ns": None})
writer.append_server([{"t_ns": 1, "running": 1.0}])
writer.close({})
print(summarize(read_run(Path(sys.argv[1])))["requests"]["ok"])
"""


def test_a_run_is_written_read_and_summed_up_without_pandas(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_PANDAS, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))), st.integers(0, 5), st.integers(0, 20))
def test_whole_numbers_come_as_they_went_whatever_part_is_looked_at(
    values: list[int | None], skip: int, count: int
) -> None:
    made = array_of(values, "Int64")
    assert made.equals(pa.array(values, pa.int64()))
    part = made.slice(min(skip, len(values)), count)
    table = pa.table({"x": pa.chunked_array([part, made])})
    wanted = [*values[skip:][:count], *values]
    assert whole(table, "x", -1).tolist() == [-1 if each is None else each for each in wanted]


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "bool"])
def test_arrays_become_the_columns_that_pyarrow_makes_of_them(dtype: str) -> None:
    values = np.array([0, 1, 1, 0, 1, 0, 0, 0, 1, 1]).astype(dtype)
    missing = np.arange(10) % 3 == 0
    assert column_of(values).equals(pa.array(values))
    made = column_of(values, missing)
    assert made.equals(pa.array(values, mask=missing))
    found, absent = values_of(made.slice(2))
    assert absent is not None
    assert absent.tolist() == missing[2:].tolist()
    assert found[~absent].tolist() == values[2:][~missing[2:]].tolist()


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))))
def test_texts_come_as_they_went(values: list[str | None]) -> None:
    made = texts_of(values)
    made.validate(full=True)
    assert made.to_pylist() == values


def test_words_are_numbered_in_their_order_in_each_part_and_in_one_way_over_all() -> None:
    made = array_of(["b", None, "a", "b"], "category")
    assert made.dictionary.to_pylist() == ["a", "b"]
    more = coded(np.array([0, -1]), ["c"])
    codes, known = words(pa.table({"x": pa.chunked_array([made, more])}), "x")
    assert [None if code < 0 else known[code] for code in codes] == ["b", None, "a", "b", "c", None]


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([True, None, False], "boolean", [1.0, None, 0.0]),
        ([0.5, None, 2], "Float64", [0.5, None, 2.0]),
        ([None, None], "Int64", [None, None]),
        ([], "Float64", []),
    ],
)
def test_numbers_are_floats_with_nan_where_missing(values: list[Any], dtype: str, wanted: list[float | None]) -> None:
    found = numbers(pa.table({"x": array_of(values, dtype)}), "x")
    assert [None if np.isnan(each) else each for each in found] == wanted


@pytest.mark.parametrize("values", [[1.5], ["x"], [None, 0.25]])
def test_what_is_no_whole_number_is_none_of_a_column_of_them(values: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"x|int64"):
        array_of(values, "Int64")


def test_a_number_that_is_missing_where_none_may_be_is_no_zero() -> None:
    table = pa.table({"arrival_ns": array_of([5, None], "Int64")})
    assert whole(table, "arrival_ns", -1).tolist() == [5, -1]
    with pytest.raises(ValueError, match="'arrival_ns' has no number in row 1"):
        whole(table, "arrival_ns")
