"""How many tokens a request gave, and which of its events held them."""

import pytest

from analysis.record import RequestRecord
from tests.analysis.records import every, record, run_of, summary_of

CASES = [
    # events told, final usage, choices -> N, source, k
    ("usage equals events", None, 3, 1, 3, "usage", [1, 1, 1]),
    ("usage of more tokens", None, 7, 1, 7, "usage", [None, None, None]),
    ("no usage: one token each", None, None, 1, 3, "estimated", [1, 1, 1]),
    ("no usage, but each event told", [1, 4, 1], None, 1, 6, "estimated", [1, 4, 1]),
    ("told and adding up", [1, 4, 1], 6, 1, 6, "usage", [1, 4, 1]),
    ("told, not adding up", [1, 4, 1], 9, 1, 9, "usage", [None, None, None]),
    ("told in part", [1, -1, 1], 6, 1, 6, "usage", [None, None, None]),
    ("an event that says it holds none", [1, 0, 2], 3, 1, 3, "usage", [1, 1, 1]),
    ("fewer tokens than events", None, 1, 1, None, "mismatch", [None, None, None]),
    ("no tokens beside events", None, 0, 1, None, "mismatch", [None, None, None]),
    ("two choices", None, 3, 2, 3, "usage", [None, None, None]),
]


@pytest.mark.parametrize(("told", "usage", "choices", "output", "source", "tokens"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_resolved(
    told: list[int] | None, usage: int | None, choices: int, output: int | None, source: str, tokens: list[int | None]
) -> None:
    run = run_of(record("a", [10, 20, 30], told=told, usage=usage, choices=choices))
    request = run.requests.iloc[0]
    assert request["tokens_source"] == source
    assert run.requests["output_tokens"].astype(object).where(run.requests["output_tokens"].notna(), None)[0] == output
    assert [None if each != each else each for each in run.chunks["n_tokens"].astype("float")] == tokens


def test_a_request_without_tokens_has_no_source() -> None:
    assert run_of(record("a", outcome="empty")).requests["tokens_source"].isna().all()


def test_usage_that_contradicts_the_events_leaves_the_request_without_n_tpot_and_itl() -> None:
    summary = summary_of(record("liar", every(10, 12, 100), usage=1), *[record(f"{i}", [1, 2], usage=2) for i in "ab"])
    assert summary["tokens"]["output"] == 4
    assert summary["metrics"]["tpot_s"]["n"] == 2
    assert summary["metrics"]["itl_s"]["n"] == 0
    assert summary["metrics"]["gap_s"]["n"] == 13
    assert any(each["code"] == "usage_mismatch" and "liar" in each["text"] for each in summary["warnings"])


def test_one_stream_of_unknown_tokens_leaves_its_class_and_the_run_without_itl() -> None:
    known = [record(f"k{i}", [10, 20], usage=2, class_name="known") for i in range(3)]
    summary = summary_of(*known, record("u", [10, 20], usage=9, class_name="unknown"))
    assert summary["metrics"]["itl_s"]["n"] == 0
    assert summary["by_class"]["known"]["metrics"]["itl_s"]["n"] == 3
    assert summary["by_class"]["unknown"]["metrics"]["itl_s"]["n"] == 0


@pytest.mark.parametrize(
    ("at", "usage", "streamed"),
    [
        ([1000, *every(0.1, 19, 1000)], 200, False),
        ([1000], 200, False),
        (every(20, 20, 100), 20, True),
        ([1000, 1001], 2, True),  # too short to tell
    ],
)
def test_a_stream_that_was_only_played_back_has_no_decode_speed(at: list[float], usage: int, streamed: bool) -> None:
    summary = summary_of(record("a", at, usage=usage))
    assert summary["requests"]["ok"] == 1
    assert (summary["metrics"]["tpot_s"]["n"] == 1) == streamed
    assert (summary["metrics"]["gap_s"]["n"] > 0) == streamed
    assert ("not_streamed" in [each["code"] for each in summary["warnings"]]) != streamed


def test_failed_requests_give_no_latency_and_stay_in_the_counts() -> None:
    failed = record("f", [10, 20, 30], outcome="broken", error="reset by peer")
    cut = record("c", [10], outcome="cancelled")
    never = RequestRecord("n", class_name="c", stage="main")
    summary = summary_of(record("a", [100, 110], usage=2, prompt_tokens=5), failed, cut, never)
    assert summary["metrics"]["ttft_s"]["n"] == 1
    assert summary["tokens"]["output"] == 2
    assert summary["tokens"]["failed_output"] == 3
    requests = summary["requests"]
    assert (requests["planned"], requests["sent"], requests["failed"], requests["censored"]) == (4, 3, 1, 1)
    assert sum(requests["by_outcome"].values()) == 4
    assert requests["error_rate"] == pytest.approx(1 / 3)
    assert requests["errors"] == [
        {"outcome": "broken", "status": None, "message": "reset by peer", "count": 1, "first_request_id": "f"}
    ]
