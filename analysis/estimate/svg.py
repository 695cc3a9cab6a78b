"""The drawing of an estimate as an SVG document of its own, light or dark as the system is."""

from html import escape

from analysis.estimate.drawing import HEIGHT, WIDTH, Label, Line, Rect, Shape, draw
from analysis.estimate.numbers import Estimate
from analysis.estimate.rows import headline

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


def svg(estimate: Estimate) -> str:
    """A whole SVG document."""
    shapes = "\n".join(map(_element, draw(estimate)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(headline(estimate))}">\n<style>{_colours()}\n'
        f"text {{ font-family: {_FONT} }}</style>\n{shapes}\n</svg>\n"
    )


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
