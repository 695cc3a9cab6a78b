"""Comparisons: what may be compared, what is said of it, and how seldom that is wrong."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from analysis.compare.numbers import _entry, compare, exit_status
from analysis.compare.sides import Estimate
from analysis.compare.text import markdown, render
from analysis.record import RequestRecord
from analysis.run import Run
from tests.analysis.any_records import any_records
from tests.analysis.records import every, meta, record, run_of
from tests.analysis.synthetic import Server, simulate

CALM = Server(load=0.3)
LOAD = {"name": "chat", "seed": 1, "duration": "60s", "good": {"ttft": "1s"}, "classes": {"c": {"output_tokens": 40}}}


def run(server: Server = CALM, seed: int = 1, requests: int = 400, tokens: int = 40, **meta: Any) -> Run:
    return simulate(server, requests, tokens, seed, **({"workload": LOAD} | meta))


def verdicts(comparison: dict[str, Any]) -> dict[str, str]:
    """Of the metrics that decide."""
    return {
        ".".join(part for part in (each["class"], each["metric"], each["statistic"]) if part): each["verdict"]
        for each in comparison["metrics"]
        if each["decides"]
    }


def codes(comparison: dict[str, Any]) -> list[str]:
    return [each["code"] for each in comparison["warnings"]]


def test_a_run_is_the_same_as_itself() -> None:
    found = compare([run(requests=2000)], [run(requests=2000)], tolerance=0.15)
    assert verdicts(found) == dict.fromkeys([
        "all.ttft.p50", "all.ttft.p95", "all.itl.p50", "all.itl.p99", "all.tpot.p50", "all.e2e.p95", "all.attainment",
        "all.errors", "all.output_tokens_per_s",
    ], "same")  # fmt: skip
    assert (found["verdict"], exit_status(found)) == ("same", 0)
    for each in found["metrics"]:
        assert each["ratio"] in (None, pytest.approx(1))
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(("factor", "verdict", "status"), [(1.3, "worse", 1), (0.7, "better", 0)])
def test_a_slower_and_a_faster_decode(factor: float, verdict: str, status: int) -> None:
    found = compare([run(requests=2000)], [run(replace(CALM, itl_s=CALM.itl_s * factor), requests=2000)], 0.15)
    decode = {name: one for name, one in verdicts(found).items() if "itl" in name or "tpot" in name}
    assert set(decode.values()) == {verdict}
    assert (found["verdict"], exit_status(found)) == (verdict, status)
    itl = next(each for each in found["metrics"] if each["metric"] == "itl")
    assert itl["ci95"][0] < factor < itl["ci95"][1]
    assert itl["ratio"] == pytest.approx(itl["candidate"] / itl["base"])


def test_short_runs_that_may_be_worse_are_unclear() -> None:
    found = compare([run(requests=60)], [run(requests=60, seed=2)])
    assert (found["verdict"], exit_status(found)) == ("unclear", 3)
    p95 = next(each for each in found["metrics"] if (each["metric"], each["statistic"]) == ("ttft", "p95"))
    assert (p95["verdict"], p95["reason"]) == ("unclear", "60 samples are too few for p95: it needs 200")


def test_failures_are_compared_by_difference() -> None:
    found = compare([run(requests=1000)], [run(replace(CALM, failures=0.08), requests=1000)])
    errors = next(each for each in found["metrics"] if each["metric"] == "errors")
    assert errors["verdict"] == "worse"
    assert errors["difference"] == pytest.approx(0.08, abs=0.02)
    assert errors["ratio"] is None
    assert errors["ci95"][0] > 0.01


def test_chance_in_arrivals_is_not_the_servers_doing() -> None:
    """An open loop's tokens per second follow its arrivals; they are compared by request due."""
    fewer = simulate(replace(CALM, load=0.27), 400, 40, 5, workload=LOAD)
    found = compare([run()], [fewer])
    rate = next(each for each in found["metrics"] if each["metric"] == "output_tokens_per_s" and each["decides"])
    assert rate["candidate"] < 0.95 * rate["base"]
    assert (rate["ratio"], rate["verdict"]) == (pytest.approx(1, abs=0.03), "same")


def test_several_runs_a_side_show_what_differs_between_runs() -> None:
    """Three servers of each side that differ among themselves by 10 %: a difference of 5 % between sides is no news."""
    speeds = (0.018, 0.020, 0.022)
    base = [run(replace(CALM, itl_s=speed), seed) for seed, speed in enumerate(speeds)]
    candidate = [run(replace(CALM, itl_s=speed * 1.1), seed + 9) for seed, speed in enumerate(speeds)]
    one, three = compare(base[1:2], candidate[1:2], 0.02), compare(base, candidate, 0.02)
    widths = [np.log(each["ci95"][1] / each["ci95"][0]) for found in (one, three) for each in found["metrics"]
              if (each["metric"], each["statistic"]) == ("itl", "p50")]  # fmt: skip
    assert widths[1] > 3 * widths[0]
    assert verdicts(one)["all.itl.p50"] == "worse"
    assert verdicts(three)["all.itl.p50"] == "unclear"
    assert "one_run" in codes(one)
    assert "one_run" not in codes(three)


