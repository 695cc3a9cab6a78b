"""Each page from the command line: it goes to the file that was asked for, or to stdout, and the status stays."""

import json
from pathlib import Path

import pytest

from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options
from tests.analysis.test_report_html import checked
from tests.loadgen.test_end_to_end import loadgen

PLAN = """
name: small
arrivals: {process: poisson, rate: 12/s}
duration: 20s
warmup: 0s
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


def test_compare(plan: str, tmp_path: Path) -> None:
    base, slower, page = (str(tmp_path / name) for name in ("base", "slower", "page.html"))
    loadgen("simulate", plan, "--out", base, "--quiet")
    loadgen("simulate", plan, "--out", slower, "--gpu", "a100", "--quiet")
    done = loadgen("compare", base, slower, "--format", "html", status=1)
    assert loadgen("compare", base, slower, "--format", "html", "--output", page, status=1).stdout == ""
    assert Path(page).read_text("utf-8") == done.stdout
    told = json.loads(loadgen("compare", base, slower, "--format", "json", status=1).stdout)
    text = checked(done.stdout).text
    assert "small against small" in text
    worse = [each for each in told["metrics"] if each["decides"] and each["verdict"] == "worse"]
    assert worse
    for each in worse:
        assert f"{each['class']} {each['metric']}.{each['statistic']}" in text
        assert f"{100 * (each['ratio'] - 1):+.1f}%" in text


def test_capacity(plan: str, tmp_path: Path) -> None:
    out, page = tmp_path / "search", tmp_path / "page.html"
    words = ["capacity", plan, "--simulate", "--rates", "2,4,100", "--slo", "ttft.p50<1s", "--strict-point"]
    done = loadgen(*words, "--out", str(out), "--format", "html", "--output", str(page))
    assert done.stdout == ""
    found = json.loads((out / "capacity.json").read_text())["found"]
    text = checked(page.read_text("utf-8")).text
    assert f"{found['capacity']:g} sessions/s" in text
    assert "simulated: llama-3.1-8b on 1 × 1 h100" in text
    for each in ("01-2", "02-4", "03-100"):
        assert each in text
    again = loadgen(*words, "--out", str(out), "--resume", "--format", "html", "--quiet")
    assert again.stdout == page.read_text("utf-8")


def test_interfere(tmp_path: Path) -> None:
    out, page = tmp_path / "run", tmp_path / "page.html"
    with LocalServer(Options(chunk_tokens=0)) as server:
        words = ["--target", server.url, "--streams", "1", "--lengths", "1024,8192", "--repeats", "2", "--rest", "50ms"]
        done = loadgen("interfere", *words, "--out", str(out), "--format", "html", "--output", str(page))
    assert done.stdout == ""
    text = checked(page.read_text("utf-8")).text
    assert "Long prompts block decode" in text
    assert server.url in text
    assert "8,192 8,192" in text
    again = loadgen("interfere", "--from", str(out), "--max-freeze", "9s", "--format", "html")
    assert "Long prompts block decode: pass" in checked(again.stdout).text


def test_estimate(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = loadgen("estimate", "--gpu", "a100", "--format", "html")
    assert loadgen("estimate", "--gpu", "a100", "--timeline", "--output", str(page)).stdout.startswith("llama-3.1-8b")
    assert page.read_text("utf-8") == done.stdout
    assert "llama-3.1-8b on one a100" in checked(done.stdout).text


def test_policies(plan: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["--compare", "chunked:256,static", "--good", "ttft<9s", "--format", "json"]
    done = loadgen("simulate", plan, *words, "--html", str(page))
    text = checked(page.read_text("utf-8")).text
    assert "small under 2 policies" in text
    for each in json.loads(done.stdout)["policies"]:
        assert f"{each['policy']} " in text
        assert f" {each['goodput_rps']:.{1 if each['goodput_rps'] >= 10 else 2}f} " in text


def test_a_page_that_cannot_be_written_is_one_line(plan: str, tmp_path: Path) -> None:
    base = str(tmp_path / "base")
    loadgen("simulate", plan, "--out", base, "--quiet")
    done = loadgen("compare", base, base, "--format", "html", "--output", str(tmp_path / "no" / "where"), status=2)
    assert done.stderr == f"loadgen: --output {tmp_path / 'no' / 'where'}: No such file or directory\n"
