"""Our runs in vLLM's shape, and back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.importers.read import read_result
from analysis.latency import sample
from analysis.record import RequestRecord
from analysis.report.vllm import to_vllm
from analysis.run import Run
from analysis.rundir import RunWriter, read_run
from analysis.throughput import start_ns, time_blocks
from tests.analysis.imports import DATA, imported, run_of
from tests.analysis.records import every, meta, record
from tests.analysis.records import run_of as run_of_records

METRICS = ("ttft", "itl", "gap", "tpot", "e2e")
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "generated_texts", "errors")


def back(run: Run) -> Run:
    document = json.dumps(to_vllm(run), allow_nan=False).encode()
    return run_of(read_result(document, "result.json"))


def table(run: Run, metric: str) -> list[tuple[float, int]]:
    """The samples of a metric in order of the requests, each with how often it counts."""
    found = sample(run, run.measured, metric, time_blocks(start_ns(run), [(0, 1e18)]))
    counts = np.ones(len(found.values), dtype=int) if found.counts is None else found.counts
    return list(zip(found.values.tolist(), counts.tolist(), strict=True))


def test_the_lists_of_a_run() -> None:
    run = run_of_records(
        record("b", [80], usage=1, sent=500, prompt_tokens=7),
        record("a", [100, 120, 160], usage=3, sent=0, due=-10, prompt_tokens=50),
        record("c", outcome="http_error", status=503, error="over\nloaded", sent=600, end=700),
        record("d", outcome="not_sent", sent=None),
        started_at="2026-01-31T12:00:00+00:00",
    )
    found = to_vllm(run)
    assert found["output_lens"] == [3, 1, 0]
    assert found["input_lens"] == [50, 7, None]
    assert found["ttfts"] == [0.1, 0.08, 0.0]
    assert found["itls"] == [[0.02, 0.04], [], []]
    assert found["latencies"] == [0.16, 0.08, 0.0]
    assert found["start_times"] == [0.0, 0.5, 0.6]
    assert found["errors"] == ["", "", "http_error 503: over loaded"]
    assert (found["completed"], found["failed"], found["num_prompts"]) == (2, 1, 4)
    assert (found["duration"], found["total_input_tokens"], found["total_output_tokens"]) == (0.7, 57, 4)
    assert found["request_throughput"] == pytest.approx(2 / 0.7)
    assert found["date"] == "20260131-120000"
    assert "queue_times" not in found  # one of them has no due time


def test_summary_numbers_are_vllms_own() -> None:
    """Two requests, as vLLM counts: TPOT 60/2 and 30/1 ms, ITL over the chunks 20, 40, 30 ms."""
    found = to_vllm(run_of_records(record("a", [100, 120, 160], usage=3), record("b", [200, 230], usage=2)))
    assert found["mean_ttft_ms"] == pytest.approx(150)
    assert found["mean_tpot_ms"] == pytest.approx(30)
    assert found["median_itl_ms"] == pytest.approx(30)
    assert found["p99_itl_ms"] == pytest.approx(39.8)
    assert found["mean_e2el_ms"] == pytest.approx(195)


def test_what_a_real_result_says_of_itself_comes_out_again() -> None:
    told = json.loads((DATA / "vllm-completions.json").read_text())
    found = to_vllm(run_of(imported("vllm-completions.json")))
    for key in LISTS:
        if key != "start_times":
            assert found[key] == (pytest.approx(told[key], abs=1e-8) if key != "itls" else found[key]), key
    for mine, theirs in zip(found["itls"], told["itls"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-9)
    same = [key for key in found if key.endswith("_ms") and key in told]
    assert len(same) == 16
    assert [found[key] for key in same] == pytest.approx([told[key] for key in same], rel=1e-6)
    assert found["request_throughput"] == pytest.approx(told["request_throughput"], rel=0.1)  # vLLM's clock ends later


def test_queue_times_are_how_late_requests_were_sent() -> None:
    run = run_of_records(record("a", [100], usage=1, sent=30, due=10), record("b", [100], usage=1, sent=50, due=50))
    assert to_vllm(run)["queue_times"] == [0.02, 0.0]


def test_a_length_that_is_not_believed_is_written_as_the_server_said_it() -> None:
    run = run_of_records(STREAMS["usage that lies"], record("b", [100], usage=1, sent=1))
    assert to_vllm(run)["output_lens"] == [1, 1]
    assert back(run).requests["tokens_source"].tolist() == ["mismatch", "usage"]


def test_a_run_without_any_request_sent_has_no_such_result() -> None:
    with pytest.raises(ValueError, match="no request of a measured stage was sent"):
        to_vllm(run_of_records(record("a", outcome="not_sent", sent=None)))


@pytest.mark.parametrize("keep", [True, False])
def test_texts_are_there_only_where_the_run_kept_them(tmp_path: Path, keep: bool) -> None:
    writer = RunWriter.create(tmp_path / "run", meta(), keep_text=keep)
    writer.append([record("a", [100], usage=1, text="hello"), record("b", outcome="broken")])
    writer.close({})
    assert to_vllm(read_run(tmp_path / "run"))["generated_texts"] == (["hello", ""] if keep else ["", ""])


STREAMS = {
    "one token an event": record("a", every(20, 5, 100), usage=5),
    "running usage": record("a", [400, 480, 500, 620], told=[1, 4, 1, 6], usage=12),
    "unknown tokens": record("a", every(30, 11, 500), usage=41),
    "no usage": record("a", every(30, 4, 50)),
    "counted by a tokenizer": record("a", every(30, 4, 50), tokenizer_tokens=3),
    "usage that lies": record("a", every(30, 12, 50), usage=1),
    "usage of nothing": record("a", every(30, 12, 50), usage=0),
    "all at once": record("a", [500], usage=40),
    "one token": record("a", [500], usage=1),
    "two choices": record("a", every(30, 6, 50), usage=6, choices=2),
    "played back": record("a", [1000, *every(0.001, 30, 1000.001)], usage=31),
}


@pytest.mark.parametrize("name", STREAMS)
def test_no_table_changes_on_the_way_there_and_back(name: str) -> None:
    run = run_of_records(STREAMS[name])
    again = back(run)
    for metric in METRICS:
        assert table(again, metric) == table(run, metric)


@st.composite
def small_runs(draw: Any) -> list[RequestRecord]:
    """Requests with any number of token events, as a server may send them, in order of sending."""
    sent_ms, records = 0.0, []
    for position in range(draw(st.integers(1, 5))):
        sent_ms += draw(st.integers(0, 10**9)) / 1e6
        tokens = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
        gaps = draw(st.lists(st.integers(1, 10**10), min_size=len(tokens), max_size=len(tokens)))
        told = draw(st.sampled_from([None, tokens, [1] * len(tokens)]))
        outcome = draw(st.sampled_from(["ok", "ok", "ok", "broken", "cancelled"]))
        records.append(
            record(
                f"r{position}",
                [float(each) / 1e6 for each in np.cumsum(gaps)],
                told=told,
                usage=draw(st.sampled_from([None, sum(tokens), len(tokens), 0, 50])),
                tokenizer_tokens=draw(st.sampled_from([None, sum(tokens), 1])),
                choices=draw(st.sampled_from([1, 1, 1, 2])),
                sent=sent_ms,
                outcome=outcome,
            )
        )
    return records


@settings(deadline=None, max_examples=60)
@given(small_runs())
def test_any_small_run_has_the_same_tables_there_and_back(records: list[RequestRecord]) -> None:
    run = run_of_records(*records)
    again = back(run)
    for metric in METRICS:
        assert table(again, metric) == table(run, metric)
    assert again.requests["outcome"].tolist() == run.requests["outcome"].tolist()
