"""A comparison for people: as text for a terminal, and as Markdown for a pull request."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.compare.numbers import WIDE
from analysis.compare.words import change, ends, values
from analysis.limits import ALL
from analysis.report.markdown import cell, head, row
from analysis.report.terminal import as_text
from analysis.report.wording import limit_name, percent

Part = Mapping[str, Any]
_COLOURS = {"better": "green", "same": "green", "worse": "red", "unclear": "yellow"}
_HEADINGS = ["metric", "class", "base", "candidate", "change", "95% interval", "verdict"]


def render(comparison: Part, width: int = 100, color: bool = False) -> str:
    """The whole comparison, ending in a line break."""
    return as_text(_sections(comparison), width, color)


def markdown(comparison: Part) -> str:
    """The whole comparison, ending in a line break."""
    return "\n".join(_lines(comparison)) + "\n"


def _sections(comparison: Part) -> Iterator[RenderableType]:
    verdict = comparison["verdict"]
    yield Text(f"{_title(comparison)}: {verdict}", style=f"bold {_COLOURS[verdict]}")
    for name in ("base", "candidate"):
        yield _line(_side(name, comparison["sides"][name]))
    for title, decides in (("These decide", True), ("Also measured", False)):
        metrics = [each for each in comparison["metrics"] if each["decides"] == decides]
        if metrics:
            yield Padding(Text(title, style="bold"), (1, 0, 0, 0))
            yield Padding(_table(metrics), (0, 0, 0, 2))
            told = (each for each in metrics if decides and each["reason"] not in (None, WIDE))
            yield from (_line(f"{_named(each)}: {each['reason']}") for each in told)
    if comparison["warnings"]:
        yield Padding(Text("Warnings", style="bold yellow"), (1, 0, 0, 0))
        yield from (_line(f"{each['code']}: {each['text']}") for each in comparison["warnings"])


def _table(metrics: list[Part]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in _HEADINGS:
        left = heading in ("metric", "class", "verdict")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for each in metrics:
        *cells, verdict = _cells(each)
        table.add_row(*cells, Text(verdict, style=_COLOURS[verdict]))
    return table


def _lines(comparison: Part) -> Iterator[str]:
    yield f"## loadgen compare: {comparison['verdict']}"
    yield ""
    for name in ("base", "candidate"):
        yield f"- {cell(_side(name, comparison['sides'][name]))}"
    yield ""
    yield from head([*_HEADINGS, "reason"], left=(0, 1, 6, 7))
    for each in comparison["metrics"]:
        *cells, verdict = _cells(each)
        shown = f"**{verdict}**" if verdict == "worse" and each["decides"] else verdict
        yield row([*cells, shown if each["decides"] else f"{verdict} (informs)", each["reason"] or ""])
    for warning in comparison["warnings"]:
        yield f"- warning `{cell(warning['code'])}`: {cell(warning['text'])}"


def _title(comparison: Part) -> str:
    return f"candidate against base, {percent(comparison['tolerance'])}% tolerance"


def _side(name: str, side: Part) -> str:
    runs = ", ".join(side["runs"])
    return f"{name} {runs}: {side['ok']:,} of {side['requests']:,} requests ok, {side['model'] or 'unknown model'}"


def _cells(each: Part) -> list[str]:
    return [limit_name(each), each["class"], *values(each), change(each), ends(each), each["verdict"]]


def _named(each: Part) -> str:
    return limit_name(each) + ("" if each["class"] == ALL else f" ({each['class']})")


def _line(text: str) -> RenderableType:
    return Padding(Text(text), (0, 0, 0, 2))
