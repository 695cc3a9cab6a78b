"""The text report, against golden files: read them when they change."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from analysis.report.text import render
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.records import every, meta, record, summary_of

Golden = Callable[[str, str], None]
S = 1_000_000_000


def mixed() -> dict[str, Any]:
    """Two classes, three turns, a warm-up, one frozen stream, failures, an SLO of each kind of verdict."""
    records = []
    for i in range(240):
        rag, bad = i % 4 == 0, i % 60 == 7
        at = every(20 + i % 3, 30, (300 if rag else 80) + i % 11)
        if i == 130:
            at = at[:15] + [each + 900 for each in at[15:]]
        records.append(
            record(
                f"r{i:03d}", [] if bad else at, kinds="" if bad else "R" * 10 + "C" * 20, usage=None if bad else 30,
                class_name="rag" if rag else "chat", turn=1 + i % 3, stage="warmup" if i < 40 else "main", due=50 * i,
                sent=50 * i + 0.4, outcome="http_error" if bad else "ok", status=503 if bad else 200,
                error="overloaded [try] later" if bad else None, finish_reason=None if bad else "length",
                prompt_tokens=None if bad else 1003, cached_tokens=None if bad else 500, asked_input_tokens=1000,
                asked_output_tokens=30,
            )
        )  # fmt: skip
    slo = {
        "all": ["errors<3%"],
        "chat": ["ttft.p95<200ms", "itl.p99<60ms", "gap.max<500ms"],
        "rag": ["ttft.p95<2s", "stall.per_1k<0.5", "attainment>90%"],
    }
    stages = [
        {"name": "warmup", "start_ns": 0, "end_ns": 2 * S, "measured": False, "offered_rps": 20.0},
        {"name": "main", "start_ns": 2 * S, "end_ns": 12 * S, "measured": True, "offered_rps": 20.0},
    ]
    client = pd.DataFrame({"t_ns": [1], "loop_lag_max_s": [0.0012], "cpu_share": [0.21]})
    described = meta(loop="open", stages=stages, workload={"name": "mixed", "slo": slo}, model="llama-3.1-8b")
    return summarize(Run.from_records(described, records, client=client))


def doubtful() -> dict[str, Any]:
    """A closed loop that tells little: bundled tokens, one stream, cut short."""
    return summary_of(record("only", every(40, 50, 200), usage=200), complete=False, interrupted_by="SIGINT")


def failed() -> dict[str, Any]:
    return summary_of(*[record(f"f{i}", sent=None, outcome="connect_failed", error="refused") for i in range(3)])


CASES = {"mixed": mixed, "doubtful": doubtful, "failed": failed}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", CASES)
def test_report(name: str, width: int, golden: Golden) -> None:
    text = render(CASES[name](), width)
    assert max(map(len, text.splitlines())) <= width
    golden(f"report-{name}-{width}.txt", text)


def test_colour_changes_no_text() -> None:
    plain, coloured = render(mixed()), render(mixed(), color=True)
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
