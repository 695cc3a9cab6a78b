"""A journal moved to another timeline: every instant, and nothing else."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from analysis.journal import Journal, read_journal
from analysis.record import RequestRecord
from analysis.rundir import RunWriter, read_run
from loadgen.cluster.retime import retime
from tests.analysis.records import meta


def record(name: str, **more: Any) -> RequestRecord:
    count = len(more.get("arrival_ns", ()))
    given = {name: array("q", value) if name == "arrival_ns" else value for name, value in more.items()}
    events = {"n_tokens": array("i", [1] * count), "kind": array("b", [1] * count)}
    events |= {"chars": array("i", [4] * count), "read_id": array("i", range(count))}
    return RequestRecord(name, **events, **given)


def journal(path: Path) -> Path:
    written = Journal(path, keep_text=True)
    whole = record(
        "a", due_ns=100, sent_ns=110, headers_ns=120, end_ns=160, arrival_ns=[130, 150], outcome="ok", connect_s=0.5,
        text="kept",
    )  # fmt: skip
    written.append_records([whole, record("b", due_ns=200), record("c")])
    written.append("client", [{"t_ns": 1_000, "worker": 1, "cpu_share": 0.5}])
    written.append("unknown", [{"t_ns": 5}])
    written.close()
    return path


def content(path: Path) -> list[tuple[str, Any]]:
    return list(read_journal(path))


def test_all_instants_move_and_nothing_else(tmp_path: Path) -> None:
    path = journal(tmp_path / "journal-1.bin")
    before = content(path)
    retime(path, lambda there_ns: there_ns - 7)
    after = content(path)
    retime(path, lambda there_ns: there_ns + 7)
    assert content(path) == before
    assert [kind for kind, _ in after] == ["requests", "client", "unknown"]
    assert after[1:] == [("client", [{"t_ns": 993, "worker": 1, "cpu_share": 0.5}]), before[2]]
    assert list(tmp_path.iterdir()) == [path]


def test_the_run_is_read_with_the_times_moved_and_the_latencies_as_they_were(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", meta(stages=[]))
    journal(tmp_path / "run" / "journal-0.bin")
    retime(tmp_path / "run" / "journal-0.bin", lambda there_ns: there_ns + 1_000)
    writer.close({})
    rows = read_run(tmp_path / "run").requests.set_index("request_id")
    columns = ["due_ns", "sent_ns", "headers_ns", "first_token_ns", "end_ns"]
    assert rows.loc["a", columns].tolist() == [1_100, 1_110, 1_120, 1_130, 1_160]
    assert rows.loc["a", "ttft_s"] == pytest.approx(20e-9)
    assert rows.loc["a", "connect_s"] == 0.5
    assert rows.loc["b", "due_ns"] == 1_200
    assert rows.loc["c", columns].isna().all()


def test_what_is_torn_at_the_end_is_dropped_as_ever(tmp_path: Path) -> None:
    path = journal(tmp_path / "journal-0.bin")
    whole = content(path)
    with path.open("ab") as file:
        file.write(b"\x40\x00\x00\x00half a frame")
    retime(path, lambda there_ns: there_ns)
    assert content(path) == whole


def test_where_it_fails_the_journal_stays(tmp_path: Path) -> None:
    path = journal(tmp_path / "journal-0.bin")
    whole = path.read_bytes()

    def fail(there_ns: Any) -> Any:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        retime(path, fail)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
