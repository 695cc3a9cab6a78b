"""The run directory: what goes in comes out, whatever cut the writing short; strangers' files give one line."""

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from analysis import rundir
from analysis.columns import CHUNKS, REQUESTS
from analysis.journal import read_journal
from analysis.meta import plain_text
from analysis.record import KINDS, RequestRecord
from analysis.run import Run
from analysis.rundir import RunDirError, RunJournal, RunWriter, read_meta, read_run, write_summary
from analysis.summary import summarize
from tests.analysis.any_records import any_records
from tests.analysis.records import meta, record


def same(left: Run, right: Run) -> None:
    for one, other in ((left.requests, right.requests), (left.chunks, right.chunks)):
        pd.testing.assert_frame_equal(one.astype("object"), other.astype("object"), check_dtype=False)


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder / "run", ignore_errors=True)
    return folder / "run"


given_once_a_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None
)


@given_once_a_folder
@given(records=any_records())
def test_a_run_comes_back_as_it_was(tmp_path: Path, records: list[RequestRecord]) -> None:
    shown = [replace(one, error=one.error and plain_text(one.error)) for one in records]
    folder, expected = fresh(tmp_path), Run.from_records(meta(), shown)
    writer = RunWriter.create(folder, meta())
    writer.append(records[:2])
    writer.append(records[2:])
    same(read_run(folder), expected)
    writer.close({"timestamp_source": "kernel"})
    same(read_run(folder), expected)
    assert not (folder / "journal.bin").exists()
    assert read_run(folder).meta["complete"] is True


def test_a_journal_cut_at_any_byte_gives_the_whole_batches_before(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = RunWriter.create(folder, meta())
    journal = folder / "journal.bin"
    sizes = []
    for name in "abc":
        writer.append([record(name, [10, 20], usage=2)])
        sizes.append(journal.stat().st_size)
    writer.abandon()
    whole = journal.read_bytes()
    for cut in range(len(whole) + 1):
        journal.write_bytes(whole[:cut])
        names = [row[0] for _, rows in read_journal(journal) for row in rows]
        assert names == list("abc")[: sum(size <= cut for size in sizes)]
        if cut in (0, sizes[0] - 1, sizes[0], sizes[1] + 5):
            assert list(read_run(folder).requests["request_id"]) == names
            assert read_run(folder).meta["complete"] is False


def two_workers(folder: Path) -> RunWriter:
    """A run whose workers have come to their end."""
    writer = RunWriter.create(folder, meta())
    writer.append_server([{"t_ns": 1, "running": 3.0}])
    for worker, names in enumerate(("ac", "b")):
        journal = RunJournal.of_worker(folder, worker)
        journal.append([record(name, [10, 20], due=10 * ord(name), usage=2, worker=worker) for name in names])
        journal.append_client({"t_ns": 1, "worker": worker, "cpu_share": 0.5})
        journal.end()
    return writer


def test_the_journals_of_workers_are_one_run_before_its_end_and_after(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = two_workers(folder)
    before = read_run(folder)
    assert list(before.requests["request_id"]) == ["a", "b", "c"]
    assert before.client is not None
    assert before.client["worker"].tolist() == [0, 1]
    assert before.server is not None
    writer.close({})
    same(read_run(folder), before)
    assert not list(folder.glob("*.bin"))


def test_a_process_killed_between_results_and_journals_loses_nothing(tmp_path: Path) -> None:
    """Once the requests are there as Parquet, a journal that is left counts no more."""
    folder = tmp_path / "run"
    writer = two_workers(folder)
    kept = {path.name: path.read_bytes() for path in folder.glob("journal-1.bin")}
    before = read_run(folder)
    writer.close({})
    for name, content in kept.items():
        (folder / name).write_bytes(content)
    same(read_run(folder), before)


def test_results_that_the_disk_does_not_take_leave_the_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "run"
    writer = two_workers(folder)
    with monkeypatch.context() as patched:
        patched.setattr(rundir.pq.ParquetWriter, "write_table", full)
        with pytest.raises(RunDirError, match="cannot write the results: No space left"):
            writer.close({})
    assert sorted(path.name for path in folder.iterdir()) == [
        "journal-0.bin",
        "journal-1.bin",
        "journal.bin",
        "run.json",
    ]
    assert len(read_run(folder).requests) == 3
    writer.abandon({"interrupted_by": "the disk was full", "complete": True})
    assert read_meta(folder)["interrupted_by"] == "the disk was full"
    assert read_meta(folder)["complete"] is False


def test_a_flipped_byte_ends_the_journal_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = RunWriter.create(folder, meta())
    writer.append([record("a", [10], usage=1)])
    writer.append([record("b", [10], usage=1)])
    writer.abandon()
    journal = bytearray((folder / "journal.bin").read_bytes())
    journal[-3] ^= 1
    (folder / "journal.bin").write_bytes(journal)
    assert list(read_run(folder).requests["request_id"]) == ["a"]


def closed(folder: Path, *records: RequestRecord, keep_text: bool = False) -> Path:
    writer = RunWriter.create(folder, meta(), keep_text)
    writer.append(records)
    writer.append_client({"t_ns": 1, "loop_lag_max_s": 0.001, "cpu_share": 0.2})
    writer.append_server([{"t_ns": 1, "running": 3.0}])
    writer.close({"seed": 8})
    return folder


def test_the_files_hold_the_columns_of_the_format_in_order(tmp_path: Path) -> None:
    folder = closed(tmp_path / "run", record("a", [10, 20], usage=2))
    assert pq.read_schema(folder / "requests.parquet").names == list(REQUESTS)
    assert pq.read_schema(folder / "chunks.parquet").names == list(CHUNKS)
    chunks = pq.read_table(folder / "chunks.parquet").to_pydict()
    assert chunks["kind"] == [KINDS[1]] * 2
    assert chunks["n_tokens"] == [1, 1]
    requests = pq.read_table(folder / "requests.parquet").to_pydict()
    assert requests["ttft_s"] == [pytest.approx(0.01)]
    assert requests["due_ns"] == [None]
    run = read_run(folder)
    assert run.client is not None
    assert run.client["loop_lag_max_s"].tolist() == [0.001]
    assert run.server is not None
    assert json.loads((folder / "run.json").read_text())["seed"] == 8


@pytest.mark.parametrize("keep", [True, False])
def test_answers_are_stored_only_when_asked(tmp_path: Path, keep: bool) -> None:
    folder = closed(tmp_path / "run", record("a", [10], usage=1, text="a secret"), keep_text=keep)
    assert ("text" in read_run(folder).requests) == keep
    assert any(b"secret" in file.read_bytes() for file in folder.iterdir()) == keep


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunDirError, match=r"not empty: name a new directory with --out"):
        RunWriter.create(tmp_path, meta())
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match=r"file/run: cannot create the run directory: .+"):
        RunWriter.create(tmp_path / "file" / "run", meta())


