import pytest

from analysis.capacity.search import Point, Search
from analysis.capacity.text import document, render


def summary(ttft, itl, good, tokens, tpot, verdict, open_loop=True):
    block = {"n": 9, "p95": ttft, "p99": itl, "p50": tpot}
    limit = {"class": "chat", "metric": "ttft", "statistic": "p95", "verdict": verdict}
    return {
        "metrics": {
            "ttft_due_s": block if open_loop else block | {"n": 0, "p95": None},
            "ttft_s": block | {"p95": ttft / 2},
            "itl_s": block,
            "gap_s": block,
            "tpot_s": block,
        },
        "throughput": {"requests_per_s": good * 1.1, "output_tokens_per_s": tokens},
        "goodput": {"requests_per_s": good, "attainment": 0.97},
        "slo": {"limits": [limit]},
        "run": {"duration_s": 60.0, "offered_rps": None},
    }


POINTS = [
    Point(2.0, "pass", True, 0.5, requests=120),
    Point(4.0, "fail", False, 1.4, requests=120),
    Point(3.9, "pass", True, 0.9, requests=120),
]
SUMMARIES = [
    summary(0.2, 0.02, 2.0, 400.0, 0.01, "pass"),
    summary(1.4, 0.09, 2.5, 700.0, 0.02, "fail"),
    summary(0.45, 0.05, 3.8, 690.0, 0.019, "pass"),
]


def test_the_answer_and_its_curve():
    found = document(POINTS, SUMMARIES, Search(2.0), "sessions/s")
    assert (found["capacity"], found["passes_at"], found["fails_at"], found["settled"]) == (3.92, 3.9, 4.0, True)
    assert found["requests_per_s"] == pytest.approx(3.8 * 1.1 * 3.92 / 3.9)
    assert (found["knee"], found["engine"]) == (3.9, None)
    assert found["pareto"] == [2.0, 3.9, 4.0]
    assert found["curve"][1] == {
        "load": 4.0, "measured_s": 60.0, "verdict": "fail", "meets": False, "offered_rps": None,
        "requests_per_s": 2.75, "ttft_p95_s": 1.4,
        "itl_p99_s": 0.09, "goodput_rps": 2.5, "attainment": 0.97, "output_tokens_per_s": 700.0,
        "stream_tokens_per_s": 50.0, "worst_limit": "chat: ttft.p95",
    }  # fmt: skip


def test_the_requests_at_capacity_are_those_of_the_plan_where_it_has_a_rate():
    planned = [each | {"run": {"duration_s": 60.0, "offered_rps": 3 * point.load}}
               for each, point in zip(SUMMARIES, POINTS, strict=True)]  # fmt: skip
    found = document(POINTS, planned, Search(2.0), "sessions/s")
    assert found["requests_per_s"] == pytest.approx(3 * found["capacity"])


def test_the_page():
    points = [*POINTS, Point(3.9, "no_verdict", True, 0.95, 60.0)]
    again = summary(0.46, 0.05, 3.7, 690.0, 0.019, "no_verdict") | {"run": {"duration_s": 3600.0, "offered_rps": None}}
    page = render(document(points, [*SUMMARIES, again], Search(2.0), "sessions/s"))
    assert (
        page
        == """\
Capacity: 3.91 sessions/s (4.08 requests/s), 95 % interval 3.54 to 3.98, not settled
  3.9 meets the limits, 4 does not; where between is not known to 5%: longer runs would tell

  load     for  TTFT p95  ITL p99  good/s              attained  tokens/s  per user  verdict
     2    60 s       200       20       2  █████          97.0%       400       100  pass
   3.9    60 s       450       50     3.8  ██████████     97.0%       690      52.6  pass
   3.9  60 min       460       50     3.7  ██████████     97.0%       690      52.6  likely pass
     4    60 s     1,400       90     2.5  ███████        97.0%       700        50  fail: chat: ttft.p95

  load in sessions/s, latencies in ms, tokens/s in all and as the median user sees them
  likely: by its values alone; the intervals leave it open
  knee: up to 3.9 more load brings more goodput, beyond it little or none
  what users pay for throughput: 100 tokens/s each at 2 (400 in all), 52.6 tokens/s each at 3.9 (690 in all)
"""
    )


@pytest.mark.parametrize(
    ("verdicts", "capacity", "fails_at", "settled", "why"),
    [
        ("ppf", 2.0, 3.0, None, "the highest of the loads asked for that passes"),
        ("pnf", 1.0, 3.0, None, "the highest of the loads asked for that passes; 2 meets the limits, but not"),
        ("nnf", 2.0, 3.0, False, "none of the loads asked for passes; 2 meets the limits, but not"),
        ("fff", None, 1.0, None, "none of the loads asked for passes"),
    ],
)
def test_a_plain_sweep_has_no_settled_answer(verdicts, capacity, fails_at, settled, why):
    words = {"p": ("pass", 0.5), "n": ("no_verdict", 0.9), "f": ("fail", 2.0)}
    tries = [(float(i + 1), *words[letter]) for i, letter in enumerate(verdicts)]
    points = [Point(load, verdict, margin <= 1, margin) for load, verdict, margin in tries]
    found = document(points, [summary(0.2, 0.02, 2.0, 400.0, 0.01, verdict) for _, verdict, _ in tries], None, "users")
    assert (found["capacity"], found["fails_at"], found["settled"]) == (capacity, fails_at, settled)
    assert found["reason"].startswith(why)


def test_a_closed_loop_has_no_due_times():
    found = document(POINTS[:1], [summary(0.2, 0.02, 2.0, 400.0, 0.01, "pass", open_loop=False)], None, "users")
    assert found["curve"][0]["ttft_p95_s"] == 0.1


def test_only_loads_within_the_limits_say_what_users_pay():
    page = render(document(POINTS[:2], SUMMARIES[:2], Search(2.0), "users"))
    assert "pay" not in page


def test_a_search_that_tried_nothing():
    assert render(document([], [], Search(1.0), "users")).startswith("Capacity: none found\n  nothing was tried")


def test_a_simulated_engine_is_told():
    summaries = [each | {"run": each["run"] | {"engine": "one simulated h100"}} for each in SUMMARIES]
    found = document(POINTS, summaries, Search(2.0), "sessions/s")
    assert found["engine"] == "one simulated h100"
    assert render(found).endswith("  engine: one simulated h100\n")
    assert "engine" not in render(document(POINTS, SUMMARIES, Search(2.0), "sessions/s"))
