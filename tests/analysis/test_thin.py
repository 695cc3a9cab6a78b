"""Runs that keep few token events against the same runs with all of them."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.columns import rows_of, tables_of
from analysis.events import gaps_of
from analysis.page.report import render
from analysis.pooled import pool
from analysis.quantiles import quantile
from analysis.record import UNKNOWN, RequestRecord
from analysis.report.text import render as render_text
from analysis.report.vllm import to_vllm
from analysis.run import Run, derive
from analysis.rundir import RunJournal, RunWriter, read_run
from analysis.stalls.report import stalls_report
from analysis.stalls.text import render_stalls
from analysis.summary import summarize
from analysis.thin import RATIO, gathered, notes, said

MS = 1_000_000
PARTS = (("by_class", "a"), ("by_stage", "main"), ("by_turn", "1"))
GATE = {"all": ["itl.p99<60ms", "gap.p95<60ms", "ttft.p95<1s", "stall.count<1"]}


def record(number: int, gaps_ms: Sequence[float], tokens: int | None = None, **fields: Any) -> RequestRecord:
    """A request that was sent `number` x 10 ms after the start and had its first token 50 ms later."""
    sent_ns = number * 10 * MS
    at_ms = np.concatenate([[50], 50 + np.cumsum(np.array(gaps_ms, dtype=float))])
    arrival_ns = [sent_ns + round(each * MS) for each in at_ms]
    made = RequestRecord(
        f"r{number}", session=number, class_name="ab"[number % 2], stage="main", due_ns=sent_ns, sent_ns=sent_ns,
        end_ns=arrival_ns[-1], outcome="ok", tries=1, finish_reason="stop", prompt_tokens=10,
        completion_tokens=len(arrival_ns) if tokens is None else tokens, choices=1,
    )  # fmt: skip
    made.arrival_ns = array("q", arrival_ns)
    made.n_tokens = array("i", [UNKNOWN] * len(arrival_ns))
    made.kind = array("b", [1] * len(arrival_ns))
    made.chars = array("i", [4] * len(arrival_ns))
    made.read_id = array("i", range(len(arrival_ns)))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def many() -> list[RequestRecord]:
    """Steady streams, of which one in ten freezes; some that failed, and some of one token."""
    dice = np.random.default_rng(1)
    made = []
    for number in range(200):
        gaps_ms = dice.gamma(20, 1.5, 60)
        gaps_ms[30] += 700 if number % 10 == 0 else 0
        made.append(record(number, gaps_ms if number % 17 else []))
    made.append(record(200, [20, 20], outcome="broken", error="lost", finish_reason=None))
    made.append(RequestRecord("r201", session=201, class_name="a", stage="main", due_ns=5, outcome="not_sent"))
    return made


def meta(keep: str) -> dict[str, Any]:
    stage = {"name": "main", "start_ns": 0, "end_ns": 3_000 * MS, "measured": True, "offered_rps": 67}
    return {"id": keep, "workload": {"name": "w", "slo": GATE, "good": {"gap_p99": "50ms"}}, "stages": [stage],
            "loop": "open", "timestamp_source": "kernel", "warnings": notes(keep), **said(keep)}  # fmt: skip


def written(folder: Path, keep: str, records: Sequence[RequestRecord], close: bool = True) -> Run:
    writer = RunWriter.create(folder, meta(keep))
    writer.append(records[:90])
    writer.append(records[90:])
    if close:
        writer.close({})
    else:
        writer.end()
    return read_run(folder)


def measured(part: dict[str, Any], *path: str) -> Any:
    for key in path:
        part = part[key]
    return part


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("keep", ["stalls", "none"])
def test_what_follows_from_one_request_stays_exact(tmp_path: Path, keep: str, close: bool) -> None:
    whole, kept = (written(tmp_path / each, each, many(), close) for each in ("all", keep))
    ours, theirs = summarize(whole), summarize(kept)
    for name in ("ttft_s", "ttft_due_s", "tpot_s", "e2e_s", "send_lag_s"):
        assert theirs["metrics"][name] == ours["metrics"][name]
    for part in ("requests", "tokens"):
        assert theirs[part] == ours[part]
    assert whole.requests.columns.tolist() == [name for name in kept.requests if name not in ("events", "reads")]


@pytest.mark.parametrize("keep", ["stalls", "none"])
def test_gaps_are_known_to_within_a_hundredth(tmp_path: Path, keep: str) -> None:
    ours, theirs = (summarize(written(tmp_path / each, each, many())) for each in ("all", keep))
    for scope in (("metrics",), *((*part, "metrics") for part in PARTS)):
        for name in ("itl_s", "gap_s"):
            mine, other = measured(ours, *scope, name), measured(theirs, *scope, name)
            assert other["n"] == mine["n"]
            assert other["mean"] == pytest.approx(mine["mean"], rel=1e-6)
            for statistic in ("min", "p50", "p90", "p99", "max"):
                assert other[statistic] == pytest.approx(mine[statistic], rel=RATIO - 1)
    ends = [summary["metrics"]["itl_s"]["ci95"]["p50"] for summary in (ours, theirs)]
    assert ends[1] == pytest.approx(ends[0], rel=0.02)
    assert theirs["goodput"]["attainment"] == pytest.approx(ours["goodput"]["attainment"], abs=0.05)
    rates = [summary["throughput"]["output_tokens_per_s"] for summary in (ours, theirs)]
    assert rates[1] == pytest.approx(rates[0], rel=0.02)


def test_stalls_stay_with_their_events(tmp_path: Path) -> None:
    whole, kept = (written(tmp_path / each, each, many()) for each in ("all", "stalls"))
    ours, theirs = summarize(whole)["stalls"], summarize(kept)["stalls"]
    assert ours["count"] == theirs["count"] == 18  # every tenth of 200, but two of these have a single token
    assert len(kept.chunks) < len(whole.chunks) / 4
    assert theirs["longest_s"] == ours["longest_s"]
    plain = [[(each["start_s"], each["end_s"], each["requests"], each["cause"]) for each in part["episodes"]]
             for part in (ours, theirs)]  # fmt: skip
    assert plain[0] == plain[1]


def test_without_events_stalls_are_undefined_and_a_limit_on_them_has_no_verdict(tmp_path: Path) -> None:
    kept = written(tmp_path / "none", "none", many())
    summary = summarize(kept)
    assert not len(kept.chunks)
    for stalls in (
        summary["stalls"],
        summary["phases"]["decode"]["stalls"],
        *(part["stalls"] for part in summary["by_class"].values()),
    ):
        assert {each for name, each in stalls.items() if name not in ("ci95", "episodes", "undefined")} == {None}
    assert summary["stalls"]["ci95"] == {"per_1k_tokens": None, "share_of_requests": None}
    limit = next(each for each in summary["slo"]["limits"] if each["metric"] == "stall")
    assert (limit["verdict"], limit["reason"]) == ("no_verdict", "no token events were kept (--keep-events none)")
    assert "no token events were kept" in render_text(summary)
    assert "Not known: no token events were kept" in render_stalls(stalls_report(kept))
    page = render(kept, summary)
    assert "Nothing can be said of freezes: no token events were kept" in page
    assert "events_not_kept" in [each["code"] for each in summary["warnings"]]


def test_a_burst_behind_a_stall_is_kept_whole(tmp_path: Path) -> None:
    gaps_ms = [20.0] * 20 + [800.0] + [0.01] * 39 + [20.0] * 20
    held = [record(number, gaps_ms) for number in range(30)]
    causes = [{each["cause"] for each in summarize(written(tmp_path / keep, keep, held))["stalls"]["episodes"]}
              for keep in ("all", "stalls")]  # fmt: skip
    assert causes == [{"buffering"}, {"buffering"}]


def test_unknown_tokens_an_event_leave_itl_undefined(tmp_path: Path) -> None:
    records = [record(number, [20] * 20, tokens=60) for number in range(30)]
    for keep in ("all", "stalls", "none"):
        summary = summarize(written(tmp_path / keep, keep, records))
        assert summary["metrics"]["itl_s"]["n"] == 0
        assert "30 of 30 streams" in summary["undefined"]["itl_s"]
        assert summary["metrics"]["gap_s"]["n"] == 600


def test_tokens_that_events_tell_weigh_as_many_samples(tmp_path: Path) -> None:
    records = [record(number, [20] * 10, tokens=31) for number in range(30)]
    for each in records:
        each.n_tokens = array("i", [1] + [3] * 10)
    for keep in ("all", "none"):
        itl = summarize(written(tmp_path / keep, keep, records))["metrics"]["itl_s"]
        assert (itl["n"], itl["p50"]) == (900, pytest.approx(0.020 / 3))


@pytest.mark.parametrize("keep", ["stalls", "none"])
def test_a_run_of_nothing(tmp_path: Path, keep: str) -> None:
    writer = RunWriter.create(tmp_path / "run", meta(keep))
    writer.close({})
    assert summarize(read_run(tmp_path / "run"))["requests"]["planned"] == 0


def test_several_workers_keep_what_the_run_keeps(tmp_path: Path) -> None:
    records = many()
    writer = RunWriter.create(tmp_path / "run", meta("stalls"))
    journals = [RunJournal.of_worker(tmp_path / "run", number) for number in range(2)]
    for number, journal in enumerate(journals):
        journal.append(records[number::2])
        journal.end()
    writer.close({})
    one = written(tmp_path / "one", "stalls", records)
    assert summarize(read_run(tmp_path / "run"))["metrics"] == summarize(one)["metrics"]


@pytest.mark.parametrize("keep", ["stalls", "none"])
def test_pages_pools_and_exports_work_or_say_what_is_missing(tmp_path: Path, keep: str) -> None:
    kept, other = (written(tmp_path / name, keep, many()) for name in "xy")
    page = render(kept, summarize(kept))
    assert "the run did not keep its token events" in page
    both = summarize(pool([kept, other]))
    assert both["metrics"]["itl_s"]["n"] == 2 * summarize(kept)["metrics"]["itl_s"]["n"]
    with pytest.raises(ValueError, match="--keep-events all"):
        to_vllm(kept)
    with pytest.raises(ValueError, match="kept different events"):
        pool([kept, written(tmp_path / "z", "all", many())])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0, 5_000), max_size=40), min_size=1, max_size=8), st.floats(0, 1))
def test_any_gaps_in_cells(gaps_ms: list[list[float]], q: float) -> None:
    *_, events = derive(*tables_of(rows_of(record(i, each) for i, each in enumerate(gaps_ms))))
    gaps = gaps_of(events)
    cells = gathered(events, gaps)
    assert cells.sizes.tolist() == [len(each) for each in gaps_ms]
    found = cells.quantile_ns(q)
    for row in range(len(gaps_ms)):
        mine = gaps.gap_ns[gaps.row == row]
        assert found[row] == pytest.approx(quantile(mine.astype(float), q), rel=RATIO - 1, abs=1, nan_ok=True)
