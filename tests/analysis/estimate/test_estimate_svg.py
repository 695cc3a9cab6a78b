import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from analysis.estimate import png
from analysis.estimate.drawing import HEIGHT, WIDTH, Label, Line, Rect, draw
from analysis.estimate.svg import DARK, LIGHT, svg
from tests.analysis.estimate.test_estimate_text import CHAT, asks, made

SVG = "{http://www.w3.org/2000/svg}"


def rects(shapes, role):
    return [shape for shape in shapes if isinstance(shape, Rect) and shape.role == role]


def test_the_whole_request_and_the_close_up_are_to_scale():
    whole, close, *_ = rects(draw(CHAT), "prefill")
    train, *steps = [rect for rect in rects(draw(CHAT), "decode") if rect.height == 18]
    assert whole.width / train.width == pytest.approx(CHAT.ttft_s / CHAT.decode_s)
    assert close.width / (steps[0].width + 1) == pytest.approx(CHAT.ttft_s / CHAT.itl_s)
    assert {rect.width for rect in steps} == {steps[0].width}
    assert whole.height > 3 * train.height  # many tokens at once, then one at a time


def test_a_prefill_that_is_cut_off_says_so():
    texts = [shape.text for shape in draw(made(32_000, 20)) if isinstance(shape, Label)]
    assert "around the first token, 7.56 ms a step (the prefill begins further left)" in texts
    assert not [shape.text for shape in draw(CHAT) if isinstance(shape, Label) and "further left" in shape.text]


def test_meters_are_as_long_as_the_shares():
    tracks = rects(draw(CHAT), "track")
    assert len(tracks) == 4
    filled = [
        rect.width / 300 for rect in draw(CHAT) if isinstance(rect, Rect) and rect.height == 16 and rect.role != "track"
    ]
    prefill, decode = CHAT.prefill, CHAT.decode
    assert filled == pytest.approx(
        [prefill.compute_utilisation, prefill.bandwidth_utilisation, max(decode.compute_utilisation, 1 / 300), 0.8]
    )


@settings(deadline=None, max_examples=60)
@given(asks)
def test_everything_lies_inside_the_picture(estimate):
    for shape in draw(estimate):
        match shape:
            case Rect(x, y, width, height):
                assert (x >= 0, y >= 0, width > 0) == (True, True, True)
                assert x + width <= WIDTH + 1e-6
                assert y + height <= HEIGHT
            case Line(x1, y1, x2, y2):
                assert 0 <= min(x1, x2) <= max(x1, x2) <= WIDTH
                assert 0 <= min(y1, y2) <= max(y1, y2) <= HEIGHT
            case Label(x, y, text, size, _, _, bold):
                assert x + len(text) * size * (0.62 if bold else 0.58) <= WIDTH + 20
                assert y <= HEIGHT
    assert len(draw(estimate)) < 1000


def test_the_svg_has_a_shape_for_each_of_the_drawing():
    root = ElementTree.fromstring(svg(CHAT))
    kinds = {Rect: "rect", Line: "line", Label: "text"}
    assert [each.tag.removeprefix(SVG) for each in root][1:] == [kinds[type(shape)] for shape in draw(CHAT)]
    texts = [each.text for each in root]
    assert {"llama-3.1-8b on one h100", "4,000 prompt tokens, 500 output tokens"} <= set(texts)


def test_names_are_escaped():
    name = "<b>&\"x'"
    estimate = made()
    object.__setattr__(estimate.roofline.model, "name", name)
    assert ElementTree.fromstring(svg(estimate)).get("aria-label").startswith(name)
    assert "<b>" not in svg(estimate)


def test_the_svg_knows_light_and_dark():
    document = svg(CHAT)
    assert "prefers-color-scheme: dark" in document
    assert all(colour in document for colours in (LIGHT, DARK) for colour in colours.values())
    assert LIGHT.keys() == DARK.keys()


def test_without_pillow_a_png_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        ValueError, match=r"^a PNG needs Pillow: pip install 'llm-loadgen\[png\]', or write \.svg or \.html$"
    ):
        png.png(CHAT)


class Canvas:
    """Keeps what Pillow's ImageDraw would have been asked for."""

    def __init__(self):
        self.asked = []

    def rectangle(self, corners, fill):
        self.asked.append(("rectangle", corners, fill))

    def line(self, ends, fill, width):
        self.asked.append(("line", ends, fill, width))

    def text(self, at, text, fill, font, anchor, **weight):
        self.asked.append(("text", at, text, fill, font, anchor, weight))


class Fonts:
    load_default = staticmethod(lambda size: size)


@pytest.mark.parametrize(
    ("shape", "asked"),
    [
        (Rect(1, 2, 10.4, 5, "track"), ("rectangle", (2, 4, 23, 14), LIGHT["track"])),
        (Line(1, 2, 3, 4, "ink"), ("line", (2, 4, 6, 8), LIGHT["ink"], 2)),
        (Label(1, 2, "t", 13, "muted", "end"), ("text", (2, 4), "t", LIGHT["muted"], 26, "rs", {})),
        (
            Label(1, 2, "t", 15, bold=True),
            ("text", (2, 4), "t", LIGHT["ink"], 30, "ls", {"stroke_width": 1, "stroke_fill": LIGHT["ink"]}),
        ),
    ],
)
def test_a_png_paints_the_same_shapes_at_twice_the_size(shape, asked):
    canvas = Canvas()
    png._paint(canvas, shape, Fonts)
    assert canvas.asked == [asked]
