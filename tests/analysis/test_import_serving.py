"""Results of vLLM and SGLang: parallel lists, an entry a request."""

import json
from typing import Any

import pytest

from analysis.importers.sglang import parse as parse_sglang
from tests.analysis.imports import DATA, changed, import_json, imported, run_of, summary_of, texts

VLLM: dict[str, Any] = {
    "date": "20260131-120000",
    "backend": "vllm",
    "model_id": "llama",
    "num_prompts": 3,
    "request_rate": 2.0,
    "max_concurrency": None,
    "duration": 4.0,
    "mean_ttft_ms": 150.0,
    "input_lens": [100, 50, 20],
    "output_lens": [3, 2, 0],
    "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.02, 0.04], [0.03], []],
    "start_times": [5000.5, 5001.0, 5001.5],
    "errors": ["", "", "Bad Request"],
}
NATIVE: dict[str, Any] = json.loads(
    (DATA / "sglang-native.jsonl").read_text(encoding="utf-8").replace("Infinity", "null")
)


def milliseconds(column: Any) -> list[float]:
    return [round(each * 1e3, 6) for each in column.dropna()]


def test_vllm_token_times_are_ttft_and_the_latencies_after_it() -> None:
    run = run_of(import_json(VLLM))
    assert run.requests["sent_ns"].tolist() == [0, 500_000_000, 1_000_000_000]
    assert run.chunks["arrival_ns"].tolist() == [100_000_000, 120_000_000, 160_000_000, 700_000_000, 730_000_000]
    assert milliseconds(run.requests["ttft_s"]) == [100, 200]
    assert milliseconds(run.requests["tpot_s"]) == [30, 30]
    assert run.requests["output_tokens"].tolist()[:2] == [3, 2]
    assert run.requests["prompt_tokens"].tolist() == [100, 50, 20]
    assert run.requests["outcome"].tolist() == ["ok", "ok", "http_error"]
    assert run.requests["status"].tolist()[2] == 400


def test_vllm_run_says_what_is_known_and_what_is_not() -> None:
    found = import_json(VLLM)
    assert found.meta["model"] == "llama"
    assert found.meta["started_at"] == "2026-01-31T12:00:00"
    assert found.meta["loop"] == "open"
    assert found.meta["imported"] == {"kind": "vllm", "file": "result.json", "tool_version": None}
    assert found.meta["stages"][0]["end_ns"] == 4_000_000_000
    assert found.meta["stages"][0]["offered_rps"] == 2.0
    assert set(found.meta["undefined"]) == {"ttft_due", "e2e_due", "send_lag", "ttfat", "connect"}
    assert "TTFT starts before its HTTP client" in texts(found)
    summary = summary_of(found)
    assert summary["metrics"]["ttft_due_s"]["n"] == 0
    assert summary["throughput"]["requests_per_s"] == 0.75
    assert summary["requests"]["errors"][0]["message"] == "Bad Request"


def test_an_infinite_rate_is_a_closed_loop() -> None:
    found = import_json(changed(VLLM, "request_rate", to="inf") | {"max_concurrency": 8})
    assert found.meta["loop"] == "closed"
    assert found.meta["workload"]["concurrency"] == 8
    assert found.meta["stages"][0]["offered_rps"] is None


def test_without_start_times_requests_lie_at_the_start_and_the_run_says_so() -> None:
    found = import_json(changed(VLLM, "start_times", drop=True))
    assert run_of(found).requests["sent_ns"].tolist() == [0, 0, 0]
    assert "episodes" in found.meta["undefined"]
    assert "when a request was sent" in texts(found)
    assert milliseconds(run_of(found).requests["ttft_s"]) == [100, 200]


def test_more_chunks_than_tokens_leave_the_length_and_take_the_itl() -> None:
    """A chat's first chunk has a role alone: four chunks of three tokens."""
    found = import_json(changed(VLLM, "itls", 0, to=[0.0001, 0.02, 0.04]))
    run = run_of(found)
    assert run.requests["output_tokens"].tolist()[:2] == [3, 2]
    assert milliseconds(run.requests["tpot_s"])[0] == pytest.approx(60.1 / 2)
    summary = summary_of(found)
    assert summary["metrics"]["itl_s"]["n"] == 0
    assert summary["metrics"]["gap_s"]["n"] == 4
    assert "1 of 3 requests have more chunks than tokens" in texts(found)
    assert "usage_mismatch" not in [each["code"] for each in summary["warnings"]]


def test_the_chunks_of_a_chat_say_nothing_of_tokens() -> None:
    assert "itl" not in import_json(VLLM).meta["undefined"]
    chat = import_json(changed(VLLM, "backend", to="openai-chat"))
    assert "a role alone makes a chunk" in chat.meta["undefined"]["itl"]
    assert "itl is undefined" in texts(chat)