def test_each_class_is_compared_on_its_own() -> None:
    def mixed(rag_ms: float) -> Run:
        rng = np.random.default_rng(3)
        records = [
            record(f"r{i}", every(20, 5, (rag_ms if i % 4 == 0 else 100) + rng.normal(0, 3)), usage=5, sent=500 * i,
                   class_name="rag" if i % 4 == 0 else "chat")
            for i in range(1000)
        ]  # fmt: skip
        return run_of(*records)

    found = verdicts(compare([mixed(300)], [mixed(400)]))
    assert found["rag.ttft.p50"] == "worse"
    assert found["chat.ttft.p50"] == "same"
    assert "all.ttft.p50" not in found


REFUSED = {
    "another loop": ({"loop": "closed"}, "closed loop, but r: open loop: not comparable"),
    "another workload": (
        {"workload": LOAD | {"classes": {"c": {"output_tokens": 300}}}},
        "differ in their workload (classes.c.output_tokens: 40 and 300): not comparable",
    ),
    "another rate": ({"workload": LOAD | {"arrivals": {"rate": 4}}}, "(arrivals: None and {'rate': 4})"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_comparable_is_refused_in_one_line(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(ValueError, match="not comparable") as caught:
        compare([run()], [run(**changes)])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_base_without_successes_is_refused() -> None:
    failed = run_of(*[record(f"f{i}", outcome="http_error") for i in range(30)])
    fine = run_of(*[record(f"r{i}", every(20, 5, 100), usage=5, sent=100 * i) for i in range(30)])
    with pytest.raises(ValueError, match="no request of the base succeeded"):
        compare([failed], [fine])
    assert exit_status(compare([fine], [failed])) == 1
    with pytest.raises(ValueError, match="at least one run of each side"):
        compare([fine], [])
    with pytest.raises(ValueError, match="tolerance 5: expected a share between 0 and 1"):
        compare([fine], [fine], 5)


@pytest.mark.parametrize("free", [{"duration": "5m"}, {"name": "other"}, {"slo": {"all": ["ttft.p95<1s"]}}])
def test_length_and_limits_of_runs_may_differ(free: dict[str, Any]) -> None:
    assert compare([run()], [run(workload=LOAD | free)])["metrics"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"seed": 2}, "seed"),
        ({"timestamp_source": "user"}, "timestamp_source"),
        ({"model": "other"}, "model"),
        ({"complete": False, "interrupted_by": "SIGINT"}, "doubtful_run"),
    ],
)
def test_what_weakens_the_answer_is_told(changes: dict[str, Any], code: str) -> None:
    assert codes(compare([run(seed=1)], [run(**changes)])) == [code, "one_run"]


def test_a_proxy_that_buffers_is_not_taken_for_a_faster_engine() -> None:
    def streamed(ttft: float, gap: float, bundle: int) -> Run:
        at = [ttft + i // bundle * gap * bundle for i in range(40)]
        reads = [i // bundle for i in range(40)]
        return run_of(*[record(f"r{i}", at, usage=40, sent=1000 * i, reads=reads) for i in range(60)])

    found = compare([streamed(100, 20, 1)], [streamed(200, 20, 5)])
    assert "buffering" in codes(found)
    assert "buffering" not in codes(compare([streamed(100, 20, 1)], [streamed(200, 15, 1)]))


def test_texts(golden: Callable[[str, str], None]) -> None:
    slower = Server(load=0.3, itl_s=0.026, failures=0.01)
    found = compare([run(id="before")], [run(slower, seed=2, id="after *new*")])
    golden("compare-100.txt", render(found, 100))
    golden("compare.md", markdown(found))
    assert max(map(len, render(found, 80).splitlines())) <= 80
    assert "\x1b[" in render(found, color=True)


@settings(max_examples=15, deadline=None)
@given(any_records(), any_records())
def test_any_two_runs_are_compared_or_refused_in_one_line(
    base: list[RequestRecord], other: list[RequestRecord]
) -> None:
    runs = [Run.from_records(meta(), base)], [Run.from_records(meta(), other)]
    if not any(each.outcome == "ok" and each.stage == "main" for each in base):
        with pytest.raises(ValueError, match="no request of the base succeeded"):
            compare(*runs)
        return
    found = compare(*runs)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert render(found, 80)
    assert markdown(found)


def test_values_below_zero_have_no_ratio() -> None:
    """A clock that was set back makes them; the comparison still has to say so."""
    early = [record(f"r{i}", [-5.0, 10.0, 20.0], sent=100.0 * i) for i in range(30)]
    run = Run.from_records(meta(), early)
    found = {(each["metric"], each["statistic"]): each for each in compare([run], [run])["metrics"]}
    assert found["ttft", "p50"]["verdict"] == "unclear"


@pytest.mark.parametrize(
    ("base", "known"),
    [((0.8, 1.3), True), ((0.8, math.inf), False), ((0.0, 1.3), False)],
    ids=["closed", "open above", "open below"],
)
def test_an_open_interval_is_none_on_either_end(base: tuple[float, float], known: bool) -> None:
    one, other = Estimate(1.0, base, base), Estimate(1.2, (1.1, 1.4), (1.1, 1.4))
    for pair in ((one, other), (other, one)):
        entry = _entry("all", ("itl", "p99"), *pair, 0.05, decides=True)
        assert (entry["ci95"] is not None) is known, entry
        assert entry["ratio"] is not None
