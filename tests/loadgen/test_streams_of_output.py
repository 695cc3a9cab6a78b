"""Streams that take nothing, are closed, or lack characters: what is said may get lost, what was measured may not."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.sim.child import LocalServer
from tests.loadgen.test_end_to_end import WORKLOAD, command, environment

SAMPLE = str(Path(__file__).parents[2] / "sample_runs" / "documents-whole")
FULL, CLOSED = "No space left on device", "Bad file descriptor"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with LocalServer() as server:
        yield server.url


def redirected(where: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command with the redirections of a shell."""
    shell = ["sh", "-c", f'exec "$@" {where}', "sh", *command(*words)]
    done = subprocess.run(shell, capture_output=True, text=True, env=environment(**env), timeout=60)
    assert "Traceback" not in done.stderr
    return done


def load(url: str, folder: Path, *words: str) -> list[str]:
    (folder / "w.yaml").write_text(WORKLOAD)
    return ["run", str(folder / "w.yaml"), "--target", url, "--out", str(folder / "run"), *words]


# --- a run: never lost ------------------------------------------------------------------------------------------------

RUNS: dict[str, tuple[str, int, list[str], str | None]] = {
    "stderr is full": ("2>/dev/full", 0, [], None),
    "stderr is full, with workers": ("2>/dev/full", 0, ["--workers", "2"], None),
    "stderr is closed": ("2>&-", 0, [], None),
    "stderr is closed, with workers": ("2>&-", 0, ["--workers", "2"], None),
    "stderr and stdin are closed": ("2>&- <&-", 0, [], None),
    "stdout is full": (">/dev/full", 2, ["--format", "json", "--quiet"], FULL),
    "stdout is closed": (">&-", 2, [], CLOSED),
    "stdout is full, of a limit that is missed": (">/dev/full", 2, ["--slo", "ttft.p50<1us", "--strict-point"], FULL),
    "stdout is full, of repeated runs": (">/dev/full", 2, ["--repeat", "2", "--rest", "0"], FULL),
    "all are closed": ("<&- >&- 2>&-", 2, [], None),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_run_is_kept(case: str, url: str, tmp_path: Path) -> None:
    where, status, words, why = RUNS[case]
    done = redirected(where, *load(url, tmp_path, *words))
    assert done.returncode == status, done.stderr
    assert (done.stdout != "") == (status == 0)
    places = [tmp_path / f"run-{n}" for n in (1, 2)] if "--repeat" in words else [tmp_path / "run"]
    assert [json.loads((each / "summary.json").read_text())["requests"]["ok"] for each in places] == [6] * len(places)
    if why is not None:
        told = f"loadgen: cannot write to stdout: {why}; results in {', '.join(map(str, places))}"
        assert done.stderr.splitlines()[-1].startswith(told)


def test_a_page_is_written_though_stdout_takes_nothing(url: str, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    assert redirected(">/dev/full", *load(url, tmp_path, "--html", str(page))).returncode == 2
    assert page.read_text().startswith("<!")


def test_a_run_is_kept_whose_reader_is_gone(url: str, tmp_path: Path) -> None:
    """As with `2>&1 | head -1`: nobody reads what either stream says."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command(*load(url, tmp_path)), stdout=writer, stderr=writer, env=environment(), timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["requests"]["ok"] == 6


# --- what only prints -------------------------------------------------------------------------------------------------

PRINTERS = {
    "report": ["report", SAMPLE],
    "stalls": ["stalls", SAMPLE],
    "estimate": ["estimate"],
    "help": ["simulate", "--help"],
}


@pytest.mark.parametrize("case", PRINTERS)
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", FULL), (">&-", CLOSED)])
def test_stdout_takes_nothing(case: str, where: str, why: str) -> None:
    done = redirected(where, *PRINTERS[case])
    assert (done.returncode, done.stderr) == (2, f"loadgen: cannot write to stdout: {why}\n")


def test_an_error_that_nobody_hears_keeps_its_status() -> None:
    assert redirected("2>&-", "report", "nowhere").returncode == 2


# --- characters -------------------------------------------------------------------------------------------------------

LACKING: dict[str, dict[str, str]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "a locale without any": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("case", ["report", "stalls", "estimate"])
def test_characters_that_stdout_lacks_are_replaced(case: str, lacking: str) -> None:
    env = environment(**LACKING[lacking])
    done = subprocess.run(command(*PRINTERS[case]), capture_output=True, env=env, timeout=60)
    assert (done.returncode in (0, 1), done.stderr) == (True, b"")
    assert b"?" in done.stdout or lacking == "latin-1"


@pytest.mark.parametrize("lacking", LACKING)
def test_json_says_the_same_in_every_encoding(lacking: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WORKLOAD.replace("name: small", "name: größe–μ"), encoding="utf-8")
    words = ["plan", str(tmp_path / "w.yaml"), "--seed", "1", "--format", "json"]
    told = [redirected("", *words, **env).stdout for env in ({"PYTHONIOENCODING": "utf-8"}, LACKING[lacking])]
    assert "größe–μ" in told[0]
    assert told[1].isascii()
    assert json.loads(told[1]) == json.loads(told[0])
