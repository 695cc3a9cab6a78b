import json

from workloads.plan_text import bars, plan, render_plan
from workloads.schedule import build
from workloads.spec import Workload

CLASSES = {"c": {"turns": 2, "input_tokens": 10, "output_tokens": 50, "think_time": "2s", "system_tokens": 100}}


def planned(**keys):
    return plan(build(Workload.model_validate({"name": "w", "classes": CLASSES, **keys}), 7))


def test_an_open_loop_is_counted_whole():
    page = planned(arrivals={"process": "constant", "rate": "2/s"}, duration="10s", warmup="1s")
    # 22 sessions of two prompts, 110 and 110 + 50 + 10.
    assert page["totals"] == {
        "sessions": 22,
        "requests": 44,
        "prompt_tokens": 22 * 280,
        "fresh_prompt_tokens": 100 + 22 * 20,  # the system prompt once, and each turn's own words
        "output_tokens": 2200,
        "held_token_steps": 22 * 50 * (110 + 25 + 170 + 25),
    }
    assert page["duration_s"] == 11
    prompts = page["classes"]["c"]["input"]
    histogram = prompts.pop("histogram")
    assert prompts == {"mean": 140, "p50": 140, "p95": 170, "max": 170}
    assert (histogram["edges"][0], histogram["edges"][-1]) == (110, 170)
    assert histogram["counts"] == [22, *[0] * 14, 22]
    assert page["classes"]["c"]["turns_per_session"]["histogram"] == {"edges": [2, 3], "counts": [22]}
    # 22 sessions, half a second apart, in bins of 0.18 s: never two in one.
    assert page["arrivals"]["bin_s"] == 11 / 60
    assert sum(page["arrivals"]["sessions"]) == 22
    assert max(page["arrivals"]["sessions"]) == 1
    assert page["first_sessions"][1] == {
        "number": 1,
        "class": "c",
        "due_s": 0.5,
        "rounds": [{"turns": [[110, 50]], "pause_s": 2}, {"turns": [[170, 50]], "pause_s": 2}],
    }
    assert json.loads(json.dumps(page)) == page


def test_an_open_loop_as_text():
    page = planned(arrivals={"process": "constant", "rate": "2/s"}, duration="1s")
    assert render_plan(page) == (
        """\
w: open loop (requests leave when due), seed 7
  main: from 0 s to 1 s, 4 requests/s
  2 sessions, 4 requests: 560 prompt tokens, 200 output tokens
  █                             █                               new sessions/s: mean 2, peak 60

class  sessions  requests  prompt tokens  of prefill  output tokens  of decode
c             2         4            560        100%            200       100%

tokens    mean  p50  p95  max  min  shape
c prompt   140  140  170  170  110  █              █
c output    50   50   50   50   50  █
c turns      2    2    2    2    2  █

first sessions, prompt>output tokens:
      0.000 s  c: 110>50, pause 2.0 s, 170>50
      0.500 s  c: 110>50, pause 2.0 s, 170>50
"""
    )


def test_a_closed_loop_cannot_be_counted():
    page = planned(concurrency=4)
    assert (page["totals"], page["counted"], page["duration_s"]) == (None, 1000, 60)
    assert "how many requests there will be depends on the server" in render_plan(page)
    page = planned(concurrency=1, requests=30)
    assert page["duration_s"] is None
    assert "30 measured requests; how long they take depends on the server" in render_plan(page)
    assert "main: from 0 s until its requests are done" in render_plan(page)
    assert "closed loop, 1 user at a time" in render_plan(page)


def test_a_class_that_never_comes_up_is_still_there():
    page = planned(classes={**CLASSES, "rare": {"weight": 1e-9}}, arrivals={"rate": "2/s"}, duration="5s")
    assert page["classes"]["rare"]["requests"] == 0
    assert page["classes"]["rare"]["input"] is None
    assert "rare" in render_plan(page)


def test_thinking_and_parallel_calls_are_shown():
    agent = {"shape": "agent", "steps": 7, "parallel": {"probability": 1, "width": 2}, "input_tokens": 9}
    classes = {"a": {**agent, "tool_result_tokens": 3, "output_tokens": 4}, "r": {"shape": "reasoning"}}
    text = render_plan(planned(classes=classes, concurrency=1))
    assert "a: 9>4, pause 1.0 s, 16>4 | 16>4, pause 1.0 s, 30>4 | 30>4, pause 1.0 s, 44>4 | 44>4, … 3 more" in text
    assert "r of it thinking" in text


def test_each_class_has_its_part_of_prefill_and_decode():
    classes = {
        "long": {"input_tokens": 900, "output_tokens": 10, "weight": 1},
        "rare": {"weight": 1e-9},
        "talk": {"input_tokens": 100, "output_tokens": 90, "weight": 1},
    }
    page = planned(classes=classes, arrivals={"rate": "2/s"}, duration="100s")
    shares = {name: (each["prefill_share"], each["decode_share"]) for name, each in page["classes"].items()}
    n_long, n_talk = (page["classes"][name]["requests"] for name in ("long", "talk"))
    assert shares["long"][0] == 900 * n_long / (900 * n_long + 100 * n_talk)
    assert shares["talk"][1] == 90 * n_talk / (10 * n_long + 90 * n_talk)
    assert shares["rare"] == (0, 0)


def test_bars_are_as_high_as_the_counts():
    assert bars([0, 1, 4, 8]) == " ▁▄█"
    assert bars([0, 1000, 1]) == " █▁"  # what is there is seen
    assert bars([0, 0]) == "  "


def test_the_rate_of_a_ramp_is_seen_to_rise():
    page = planned(arrivals={"process": "constant"}, stages=[{"from": "1/s", "to": "40/s", "duration": "60s"}])
    counts = page["arrivals"]["sessions"]
    assert counts == sorted(counts)
    assert (counts[0], sum(counts)) == (2, 1230)  # 20.5/s for 60 s; t + 39t²/120 = 1 just before 1 s
    assert f"peak {counts[-1]}\n" in render_plan(page)


def test_prompts_that_warm_the_cache_are_told():
    assert "  warming the prefix cache before the clock starts: 1 prompts" in render_plan(
        planned(concurrency=1, warm=True)
    )
    assert "warming" not in render_plan(planned(concurrency=1))
