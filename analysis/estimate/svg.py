"""The drawing of an estimate as SVG, and the page around it: self-contained, light or dark as the system is."""

from collections.abc import Iterable
from html import escape

from analysis.estimate.drawing import HEIGHT, WIDTH, Label, Line, Rect, Shape, draw
from analysis.estimate.numbers import Estimate
from analysis.estimate.rows import assumption_lines, fact_rows, headline, phase_rows, what_if_rows
from analysis.estimate.words import explain

LIGHT = {
    "page": "#ffffff",
    "ink": "#1c2128",
    "muted": "#5d6773",
    "track": "#e6e9ed",
    "prefill": "#c2570c",
    "decode": "#0b6fa4",
}
DARK = {
    "page": "#15191e",
    "ink": "#e8ebee",
    "muted": "#9aa5b1",
    "track": "#2c333b",
    "prefill": "#f59449",
    "decode": "#54b3e6",
}

_FONT = "ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
_PAGE_STYLE = f"""
body {{ margin: 2rem auto; max-width: {WIDTH}px; padding: 0 1rem; font: 15px/1.5 {_FONT};
        background: var(--page); color: var(--ink) }}
h2 {{ font-size: 1.1rem; margin-top: 2rem }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse; margin: 0.5rem 0; display: block; overflow-x: auto }}
th, td {{ padding: 0.15rem 1.5rem 0.15rem 0; text-align: right; white-space: pre }}
th:first-child, td:first-child, table.facts td:last-child {{ text-align: left }}
th {{ color: var(--muted) }} li {{ color: var(--muted) }}
"""


def svg(estimate: Estimate) -> str:
    """A whole SVG document."""
    shapes = "\n".join(map(_element, draw(estimate)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(headline(estimate))}">\n<style>{_colours()}\n'
        f"text {{ font-family: {_FONT} }}</style>\n{shapes}\n</svg>\n"
    )


def html(estimate: Estimate) -> str:
    """A whole HTML page that loads nothing: the drawing, the tables, what they mean, and what they rest on."""
    title = escape(headline(estimate))
    phases = _table(phase_rows(estimate), ("", "prefill", "a decode step"))
    words = "\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in explain(estimate))
    assumed = "\n".join(f"<li>{escape(line)}</li>" for line in assumption_lines(estimate))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_colours()}{_PAGE_STYLE}</style>
</head>
<body>
{svg(estimate)}
<h2>Prefill and decode</h2>
{phases}
{_table(fact_rows(estimate), (), "facts")}
<h2>What it means</h2>
{words}
{_table(what_if_rows(estimate), ("what if", "TTFT", "ITL", "E2E"))}
<h2>Assumed</h2>
<ul>
{assumed}
</ul>
</body>
</html>
"""


def _table(rows: Iterable[tuple[str, ...]], headings: tuple[str, ...], kind: str = "") -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="{kind}">\n' + (f"<tr>{head}</tr>\n" if head else "") + f"{body}\n</table>"


def _colours() -> str:
    """Variables for both schemes, and a class a role."""
    light, dark = (" ".join(f"--{role}: {colour};" for role, colour in each.items()) for each in (LIGHT, DARK))
    fills = " ".join(f".{role} {{ fill: var(--{role}) }} line.{role} {{ stroke: var(--{role}) }}" for role in LIGHT)
    night = f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    return f":root {{ color-scheme: light dark; {light} }}\n{night}\n{fills}"


def _element(shape: Shape) -> str:
    match shape:
        case Rect(x, y, width, height, role):
            return f'<rect class="{role}" x="{x:.6g}" y="{y:.6g}" width="{width:.6g}" height="{height:.6g}"/>'
        case Line(x1, y1, x2, y2, role):
            return f'<line class="{role}" x1="{x1:.6g}" y1="{y1:.6g}" x2="{x2:.6g}" y2="{y2:.6g}"/>'
        case Label(x, y, text, size, role, anchor, bold):
            weight = ' font-weight="600"' if bold else ""
            return (
                f'<text class="{role}" x="{x:.6g}" y="{y:.6g}" font-size="{size}" text-anchor="{anchor}"{weight}>'
                f"{escape(text)}</text>"
            )
