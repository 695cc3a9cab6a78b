"""The command as users run it: a process of its own, its output, its exit status, and what it leaves behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.rundir import read_run
from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options
from tests.loadgen.scripted import (
    DONE,
    HANG,
    Received,
    ScriptedServer,
    Step,
    answer,
    content,
    finish,
    json_answer,
    refused_url,
    role,
    usage,
)

SECRET = "sk-very-secret-0123456789"
WORKLOAD = "{name: small, concurrency: 2, requests: 6, classes: {c: {shape: chat, input_tokens: 8, output_tokens: 2}}}"
GOOD = answer(role(), content("Hello"), content(" world"), finish("length"), usage(8, 2), DONE)
CONTRACT = {
    "format_version": None,
    "run": "id workload target model endpoint started_at duration_s seed loop complete timestamp_source",
    "requests": "planned sent ok failed not_sent skipped cancelled censored error_rate by_outcome by_finish_reason "
    "errors",
    "metrics": "ttft_s ttft_due_s ttfat_s itl_s gap_s tpot_s e2e_s e2e_due_s send_lag_s connect_s",
    "undefined": None,
    "tokens": "prompt cached output reasoning failed_output source per_event events_per_read",
    "throughput": "requests_per_s prompt_tokens_per_s output_tokens_per_s",
    "stalls": "count requests share_of_requests per_1k_tokens longest_s total_s episodes",
    "goodput": "requests_per_s output_tokens_per_s attainment by_limit",
    "slo": "verdict limits",
    "phases": "prefill decode thinking answer",
    "by_class": None,
    "by_turn": None,
    "by_stage": None,
    "client": "saturated loop_lag_p99_s send_lag_p99_s cpu_share workers",
    "server": None,
    "warnings": None,
}
BLOCK = {"n", "mean", "std", "min", "p50", "p90", "p95", "p99", "p999", "max", "ci95"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "loadgen.cli", *words]


def environment(**more: str) -> dict[str, str]:
    keys = ("LOADGEN_API_KEY", "OPENAI_API_KEY")
    return {name: value for name, value in os.environ.items() if name not in keys} | more


def loadgen(*words: str, status: int = 0, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words), capture_output=True, text=True, env=environment(**(env or {})), timeout=60)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


async def against(
    answers: Sequence[Any], words: Sequence[str], status: int = 0, env: Mapping[str, str] | None = None
) -> tuple[str, str, ScriptedServer]:
    """What `loadgen run` printed to stdout and stderr against a scripted server."""
    async with ScriptedServer(*answers) as server:
        run = command("run", *words, "--target", server.url, "--model", "m", "--no-calibrate", "--no-progress")
        process = await asyncio.create_subprocess_exec(
            *run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**(env or {}))
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == status, err.decode()
        assert b"Traceback" not in err
        return out.decode(), err.decode(), server


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(WORKLOAD)
    return str(path)


# --- the main job -----------------------------------------------------------------------------------------------------


def test_a_library_workload_on_the_built_in_engine(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    done = loadgen("run", "rag.yaml", "--requests", "6", "--rate", "30", "--warmup", "0", "--seed", "7",
                   "--format", "json", "--out", out, status=3)  # fmt: skip
    assert "driving the built-in engine" in done.stderr.splitlines()[0]
    summary = json.loads(done.stdout)
    assert list(summary) == list(CONTRACT)
    for name, keys in CONTRACT.items():
        if keys is not None:
            assert set(keys.split()) <= set(summary[name]), name
    for block in summary["metrics"].values():
        assert set(block) == BLOCK
    assert summary["requests"]["by_outcome"] == {"ok": 6}
    assert summary["run"]["engine"] == "built-in, one simulated h100"
    assert summary["run"]["timestamp_source"] in ("kernel", "user")
    assert summary["tokens"]["source"] == "usage"
    assert (summary["run"]["seed"], summary["run"]["loop"], summary["run"]["complete"]) == (7, "open", True)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert json.loads(loadgen("report", out, "--format", "json", status=3).stdout) == summary
    assert "no verdict" in loadgen("report", out, status=3).stdout


def test_prompts_have_the_planned_length_by_the_servers_count(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with LocalServer() as server:
        loadgen("run", "rag", "--requests", "8", "--rate", "40", "--warmup", "0", "--target", server.url,
                "--out", str(out), status=3)  # fmt: skip
    run = read_run(out)
    assert run.meta["engine"] == "one simulated h100"
    rows = run.requests
    assert (rows["outcome"] == "ok").all()
    assert ((rows["prompt_tokens"] - rows["asked_input_tokens"]).abs() <= 2).all()
    assert (rows["output_tokens"] == rows["asked_output_tokens"]).all()


def test_a_simulated_server_is_known_without_any_probe(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with LocalServer(Options(replicas=2)) as server:
        loadgen("run", "rag", "--requests", "2", "--rate", "40", "--warmup", "0", "--target", server.url,
                "--model", server.model, "--no-calibrate", "--out", str(out), status=3)  # fmt: skip
    assert read_run(out).meta["engine"] == "2 replicas of one simulated h100 each"


def test_a_gate(small: str, tmp_path: Path) -> None:
    async def gate(limit: str, status: int, number: int) -> dict[str, Any]:
        words = [small, "--out", str(tmp_path / f"run{number}"), "--slo", limit, "--strict-point", "--format", "json"]
        return dict(json.loads((await against([GOOD], words, status))[0]))

    assert asyncio.run(gate("ttft.p50<60s", 0, 1))["slo"]["verdict"] == "pass"
    assert asyncio.run(gate("ttft.p50<1us", 1, 2))["slo"]["verdict"] == "fail"
    judged = loadgen("report", str(tmp_path / "run1"), "--slo", "ttft.p90<1us", "--strict-point", status=1)
    assert "fail" in judged.stdout


def test_markdown_and_an_output_file(small: str, tmp_path: Path) -> None:
    page = ["--html", str(tmp_path / "page.html"), "--gpu", "h100", "--tp", "2"]
    out, _, _ = asyncio.run(against([GOOD], [small, "--out", str(tmp_path / "run"), "--format", "markdown", *page]))
    assert "| prefill | TTFT |" in out
    reported = loadgen("report", str(tmp_path / "run"), "--format", "html", *page[2:]).stdout
    assert "Against the roofline" in reported
    assert (tmp_path / "page.html").read_text() == reported
    file = tmp_path / "report.txt"
    assert loadgen("report", str(tmp_path / "run"), "--output", str(file)).stdout == ""
    assert "6 ok" in file.read_text()


def test_plan_sends_nothing_and_is_the_same_for_the_same_seed() -> None:
    first, second = (loadgen("plan", "mixed", "--seed", "3", "--format", "json").stdout for _ in range(2))
    assert json.loads(first) == json.loads(second)
    assert "rag" in loadgen("plan", "mixed", "--seed", "3").stdout


# --- what the user did wrong ------------------------------------------------------------------------------------------

WRONG = {
    "unknown workload": (["run", "ragg"], "has only: agent, chat, mixed, rag, reasoning"),
    "unknown format": (["run", "rag", "--format", "xml"], "--format xml: expected text, json, markdown"),
    "unknown endpoint": (["run", "rag", "--target", "x", "--endpoint", "foo"], "--endpoint foo: expected chat"),
    "not a url": (["run", "rag", "--target", "ftp://x"], "--target ftp://x: not a server's URL"),
    "bad limit": (["run", "rag", "--slo", "tttf.p95<1s"], "ttft"),
    "unknown class in a limit": (["run", "rag", "--slo", "chat:ttft.p95<1s"], "no such class"),
    "e2e alone": (["run", "rag", "--set", "slo={}", "--slo", "e2e.p95<1s"], "--allow-e2e"),
    "bad set": (["run", "rag", "--set", "classes"], "--set classes: expected path=value"),
    "bad duration": (["run", "rag", "--duration", "5"], "duration"),
    "bad timeout": (["run", "rag", "--target", "x", "--timeout", "soon"], "--timeout soon: expected a duration"),
    "bad header": (["run", "rag", "--target", "x", "-H", "nonsense"], "expected 'name: value'"),
    "bad body": (["run", "rag", "--target", "x", "--body", "nonsense"], "--body nonsense: expected key=value"),
    "no certificates": (["run", "rag", "--target", "https://x", "--ca-file", "/nowhere"], "--ca-file /nowhere"),
    "a GPU for no page": (["run", "rag", "--gpu", "h100"], "--gpu sets the times of a page"),
    "unknown GPU": (["run", "rag", "--gpu", "h999", "--html", "x"], "h999"),
    "not a run": (["report", "/nowhere"], "no run.json"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_line_says_what_is_wrong(case: str) -> None:
    words, told = WRONG[case]
    done = loadgen(*words, status=2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("loadgen: ")
    assert told in done.stderr


@pytest.mark.parametrize(("flag", "value"), [("--max-in-flight", "0"), ("--retries", "-1")])
def test_numbers_that_make_no_sense_are_refused(flag: str, value: str) -> None:
    assert flag in loadgen("run", "rag", flag, value, status=2).stderr


def test_a_typo_names_the_line_and_the_nearest_key(tmp_path: Path) -> None:
    path = tmp_path / "typo.yaml"
    path.write_text("concurrency: 1\nclasses:\n  c:\n    shape: chat\n    input_tokns: 5\n")
    line = loadgen("run", str(path), status=2).stderr
    assert "typo.yaml:5" in line
    assert "input_tokens" in line


def test_a_directory_that_is_not_empty_is_left_alone(small: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    _, err, server = asyncio.run(against([GOOD], [small, "--out", str(tmp_path / "run")], 2))
    assert "not empty" in err
    assert server.requests == []
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious"]


def test_a_target_that_refuses_connections(small: str, tmp_path: Path) -> None:
    url = refused_url()
    done = loadgen("run", small, "--target", url, "--out", str(tmp_path / "run"), status=3)
    assert len(done.stderr.splitlines()) == 1
    assert url in done.stderr
    assert "refused" in done.stderr


def test_the_first_requests_that_all_fail_end_the_run(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(WORKLOAD.replace("requests: 6", "requests: 5000"))
    missing = json_answer({"error": {"message": "The model `m` does not exist."}}, 404)
    words = [str(path), "--out", str(tmp_path / "run"), "--format", "json"]
    out, err, server = asyncio.run(against([missing], words, 3))
    assert "the first 10 requests all failed (10x: The model `m` does not exist.)" in err
    assert len(server.requests) < 20
    assert json.loads(out)["requests"]["errors"][0]["status"] == 404


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_the_key_is_sent_and_is_nowhere_else(small: str, tmp_path: Path) -> None:
    def scold(request: Received) -> list[Step]:
        titles.extend(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        return json_answer(
            {"error": {"message": f"Incorrect API key provided: {request.headers['authorization']}"}}, 401
        )

    titles: list[bytes] = []
    words = [small, "--out", str(tmp_path / "run"), "-H", f"x-other: {SECRET}-2", "--save-text", "--api-key", SECRET]
    out, err, server = asyncio.run(against([scold], words, 3))
    assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert server.requests[0].headers["x-other"] == f"{SECRET}-2"
    assert "Incorrect API key provided" in out + err
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert any(b"run" in title for title in titles)
    for text in [*titles, out.encode(), err.encode(), *(path.read_bytes() for path in files)]:
        assert SECRET.encode() not in text


# --- ended early ------------------------------------------------------------------------------------------------------


async def signalled(folder: Path, small: str, *signals: signal.Signals) -> tuple[int, str, str]:
    """Run, let four requests end and the fifth hang, wait until the journal has them, then send the signals."""

    def hang_later(request: Received) -> list[Step]:
        return list(GOOD) if len(served) < 4 and not served.append(request) else [*GOOD[:2], HANG]  # type: ignore[func-returns-value]

    served: list[Received] = []
    async with ScriptedServer(hang_later) as server:
        words = ["run", small, "--target", server.url, "--model", "m", "--no-calibrate", "--drain", "60s",
                 "--set", "requests=500", "--out", str(folder), "--format", "json"]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
        while not journal_has(folder, 4):
            await asyncio.sleep(0.02)
        for number, one in enumerate(signals):
            if number:
                await asyncio.sleep(0.2)
            process.send_signal(one)
        out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def journal_has(folder: Path, count: int) -> bool:
    return (folder / "run.json").exists() and len(read_run(folder).requests) >= count


def test_a_killed_run_can_be_read(small: str, tmp_path: Path) -> None:
    status, _, _ = asyncio.run(signalled(tmp_path / "run", small, signal.SIGKILL))
    assert status == -signal.SIGKILL
    summary = json.loads(loadgen("report", str(tmp_path / "run"), "--format", "json").stdout)
    assert summary["run"]["complete"] is False
    assert summary["requests"]["ok"] == 4
    assert summary["tokens"]["output"] == 8


def test_a_second_interrupt_ends_at_once_and_keeps_what_there_was(small: str, tmp_path: Path) -> None:
    status, out, err = asyncio.run(signalled(tmp_path / "run", small, signal.SIGINT, signal.SIGINT))
    assert status == 130
    assert out == ""
    assert "once more to end at once" in err
    assert f"loadgen report {tmp_path / 'run'}" in err
    assert json.loads(loadgen("report", str(tmp_path / "run"), "--format", "json").stdout)["requests"]["ok"] == 4


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_reports(number: signal.Signals, status: int, tmp_path: Path) -> None:
    path = tmp_path / "endless.yaml"
    path.write_text(WORKLOAD.replace("requests: 6", "duration: 10m"))

    async def stopped() -> tuple[int | None, str]:
        async with ScriptedServer(GOOD) as server:
            words = ["run", str(path), "--target", server.url, "--model", "m", "--no-calibrate",
                     "--out", str(tmp_path / "run"), "--format", "json"]  # fmt: skip
            process = await asyncio.create_subprocess_exec(*command(*words), stdout=subprocess.PIPE, env=environment())
            while len(server.requests) < 20:
                await asyncio.sleep(0.01)
            process.send_signal(number)
            out, _ = await asyncio.wait_for(process.communicate(), 30)
            return process.returncode, out.decode()

    got, out = asyncio.run(stopped())
    summary = json.loads(out)
    assert got == status
    assert summary["run"]["complete"] is False
    assert summary["requests"]["ok"] >= 18
    assert summary["requests"]["failed"] == 0


# --- the README -------------------------------------------------------------------------------------------------------


def test_the_readme_has_the_two_commands() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (python3 -m venv .*)$", text, re.MULTILINE)
    assert [one.rsplit(" && ", 1)[1] for one in commands] == [".venv/bin/loadgen run rag.yaml", ".venv/bin/pytest"]


@pytest.mark.parametrize("shape", ["chat", "rag", "reasoning", "agent", "mixed"])
def test_init_writes_a_workload_that_can_be_planned(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    loadgen("init", shape, "--output", str(path))
    assert "sessions" in loadgen("plan", str(path)).stdout
    assert "exists already" in loadgen("init", shape, "--output", str(path), status=2).stderr
