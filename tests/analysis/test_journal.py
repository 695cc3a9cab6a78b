"""Journals: several of them are one sequence by due time, and a write that fails leaves nothing behind."""

import errno
import struct
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.columns import ROW_FIELDS, rows_of
from analysis.journal import MAGIC, Journal, JournalError, read_journal, read_journals
from analysis.record import RequestRecord
from analysis.rundir import RunDirError, RunWriter, read_run
from tests.analysis import records


def record(
    name: str, due_ns: int | None = None, sent_ns: int | None = None, end_ns: int | None = None
) -> RequestRecord:
    return RequestRecord(name, due_ns=due_ns, sent_ns=sent_ns, end_ns=end_ns, outcome="ok" if sent_ns else "not_sent")


def names(*paths: Path) -> list[str]:
    return [row[0] for kind, rows in read_journals(paths) for row in rows if kind == "requests"]


def written(path: Path, *batches: list[RequestRecord]) -> Path:
    journal = Journal(path, keep_text=False)
    for batch in batches:
        journal.append_records(batch)
    journal.close()
    return path


def test_one_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = written(
        tmp_path / "journal.bin", [record("late", due_ns=9, sent_ns=9), record("early", due_ns=1, sent_ns=1)]
    )
    assert names(path) == ["late", "early"]


def test_several_are_merged_by_due_time(tmp_path: Path) -> None:
    long = record("long", due_ns=10, sent_ns=11, end_ns=900)
    first = written(tmp_path / "0", [record("c", due_ns=30, sent_ns=30, end_ns=40)], [long])
    second = written(tmp_path / "1", [record("b", due_ns=20, sent_ns=50, end_ns=60), record("d", 40, 41, 42)])
    empty = written(tmp_path / "2")
    assert names(first, second, empty) == ["long", "b", "c", "d"]


def test_in_a_closed_loop_by_the_time_they_left_and_what_never_left_keeps_its_place(tmp_path: Path) -> None:
    left = [record("a", sent_ns=10, end_ns=20), record("c", sent_ns=50, end_ns=60)]
    first = written(tmp_path / "0", [*left, record("skipped")])
    second = written(tmp_path / "1", [record("b", sent_ns=30, end_ns=35), record("d", sent_ns=70, end_ns=80)])
    assert names(first, second) == ["a", "b", "c", "skipped", "d"]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 100)), max_size=40))
def test_whatever_ended_when(tmp_path_factory: pytest.TempPathFactory, told: list[tuple[int, int, int]]) -> None:
    """Each worker writes its requests as they end; together they come out by due time, each once."""
    folder = tmp_path_factory.mktemp("journals")
    rows = [(worker, due, due + 1 + took, f"r{i}") for i, (worker, due, took) in enumerate(told)]
    paths = []
    for worker in range(3):
        mine = sorted((end, due, name) for its, due, end, name in rows if its == worker)
        paths.append(written(folder / str(worker), [record(name, due, due + 1, end) for end, due, name in mine]))
    due_of = {name: due for _, due, _, name in rows}
    merged = names(*paths)
    assert sorted(merged) == sorted(due_of)
    assert [due_of[name] for name in merged] == sorted(due_of.values())


def test_samples_of_all_journals_come_too(tmp_path: Path) -> None:
    for number in range(2):
        journal = Journal(tmp_path / str(number), keep_text=False)
        journal.append("client", [{"worker": number}])
        journal.close()
    found = list(read_journals([tmp_path / "0", tmp_path / "1"]))
    assert found == [("client", [{"worker": 0}]), ("client", [{"worker": 1}])]


