"""Searches in virtual time, as users start, kill and read them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.bench.true_capacity import Case, edge, true_capacity, ttft
from tests.loadgen.test_end_to_end import command, environment

CLASSES = {"c": {"input_tokens": 1500, "output_tokens": 10}}
CASE = Case(
    "small", {"classes": CLASSES, "arrivals": {"process": "poisson", "rate": 1}}, (), ttft(0.9, 3.0), 2.0, 900,
    {"gpu": "a10"},
)  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    document = {"name": "small", "arrivals": {"process": "poisson", "rate": 1.0}, "seed": 3, "duration": "20s"}
    path.write_text(json.dumps(document | {"classes": CLASSES}))
    return str(path)


def words(plan: str, out: Path, *more: str) -> list[str]:
    return ["capacity", plan, "--simulate", "--gpu", "a10", "--slo", "ttft.p90<3s", "--format", "json", "--out",
            str(out), *more]  # fmt: skip


def found_by(*words_: str) -> dict[str, Any]:
    """The document, whether the answer is settled or not."""
    done = subprocess.run(command(*words_), capture_output=True, text=True, env=environment(), timeout=60, check=False)
    assert done.returncode in (0, 3), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_search_finds_what_a_fine_sweep_finds(plan: str, tmp_path: Path) -> None:
    found = found_by(*words(plan, tmp_path / "a", "--longest", "30"))
    assert found["tries"] <= 12
    assert found["capacity"] == pytest.approx(true_capacity(CASE, seeds=1, step=0.03, around=2), rel=0.05)
    lengths = [row["measured_s"] for row in found["curve"]]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (20, 600)


@pytest.mark.parametrize("tries", [1, 4])
def test_a_killed_search_goes_on_to_the_same_answer(tries: int, plan: str, tmp_path: Path) -> None:
    whole = found_by(*words(plan, tmp_path / "whole", "--longest", "2", "--tries", "7"))
    asked = words(plan, tmp_path / "killed", "--longest", "2", "--tries", "7")
    with subprocess.Popen(command(*asked), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment()) as process:  # fmt: skip
        assert process.stderr is not None
        for _ in range(tries):
            assert "of the tightest limit" in process.stderr.readline()
        process.kill()
    book = json.loads((tmp_path / "killed" / "capacity.json").read_text())
    assert len(book["points"]) < whole["tries"]
    assert "found" not in book
    assert found_by(*asked, "--resume") == whole


def test_the_load_wins_over_what_was_set(plan: str, tmp_path: Path) -> None:
    found = found_by(*words(plan, tmp_path / "a", "--rates", "1,2", "--set", "arrivals.rate=9", "--strict-point"))
    assert [row["requests_per_s"] for row in found["curve"]] == pytest.approx([1, 2], rel=0.4)


def test_a_try_warms_up_until_sessions_are_under_way(tmp_path: Path) -> None:
    path = tmp_path / "talk.yaml"
    classes = {"c": {"turns": 4, "think_time": "10s", "input_tokens": 20, "output_tokens": 5}}
    path.write_text(json.dumps({"arrivals": {"rate": 2}, "duration": "10s", "warmup": "2s", "classes": classes}))
    found_by(*words(str(path), tmp_path / "a", "--rates", "2", "--strict-point"))
    run = json.loads((tmp_path / "a" / "01-2" / "run.json").read_text())
    assert [stage["end_ns"] / 1e9 for stage in run["stages"]] == [30, 40]


@pytest.mark.parametrize(
    ("found", "whole", "expected"),
    [
        ({1.0: 0.5, 2.0: 2.0}, False, 2**0.5),
        ({1.0: 0.5, 2.0: 0.9, 3.0: 2.0, 4.0: 5.0}, True, 2.0),
        ({1.0: 0.5, 2.0: 1.05, 3.0: 0.8, 4.0: 2.0}, True, 3.0),  # a little noise on the wrong side
        ({1.0: 2.0, 2.0: 3.0}, True, 0.0),
        ({1.0: 0.2, 2.0: 0.3}, False, 2.0),
    ],
)
def test_the_edge_of_a_sweep(found: dict[float, float], whole: bool, expected: float) -> None:
    assert edge(found, whole) == pytest.approx(expected)
