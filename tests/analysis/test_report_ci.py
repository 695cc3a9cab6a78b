"""What CI systems and spreadsheets read: Markdown, JUnit XML and CSV."""

import csv
import json
from collections.abc import Callable
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import pytest

from analysis.report.csv import COLUMNS, csv_text
from analysis.report.junit import junit
from analysis.report.markdown import markdown
from tests.analysis.records import every, record, summary_of

Golden = Callable[[str, str], None]
SLO = {"all": ["errors<5%"], "chat": ["ttft.p50<200ms", "ttft.p50<105ms", "ttft.p99<1s"], "r<a>g|": ["itl.p95<10ms"]}


def report(**changes: Any) -> dict[str, Any]:
    """Two classes, one of a name full of markup; limits of each verdict; one failure."""
    records = [
        record(f"r{i}", [] if i == 8 else every(20 + i % 3, 20, 90 + i * 7 % 30), usage=None if i == 8 else 20,
               class_name="r<a>g|" if i % 4 == 0 else "chat", sent=500 * i,
               outcome="http_error" if i == 8 else "ok", error="a | b\n<c>" if i == 8 else None)
        for i in range(200)
    ]  # fmt: skip
    return summary_of(*records, **({"workload": {"name": "w*", "slo": SLO}, "end_ns": 100_000_000_000} | changes))


def test_markdown(golden: Golden) -> None:
    golden("report.md", markdown(report()))


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    head = 0
    for line in markdown(report()).splitlines():
        cells = len(line.replace("\\|", "").split("|")) if line.startswith("|") else 0
        assert not cells or cells == (head or cells)
        head = cells


def test_junit(golden: Golden) -> None:
    golden("report.junit.xml", junit(report()))


def test_junit_has_a_case_for_each_limit_and_class() -> None:
    summary = report()
    suite = ElementTree.fromstring(junit(summary)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    expected = {"pass": None, "fail": "failure", "no_verdict": "error"}
    for case, limit in zip(cases, summary["slo"]["limits"], strict=True):
        assert case.get("classname") == limit["class"]
        tags = [tag for tag in ("failure", "error") if case.find(tag) is not None]
        assert tags == [tag for tag in [expected[limit["verdict"]]] if tag]
    assert {each["verdict"] for each in summary["slo"]["limits"]} == {"pass", "fail", "no_verdict"}
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "1", "2")
    missed = next(each for each in cases if each.find("failure") is not None).find("failure")
    assert missed is not None
    assert missed.get("message") == "itl.p95 < 10.0 ms: 22.0 ms, 95% interval [22.0, 22.0] ms"


def test_junit_survives_what_xml_cannot_hold() -> None:
    summary = report(workload={"name": "bell \x07 & <b>", "slo": SLO}, model="\ud800")
    suite = ElementTree.fromstring(junit(summary)).find("testsuite")
    assert suite is not None
    assert suite.get("name") == "loadgen bell  & <b>"


def test_junit_without_limits_is_an_empty_suite() -> None:
    root = ElementTree.fromstring(junit(report(workload={"name": "w"})))
    assert root.get("tests") == "0"
    assert root.findall(".//testcase") == []


def rows(summary: dict[str, Any]) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(csv_text(summary))))


def test_csv_has_a_row_for_each_class_and_metric() -> None:
    summary = report()
    found = {(row["class"], row["metric"]): row for row in rows(summary)}
    assert len(found) == len(rows(summary))
    assert list(next(iter(found.values()))) == COLUMNS
    assert {name for name, _ in found} == {"all", "chat", "r<a>g|"}
    ttft = summary["by_class"]["chat"]["metrics"]["ttft_s"]
    row = found["chat", "ttft_s"]
    assert float(row["p50"]) == ttft["p50"]
    assert [float(row["p50_low"]), float(row["p50_high"])] == ttft["ci95"]["p50"]
    assert row["p999_low"] == "", "too few samples: not measured"
    assert found["all", "ttft_due_s"]["p50"] == "", "closed loop"
    errors = found["all", "error_rate"]
    assert [float(errors[name]) for name in ("value_low", "value", "value_high")] == [
        summary["requests"]["ci95"]["error_rate"][0], 0.005, summary["requests"]["ci95"]["error_rate"][1]
    ]  # fmt: skip


def test_a_class_named_like_a_formula_stays_text_in_a_spreadsheet() -> None:
    summary = summary_of(record("a", [10], usage=1, class_name="=1+1"))
    assert "'=1+1" in {row["class"] for row in rows(summary)}


@pytest.mark.parametrize("render", [markdown, junit, csv_text])
def test_every_format_survives_a_run_without_anything(render: Callable[[dict[str, Any]], str]) -> None:
    summary = json.loads(json.dumps(summary_of()))
    assert render(summary).endswith("\n")
