"""The experiment over HTTP against the built-in engine, and what it leaves behind."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from analysis.rundir import read_meta, read_run
from analysis.summary import summarize
from loadgen.commands import call
from loadgen.recipes.interfere import RESULT
from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options
from tests.loadgen.scripted import refused_url

ARGUMENTS: dict[str, Any] = {
    "target": None, "model": None, "streams": 1, "lengths": "1024,8192", "repeats": 3, "rest": "50ms",
    "max_freeze": "100ms", "seed": 7, "body": None, "out": None, "from_": None, "format_": "json", "output": None,
    "quiet": False, "endpoint": "chat", "api_key": None, "header": None, "ca_file": None, "client_cert": None,
    "insecure": False, "proxy": None,
}  # fmt: skip


def interfere(capsys: pytest.CaptureFixture[str], **changes: Any) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    status = call("interfere", ARGUMENTS | changes)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out, err


def test_an_engine_that_reads_prompts_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    with LocalServer(Options(chunk_tokens=0)) as server:
        status, printed, told = interfere(capsys, target=server.url, out=out, lengths="1024,8192,200000")
    result = json.loads(printed)
    assert (status, result["verdict"]["kind"], result["gate"]["verdict"]) == (1, "blocked", "fail")
    assert result["injections"]["sent"] == 9
    assert [each["prompt_tokens"] for each in result["rungs"]] == [1024, 8192]
    # By roofline 280 ms; a busy machine that runs the tests can only make it longer.
    assert 0.27 < result["rungs"][-1]["freeze_s"]["median"] < 0.6
    for expected in ("200,000 tokens are left out", "will send 10 prompts", "the experiment takes about", f"in {out}"):
        assert expected in told

    meta = read_meta(out)
    assert (meta["complete"], meta["workload"]["name"], meta["workload"]["lengths"]) == (
        True,
        "interfere",
        [1024, 8192],
    )
    summary = summarize(read_run(out))
    assert set(summary["by_class"]) == {"injected", "victim"}
    assert summary["requests"]["failed"] == summary["requests"]["cancelled"] == 0
    assert summary["stalls"]["count"] >= 3
    assert list(summary["by_stage"]) == ["pilot", "baseline-1", "experiment"]

    assert json.loads((out / RESULT).read_text()) == result
    (out / RESULT).unlink()
    status, printed, told = interfere(capsys, from_=out)
    assert (status, json.loads(printed), told) == (1, result, "")
    assert json.loads((out / RESULT).read_text()) == result
    status, printed, _ = interfere(capsys, from_=out, max_freeze="5s", format_="text")
    assert status == 0
    assert printed.startswith("Long prompts block decode")
    assert "/v1/chat/completions (one simulated h100)\n" in printed


def test_the_built_in_engine_is_said_to_be_simulated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, printed, told = interfere(capsys, out=tmp_path / "run", lengths="256", repeats=2)
    assert (
        json.loads(printed)["run"]["engine"] == read_meta(tmp_path / "run")["engine"] == "built-in, one simulated h100"
    )
    assert "driving the built-in engine (llama-3.1-8b on one simulated h100) at" in told


def test_a_signal_ends_it_and_keeps_what_was_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run"

    def interrupt() -> None:
        journal = out / "journal.bin"
        while not journal.exists() or journal.stat().st_size < 200:  # the first requests are in it
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with LocalServer(Options(speed=4)) as server:
        threading.Thread(target=interrupt).start()
        status, printed, told = interfere(capsys, target=server.url, out=out)
    assert status == 130
    assert "stopped early: SIGINT" in told
    assert json.loads(printed)["verdict"]["kind"] is None
    assert not read_meta(out)["complete"]


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"lengths": "512,many"}, 2, "--lengths 512,many: expected prompt tokens above 1, as in 512,2048,8192"),
        ({"lengths": "1"}, 2, "--lengths 1: expected"),
        ({"rest": "2"}, 2, "--rest 2: expected a duration such as 250ms"),
        ({"max_freeze": "0"}, 2, "--max-freeze 0: expected a duration above 0"),
        ({"repeats": 1}, 2, "--repeats: at least 2"),
        ({"from_": Path("nowhere")}, 2, "nowhere: no run.json there"),
        ({"target": refused_url()}, 3, "cannot be reached"),
    ],
)
def test_errors_are_one_line(
    changes: dict[str, Any], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, printed, told = interfere(capsys, **changes)
    assert (ended, printed) == (status, "")
    assert told.startswith("loadgen: ")
    assert told.count("\n") == 1
    assert message in told
