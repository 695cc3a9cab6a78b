"""Every command that README and docs print is one that the command line takes, and every page they link to is there."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from loadgen.cli import app
from loadgen.commands import FORMATS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[str]:
    """`loadgen …` as a line of its own, in a code block or behind `run:` and `script:`, or in backquotes."""
    found: dict[str, None] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("…", "").replace("\\\n", " ")
        lines = re.findall(r"^(?:\s{4,}|- run: |\s+run: |\s+script: |\$ )\$? ?(loadgen .+)$", text, re.MULTILINE)
        inline = [each for each in re.findall(r"`(loadgen [a-z]+[^`]*)`", text) if "\n" not in each]
        for line in (*lines, *inline):
            found[re.split(r"\s(?:#|>|>>|\|)\s?", line)[0].strip()] = None
    return list(found)


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 25
    assert any("loadgen stalls run" in each for each in commands())


@pytest.mark.parametrize("line", commands())
def test_the_command_line_takes_it(line: str) -> None:
    _, name, *words = shlex.split(line.replace('"$URL"', "http://127.0.0.1:9"))
    command = typer.main.get_command(app)
    sub = command.get_command(None, name)  # type: ignore[attr-defined,arg-type]
    assert sub is not None, f"no command {name!r}"
    shown = [word for word in words if word not in ("DIR", "FILE", "RUN", "WORKLOAD")]
    if len(words) <= 1 and (not words or words[0].startswith("--")):
        return  # the command alone, or with a flag it is known for: named in a sentence
    context = sub.make_context(name, shown if len(shown) == len(words) else list(words), resilient_parsing=False)
    kind = context.params.get("format_")
    assert kind is None or kind in FORMATS[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_command_has_an_example_in_its_help() -> None:
    command = typer.main.get_command(app)
    for name in command.commands:  # type: ignore[attr-defined]
        text = CliRunner().invoke(app, [name, "--help"]).output
        assert "Example: loadgen" in " ".join(text.split()), name