@pytest.mark.parametrize("name", ["vllm-completions.json", "vllm-chat.json"])
def test_a_real_result_gives_the_numbers_that_vllm_printed(name: str) -> None:
    told = json.loads((DATA / name).read_text())
    metrics = summary_of(imported(name))["metrics"]
    for ours, theirs in (("ttft_s", "ttft"), ("tpot_s", "tpot"), ("gap_s", "itl"), ("e2e_s", "e2el")):
        found = [metrics[ours][key] * 1e3 for key in ("mean", "std", "p50", "p99")]
        assert found == pytest.approx(
            [told[f"{key}_{theirs}_ms"] for key in ("mean", "std", "median", "p99")], rel=1e-6
        )
    if name == "vllm-completions.json":
        assert metrics["itl_s"]["p99"] == metrics["gap_s"]["p99"]


def test_a_real_result_of_refused_requests_has_no_latency() -> None:
    summary = summary_of(imported("vllm-errors.json"))
    assert summary["requests"]["by_outcome"] == {"http_error": 4}
    assert summary["requests"]["error_rate"] == 1
    assert summary["metrics"]["ttft_s"]["n"] == 0


def test_a_request_with_nothing_at_all_is_empty_and_counted() -> None:
    found = import_json(changed(VLLM, "errors", 2, to=""))
    assert found.records[2].outcome == "empty"
    assert "1 of 3 requests have neither an error nor a first token" in texts(found)


def test_a_stream_that_broke_keeps_what_came() -> None:
    broken = changed(
        changed(VLLM, "errors", 0, to="Traceback …\naiohttp.ClientPayloadError: not complete"), "output_lens", 0, to=0
    )
    run = run_of(import_json(broken))
    assert run.requests["outcome"].tolist()[0] == "broken"
    assert len(run.chunks) == 5
    assert run.requests["tokens_source"].tolist()[0] == "estimated"


def test_waits_in_the_tools_queue_and_prompts_not_listed_are_told() -> None:
    found = import_json(VLLM | {"queue_times": [0.0, 1.5, 0.0], "num_prompts": 7})
    assert "1 of 3 requests waited up to 1.50 s in vLLM's own queue, outside of TTFT" in texts(found)
    closed = import_json(VLLM | {"queue_times": [0.0, 1.5, 0.0], "request_rate": "inf"})
    assert "queue" not in texts(closed)  # where all requests are made at once, that wait means nothing
    assert "lists 3 requests of 7 prompts" in texts(found)


def test_tokens_that_shared_a_chunk_are_one_event_again() -> None:
    run = run_of(imported("sglang-native.jsonl"))
    assert run.chunks["n_tokens"].tolist() == [1, 2, 3, 1, 1, 1]
    assert [each // 1_000_000 for each in run.chunks["arrival_ns"]] == [100, 180, 240, 200, 230, 280]
    summary = summary_of(imported("sglang-native.jsonl"))
    itls = [0.04, 0.04, 0.02, 0.02, 0.02, 0.03, 0.05]
    assert summary["metrics"]["itl_s"]["n"] == 7
    assert summary["metrics"]["itl_s"]["mean"] == pytest.approx(sum(itls) / 7)
    assert summary["metrics"]["gap_s"]["max"] == pytest.approx(0.08)
    assert milliseconds(run.requests["tpot_s"]) == [28, 40]


def test_equal_latencies_of_different_requests_are_different_chunks() -> None:
    found = import_json(changed(changed(NATIVE, "itls", 0, to=[0.04] * 5), "itls", 1, to=[0.04, 0.04]))
    assert [each.n_tokens.tolist() for each in found.records] == [[1, 5], [1, 2], []]


def test_sglang_run_says_what_is_known() -> None:
    found = imported("sglang-native.jsonl")
    assert found.meta["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert found.meta["imported"]["tool_version"] == "0.5.3"
    assert found.meta["loop"] == "closed"
    assert (found.records[2].outcome, found.records[2].status) == ("http_error", 500)
    assert "divides the gap before a chunk evenly" in texts(found)


def test_the_first_chunk_of_sglang_has_the_tokens_that_the_others_leave() -> None:
    assert import_json(changed(NATIVE, "output_lens", 1, to=7)).records[1].n_tokens.tolist() == [5, 1, 1]
    found = import_json(changed(NATIVE, "output_lens", 1, to=2))
    assert found.records[1].n_tokens.tolist() == [-1, -1, -1]
    assert "1 of 3 requests list more latencies than tokens" in texts(found)


def test_sglang_with_another_backend_writes_an_entry_a_chunk_and_the_length_asked_for() -> None:
    found = import_json(changed(NATIVE, "backend", to="sglang-oai"))
    run = run_of(found)
    assert len(run.chunks) == 9
    assert run.requests["asked_output_tokens"].tolist()[:2] == [6, 3]
    assert run.requests["tokens_source"].tolist()[:2] == ["estimated", "estimated"]
    assert "the length asked for" in texts(found)


def test_a_trace_is_an_open_loop_without_a_rate() -> None:
    found = import_json(changed(NATIVE, "request_rate", to="trace"))
    assert (found.meta["loop"], found.meta["stages"][0]["offered_rps"]) == ("open", None)


def test_infinity_as_python_writes_it_is_read() -> None:
    assert parse_sglang(
        b'{"backend": "sglang", "request_rate": Infinity, "ttfts": [1], "itls": [[]], "output_lens": [1]}', "f"
    ).records
