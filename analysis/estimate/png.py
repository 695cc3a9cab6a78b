"""The drawing of an estimate as PNG, in the light colours. Needs Pillow, which the extra `png` brings."""

from importlib import import_module
from io import BytesIO
from typing import Any

from analysis.estimate.drawing import HEIGHT, WIDTH, Label, Line, Rect, draw
from analysis.estimate.numbers import Estimate
from analysis.estimate.svg import LIGHT

_SCALE = 2
"""Pixels of the picture for each of the drawing, so that it stays sharp on dense screens."""

_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
"""Pillow's names: left, middle or right, at the base line."""


def png(estimate: Estimate) -> bytes:
    """Raises ValueError with a one-line message where Pillow is not installed."""
    try:
        image, image_draw, image_font = (import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
    except ImportError:
        raise ValueError("a PNG needs Pillow: pip install 'llm-loadgen[png]', or write .svg or .html") from None
    picture = image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), LIGHT["page"])
    canvas = image_draw.Draw(picture)
    for shape in draw(estimate):
        _paint(canvas, shape, image_font)
    out = BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _paint(canvas: Any, shape: Rect | Line | Label, fonts: Any) -> None:
    colour = LIGHT[shape.role]
    match shape:
        case Rect(x, y, width, height):
            canvas.rectangle(_scaled(x, y, x + width, y + height), fill=colour)
        case Line(x1, y1, x2, y2):
            canvas.line(_scaled(x1, y1, x2, y2), fill=colour, width=_SCALE)
        case Label(x, y, text, size, _, anchor, bold):
            font = fonts.load_default(size * _SCALE)
            weight = {"stroke_width": 1, "stroke_fill": colour} if bold else {}
            canvas.text(_scaled(x, y), text, fill=colour, font=font, anchor=_ANCHORS[anchor], **weight)


def _scaled(*values: float) -> tuple[int, ...]:
    return tuple(round(value * _SCALE) for value in values)
