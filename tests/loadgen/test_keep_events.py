"""`--keep-events` from the command line: what stays on disk, and what is refused."""

import asyncio
import json
from pathlib import Path

import pytest

from analysis.rundir import read_run
from tests.loadgen.test_end_to_end import GOOD, against, loadgen, small

__all__ = ["small"]


@pytest.mark.parametrize(("keep", "events"), [("stalls", 12), ("none", 0)])
def test_a_run_that_keeps_fewer_events(keep: str, events: int, small: str, tmp_path: Path) -> None:
    out = tmp_path / "run"

    words = [small, "--keep-events", keep, "--format", "json", "--out", str(out)]
    said, _, _ = asyncio.run(against([GOOD], words))
    summary = json.loads(said)
    assert (summary["metrics"]["itl_s"]["n"], summary["metrics"]["ttft_s"]["n"]) == (6, 6)
    kept = read_run(out)
    assert (len(kept.chunks), kept.meta["keep_events"]) == (events, keep)
    again = json.loads(loadgen("report", str(out), "--format", "json").stdout)
    assert again["metrics"] == summary["metrics"]


NOWHERE = "http://127.0.0.1:9"
REFUSED = {
    "some": (("--keep-events", "some"), "--keep-events some: expected all, stalls, none"),
    "cluster": (("--keep-events", "none", "--cluster", "local"), "--keep-events: with --cluster all events are kept"),
    "fluidity": (
        ("--keep-events", "none", "--set", "fluidity.at_least=0.99"),
        "--keep-events: fluidity.at_least needs every token event",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_in_one_line(case: str, small: str, tmp_path: Path) -> None:
    words, line = REFUSED[case]
    done = loadgen("run", small, "--out", str(tmp_path / "run"), "--target", NOWHERE, *words, status=2)
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