def drop(column: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        table = pq.read_table(folder / "requests.parquet")
        pq.write_table(table.drop_columns([column]), folder / "requests.parquet")

    return damage


def retype(folder: Path) -> None:
    table = pq.read_table(folder / "requests.parquet").drop_columns(["sent_ns"])
    pq.write_table(table.append_column("sent_ns", pa.array(["soon"])), folder / "requests.parquet")


def orphan(folder: Path) -> None:
    table = pq.read_table(folder / "chunks.parquet").drop_columns(["request_id"])
    pq.write_table(table.append_column("request_id", pa.array(["x", "y"])), folder / "chunks.parquet")


def wordy(folder: Path) -> None:
    pq.write_table(pa.table({"t_ns": ["now"]}), folder / "client.parquet")


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def journal_of_a_stranger(folder: Path) -> None:
    (folder / "requests.parquet").unlink()
    (folder / "journal.bin").write_text("something else")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), r"no run\.json there"),
        (write("run.json", "{"), r"run\.json: cannot read: "),
        (write("run.json", "[]"), r"not the description of a run"),
        (write("run.json", '{"format_version": 2}'), r"format version 2; this loadgen reads 1"),
        (write("run.json", '{"format_version": 1, "stages": [7]}'), r"run\.json: stages\[0\]: expected a mapping"),
        (write("requests.parquet", "no"), r"requests\.parquet: cannot read: "),
        (journal_of_a_stranger, r"not a journal of this format"),
        (lambda folder: (folder / "chunks.parquet").unlink(), r"chunks\.parquet: missing"),
        (drop("outcome"), r"no column 'outcome'"),
        (retype, r"column 'sent_ns': expected int64"),
        (wordy, r"client\.parquet: column 't_ns': expected numbers, got string"),
        (orphan, r"token events of requests that are not listed"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    folder = closed(tmp_path / "run", record("a", [10, 20], usage=2))
    damage(folder)
    with pytest.raises(RunDirError, match=message) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_writer_may_leave_out_what_is_derived(tmp_path: Path) -> None:
    folder = closed(tmp_path / "run", record("a", [10, 20], usage=9))
    expected = summarize(read_run(folder))
    drop("completion_tokens")(folder)
    drop("ttft_s")(folder)
    drop("choices")(folder)
    assert summarize(read_run(folder)) == expected


@pytest.mark.parametrize("ended", [False, True])
def test_no_word_of_a_table_moves_the_cursor(tmp_path: Path, ended: bool) -> None:
    folder, stage = tmp_path / "run", "main\x1b[2J"
    writer = RunWriter.create(folder, meta(stages=[{"name": stage}]), keep_text=True)
    writer.append([record("a\x9b", [10, 20], usage=2, stage=stage, class_name="c\r", error="no\nway", text="line\n")])
    writer.close({}) if ended else writer.abandon()
    run = read_run(folder)
    row = run.requests.iloc[0]
    assert row[["request_id", "stage", "class", "error"]].tolist() == ["a\ufffd", "main\ufffd[2J", "c ", "no way"]
    assert row["text"] == "line\n"
    assert set(run.chunks["request_id"]) == {"a\ufffd"}
    assert run.measured.all()


def test_what_a_server_calls_infinite_it_has_not_measured(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", meta())
    writer.append_server([{"t_ns": 1, "running": float("inf")}, {"t_ns": 2, "running": 3.0}])
    writer.close({})
    server = read_run(tmp_path / "run").server
    assert server is not None
    assert server["running"].isna().tolist() == [True, False]


def test_the_summary_is_json(tmp_path: Path) -> None:
    write_summary(tmp_path, {"a": None, "b": 1.5})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": None, "b": 1.5}
    with pytest.raises(RunDirError, match="cannot write summary"):
        write_summary(tmp_path, {"a": float("nan")})
