"""Records of requests in milliseconds, as the worked examples are written."""

from array import array
from collections.abc import Sequence
from typing import Any

from analysis.record import ANSWER, THINKING, TOOL, UNKNOWN, RequestRecord
from analysis.run import Run
from analysis.summary import summarize

MS = 1_000_000
CHANNELS = {"C": ANSWER, "R": THINKING, "T": TOOL}


def record(
    name: str,
    at: Sequence[float] = (),
    *,
    kinds: str = "",
    told: Sequence[int] | None = None,
    reads: Sequence[int] | None = None,
    usage: int | None = None,
    sent: float | None = 0,
    due: float | None = None,
    end: float | None = None,
    **more: Any,
) -> RequestRecord:
    """A request whose token events arrived `at` (ms after `sent`), on the channels `kinds` (all answer by default).

    `sent`, `due` and `end` are ms from the start of the run; it ends with its last event unless told otherwise.
    """
    count = len(at)
    start = sent or 0
    if end is None and sent is not None:
        end = start + (at[-1] if count else 0)
    return RequestRecord(
        request_id=name,
        class_name=more.pop("class_name", "c"),
        stage=more.pop("stage", "main"),
        outcome=more.pop("outcome", "ok"),
        tries=1,
        due_ns=None if due is None else round(due * MS),
        sent_ns=None if sent is None else round(sent * MS),
        end_ns=None if end is None else round(end * MS),
        completion_tokens=usage,
        arrival_ns=array("q", [round((start + each) * MS) for each in at]),
        n_tokens=array("i", told or [UNKNOWN] * count),
        kind=array("b", [CHANNELS[letter] for letter in kinds or "C" * count]),
        chars=array("i", [4] * count),
        read_id=array("i", reads or range(count)),
        **more,
    )


def every(step: float, count: int, start: float) -> list[float]:
    return [start + step * position for position in range(count)]


def meta(**changes: Any) -> dict[str, Any]:
    """The description of a complete closed-loop run with one measured stage that ends when its requests are done."""
    end_ns = changes.pop("end_ns", None)
    stage = {"name": "main", "start_ns": 0, "end_ns": end_ns, "measured": True, "offered_rps": None}
    return {
        "format_version": 1, "id": "r1", "name": "wire", "workload": {"name": "wire"}, "target": "http://127.0.0.1:9/v1",
        "model": "m", "endpoint": "chat", "seed": 7, "loop": "closed", "stages": [stage], "complete": True,
        "timestamp_source": "kernel", **changes,
    }  # fmt: skip


def run_of(*records: RequestRecord, **changes: Any) -> Run:
    return Run.from_records(meta(**changes), records)


def summary_of(*records: RequestRecord, **changes: Any) -> dict[str, Any]:
    return summarize(run_of(*records, **changes))


def codes(summary: dict[str, Any]) -> list[str]:
    return [each["code"] for each in summary["warnings"]]
