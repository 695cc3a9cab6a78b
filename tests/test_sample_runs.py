"""Every run under sample_runs/ is read by the commands, and says today what it said when it was recorded."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from loadgen.cli import app
from workloads.spec import load_workload

ROOT = Path(__file__).parent.parent / "sample_runs"
RUNS = sorted(path.parent for path in ROOT.glob("*/run.json"))
STATUS = {"pass": 0, None: 0, "fail": 1, "no_verdict": 3}
MOST_BYTES = 6_500_000

each_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)


def loadgen(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def rounded(node):
    """Floats to nine digits: the last ones hang on the machine's order of summation."""
    if isinstance(node, dict):
        return {key: rounded(value) for key, value in node.items()}
    if isinstance(node, list):
        return [rounded(value) for value in node]
    return float(f"{node:.9g}") if isinstance(node, float) else node


@each_run
def test_its_report_is_the_golden_one(run, golden):
    result = loadgen("report", run)
    golden(f"sample-{run.name}.txt", result.output)
    assert result.exit_code == STATUS[json.loads((run / "summary.json").read_text(encoding="utf-8"))["slo"]["verdict"]]


@each_run
def test_its_summary_is_what_the_report_says_as_json(run, request):
    text, file = loadgen("report", run, "--format", "json").output, run / "summary.json"
    if request.config.getoption("--rewrite-golden"):
        file.write_text(text, encoding="utf-8")
    assert rounded(json.loads(text)) == rounded(json.loads(file.read_text(encoding="utf-8")))


@each_run
def test_its_stalls_are_those_of_its_summary(run):
    result = loadgen("stalls", run, "--format", "json")
    assert result.exit_code == 0
    told = json.loads((run / "summary.json").read_text(encoding="utf-8"))["stalls"]
    assert json.loads(result.output)["stalls"]["count"] == told["count"]


def test_the_regression_is_found():
    result = loadgen("compare", ROOT / "documents-chunked", ROOT / "documents-whole", "--format", "json")
    assert (result.exit_code, json.loads(result.output)["verdict"]) == (1, "worse")


def test_the_freezes_are_laid_to_the_documents():
    episodes = json.loads(loadgen("stalls", ROOT / "documents-whole", "--format", "json").output)["stalls"]["episodes"]
    assert len(episodes) > 10
    assert {each["cause"] for each in episodes} == {"prefill_interference"}
    assert all(each["culprit_prompt_tokens"] > 4000 for each in episodes)


def test_each_is_in_the_list_and_says_how_it_came_about():
    table = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(RUNS) >= 10
    for run in RUNS:
        assert f"[{run.name}]({run.name}/)" in table, run.name
        assert "loadgen " in (run / "README.md").read_text(encoding="utf-8"), run.name


def test_the_workload_of_the_pair_is_the_one_that_was_run():
    written = load_workload(str(ROOT / "documents.yaml")).resolved()
    recorded = json.loads((ROOT / "documents-whole" / "run.json").read_text(encoding="utf-8"))["workload"]
    assert written | {"seed": recorded["seed"]} == recorded


def test_they_name_no_place_and_no_person():
    private = re.compile(r"/(?:home|root|work|tmp|Users|var)/|\w@\w+\.|Bearer|sk-\w")
    for path in [path for path in ROOT.rglob("*") if path.is_file()]:
        found = private.search(words(path))
        assert found is None, f"{path}: {found}"


def words(path: Path) -> str:
    """All text in a file; of a table, that of its columns of text."""
    if path.suffix != ".parquet":
        return path.read_text(encoding="utf-8")
    table = pd.read_parquet(path).select_dtypes(include=["object", "string", "category"])
    return "\n".join(str(value) for column in table for value in table[column].unique())


def test_they_stay_small():
    assert sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file()) < MOST_BYTES
