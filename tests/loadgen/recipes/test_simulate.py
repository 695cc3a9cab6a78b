"""Workloads in virtual time, from the command line's point of view."""

import json
from pathlib import Path

import pytest

from analysis.rundir import read_run
from loadgen.errors import UsageError
from loadgen.sim.options import Options
from loadgen.simulation import variant
from tests.loadgen.test_end_to_end import CONTRACT, loadgen

PLAN = """
name: small
arrivals: {process: poisson, rate: 12/s}
duration: 20s
seed: 3
classes:
  chat: {weight: 3, input_tokens: 200, output_tokens: 60}
  rag: {weight: 1, input_tokens: 6000, output_tokens: 20}
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(PLAN)
    return str(path)


def test_a_simulated_run_is_a_run_like_any_other(plan: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = loadgen("simulate", plan, "--format", "json", "--out", str(out), "--slo", "ttft.p50<1s")
    summary = json.loads(done.stdout)
    assert list(summary) == list(CONTRACT)
    assert summary["slo"]["verdict"] == "pass"
    assert summary["run"]["timestamp_source"] == "simulated"
    assert summary["requests"]["ok"] == summary["requests"]["planned"] > 150
    run = read_run(out)
    assert (run.requests["prompt_tokens"] == run.requests["asked_input_tokens"]).all()
    assert run.server is not None
    assert run.server["generation_tokens"].iloc[-1] > 0
    assert json.loads(loadgen("report", str(out), "--format", "json").stdout) == summary
    assert loadgen("simulate", plan, "--format", "json", "--slo", "ttft.p50<1us", status=1).stdout


def test_policies_side_by_side(plan: str) -> None:
    wanted = "chunked:256,chunked:2048,prefill-first,disaggregated"
    done = loadgen("simulate", plan, "--compare", wanted, "--replicas", "2", "--format", "json")
    rows = {row["policy"]: row for row in json.loads(done.stdout)["policies"]}
    assert list(rows) == wanted.split(",")
    longest = [rows[name]["gap_max_s"] for name in wanted.split(",")]
    assert longest[0] < longest[1] < longest[2], "a smaller budget bounds what a long prompt does to others"
    assert longest[3] < longest[2]
    assert rows["chunked:256"]["ttft_p95_s"] > rows["prefill-first"]["ttft_p50_s"]
    page = loadgen("simulate", plan, "--compare", "chunked:256,static", "--quiet").stdout
    assert page.splitlines()[1].split() == ["chunked:256", "static"]
    assert "longest gap ms" in page


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("static", ("static", 2048, 0, 0)),
        (" chunked:512", ("chunked", 512, 0, 0)),
        ("disaggregated", ("disaggregated", 2048, 2, 3)),
    ],
)
def test_a_variant_is_the_same_hardware_under_another_policy(text: str, expected: tuple[object, ...]) -> None:
    found = variant(Options(replicas=5), text)
    assert (found.policy, found.chunk_tokens, found.prefill_replicas, found.decode_replicas) == expected


@pytest.mark.parametrize("text", ["", "magic", "chunked:0", "chunked:x", "static:512"])
def test_what_is_no_policy_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="expected policies"):
        variant(Options(), text)


def test_capacity_in_virtual_time_goes_on_where_it_was(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["capacity", plan, "--simulate", "--slo", "ttft.p50<300ms", "--format", "json", "--strict-point",
             "--duration", "5s", "--tries", "8", "--out"]  # fmt: skip
    whole = json.loads(loadgen(*words, str(tmp_path / "a")).stdout)
    assert whole["capacity"] > 12
    assert whole["fails_at"] <= whole["capacity"] * 2
    few = [word if word != "8" else "3" for word in words]
    loadgen(*few, str(tmp_path / "b"), status=3)
    again = json.loads(loadgen(*words, str(tmp_path / "b"), "--resume").stdout)
    assert again == whole


def test_options_that_make_no_sense_are_one_line(plan: str) -> None:
    assert "unknown policy" in loadgen("simulate", plan, "--policy", "x", status=2).stderr


def test_the_book_of_a_search_holds_no_secret(plan: str, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1/chat/completions?api-key=sk-very-secret"
    loadgen("capacity", plan, "--target", url, "--model", "m", "--slo", "ttft.p50<1s", "--out", str(tmp_path / "a"),
            "--tries", "1", "--no-calibrate", "--duration", "1s", status=3)  # fmt: skip
    written = [path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(written) > 1
    assert not any(b"sk-very-secret" in each for each in written)


def test_each_policy_of_a_comparison_leaves_a_run_of_its_own(plan, tmp_path):
    out = tmp_path / "both"
    done = loadgen("simulate", plan, "--compare", "chunked:256,static", "--out", str(out))
    assert sorted(path.name for path in out.iterdir()) == ["chunked:256", "static"]
    assert all((path / "summary.json").exists() for path in out.iterdir())
    assert f"results in {out}/static" in done.stderr
