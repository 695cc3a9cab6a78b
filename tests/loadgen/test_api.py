"""The package as a library."""

import pytest

import analysis
import loadgen
from loadgen.errors import UsageError


def test_a_run_gives_tables_and_the_summary(tmp_path):
    closed = {
        "concurrency": 2,
        "requests": 4,
        "warmup": "0",
        "set_": ["arrivals=", "duration=", "slo={}", "classes.chat.turns=1"],
    }
    measured = loadgen.run("chat", seed=3, out=tmp_path / "r", **closed)
    assert measured.exit_status == 0
    assert measured.summary["requests"]["ok"] == len(measured.run.requests) == 4
    assert measured.run.chunks["request_id"].nunique() == 4
    again = analysis.read_run(measured.path)
    assert analysis.summarize(again)["metrics"] == measured.summary["metrics"]


def test_mistakes_are_the_command_s_one_line(tmp_path):
    with pytest.raises(UsageError, match="no flag 'tagret'"):
        loadgen.run("chat", tagret="x")
    with pytest.raises(UsageError, match="no such file"):
        loadgen.run("nothing-like-it")
    with pytest.raises(AttributeError):
        analysis.nothing  # noqa: B018
