"""run.json as others may leave it: a field of the wrong type is one line that names it, and no text is dangerous."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.numbers import compare
from analysis.meta import plain_text
from analysis.rundir import RunDirError, RunWriter, read_meta, read_run
from analysis.summary import summarize
from tests.analysis.records import meta, record

NUMBER, WHOLE, TEXT = "expected a number", "expected a whole number", "expected a text"
LIST, MAPPING, FLAG = "expected a list", "expected a mapping", "expected true or false"
DURATION = "'x' is not a number with a unit, such as 500ms or 95%"

DAMAGES: list[tuple[str, Any, str]] = [
    ("format_version", "1", "format version '1'; this loadgen reads 1"),
    ("format_version", 1.0, f"format_version: {WHOLE}"),
    ("id", 5, f"id: {TEXT}"),
    ("model", ["a"], f"model: {TEXT}"),
    ("seed", "x", f"seed: {WHOLE}"),
    ("loop", 5, f"loop: {TEXT}"),
    ("duration_s", float("nan"), "duration_s: expected a finite number"),
    ("stages", "x", f"stages: {LIST}"),
    ("stages", [{}], "stages[0]: no field 'name'"),
    ("stages.0.start_ns", "x", f"stages[0].start_ns: {WHOLE}"),
    ("stages.0.start_ns", 1.5, f"stages[0].start_ns: {WHOLE}"),
    ("stages.0.end_ns", -5, f"stages[0].end_ns: {WHOLE} >= 0"),
    ("stages.0.end_ns", 10**30, f"stages[0].end_ns: {WHOLE} <= {2**60}"),
    ("stages.0.start_ns", 9, "stages[0].end_ns: expected no instant before start_ns"),
    ("stages.0.measured", "x", f"stages[0].measured: {FLAG}"),
    ("stages.0.offered_rps", "x", f"stages[0].offered_rps: {NUMBER}"),
    ("stages.0.offered_rps", float("inf"), "stages[0].offered_rps: expected a finite number"),
    ("workload", 5, f"workload: {MAPPING}"),
    ("workload.name", 5, f"workload.name: {TEXT}"),
    ("workload.classes", 5, f"workload.classes: {MAPPING}"),
    ("workload.slo", [1], f"workload.slo: {MAPPING}"),
    ("workload.slo", {"all": "ttft.p95<1s"}, f"workload.slo[...]: {LIST}"),
    (
        "workload.slo",
        {"all": ["ttft.p95<" + 400 * "9" + "s"]},
        "workload.slo[...][0]: expected a text of length <= 200",
    ),
    ("workload.good", 5, f"workload.good: {MAPPING}"),
    ("workload.good", {"ttft": "x"}, f"workload.good.ttft: {DURATION}"),
    ("workload.stall", "x", f"workload.stall: {MAPPING}"),
    ("workload.stall", {"floor": "x"}, f"workload.stall.floor: {DURATION}"),
    ("workload.stall", {"floor": 1e300}, "workload.stall.floor: expected a duration from 0 to 1e+09 s"),
    ("workload.stall", {"factor": "x"}, f"workload.stall.factor: {NUMBER}"),
    ("workload.fluidity", "x", f"workload.fluidity: {MAPPING}"),
    ("workload.fluidity", {"tbt": None}, f"workload.fluidity.tbt: {NUMBER} or a text"),
    ("workload.fluidity", {"at_least": 7}, "workload.fluidity.at_least: '7.0' is not a share: write 95% or 0.95"),
    ("clock", "x", f"clock: {MAPPING}"),
    ("clock", {"stepped_ns": "x"}, f"clock.stepped_ns: {WHOLE}"),
    ("warnings", "x", f"warnings: {LIST}"),
    ("warnings", [1], f"warnings[0]: {MAPPING}"),
    ("warnings", [{}], "warnings[0]: no field 'code'"),
    ("limits", "x", f"limits: {MAPPING}"),
    ("limits", {"max_in_flight": "x"}, f"limits.max_in_flight: {WHOLE}"),
    ("gate", "x", f"gate: {MAPPING}"),
    ("gate", {"max_errors": 7}, f"gate.max_errors: {NUMBER} <= 1.0"),
    ("looks", "x", f"looks: {MAPPING}"),
    ("looks", {"ends_ns": ["x"]}, f"looks.ends_ns[0]: {WHOLE}"),
    ("host", 5, f"host: {MAPPING}"),
    ("versions", "x", f"versions: {MAPPING}"),
    ("workers", "x", f"workers: {WHOLE}"),
    ("keep_events", "odd", "keep_events: invalid value 'odd'"),
    ("complete", "x", f"complete: {FLAG}"),
    ("undefined", {"itl": 5}, f"undefined[...]: {TEXT}"),
    ("imported", {}, "imported: no field 'kind'"),
    ("pooled", [{"start_ns": "x"}], "pooled: expected nothing"),
    (
        "unknown",
        json.loads("[" * 70 + "]" * 70),
        "unknown[0][0][0][0][0][0][0][0][0][0][0]…: nested deeper than 64 levels",
    ),
]


def written(folder: Path, description: dict[str, Any]) -> Path:
    """A run of one request with this description."""
    writer = RunWriter.create(folder, meta(end_ns=5))
    writer.append([record("a", [10, 20], usage=2)])
    writer.close({})
    (folder / "run.json").write_text(json.dumps(description), encoding="utf-8")
    return folder


def damaged(path: str, value: Any) -> dict[str, Any]:
    whole = meta(end_ns=5)
    *outer, name = [int(each) if each.isdigit() else each for each in path.split(".")]
    place: Any = whole
    for each in outer:
        place = place[each]
    place[name] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "message"), DAMAGES, ids=[f"{path}={value!r:.20}" for path, value, _ in DAMAGES]
)
def test_a_field_of_the_wrong_type_is_one_line(tmp_path: Path, path: str, value: Any, message: str) -> None:
    folder = written(tmp_path / "run", damaged(path, value))
    with pytest.raises(RunDirError) as caught:
        read_run(folder)
    assert str(caught.value) == f"{folder / 'run.json'}: {message}"


def test_what_is_missing_null_or_unknown_is_no_damage(tmp_path: Path) -> None:
    absent = {name: None for name in meta() if name not in ("format_version", "complete")}
    for number, said in enumerate([{}, absent, {"later": {"deep": [1, {"x": None}]}}, {"seed": 10**40}]):
        folder = written(tmp_path / str(number), {"format_version": 1, **said})
        assert read_meta(folder) == {"format_version": 1, **said}
        assert summarize(read_run(folder))["requests"]["ok"] == 1


def test_a_workload_may_be_but_its_name(tmp_path: Path) -> None:
    runs = [
        read_run(written(tmp_path / str(i), meta(workload=workload))) for i, workload in enumerate(["x", {"name": "x"}])
    ]
    assert [summarize(run)["run"]["workload"] for run in runs] == ["x", "x"]
    assert compare(runs[:1], runs[1:])["verdict"] == "unclear"


def test_texts_cannot_move_the_cursor_or_break_a_line(tmp_path: Path) -> None:
    bad = "\x1b[31m\x9bred\r\n\u2028\u202e\ud800"
    said = {"model": bad, "warnings": [{"code": bad, "text": bad}], bad: [bad], "name": "plain: ä 🙂"}
    good = plain_text(bad)
    assert good == "\ufffd[31m\ufffdred   \ufffd\ufffd"
    read = read_meta(written(tmp_path / "run", {"format_version": 1, **said}))
    assert read == {"format_version": 1, "model": good, "warnings": [{"code": good, "text": good}], good: [good],
                    "name": "plain: ä 🙂"}  # fmt: skip
