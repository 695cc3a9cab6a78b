"""One case for each exit status of each command, through the real command line.

0  every limit passes, or none was asked        1  a limit is missed        2  the command line or a file is wrong
3  no verdict, each of its reasons apart        130, 143  stopped by a signal
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from analysis.run import Run
from analysis.rundir import write_run
from loadgen.cli import app
from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options
from tests.analysis.synthetic import Server, simulate
from tests.loadgen.scripted import HANG, Answer, ScriptedServer, json_answer, refused_url
from tests.loadgen.test_end_to_end import GOOD, WORKLOAD, command, environment

S = 1_000_000_000


def status(*words: str) -> int:
    """Of a command in this process, as the console script would end."""
    result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result.exit_code


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(WORKLOAD)
    return str(path)


@pytest.fixture(scope="module")
def engine() -> Any:
    with LocalServer(Options(chunk_tokens=0)) as server:  # prompts are read whole, and freeze the streams
        yield server.url


# --- report: what the numbers of a run say ----------------------------------------------------------------------------


def made(requests: int = 300, **server: Any) -> Run:
    return simulate(Server(load=0.3, **server), requests, 10, 1, workload={"name": "w"})


def ended_early() -> Run:
    run = made()
    return run.but(meta={**run.meta, "complete": False, "interrupted_by": None})


def sent_late() -> Run:
    """By more than the limit on TTFT allows: the client's own fault."""
    run = made()
    return Run.from_frames(run.meta, run.requests.assign(sent_ns=run.requests["sent_ns"] + S // 5), later(run))


def later(run: Run) -> pd.DataFrame:
    return run.chunks.assign(arrival_ns=run.chunks["arrival_ns"] + S // 5)


def one_in_ten_not_sent() -> Run:
    run = made()
    out = np.arange(len(run.requests)) % 10 == 0
    words = run.requests["outcome"].astype("object").mask(out, "not_sent").astype("category")
    requests = run.requests.assign(outcome=words, sent_ns=run.requests["sent_ns"].mask(out, pd.NA))
    kept = ~run.chunks["request_id"].isin(run.requests["request_id"][out])
    return Run.from_frames(run.meta, requests, run.chunks[kept])


def tokens_unknown() -> Run:
    """Two tokens an event, and nobody says so."""
    run = made()
    chunks = run.chunks.assign(n_tokens=pd.array([pd.NA] * len(run.chunks), dtype="Int32"))
    return Run.from_frames(run.meta, run.requests.assign(completion_tokens=20), chunks)


REPORTED: dict[str, tuple[int, Callable[[], Run], list[str]]] = {
    "no limit asked": (0, made, []),
    "pass": (0, made, ["--slo", "ttft.p90<5s", "--slo", "itl.p50<60ms"]),
    "pass by the value alone": (0, made, ["--slo", "ttft.p999<5s", "--strict-point"]),
    "pass: token deadlines": (0, made, ["--slo", "fluidity>99%"]),
    "fail": (1, made, ["--slo", "ttft.p50<10ms"]),
    "fail: one limit of two": (1, made, ["--slo", "ttft.p90<5s", "--slo", "itl.p50<1ms"]),
    "fail: errors, without a limit on them": (1, lambda: made(failures=0.3), ["--slo", "ttft.p90<5s"]),
    "usage: not a limit": (2, made, ["--slo", "tttf.p50<5s"]),
    "usage: e2e alone": (2, made, ["--slo", "e2e.p50<5s"]),
    "no verdict: the interval straddles the limit": (3, made, ["--slo", "itl.p50<20.2ms"]),
    "no verdict: too few samples": (3, made, ["--slo", "ttft.p999<5s"]),
    "no verdict: too few requests": (3, lambda: made(15), ["--slo", "itl.p50<5s"]),
    "no verdict: the metric is undefined": (3, tokens_unknown, ["--slo", "itl.p50<5s"]),
    "no verdict: nothing succeeded": (3, lambda: made(failures=1.0), ["--slo", "ttft.p50<10ms"]),
    "no verdict: nothing succeeded, no limit asked": (3, lambda: made(failures=1.0), []),
    "no verdict: the load was not delivered": (3, one_in_ten_not_sent, ["--slo", "ttft.p90<5s"]),
    "no verdict: the client was saturated": (3, sent_late, ["--slo", "ttft.p90<1s"]),
    "no verdict: the run was cut short": (3, ended_early, ["--slo", "ttft.p90<5s"]),
    "no verdict rather than a miss, for the same": (3, ended_early, ["--slo", "ttft.p50<10ms"]),
}


@pytest.mark.parametrize("case", REPORTED)
def test_report(case: str, tmp_path: Path) -> None:
    expected, run, words = REPORTED[case]
    write_run(tmp_path / "run", run())
    assert status("report", str(tmp_path / "run"), *words) == expected


def test_report_of_what_is_no_run(tmp_path: Path) -> None:
    assert status("report", str(tmp_path)) == 2


# --- run: what the target does ----------------------------------------------------------------------------------------

MISSING = json_answer({"error": {"message": "no such model"}}, 404)
BROKEN = json_answer({"error": {"message": "out of memory"}}, 500)
RAN: dict[str, tuple[int, Answer, list[str]]] = {
    "no limit asked": (0, GOOD, []),
    "pass": (0, GOOD, ["--slo", "ttft.p50<60s", "--strict-point"]),
    "fail": (1, GOOD, ["--slo", "ttft.p50<1us", "--strict-point"]),
    "usage: no such class": (2, GOOD, ["--slo", "rag:ttft.p50<1s"]),
    "no verdict: too few samples": (3, GOOD, ["--slo", "ttft.p50<60s"]),
    "no verdict: nothing succeeded": (3, BROKEN, ["--slo", "ttft.p50<60s"]),
    "no verdict: nothing succeeded, no limit asked": (3, BROKEN, []),
    "no verdict: the first ten requests failed for good": (3, MISSING, ["--requests", "500"]),
    "repeated: pass": (0, GOOD, ["--repeat", "2", "--rest", "0", "--slo", "ttft.p50<60s", "--strict-point"]),
    "repeated: fail": (1, GOOD, ["--repeat", "2", "--rest", "0", "--slo", "ttft.p50<1us", "--strict-point"]),
    "repeated: nothing succeeded": (3, BROKEN, ["--repeat", "2", "--rest", "0"]),
    "repeated: usage": (2, GOOD, ["--repeat", "2", "--until-verdict"]),
    "until the verdict: no limit": (2, GOOD, ["--until-verdict"]),
}


@pytest.mark.parametrize("case", RAN)
def test_run(case: str, small: str, tmp_path: Path) -> None:
    expected, answer, words = RAN[case]
    got, out, err = asyncio.run(ran(answer, [small, *words, "--out", str(tmp_path / "run")]))
    assert got == expected, err
    assert "Traceback" not in err
    assert (out == "") == (expected == 2)


async def ran(answer: Answer, words: Sequence[str], *signals: signal.Signals) -> tuple[int | None, str, str]:
    """A run against a scripted server; with signals, sent one after the other once requests are out."""
    async with ScriptedServer(answer) as server:
        process = await started(["run", *words, "--target", server.url, "--model", "m", "--no-calibrate"])
        for one in signals:
            while len(server.requests) < 2:
                await asyncio.sleep(0.02)
            process.send_signal(one)
            await asyncio.sleep(0.2)
        out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def started(words: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )


def test_run_of_a_target_that_refuses_connections(small: str, tmp_path: Path) -> None:
    assert status("run", small, "--target", refused_url(), "--out", str(tmp_path / "run"), "--quiet") == 3


def test_run_of_a_workload_that_is_not_there() -> None:
    assert status("run", "no-such-workload") == 2


HANGS: Answer = [*GOOD[:2], HANG]
STOPPED: dict[str, tuple[int, list[signal.Signals], list[str]]] = {
    "Ctrl-C": (130, [signal.SIGINT], ["--drain", "100ms"]),
    "SIGTERM": (143, [signal.SIGTERM], ["--drain", "100ms"]),
    "Ctrl-C twice": (130, [signal.SIGINT, signal.SIGINT], ["--drain", "60s"]),
    "Ctrl-C while a verdict is awaited": (
        130, [signal.SIGINT], ["--drain", "100ms", "--until-verdict", "--slo", "ttft.p50<1s"]),
    "Ctrl-C in a repeated run": (130, [signal.SIGINT], ["--drain", "100ms", "--repeat", "3"]),
    "Ctrl-C twice in a repeated run": (130, [signal.SIGINT, signal.SIGINT], ["--drain", "60s", "--repeat", "3"]),
}  # fmt: skip


@pytest.mark.parametrize("case", STOPPED)
def test_run_stopped(case: str, small: str, tmp_path: Path) -> None:
    expected, signals, words = STOPPED[case]
    got, _, err = asyncio.run(ran(HANGS, [small, *words, "--out", str(tmp_path / "run")], *signals))
    assert got == expected, err
    assert "Traceback" not in err
    first = tmp_path / ("run-1" if "--repeat" in words else "run")
    assert (first / "run.json").exists()
    assert not (tmp_path / "run-2").exists()


# --- compare ----------------------------------------------------------------------------------------------------------

SLOWER = {"itl_s": 0.03}
COMPARED: dict[str, tuple[int, Callable[[], Run], Callable[[], Run]]] = {
    "the same": (0, lambda: made(2000), lambda: made(2000)),
    "worse": (1, lambda: made(2000), lambda: made(2000, **SLOWER)),
    "usage: another workload": (
        2,
        made,
        lambda: made().but(meta=made().meta | {"workload": {"name": "x", "y": 1}}),
    ),
    "usage: a base without successes": (2, lambda: made(failures=1.0), made),
    "unclear": (3, lambda: made(60), lambda: made(60)),
}


@pytest.mark.parametrize("case", COMPARED)
def test_compare(case: str, tmp_path: Path) -> None:
    expected, base, candidate = COMPARED[case]
    for name, run in (("base", base), ("candidate", candidate)):
        write_run(tmp_path / name, run())
    words = [str(tmp_path / "base"), str(tmp_path / "candidate"), "--tolerance", "20%"]
    assert status("compare", *words) == expected


# --- simulate and capacity, in virtual time ---------------------------------------------------------------------------

SIMULATED = {
    "no limit asked": (0, ["--set", "slo={}"]),
    "pass": (0, ["--set", "slo={}", "--slo", "ttft.p50<10s"]),
    "fail": (1, ["--set", "slo={}", "--slo", "ttft.p50<1us"]),
    "usage": (2, ["--gpu", "abacus"]),
    "no verdict": (3, ["--set", "slo={}", "--slo", "ttft.p999<10s"]),
}


@pytest.mark.parametrize("case", SIMULATED)
def test_simulate(case: str) -> None:
    expected, words = SIMULATED[case]
    assert status("simulate", "chat", "--rate", "4", "--duration", "30s", "--seed", "1", *words) == expected


EASY, HARD = ["--slo", "ttft.p50<10s"], ["--slo", "ttft.p50<1us"]
SEARCHED = {
    "found": (0, ["--rates", "2", *EASY]),
    "no load passes": (1, ["--rates", "2", *HARD]),
    "usage: not a load": (2, ["--rates", "many", *EASY]),
    "usage: nothing to pass": (2, ["--rates", "2"]),
    "not settled": (3, ["--tries", "1", *EASY]),
}


@pytest.mark.parametrize("case", SEARCHED)
def test_capacity(case: str, tmp_path: Path) -> None:
    expected, words = SEARCHED[case]
    load = ["chat", "--simulate", "--rate", "2", "--duration", "20s", "--seed", "1", "--set", "slo={}"]
    assert status("capacity", *load, *words, "--set", "good={}", "--out", str(tmp_path / "c"), "--quiet") == expected


def test_capacity_of_a_target_that_refuses_connections(small: str, tmp_path: Path) -> None:
    words = ["--target", refused_url(), "--slo", "ttft.p50<1s", "--out", str(tmp_path / "c"), "--quiet"]
    assert status("capacity", small, *words) == 3


def test_capacity_stopped(small: str, tmp_path: Path) -> None:
    async def stopped() -> tuple[int | None, str]:
        async with ScriptedServer(HANGS) as server:
            words = [small, "--target", server.url, "--model", "m", "--no-calibrate", "--drain", "100ms"]
            process = await started(["capacity", *words, "--slo", "ttft.p50<1s", "--out", str(tmp_path / "c")])
            while len(server.requests) < 1:
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, err.decode()

    got, err = asyncio.run(stopped())
    assert got == 130, err
    assert "Traceback" not in err


# --- interfere --------------------------------------------------------------------------------------------------------

TINY = [
    "--streams",
    "1",
    "--lengths",
    "1024,8192",
    "--repeats",
    "3",
    "--rest",
    "50ms",
]  # with a seed drawn: nothing is cached
INTERFERED = {
    "a verdict": (0, ["--max-freeze", "60s"]),
    "a freeze above the limit": (1, ["--max-freeze", "150ms"]),
    "usage": (2, ["--max-freeze", "soon"]),
    "no verdict: streams stand still without any prompt, too": (3, ["--max-freeze", "1ms"]),
}


@pytest.mark.parametrize("case", INTERFERED)
def test_interfere(case: str, engine: str, tmp_path: Path) -> None:
    expected, words = INTERFERED[case]
    assert status("interfere", "--target", engine, *TINY, *words, "--out", str(tmp_path / "i"), "--quiet") == expected


def test_interfere_with_what_answers_nothing(tmp_path: Path) -> None:
    async def tried() -> int | None:
        async with ScriptedServer(BROKEN) as server:
            words = ["--target", server.url, "--model", "m", *TINY, "--out", str(tmp_path / "i")]
            process = await started(["interfere", *words])
            _, err = await asyncio.wait_for(process.communicate(), 60)
            assert b"Traceback" not in err
        return process.returncode

    assert asyncio.run(tried()) == 3


def test_interfere_stopped(engine: str, tmp_path: Path) -> None:
    async def stopped() -> int | None:
        out = tmp_path / "i"
        words = ["--target", engine, *TINY, "--repeats", "500", "--out", str(out)]
        process = await started(["interfere", *words])
        while not (out / "run.json").exists():
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), 60)
        return process.returncode

    assert asyncio.run(stopped()) == 130


# --- the others: they judge nothing -----------------------------------------------------------------------------------

OTHERS = {
    "plan": (0, ["plan", "chat"]),
    "plan: usage": (2, ["plan", "chat", "--duration", "5"]),
    "stalls: not a run": (2, ["stalls", "nowhere"]),
    "import: not a result": (2, ["import", "nowhere.json"]),
    "estimate": (0, ["estimate"]),
    "estimate: usage": (2, ["estimate", "--gpu", "abacus"]),
    "init: usage": (2, ["init", "video"]),
    "probe: no answer": (3, ["probe", "127.0.0.1:9"]),
    "no such command": (2, ["walk"]),
}


@pytest.mark.parametrize("case", OTHERS)
def test_others(case: str) -> None:
    expected, words = OTHERS[case]
    assert status(*words) == expected


def test_the_console_script_ends_with_the_status(small: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadgen.cli", "run", small, "--slo", "x"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
