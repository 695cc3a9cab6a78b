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
    }


POINTS = [Point(2.0, "pass", True, 0.5), Point(4.0, "fail", False, 1.4), Point(3.9, "pass", True, 0.9)]
SUMMARIES = [
    summary(0.2, 0.02, 2.0, 400.0, 0.01, "pass"),
    summary(1.4, 0.09, 2.5, 700.0, 0.02, "fail"),
    summary(0.45, 0.05, 3.8, 690.0, 0.019, "pass"),
]


def test_the_answer_and_its_curve():
    found = document(POINTS, SUMMARIES, Search(2.0), "sessions/s")
    assert (found["capacity"], found["fails_at"], found["settled"]) == (3.9, 4.0, True)
    assert found["requests_per_s"] == 3.8 * 1.1
    assert found["knee"] == 3.9
    assert found["pareto"] == [2.0, 3.9, 4.0]
    assert found["curve"][1] == {
        "load": 4.0, "verdict": "fail", "meets": False, "requests_per_s": 2.75, "ttft_p95_s": 1.4, "itl_p99_s": 0.09,
        "goodput_rps": 2.5, "attainment": 0.97, "output_tokens_per_s": 700.0, "stream_tokens_per_s": 50.0,
        "worst_limit": "chat: ttft.p95",
    }  # fmt: skip


def test_the_page():
    page = render(document(POINTS, SUMMARIES, Search(2.0), "sessions/s"))
    assert (
        page
        == """\
Capacity: 3.9 sessions/s (4.18 requests/s)
  3.9 passes in 1 of 1 tries, 4 does not

  load  TTFT p95  ITL p99  good/s  attained  tokens/s  a stream                            verdict
     2       200       20       2     97.0%       400       100  █████████████             pass
   3.9       450       50     3.8     97.0%       690      52.6  ████████████████████████  pass
     4     1,400       90     2.5     97.0%       700        50  ████████████████          fail (chat: ttft.p95)

  latencies in ms; load in sessions/s; the bar is goodput
  goodput bends away at 3.9
  tokens per second in all against per stream: no load beats 2, 3.9, 4 in both
"""
    )


def test_a_plain_sweep_has_no_settled_answer():
    found = document(POINTS, SUMMARIES, None, "users")
    assert (found["capacity"], found["fails_at"], found["settled"]) == (3.9, 4.0, None)


def test_a_closed_loop_has_no_due_times():
    found = document(POINTS[:1], [summary(0.2, 0.02, 2.0, 400.0, 0.01, "pass", open_loop=False)], None, "users")
    assert found["curve"][0]["ttft_p95_s"] == 0.1


def test_a_search_that_tried_nothing():
    assert render(document([], [], Search(1.0), "users")).startswith("Capacity: none found\n  nothing was tried")
