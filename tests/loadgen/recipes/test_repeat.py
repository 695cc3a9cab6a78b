"""Several runs judged together: each counts once, and a stop between two of them loses none."""

import asyncio
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analysis.rundir import write_run
from loadgen.cli import app
from tests.analysis.synthetic import Server, simulate
from tests.loadgen.scripted import ScriptedServer
from tests.loadgen.test_end_to_end import GOOD, WORKLOAD
from tests.loadgen.test_exit_statuses import started

TOLD = {"id": "run", "started_at": "2026-01-01T00:00:00+00:00", "seed": 1, "clock": {"epoch_ns_at_start": 1}}


def made(path: Path, **told: object) -> Path:
    run = simulate(Server(load=0.3), 40, 10, 1, workload={"name": "w"})
    write_run(path, run.but(meta={**run.meta, **told}))
    return path


def copied(first: Path) -> Path:
    return Path(shutil.copytree(first, first.with_name("copy")))


def linked(first: Path) -> Path:
    link = first.with_name("link")
    link.symlink_to(first)
    return link


def another(**told: object) -> Callable[[Path], Path]:
    return lambda first: made(first.with_name("another"), **{**TOLD, **told})


TWICE: dict[str, tuple[bool, Callable[[Path], Path]]] = {
    "the same name": (True, lambda first: first),
    "by another path": (True, lambda first: first.parent / ".." / first.parent.name / first.name),
    "by a link": (True, linked),
    "a copy": (True, copied),
    "another name": (False, another(id="another")),
    "another start": (False, another(started_at="2026-01-01T00:00:01+00:00")),
    "started in the same second, on another machine": (False, another(clock={"epoch_ns_at_start": 2})),
    "with another seed": (False, another(seed=2)),
    "of an unknown start": (False, another(started_at=None)),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_run_counts_once(case: str, tmp_path: Path) -> None:
    refused, second_of = TWICE[case]
    first = made(tmp_path / "first", **TOLD)
    second = second_of(first)
    done = CliRunner().invoke(app, ["report", str(first), str(second)])
    assert done.exit_code == (2 if refused else 0), done.output
    if refused:
        assert done.stderr == f"loadgen: {second}: the same run as {first}: name each run once\n"


STOPPED = {"Ctrl-C": (signal.SIGINT, 130), "SIGTERM": (signal.SIGTERM, 143)}


@pytest.mark.parametrize("case", STOPPED)
def test_a_stop_in_the_rest_judges_what_there_is(case: str, tmp_path: Path) -> None:
    number, status = STOPPED[case]
    got, out, err = asyncio.run(_stopped(tmp_path, number))
    assert got == status, err
    document = json.loads((tmp_path / "run.json").read_text())
    assert json.loads(out) == document
    assert document["slo"]["verdict"] == "pass"
    assert document["run"]["interrupted_by"] == number.name
    assert [each["path"] for each in document["runs"]] == [str(tmp_path / "run-1")]
    assert "loadgen: stopped after run 1 of 3: judging so far" in err.splitlines()
    assert not (tmp_path / "run-2").exists()


async def _stopped(folder: Path, number: signal.Signals) -> tuple[int | None, str, str]:
    (folder / "w.yaml").write_text(WORKLOAD)
    async with ScriptedServer(GOOD) as server:
        words = ["--target", server.url, "--model", "m", "--no-calibrate", "--repeat", "3", "--rest", "300"]
        judged = ["--slo", "ttft.p50<60s", "--strict-point", "--format", "json", "--out", str(folder / "run")]
        process = await started(["run", str(folder / "w.yaml"), *words, *judged])
        while not (folder / "run-1" / "summary.json").exists():
            await asyncio.sleep(0.02)
        process.send_signal(number)
        out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()
