"""The page of a comparison: its numbers, its verdict in words, and both sides' distributions."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from analysis.compare.numbers import compare
from analysis.page.compare import render
from analysis.record import RequestRecord
from analysis.run import Run
from tests.analysis.any_records import any_records
from tests.analysis.records import every, meta, record, run_of
from tests.analysis.test_compare import CALM, run
from tests.analysis.test_report_html import EVIL, checked


def entry(metric: str, statistic: str | None, **more: Any) -> dict[str, Any]:
    told = {
        "class": "all", "metric": metric, "statistic": statistic, "base": 0.1, "candidate": 0.15, "ratio": 1.5,
        "difference": None, "ci95": [1.4, 1.6], "verdict": "worse", "may_be_worse": True, "decides": True,
        "reason": None,
    }  # fmt: skip
    return told | more


def comparison(*metrics: dict[str, Any], verdict: str = "worse", **more: Any) -> dict[str, Any]:
    side = {"runs": ["r1"], "requests": 100, "ok": 99, "model": "m", "target": "t", "timestamp_source": "kernel"}
    told = {
        "format_version": 1, "verdict": verdict, "tolerance": 0.05, "error_tolerance": 0.01,
        "sides": {"base": side, "candidate": side | {"runs": ["r2", "r3"]}}, "metrics": list(metrics), "warnings": [],
    }  # fmt: skip
    return told | more


RUN = [run_of(record("a", every(10, 20, 50), usage=20))]
ERRORS = entry("errors", None, base=0.0, candidate=0.02, ratio=None, difference=0.02, ci95=[0.015, 0.025])
UNCLEAR = {"verdict": "unclear", "ratio": 1.0, "ci95": None, "reason": "too few"}


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (entry("ttft", "p95"), "all requests ttft.p95 100 ms 150 ms +50.0% [+40.0, +60.0]% worse"),
        (entry("itl", "p50", **{"class": "chat"}), "chat itl.p50 100 ms 150 ms +50.0% [+40.0, +60.0]% worse"),
        (ERRORS, "all requests errors 0% 2% +2.00 pp [+1.50, +2.50] pp worse"),
        (entry("tpot", "p50", **UNCLEAR), "all requests tpot.p50 100 ms 150 ms +0.0% – unclear too few"),
        (entry("stall", "per_1k", base=0.0, candidate=2.0, ratio=None, ci95=None), "stall.per_1k 0.00 2.00 – – worse"),
    ],
)
def test_a_row(metric: dict[str, Any], words: str) -> None:
    assert words in checked(render(comparison(metric), RUN, RUN)).text


def test_each_phase_has_a_forest_of_its_own() -> None:
    document = render(comparison(entry("ttft", "p95"), entry("itl", "p99"), entry("e2e", "p95"), ERRORS), RUN, RUN)
    figures = {each["aria-label"]: each for each in checked(document).named("figure")}
    parts = dict(re.findall(r'<figure tabindex="0" aria-label="([^"]+)">(.*?)</figure>', document, re.DOTALL))
    assert len(figures) == 6
    for question, name, told in (
        ("How did prefill change?", "ttft.p95", "+50.0% worse"),
        ("How did decode change?", "itl.p99", "+50.0% worse"),
        ("How did requests as a whole change?", "e2e.p95", "+50.0% worse"),
        ("How did errors change?", "errors", "+2.00 pp worse"),
    ):
        assert f'data-name="{name}: {told}"' in parts[question]
        assert parts[question].count("<circle") == 1


@pytest.mark.parametrize(
    ("verdict", "colour", "words"),
    [
        ("worse", "fail", "Worse"),
        ("unclear", "no_verdict", "Unclear"),
        ("same", "pass", "No change"),
        ("better", "pass", "Better"),
    ],
)
def test_the_verdict_is_on_top(verdict: str, colour: str, words: str) -> None:
    document = render(comparison(verdict=verdict), RUN, RUN)
    assert f'<p class="verdict {colour}">{words}</p>' in document.split("<nav")[0]
    assert "r2 and 1 more against r1" in checked(document).text


def test_many_doubtful_metrics_are_told_by_those_that_changed_most() -> None:
    metrics = [entry("ttft", "p50", **{"class": f"c{i}"}, **UNCLEAR | {"ratio": 1 + i / 10}) for i in range(12)]
    page = checked(render(comparison(*metrics, verdict="unclear"), RUN, RUN))
    verdict = page.text.split("What changed How")[0]
    assert "What made it unclear: the 8 of 12 metrics that changed most" in verdict
    assert re.findall(r"(c\d+) ttft.p50", verdict) == [f"c{i}" for i in range(11, 3, -1)]


def test_text_from_outside_stays_text() -> None:
    evil = comparison(
        entry("ttft", "p95", **{"class": EVIL, "reason": EVIL}), warnings=[{"code": EVIL, "text": EVIL}]
    )  # fmt: skip
    for side in evil["sides"].values():
        side |= {"runs": [EVIL], "model": EVIL, "target": EVIL, "timestamp_source": EVIL}
    runs = [run_of(record("a", every(10, 20, 50), usage=20, class_name=name)) for name in (EVIL, "b")]
    document = render(evil, runs, runs)
    page = checked(document)
    assert document.count("</script>") == 1
    assert page.text.count("onerror=alert(1)") >= 8


def test_a_slower_decode_lies_to_the_right() -> None:
    base, slower = [run(requests=600)], [run(replace(CALM, itl_s=CALM.itl_s * 1.3), requests=600)]
    found = compare(base, slower, 0.15)
    page = checked(render(found, base, slower))
    assert [each["id"] for each in page.named("section")] == [
        "verdict", "changes", "distributions", "numbers", "about",
    ]  # fmt: skip
    itl = re.search(r"Is the slow end of ITL slower\?.*?base ([\d,]+) ([\d.]+) ms.*?candidate ([\d,]+) ([\d.]+) ms",
                    page.text)  # fmt: skip
    assert itl is not None
    assert itl[1] == itl[3] == "23,400"
    assert float(itl[4]) == pytest.approx(1.3 * float(itl[2]), rel=0.03)


def test_a_class_that_only_one_side_has_is_said() -> None:
    def side(*names: str) -> list[Run]:
        return [run_of(*(record(name, every(10, 20, 50), usage=20, class_name=name) for name in names))]

    text = checked(render(comparison(), side("chat", "rag"), side("chat"))).text
    assert "Is the slow end of TTFT of rag slower? Not drawn: TTFT is undefined for the candidate." in text
    assert "Is the slow end of TTFT of chat slower? The share" in text


def test_limits_of_the_workload_stand_in_the_distributions() -> None:
    def side(slo: dict[str, list[str]], *names: str) -> list[Run]:
        records = [record(name, every(10, 20, 50), usage=20, class_name=name) for name in names]
        return [run_of(*records, workload={"name": "w", "slo": slo})]

    asked = {"all": ["ttft.p95<60ms", "errors<1%"], "rag": ["ttft.p99<70ms", "itl.p99<20ms", "itl.p50<9s"]}
    for names, of_ttft, of_itl in (
        (("rag",), {"p95 < 60.0 ms", "p99 < 70.0 ms"}, {"p99 < 20.0 ms"}),  # 9 s are too far away to be drawn
        (("rag", "chat"), {"all requests p95 < 60.0 ms", "p99 < 70.0 ms"}, {"p99 < 20.0 ms"}),
    ):
        document = render(comparison(), side(asked, *names), side({"rag": ["nonsense"]}, *names))
        checked(document)
        parts = dict(re.findall(r'<figure tabindex="0" aria-label="([^"]+)">(.*?)</figure>', document, re.DOTALL))
        of = " of rag" if len(names) > 1 else ""
        for metric, drawn in (("TTFT", of_ttft), ("ITL", of_itl)):
            found = re.findall(r'class="limit-name[^>]*>([^<]*)<', parts[f"Is the slow end of {metric}{of} slower?"])
            assert {each.replace("&lt;", "<") for each in found} == drawn
    assert "A limit is met" not in checked(render(comparison(), RUN, RUN)).text


def test_without_tokens_per_event_gaps_stand_for_itl() -> None:
    unknown = [run_of(*[record(f"b{i}", every(40, 50, 200), usage=200, sent=90 * i) for i in range(5)])]
    assert "Is the slow end of gaps slower? The share" in checked(render(comparison(), unknown, unknown)).text


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_records(), any_records())
def test_any_comparison_makes_a_page(base: list[RequestRecord], other: list[RequestRecord]) -> None:
    runs = [Run.from_records(meta(), base)], [Run.from_records(meta(), other)]
    try:
        found = compare(*runs)
    except ValueError:
        found = comparison()
    checked(render(found, *runs))
