"""A page that is one file: sections of text, tables and figures in a common shell, which loads nothing from anywhere.

Markup is made by `element` alone. Whatever is not `Html` already is escaped by it, so that text of servers and files
stays text; a mistake shows as visible markup and never runs.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import NamedTuple

from analysis.report import wording

_LONG = 40
"""Letters from which on the text of a cell may take several lines."""
_UNSEEN = (*range(9), 11, 12, *range(14, 32), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
_SHOWN = dict.fromkeys(_UNSEEN, "\ufffd")
"""Control characters and halves of characters, which no document may hold, become the sign for an unknown one."""
_VOID = frozenset({"meta", "br", "col"})


class Html(str):
    """Markup in which everything that came from outside is escaped."""

    __slots__ = ()


class Number(NamedTuple):
    """A cell that is shown as text and sorted by its value; None sorts last."""

    text: str
    value: float | None


Cell = str | Number
Attribute = str | float | bool | None


def element(name: str, /, *content: str | None, **attributes: Attribute) -> Html:
    """An element of HTML or SVG: `class_` stands for class, `aria_label` for aria-label; None and False leave one out.

    Content that is not `Html` is escaped; None is left out.
    """
    told = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Html(f"<{name}{told}>")
    inner = "".join(part if isinstance(part, Html) else _text(part) for part in content if part is not None)
    return Html(f"<{name}{told}>{inner}</{name}>")


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return f' {name}=""' if value else ""
    return f' {name}="{_text(value if isinstance(value, str) else f"{value:.6g}")}"'


def _text(words: str) -> str:
    return escape(words.translate(_SHOWN))


def joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


@dataclass(frozen=True)
class Table:
    """Rows under headings; the reader may sort it by any column unless told otherwise."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    sortable: bool = True


class Swatch(NamedTuple):
    """An entry of a legend; `role` names its colour, `kind` what it looks like."""

    name: str
    role: str
    kind: str = "fill"


@dataclass(frozen=True)
class Figure:
    """A drawing that answers a question.

    Attributes:
        question: The heading.
        answer: How to read it, and what follows.
        drawing: An <svg>.
        data: The numbers behind it, for those who cannot see it or want to copy them.
        note: What the drawing leaves out, if anything.
    """

    question: str
    answer: str
    drawing: Html
    data: Table
    legend: Sequence[Swatch] = ()
    note: str = ""
    wide: bool = False


class Section(NamedTuple):
    """A part of a page with an entry in its contents; `key` is its anchor."""

    key: str
    title: str
    body: Sequence[Html]


def page(title: str, sections: Sequence[Section], head: Sequence[Html] = ()) -> str:
    """A whole document.

    Args:
        title: The heading and the name of the window.
        sections: In order; each gets a link in the contents.
        head: What stands between the heading and the contents.
    """
    script, style = asset("page.js"), asset("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    links = [element("a", each.title, href=f"#{each.key}") for each in sections]
    document = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", title),
            element("style", Html(style)),
        ),
        element(
            "body",
            element("a", "Skip to the report", href="#main", class_="skip"),
            element("header", element("h1", title), *head, _toggle()),
            element("nav", *links, aria_label="Contents"),
            element("main", *map(_section, sections), id="main", tabindex="-1"),
            element("script", Html(script)),
        ),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


@cache
def asset(name: str) -> str:
    return files("analysis.page").joinpath("assets", name).read_text(encoding="utf-8")


def _toggle() -> Html:
    return element("button", "Theme: system", type="button", id="theme", hidden=True)


def _section(section: Section) -> Html:
    return element("section", element("h2", section.title), *section.body, id=section.key)


def text(*sentences: str, role: str | None = None) -> Html:
    return element("p", " ".join(sentences), class_=role)


def absent(question: str, why: str) -> Html:
    """What stands in place of a figure without data."""
    return element("p", element("b", question), f" Not drawn: {why}.", class_="absent")


def tiles(told: Iterable[tuple[str, str, str]]) -> Html:
    """A few numbers at a glance; each with the role of its colour, as shown, and what it is of."""
    entries = [
        element("li", element("b", value), element("span", label), class_=f"c-{role}") for role, value, label in told
    ]
    return element("ul", *entries, class_="tiles")


def columns(*content: Html) -> Html:
    """In two columns where there is room, row by row."""
    return element("div", *content, class_="columns")


def facing(left: Sequence[Html], right: Sequence[Html]) -> Html:
    """Two columns whose rows face each other; where there is no room for both, all of the left one comes first."""
    rows = max(len(left), len(right))
    filled = [Html("<div></div>")] * (rows - len(left))
    return element("div", *left, *filled, *right, class_="columns facing", style=f"--rows: {rows}")


def table(what: Table, label: str) -> Html:
    """`label` names the table for those who cannot see where it stands."""
    first = what.rows[0] if what.rows else ()
    kinds = ["n" if isinstance(cell, Number) else None for cell in first] or [None] * len(what.headings)
    head = element(
        "tr", *(element("th", name, scope="col", class_=kind) for name, kind in zip(what.headings, kinds, strict=True))
    )
    body = [element("tr", *map(_cell, row)) for row in what.rows]
    caption = element("caption", what.caption) if what.caption else None
    drawn = element(
        "table",
        caption,
        element("thead", head),
        element("tbody", *body),
        class_="sortable" if what.sortable and len(body) > 1 else None,
    )
    return element("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=label)


def _cell(cell: Cell) -> Html:
    if not isinstance(cell, Number):
        return element("td", cell, class_="long" if len(cell) > _LONG and not isinstance(cell, Html) else None)
    return element("td", cell.text, class_="n", data_v="" if cell.value is None else f"{cell.value:.9g}")


def figure(what: Figure) -> Html:
    data = [element("summary", "Data"), table(what.data, f"Data: {what.question}")]
    return element(
        "figure",
        element("figcaption", element("b", what.question), f" {what.answer}"),
        _legend(what.legend),
        element("div", what.drawing, class_="drawing"),
        text(what.note, role="note") if what.note else None,
        element("details", *data),
        class_="wide" if what.wide else None,
        tabindex="0",
        aria_label=what.question,
    )


def _legend(swatches: Sequence[Swatch]) -> Html | None:
    entries = [element("li", element("i", class_=f"{each.kind} c-{each.role}"), each.name) for each in swatches]
    return element("ul", *entries, class_="legend") if entries else None


def number(value: float | None) -> Number:
    return Number(wording.number(value), value)


def count(value: float | None) -> Number:
    return Number("–" if value is None else f"{value:,.0f}", value)


def seconds(value: float | None) -> Number:
    return Number("–" if value is None else wording.seconds(value), value)


def share(value: float | None) -> Number:
    return Number("–" if value is None else f"{100 * value:.4g}%", value)
