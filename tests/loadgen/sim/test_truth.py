from pathlib import Path

import msgspec
import pandas as pd
import pytest

from loadgen.sim.truth import Row, TruthFile

ROWS = [
    Row("a", 0, n, 1, 1_700_000_000_000_000_000 + n, 1_700_000_000_000_000_100 + n, "decode", None if n % 2 else "b", n)
    for n in range(1, 251)
]


def write(path):
    file = TruthFile(path)
    file.add(ROWS[:100])
    file.add(ROWS[100:])
    file.close()


def test_json_lines(tmp_path):
    write(tmp_path / "truth.jsonl")
    lines = (tmp_path / "truth.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Row) for line in lines] == ROWS


def test_parquet(tmp_path):
    write(tmp_path / "truth.parquet")
    frame = pd.read_parquet(tmp_path / "truth.parquet")
    assert list(frame) == list(Row.__struct_fields__)
    assert frame["due_ns"].tolist() == [row.due_ns for row in ROWS]
    assert frame["culprit"].isna().sum() == 125
    assert [path.name for path in tmp_path.iterdir()] == ["truth.parquet"]


def test_parquet_of_nothing(tmp_path):
    TruthFile(tmp_path / "truth.parquet").close()
    frame = pd.read_parquet(tmp_path / "truth.parquet")
    assert (list(frame), len(frame)) == (list(Row.__struct_fields__), 0)


def test_rows_can_be_read_while_it_lasts(tmp_path):
    file = TruthFile(tmp_path / "truth.jsonl")
    file.add(ROWS[:3])
    assert len((tmp_path / "truth.jsonl").read_bytes().splitlines()) == 3
    file.close()


def test_a_place_where_no_file_can_be_is_an_error_at_once(tmp_path):
    for name in ("no/truth.jsonl", "no/truth.parquet"):
        with pytest.raises(OSError, match="truth"):
            TruthFile(tmp_path / name)


def test_a_full_disk_is_one_line_and_no_more_rows(capsys):
    file = TruthFile(Path("/dev/full"))
    file.add(ROWS)
    file.add(ROWS)
    file.close()
    said = "loadgen: --truth: No space left on device: what is written is in /dev/full\n"
    assert capsys.readouterr().err == said
