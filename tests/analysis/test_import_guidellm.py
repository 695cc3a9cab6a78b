"""GuideLLM's benchmarks, of each of its file formats."""

import json
import re
from typing import Any

import pytest

from tests.analysis.imports import DATA, changed, import_json, imported, run_of, summary_of, texts

REPORT: dict[str, Any] = json.loads((DATA / "guidellm.json").read_text())
FIRST = ("benchmarks", 0, "requests", "successful", 0)
TIMES = (*FIRST, "info", "timings")
REPORT_OF_TWO = REPORT["benchmarks"][0]["requests"]["successful"][2]
OLD = {
    "benchmarks": [
        {
            "args": {"strategy": {"type_": "async", "rate": 2.0}},
            "requests": {
                "successful": [
                    {"request_id": "a", "prompt_tokens": 9, "output_tokens": 11, "start_time": 1700000000.5,
                     "first_token_time": 1700000001.0, "last_token_time": 1700000002.0, "end_time": 1700000002.5},
                ],
                "errored": [
                    {"request_id": "b", "prompt_tokens": 9, "output_tokens": None, "start_time": 1700000001.0,
                     "first_token_time": None, "last_token_time": None, "end_time": None, "error": "ReadTimeout('')"},
                ],
                "incomplete": [],
            },
            "start_time": -1.0,
        }
    ]
}  # fmt: skip


def test_the_ends_of_each_request_give_ttft_tpot_and_e2e() -> None:
    run = run_of(imported("guidellm.json"))
    assert run.requests["request_id"].tolist() == [f"g{number}" for number in range(6)]
    assert run.column("ttft_s")[0] == pytest.approx(0.25)
    assert run.column("tpot_s")[0] == pytest.approx(0.5 / 10)
    assert run.column("e2e_s")[0] == pytest.approx(0.75)
    assert run.requests["outcome"].tolist() == ["ok", "ok", "ok", "http_error", "cancelled", "ok"]
    assert run.requests["status"].tolist()[3] == 503


def test_no_gap_is_made_up_between_the_ends() -> None:
    found = imported("guidellm.json")
    assert {"itl", "gap", "stalls"} <= set(found.meta["undefined"])
    assert "lists no token between the first and the last" in texts(found)
    assert [len(each.arrival_ns) for each in found.records] == [2, 3, 2, 0, 2, 2]
    two_tokens = changed(REPORT, "benchmarks", 0, "requests", "successful", to=[REPORT_OF_TWO])
    del two_tokens["benchmarks"][0]["requests"]["incomplete"], two_tokens["benchmarks"][1]
    assert "gap" not in import_json(two_tokens).meta["undefined"]  # both are known


def test_thinking_ends_with_the_first_token_of_the_answer() -> None:
    run = run_of(imported("guidellm.json"))
    assert run.column("ttfat_s")[1] == pytest.approx(0.75)
    assert run.column("tpot_s")[1] == pytest.approx(0.5 / 5)
    assert "ttfat" not in imported("guidellm.json").meta["undefined"]


def test_due_times_are_those_of_strategies_with_a_schedule() -> None:
    found = imported("guidellm.json")
    assert [each.due_ns for each in found.records] == [
        250_000_000,
        1_000_000_000,
        1_500_000_000,
        2_000_000_000,
        3_500_000_000,
        None,
    ]
    assert run_of(found).column("ttft_due_s")[0] == pytest.approx(0.5)
    closed = import_json(changed(REPORT, "benchmarks", 0, "config", "strategy", "type_", to="throughput"))
    assert {each.due_ns for each in closed.records} == {None}
    assert closed.meta["loop"] == "closed"
    assert "ttft_due" in closed.meta["undefined"]


def test_each_benchmark_is_a_stage() -> None:
    stages = imported("guidellm.json").meta["stages"]
    assert [each["name"] for each in stages] == ["poisson 2/s", "concurrent 4"]
    assert [(each["start_ns"], each["end_ns"]) for each in stages] == [
        (0, 4_000_000_000),
        (10_000_000_000, 13_000_000_000),
    ]
    assert [each["offered_rps"] for each in stages] == [2.0, None]
    assert set(summary_of(imported("guidellm.json"))["by_stage"]) == {"poisson 2/s", "concurrent 4"}


def test_benchmarks_of_the_same_load_are_told_apart() -> None:
    twice = {"benchmarks": [REPORT["benchmarks"][1]] * 2}
    found = import_json(twice)
    assert [each["name"] for each in found.meta["stages"]] == ["concurrent 4 #1", "concurrent 4 #2"]
    assert [each.request_id for each in found.records] == ["g5", "g5#2"]


def test_run_says_where_it_is_from_without_credentials() -> None:
    found = imported("guidellm.json")
    assert found.meta["target"] == "http://127.0.0.1:8000"
    assert found.meta["model"] == "llama"
    assert found.meta["imported"]["tool_version"] == "0.6.0"
    assert "lists 6 of the 45 requests that were made: a sample" in texts(found)
    assert "secret" not in json.dumps(found.meta)


def test_length_without_usage_is_an_estimate() -> None:
    found = import_json(changed(REPORT, *FIRST, "output_metrics", "text_tokens", to=None))
    assert run_of(found).requests["tokens_source"].tolist()[0] == "estimated"
    assert run_of(found).requests["output_tokens"].tolist()[0] == 11


def test_the_format_before_0_4() -> None:
    found = import_json(OLD)
    run = run_of(found)
    assert run.column("ttft_s")[0] == pytest.approx(0.5)
    assert run.column("tpot_s")[0] == pytest.approx(0.1)
    assert run.requests["outcome"].tolist() == ["ok", "timeout_total"]
    assert found.meta["stages"][0]["name"] == "async 2/s"
    assert found.meta["stages"][0]["end_ns"] == 2_000_000_000
    assert "ttfat" in found.meta["undefined"]


def test_a_request_without_a_first_token_was_not_streamed() -> None:
    found = import_json(changed(REPORT, *TIMES, "first_token_iteration", to=None))
    assert found.records[0].outcome == "not_streamed"
    assert "1 of 6 requests have no time of a first token" in texts(found)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((*TIMES, "first_token_iteration"), 5.0, "first_token_iteration after the first request: -1.77745e+09 s"),
        ((*TIMES, "last_token_iteration"), 1777451316.6, "last_token_iteration: before what comes first"),
        ((*TIMES, "request_end"), "late", "info.timings.request_end: expected float | null, got str"),
        ((*FIRST, "output_tokens"), -3, "tokens: -3: expected a number of tokens from 0 to"),
        (("benchmarks", 0, "requests"), [], "benchmarks[0].requests: expected object, got array"),
        ((*TIMES, "request_start"), -1, "request_start: -1: expected seconds of the wall clock"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"result\.json: .*{re.escape(message)}") as caught:
        import_json(changed(REPORT, *path, to=value))
    assert "\n" not in str(caught.value)


def test_a_report_without_requests_is_refused() -> None:
    with pytest.raises(ValueError, match=r"result\.json: benchmarks: no request in any of them"):
        import_json(changed(REPORT, "benchmarks", to=[]), "guidellm")
