"""Where results are to go: what cannot be written is refused before anything is sent."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.cli import app
from loadgen.errors import UsageError
from loadgen.recipes.output import check_writable, kept_in, put
from tests.loadgen.scripted import refused_url

RESULT = str(Path(__file__).parents[2] / "data" / "imports" / "vllm-chat.json")


def refusal(*words: str) -> str:
    """The one line on stderr of a command that ends with status 2."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, (done.output, done.exception)
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)
    return done.stderr.strip()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.html").write_text("old")
    return tmp_path


UNWRITABLE = {
    "no such folder": ("no/such/x.html", "No such file or directory"),
    "a folder": (".", "Is a directory"),
    "a file as a folder": ("page.html/x.html", "Not a directory"),
}


@pytest.mark.parametrize("repeated", [[], ["--repeat", "2"]], ids=["one run", "repeated"])
@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_page_that_cannot_be_written_is_refused_before_the_run(case: str, repeated: list[str], here: Path) -> None:
    file, why = UNWRITABLE[case]
    words = ["run", "chat", "--target", refused_url(), "--out", "run", "--html", file, *repeated]
    assert refusal(*words) == f"loadgen: --html {file}: {why}"
    assert os.listdir(here) == ["page.html"]


def test_the_document_of_repeated_runs_is_refused_before_them(here: Path) -> None:
    (here / "run.json").mkdir()
    words = ["run", "chat", "--target", refused_url(), "--out", "run", "--repeat", "2"]
    assert refusal(*words) == "loadgen: --out run.json: Is a directory"


WRITABLE = {
    "a file that is there": "page.html",
    "a new one": "new.html",
    "in the folder of the run": "runs/one/page.html",
    "beside it": "runs/page.html",
    "a link to what is not there": "link.html",
    "a pipe that nobody reads": "pipe",
    "a device": "/dev/null",
}


@pytest.mark.parametrize("case", WRITABLE)
def test_looking_leaves_everything_as_it_is(case: str, here: Path) -> None:
    os.mkfifo("pipe")
    (here / "link.html").symlink_to(here / "linked.html")
    before = sorted(os.listdir(here))
    check_writable("--html", Path(WRITABLE[case]), Path("runs/one"))
    assert sorted({*os.listdir(here)} - {"linked.html"}) == before
    assert (here / "page.html").read_text() == "old"


def test_what_fails_after_the_run_names_the_flag_and_where_the_results_are(here: Path) -> None:
    with pytest.raises(UsageError) as problem, kept_in("run"):
        put("page", Path("/dev/full"), "--html")
    assert str(problem.value) == "--html /dev/full: No space left on device; results in run"


def test_names_that_are_no_text_are_written_as_far_as_they_are(here: Path) -> None:
    put("\udcffname", here / "page.html")
    assert (here / "page.html").read_text() == "?name"


NAMED = {
    "run": ["run", "chat", "--target", refused_url()],
    "repeated runs": ["run", "chat", "--target", refused_url(), "--repeat", "2"],
    "import": ["import", RESULT],
}


@pytest.mark.parametrize("case", NAMED)
def test_a_directory_whose_name_is_no_text_is_refused(case: str, here: Path) -> None:
    told = refusal(*NAMED[case], "--out", os.fsdecode(b"bad\xff\xfename"))
    assert told == r"loadgen: --out 'bad\xff\xfename': not a name in UTF-8: name another directory"
    assert os.listdir(here) == ["page.html"]


def test_a_device_is_no_result() -> None:
    assert refusal("import", "/dev/zero") == "loadgen: /dev/zero: a device: name the file that the tool wrote"


def test_the_result_of_a_tool_may_come_through_a_pipe(here: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, Path(RESULT).read_bytes())  # less than a pipe holds
    os.close(writer)
    done = CliRunner().invoke(app, ["import", f"/dev/fd/{reader}", "--out", "imported"])
    os.close(reader)
    assert (done.exit_code, done.stdout) == (0, "imported\n")
    assert json.loads((here / "imported" / "summary.json").read_text())["requests"]["ok"]
