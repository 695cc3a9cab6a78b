"""The summary as a whole: what must be true of it whatever was measured."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import given, settings

from analysis.limits import parse_limit
from analysis.record import RequestRecord
from analysis.report.text import render
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.any_records import any_records
from tests.analysis.records import meta, record, summary_of

ORDER = ("min", "p50", "p90", "p95", "p99", "p999", "max")
KEYS = [
    "format_version", "run", "requests", "metrics", "undefined", "tokens", "throughput", "stalls", "goodput", "slo",
    "phases", "by_class", "by_turn", "by_stage", "client", "server", "warnings",
]  # fmt: skip


def blocks(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "p50" in value and "n" in value:
            yield value
        for inner in value.values():
            yield from blocks(inner)


@settings(max_examples=25, deadline=None)
@given(any_records())
def test_it_is_consistent_whatever_was_measured(records: list[RequestRecord]) -> None:
    limits = [parse_limit(text) for text in ("ttft.p95<1s", "gap.max<1s", "itl.p99<1s", "attainment>5%")]
    summary = summarize(Run.from_records(meta(), records), limits)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    for block in blocks(summary):
        values = [block[name] for name in ORDER]
        assert all(low <= high for low, high in pairwise(values)) if block["n"] else set(values) == {None}
    requests = summary["requests"]
    ends = ("ok", "failed", "cancelled", "skipped", "not_sent")
    assert sum(requests["by_outcome"].values()) == requests["planned"] == sum(requests[name] for name in ends)
    for name, block in summary["metrics"].items():
        assert (name in summary["undefined"]) == (block["n"] == 0)
    assert render(summary, 80)


def test_it_has_the_parts_of_the_format() -> None:
    summary = summary_of(record("a", [10, 20], usage=2))
    assert list(summary) == KEYS
    assert summary["run"]["id"] == "r1"
    assert summary["run"]["workload"] == "wire"
    assert list(summary["by_turn"]) == ["1"]
    assert list(summary["by_class"]) == ["c"]
    assert {"requests", "metrics", "stalls", "goodput"} <= set(summary["by_class"]["c"])