class FullFile:
    """A file that takes `room` bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(data[: self.room])
        self.room -= taken
        return int(taken)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self.file, name)  # type: ignore[no-any-return]


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_a_full_disk_leaves_no_torn_frame_and_the_batch_may_be_written_again(share: float, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.bin", keep_text=False)
    journal.append_records([record("before", 1, 1, 1)])
    whole = (tmp_path / "journal.bin").read_bytes()
    file = journal._file
    batch = [record(f"r{i}", i, i, i) for i in range(2500)]  # three frames
    size = written(tmp_path / "size", batch).stat().st_size
    journal._file = FullFile(file, int(share * size))  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left"):
        journal.append_records(batch)
    assert (tmp_path / "journal.bin").read_bytes() == whole
    journal._file = file
    journal.append_records(batch)
    journal.append_records([record("after", 3000, 3000, 3000)])
    journal.close()
    assert names(tmp_path / "journal.bin") == ["before", *(one.request_id for one in batch), "after"]


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(b"")


@pytest.mark.parametrize("lose", [remove, replace])
def test_a_journal_that_was_taken_away_is_not_written_into_the_void(
    lose: Callable[[Path], None], tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal.bin", keep_text=False)
    journal.append_records([record("a", 1, 1, 1)])
    lose(tmp_path / "journal.bin")
    with pytest.raises(FileNotFoundError, match="No such file"):
        journal.append_records([record("b", 1, 1, 1)])
    journal.close()


def test_a_journal_cut_short_ends_where_it_was_cut(tmp_path: Path) -> None:
    whole = written(tmp_path / "0", [record("a", 1, 1, 5)], [record("c", 3, 3, 6)])
    cut = written(tmp_path / "1", [record("b", 2, 2, 4)], [record("lost", 4, 4, 9)])
    cut.write_bytes(cut.read_bytes()[:-1])
    assert len(list(read_journal(cut))) == 1
    assert names(whole, cut) == ["a", "b", "c"]


# --- of a stranger ----------------------------------------------------------------------------------------------------


def frame(kind: str, content: Any) -> bytes:
    """As it would be written, checksum and all."""
    payload = msgspec.msgpack.encode((kind, content))
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def with_field(name: str, value: Any) -> bytes:
    """A batch of one good row but for one field."""
    (good,) = rows_of([record("r", 0, 1, 2)])
    row = [each.tobytes() if isinstance(each, array) else each for each in good]
    return frame("requests", [[value if each == name else old for each, old in zip(ROW_FIELDS, row, strict=True)]])


STRANGE = {
    "samples that are none": (frame("client", {"a": 1}), "Expected `array`, got `object`"),
    "a sample that is a number": (frame("client", [5]), r"Expected `object`, got `int` - at `\$\[0\]`"),
    "a time in words": (frame("client", [{"t_ns": "x"}]), "got `str`"),
    "a time beyond 64 bits": (frame("server", [{"t_ns": 2**63, "running": 1}]), "Expected `int` <= "),
    "requests that are a mapping": (frame("requests", {"a": 1}), "written by another version"),
    "a row that is a number": (frame("requests", [5]), "written by another version"),
    "rows of two kinds": (frame("requests", [[None] * len(ROW_FIELDS), [1]]), "Expected"),
    "an id that is a number": (with_field("request_id", 1.5), "Expected `str`, got `float`"),
    "a status that is a mapping": (with_field("status", {}), r"Expected `int \| null`, got `object`"),
    "an error that is a number": (with_field("error", 1.5), r"Expected `str \| null`, got `float`"),
    "an instant beyond 64 bits": (with_field("sent_ns", 2**63), "Expected `int` <= "),
    "an endless connect": (with_field("connect_s", float("inf")), "Expected `float` <= "),
    "events that are a list": (with_field("arrival_ns", [1]), "Expected `bytes`, got `array`"),
    "events of no known kind": (with_field("kind", b"\x09"), "token events of an unknown kind"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("content", "message"), STRANGE.values(), ids=STRANGE.keys())
def test_a_whole_frame_with_odd_content_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    RunWriter.create(tmp_path / "run", records.meta()).abandon()
    journal = tmp_path / "run" / "journal.bin"
    journal.write_bytes(MAGIC + content)
    with pytest.raises(RunDirError, match=message) as caught:
        read_run(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert f"{tmp_path / 'run'}: cannot read the run: journal.bin: " in str(caught.value)


def test_a_frame_of_a_kind_to_come_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "0", [record("a", 1, 1, 5)])
    path.write_bytes(path.read_bytes() + frame("weather", {"rain": "x"}))
    assert names(path) == ["a"]
    path.write_bytes(b"something else")
    with pytest.raises(JournalError, match="0: not a journal"):
        names(path)
