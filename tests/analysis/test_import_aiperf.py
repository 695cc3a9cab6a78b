"""AIPerf's records: one request a line."""

import json
import re
from typing import Any

import pytest

from analysis.importers.read import read_result
from tests.analysis.imports import DATA, changed, imported, run_of, summary_of, texts

LINES: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "aiperf.jsonl").read_text().splitlines()]
CHAT = LINES[0]


def import_lines(*lines: dict[str, Any]) -> Any:
    return read_result("".join(json.dumps(line) + "\n" for line in lines).encode(), "p.jsonl")


def test_records_in_order_of_sending_with_what_each_line_says() -> None:
    run = run_of(imported("aiperf.jsonl"))
    requests = run.requests
    assert requests["request_id"].tolist()[:3] == ["req-0-0", "req-1-0", "req-2-0"]
    assert requests["sent_ns"].tolist()[:3] == [0, 1_000_000_000, 2_000_000_000]
    assert requests["headers_ns"].tolist()[1] == 1_117_830_613
    assert requests["end_ns"].tolist()[1] == 1_271_000_000
    assert requests["stage"].tolist()[:2] == ["warmup", "profiling"]
    assert requests["turn"].tolist() == [1, 1, 1, 1, 1, 1, 2]
    assert requests["session"].tolist()[2] == requests["session"].tolist()[6]
    assert requests["outcome"].tolist() == ["ok", "ok", "ok", "ok", "cancelled", "http_error", "ok"]
    assert requests["status"].tolist()[5] == 503


def test_gaps_are_the_latencies_between_chunks() -> None:
    run = run_of(imported("aiperf.jsonl"))
    mine = run.chunks[run.chunks["request_id"] == "req-1-0"]
    assert (mine["arrival_ns"] - 1_000_000_000).tolist() == [255_886_568, 260_785_005, 266_101_011, 270_902_500]
    assert mine["kind"].tolist() == ["thinking", "thinking", "answer", "answer"]
    assert run.column("ttfat_s")[1] == pytest.approx(0.266101011)
    assert run.column("tpot_s")[2] == pytest.approx(0.03)


def test_without_a_first_token_of_the_answer_all_was_thinking() -> None:
    endless = changed(LINES[2], "metrics", "time_to_first_output_token", drop=True)
    found = import_lines(endless, changed(LINES[2], "metadata", "x_request_id", to="b"))
    assert [each.kind.tolist() for each in found.records] == [[0, 0, 0, 0], [0, 0, 1, 1]]
    assert import_lines(endless).records[0].kind.tolist() == [1, 1, 1, 1]
    assert "ttfat" in import_lines(endless).meta["undefined"]


def test_warm_up_is_not_measured_and_nothing_is_claimed_of_the_load() -> None:
    found = imported("aiperf.jsonl")
    assert [(each["name"], each["measured"]) for each in found.meta["stages"]] == [
        ("warmup", False),
        ("profiling", True),
    ]
    assert found.meta["stages"][1] | {"measured": None} == {
        "name": "profiling", "start_ns": 1_000_000_000, "end_ns": 2_871_000_000, "measured": None, "offered_rps": None,
    }  # fmt: skip
    assert found.meta["loop"] is None
    assert found.meta["started_at"] == "2025-10-07T05:00:07+00:00"
    assert summary_of(found)["metrics"]["ttft_s"]["n"] == 4
    assert "ttfat" not in found.meta["undefined"]
    assert "with its own tokenizer" in texts(found)


def test_its_token_count_is_no_usage_of_the_servers() -> None:
    run = run_of(import_lines(CHAT))
    assert run.requests["tokens_source"].tolist() == ["estimated"]
    told = changed(CHAT, "metrics", "usage_completion_tokens", to={"value": 5, "unit": "tokens"})
    found = import_lines(told)
    assert run_of(found).requests["tokens_source"].tolist() == ["usage"]
    assert found.records[0].completion_tokens == 5


def test_without_chunk_latencies_only_the_ends_are_known() -> None:
    found = import_lines(changed(CHAT, "metrics", "inter_chunk_latency", drop=True))
    assert found.records[0].arrival_ns.tolist() == [300_000_000, 390_000_000]
    assert {"itl", "gap", "stalls"} <= set(found.meta["undefined"])
    assert run_of(found).column("tpot_s")[0] == pytest.approx(0.03)


def test_two_tokens_are_both_ends() -> None:
    two = changed(
        changed(CHAT, "metrics", "inter_chunk_latency", drop=True), "metrics", "output_sequence_length", "value", to=2
    )
    found = import_lines(two)
    assert len(found.records[0].arrival_ns) == 2
    assert "gap" not in found.meta["undefined"]


def test_without_a_first_token_it_was_not_streamed() -> None:
    found = import_lines(CHAT, changed(LINES[3], "metrics", "time_to_first_token", drop=True))
    assert [each.outcome for each in found.records] == ["ok", "not_streamed"]
    assert "1 of 2 requests have no time to first token" in texts(found)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("metadata", None, "metadata: expected object, got null or NaN"),
        ("metadata.request_start_ns", "soon", "metadata.request_start_ns: expected int, got str"),
        ("metadata.request_end_ns", 5, "metadata.request_end_ns: 5: expected an instant after request_start_ns"),
        ("metrics.time_to_first_token.unit", "furlong", "metrics.time_to_first_token: unit 'furlong': expected one of"),
        ("metrics.time_to_first_token.value", -1, "metrics.time_to_first_token: -0.001 s: expected a time from 0 to"),
        ("metrics.inter_chunk_latency.value", [1e300], "metrics.inter_chunk_latency: 1e+297 s: expected a time from"),
        ("metrics.output_sequence_length.value", 2.5, "metrics.output_sequence_length.value: expected int, got float"),
        ("metrics.output_sequence_length.value", -1, "metrics.output_sequence_length: -1: expected a number of tokens"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"p.jsonl: line 2: {message}")) as caught:
        import_lines(LINES[1], changed(CHAT, *path.split("."), to=value))
    assert "\n" not in str(caught.value)


def test_the_same_request_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"p\.jsonl: metadata\.x_request_id: req-2-0 occurs twice"):
        import_lines(CHAT, CHAT)


def test_runs_years_apart_are_not_one() -> None:
    with pytest.raises(ValueError, match=r"line 1: metadata\.request_start_ns after the first request: .* s: expected"):
        import_lines(changed(CHAT, "metadata", "request_start_ns", to=1_959_813_207_000_000_000), LINES[1])
