"""What another tool's result does not tell stays undefined in the report."""

from typing import Any

import pytest

from analysis.limits import parse_limits
from analysis.summary import summarize
from tests.analysis.imports import changed, import_json, imported, run_of, summary_of
from tests.analysis.test_import_serving import VLLM

FROZEN = {"itls": [[0.02] * 20 + [3.0], [0.02] * 20 + [3.0], []], "output_lens": [22, 22, 0]}


def judged(name: str, limit: str) -> dict[str, Any]:
    limits = parse_limits({"all": [limit]}, True)
    return dict(summarize(run_of(imported(name)), limits)["slo"]["limits"][0])


@pytest.mark.parametrize("metric", ["itl_s", "gap_s"])
def test_no_gap_is_made_up_between_the_ends_of_a_stream(metric: str) -> None:
    summary = summary_of(imported("guidellm.json"))
    assert summary["metrics"][metric]["n"] == 0
    assert summary["undefined"][metric] == "the result lists no token between the first and the last of a request"
    assert summary["metrics"]["tpot_s"]["n"] == 4
    assert summary["phases"]["answer"] is None
    assert "tokens_per_event" not in [each["code"] for each in summary["warnings"]]


def test_stalls_that_nobody_could_see_are_no_zero() -> None:
    summary = summary_of(imported("guidellm.json"))
    assert summary["stalls"]["per_1k_tokens"] is None
    assert summary["stalls"]["share_of_requests"] is None
    assert judged("guidellm.json", "stall.per_1k<0.5")["verdict"] == "no_verdict"
    assert judged("guidellm.json", "gap.p50<1s")["verdict"] == "no_verdict"


def test_without_start_times_no_stalls_happen_together() -> None:
    together = import_json(VLLM | FROZEN)
    assert len(summary_of(together)["stalls"]["episodes"]) == 1
    timeless = import_json(changed(VLLM | FROZEN, "start_times", drop=True))
    assert summary_of(timeless)["stalls"]["episodes"] == []
    assert summary_of(timeless)["stalls"]["count"] == 2


def test_the_time_to_the_answer_is_not_that_to_the_first_token() -> None:
    summary = summary_of(imported("vllm-completions.json"))
    assert summary["metrics"]["ttfat_s"]["n"] == 0
    assert summary["undefined"]["ttfat_s"] == "the result does not say which tokens were thinking"


def test_the_chunks_of_a_chat_are_no_tokens_even_if_there_are_as_many() -> None:
    chat = changed(VLLM, "backend", to="openai-chat")
    assert summary_of(import_json(chat))["metrics"]["itl_s"]["n"] == 0
    assert summary_of(import_json(chat))["metrics"]["gap_s"]["n"] == 3
    assert summary_of(import_json(VLLM))["metrics"]["itl_s"]["n"] == 3


def test_a_tokenizer_is_no_guess_from_the_events() -> None:
    assert "tokens_estimated" not in [each["code"] for each in summary_of(imported("aiperf.jsonl"))["warnings"]]
