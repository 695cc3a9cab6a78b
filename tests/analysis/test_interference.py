"""Prefill interference over a whole run: slope, effect, matrix, remedies, lanes and how they are shown."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.run import Run
from analysis.stalls.causes import Episodes, diagnose
from analysis.stalls.frozen import find
from analysis.stalls.interference import interference
from analysis.stalls.lanes import lanes, timeline, worst_window
from analysis.stalls.remedies import budget_tokens, remedies
from analysis.stalls.report import stalls_report
from analysis.stalls.text import picture, render_stalls
from tests.analysis.ground_truth import SCENES, simulate
from tests.analysis.records import every, record, run_of


def victim(name: str, pauses: list[tuple[float, float]]) -> Any:
    at = every(20, 1000, 100)
    for since, until in pauses:
        at = [each if each <= since else each + until - since for each in at]
    return record(name, at, usage=1000, class_name="chat")


LENGTHS = (4000, 6000, 8000, 10_000, 12_000, 14_000)
FREEZES = [(2000.0 * (i + 1), 2000.0 * (i + 1) + 50 + tokens / 20) for i, tokens in enumerate(LENGTHS)]
"""In ms: 50, and 50 for every 1,000 prompt tokens."""


def by_length(**changes: Any) -> Run:
    """Two streams that stand still for prompts of several lengths."""
    culprits = [
        record(
            f"rag{i}",
            every(20, 10, until - since + 15),
            sent=since - 10,
            usage=10,
            prompt_tokens=tokens,
            class_name="rag",
        )
        for i, ((since, until), tokens) in enumerate(zip(FREEZES, LENGTHS, strict=True))
    ]
    return run_of(victim("v1", FREEZES), victim("v2", FREEZES), *culprits, **changes)


def known_of(run: Run) -> Episodes:
    return diagnose(run, find(run), run.measured)


def test_the_slope_is_seconds_per_thousand_prompt_tokens() -> None:
    run = by_length()
    told = interference(run, known_of(run))
    # The 20 ms that a token takes anyway belong to each freeze, and are no part of the slope.
    assert told["slope"]["s_per_1k_tokens"] == pytest.approx(0.05, rel=0.02)
    assert (told["slope"]["by"], told["slope"]["culprits"]) == ("theil_sen", 6)
    assert told["slope"]["longest_s"] == pytest.approx(0.77)
    assert (told["episodes"], told["aligned_share"]) == (6, 1.0)
    assert told["p_value"] < 0.05
    assert told["chance_share"] < 0.3


def test_who_hurts_whom() -> None:
    run = by_length()
    told = interference(run, known_of(run))
    [cell] = told["matrix"]
    assert (cell["culprit_class"], cell["victim_class"], cell["stalls"]) == ("rag", "chat", 12)
    assert cell["frozen_s"] == pytest.approx(2 * sum(until - since for since, until in FREEZES) / 1000)
    assert [each["request_id"] for each in told["culprits"]] == [f"rag{i}" for i in (5, 4, 3, 2, 1, 0)]


def test_stalls_come_beside_long_prompts_and_not_without_them() -> None:
    run = by_length()
    effect = interference(run, known_of(run))["effect"]
    # Long is what has at least half of the tokens of the median culprit: all but the first, which two streams felt.
    assert (effect["long_prompt_tokens"], effect["with_long_prefill"]["stalls"], effect["without"]["stalls"]) == (
        4500,
        10,
        2,
    )
    # Two streams, for as long as each prompt waited: 10 before the freeze, and 5 after the 20 that end it.
    waited_s = sum(until - since + 15 for since, until in FREEZES[1:]) / 1000
    assert effect["with_long_prefill"]["decoding_s"] == pytest.approx(2 * waited_s, rel=0.01)
    assert effect["ratio"] == pytest.approx(effect["with_long_prefill"]["per_1k_s"] / effect["without"]["per_1k_s"])
    assert effect["ratio"] > 20


def test_a_run_without_stalls_tells_so() -> None:
    run = run_of(record("a", every(20, 50, 100), usage=50))
    told = interference(run, known_of(run))
    assert (told["episodes"], told["aligned_share"], told["p_value"], told["slope"], told["matrix"]) == (
        0,
        None,
        None,
        None,
        [],
    )
    assert remedies(run, known_of(run), told) == []
    assert "No stream froze" in render_stalls(stalls_report(run))


@pytest.mark.parametrize(("slope_s", "target_s", "tokens"), [
    (50e-6, 0.1, 1024),  # 2,000 tokens would fit
    (50e-6, 0.11, 2048),  # 2,200
    (50e-6, 0.001, 64),  # 20 tokens: no smaller budget makes sense
    (0.0, 0.1, 64),
])  # fmt: skip
def test_the_budget_is_what_is_read_within_the_target(slope_s: float, target_s: float, tokens: int) -> None:
    assert budget_tokens(slope_s, target_s) == tokens


def test_remedies_are_priced_by_the_measured_slope() -> None:
    run = by_length(workload={"name": "w", "good": {"gap_p99": "60ms"}})
    known = known_of(run)
    chunked, first, pool, apart = remedies(run, known, interference(run, known))
    assert [each["name"] for each in (chunked, first, pool, apart)] == [
        "chunked_prefill", "decode_first", "long_prompts_apart", "disaggregation",
    ]  # fmt: skip
    assert chunked["budget_tokens"] == 1024  # 1,200 tokens are read within 60 ms
    assert chunked["expected_freeze_s"] == pytest.approx(1024 * 50e-6, rel=0.02)
    assert chunked["ttft_extra_s"] == pytest.approx(9 * 0.02)  # 9,000 tokens in nine passes, a step of 20 ms each
    assert 0 < chunked["saves_s"] < apart["saves_s"]
    # 54,000 tokens at 50 µs, over the 23 s between the first token and the last
    assert apart["servers_busy"] == pytest.approx(54_000 * 50e-6 / 22.95, rel=0.05)
    assert pool["share_of_requests"] == pytest.approx(5 / 8)
    assert 0 <= first["idle_share"] < 1


def test_a_smaller_budget_does_to_the_engine_what_the_remedy_says() -> None:
    plan = replace(SCENES["whole prompts, busy"], seconds=40.0)
    run = simulate(plan).run
    known = known_of(run)
    chunked = remedies(run, known, interference(run, known))[0]
    cured = simulate(replace(plan, chunk_tokens=chunked["budget_tokens"])).run
    longest_s = cured.gaps.gap_ns.max() / 1e9
    assert longest_s == pytest.approx(chunked["expected_freeze_s"], rel=0.35)
    before, after = (np.nanmedian(each.column("ttft_s")[each.where("class", "rag")]) for each in (run, cured))
    assert after == pytest.approx(before + chunked["ttft_extra_s"], rel=0.35)


def test_lanes_show_the_culprit_first_and_what_each_stream_did() -> None:
    run = by_length()
    known = known_of(run)
    window = worst_window(known)
    assert window == pytest.approx((12.0 - 0.385, 12.77 + 0.385), abs=0.01)
    shown = lanes(run, known, (11.9, 12.9))
    first, second, third = shown["lanes"]
    assert (first["request_id"], first["culprit"], first["prompt_tokens"]) == ("rag5", True, 14_000)
    assert [each["phase"] for each in first["segments"]] == ["prefill", "decode"]
    assert {second["request_id"], third["request_id"]} == {"v1", "v2"}
    assert [each["phase"] for each in second["segments"]] == ["decode", "frozen", "decode"]
    assert second["segments"][1]["end_s"] - second["segments"][1]["start_s"] == pytest.approx(0.77)
    assert (shown["left_out"], lanes(run, known, (11.9, 12.9), most=1)["left_out"]) == (0, 2)


def test_the_picture_has_a_line_a_stream_and_the_width_asked_for() -> None:
    run = by_length()
    shown = lanes(run, known_of(run), (11.894, 12.894))
    lines = picture(shown, 76).plain.splitlines()
    assert len(lines) == 4
    assert {len(line) for line in lines} == {76}
    bars = [line[26:] for line in lines]
    # 50 columns of 20 ms: it waited from 11.99 s (column 4.8) to its first token at 12.755 s (43.05).
    assert bars[0] == " " * 5 + "▓" * 38 + "━" * 7
    # Frozen from the last token before 12 s, at 11.99 s (4.8), to 12.76 s (43.3).
    assert bars[1] == bars[2] == "━" * 5 + "×" * 38 + "━" * 7
    assert bars[3] == "11.89 s" + "12.89 s".rjust(43)


def test_the_timeline_of_one_request() -> None:
    run = by_length()
    told = timeline(run, known_of(run), "v1")
    assert (told["class"], told["outcome"], told["output_tokens"]) == ("chat", "ok", 1000)
    assert told["at_s"]["first_token"] == pytest.approx(0.1)
    assert told["at_s"]["due"] is None
    assert [each["culprit_request_id"] for each in told["freezes"]] == [f"rag{i}" for i in range(6)]
    assert told["freezes"][0]["events_before"] == 96  # the first token at 100 ms, then one every 20 up to 2,000
    text = render_stalls(stalls_report(run, "v1"))
    assert "frozen for 770 ms" in text
    assert "prefill interference by rag5" in text
    with pytest.raises(ValueError, match="no request 'nobody'"):
        timeline(run, known_of(run), "nobody")


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_says_who_did_it_and_what_helps(width: int) -> None:
    report = stalls_report(by_length())
    text = render_stalls(report, width)
    assert max(map(len, text.splitlines())) <= width
    assert report["stalls"]["episodes"][0]["culprit_request_id"] == "rag5"
    assert "prefill interference by rag5, prompt of 14,000 tokens" in " ".join(text.split())
    assert "each 1,000 prompt tokens stop the streams for 50" in text
    assert "chunked prefill with a budget of" in " ".join(text.split())
    assert "\x1b" not in text
    assert "\x1b" in render_stalls(report, width, color=True)
