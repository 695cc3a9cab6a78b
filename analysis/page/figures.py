"""Drawings: numbers in, an <svg> out. Pure; a handful of marks, axes, and nothing that knows what is drawn.

Colours are named by role (`c-prefill`, `c-decode`, `c-class0`, …) and belong to the page's style. Paths are written as
pairs `x,y` of pixels: the page's script reads them back through the axes to tell the values under the pointer, so that
no number is stored twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.page.axes import Axis
from analysis.page.shell import Html, element
from analysis.quantiles import Bools, Floats

WIDTH, HEIGHT = 480, 270
MOST_POINTS = 2500
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 26, 40
_LETTER_PX = 6.4
"""About the width of a letter in a drawing."""
_WIDE_LETTER_PX = 9.5
"""The same where the page is narrow, which makes letters large."""
_LINE_PX = 13
"""Names whose lines are so far apart do not cover each other."""


@dataclass(frozen=True)
class Line:
    """A line through points, broken at NaN; `step` holds each value up to the next x."""

    name: str
    role: str
    x: Floats
    y: Floats
    step: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Points:
    """`large` ones are for a few that are looked at one by one."""

    name: str
    role: str
    x: Floats
    y: Floats
    large: bool = False


@dataclass(frozen=True)
class Bars:
    """Bars between neighbouring `edges` from `base` (the axis where None) up to `top`."""

    name: str
    role: str
    edges: Floats
    top: Floats
    base: Floats | None = None


@dataclass(frozen=True)
class Limit:
    """A line across the drawing at a value of the x axis (or y)."""

    name: str
    value: float
    role: str = "limit"
    across: bool = False


@dataclass(frozen=True)
class Band:
    """A stretch of the x axis that is not like the others."""

    name: str
    low: float
    high: float


Mark = Line | Points | Bars


class Box(NamedTuple):
    """The inner part of a drawing, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def x(self, axis: Axis, values: "Floats | Sequence[float]") -> Floats:
        return np.asarray(self.left + (self.right - self.left) * axis.place(values))

    def y(self, axis: Axis, values: "Floats | Sequence[float]") -> Floats:
        return np.asarray(self.bottom - (self.bottom - self.top) * axis.place(values))


def draw(
    x: Axis, y: Axis, marks: Iterable[Mark], limits: Sequence[Limit] = (), bands: Sequence[Band] = (), label: str = ""
) -> Html:
    """Marks over two axes; `label` is read out in place of the drawing.

    Limits beyond the axes are left out: widen an axis with the limit's value to show it.
    """
    shown = [each for each in limits if _on(y if each.across else x, each.value)]
    upright = sorted((each for each in shown if not each.across), key=lambda each: each.value)
    rows = _label_rows(x, upright)
    box = Box(_LEFT, _TOP + _LINE_PX * (max(rows, default=-1) + 1), WIDTH - _RIGHT, HEIGHT - _BOTTOM)
    levels = _levels(box, y, [each for each in shown if each.across])
    parts = [
        *_bands(box, x, bands, [each.y for each in levels]),
        *_x_axis(box, x),
        *_y_axis(box, y),
        *(_mark(box, x, y, mark) for mark in marks),
        *(_upright(box, x, each, row) for each, row in zip(upright, rows, strict=True)),
        *(_across(box, each) for each in levels),
    ]
    return canvas(
        WIDTH, HEIGHT, label, parts, data_x=axis_data(x, box.left, box.right), data_y=axis_data(y, box.bottom, box.top)
    )


def canvas(width: float, height: float, label: str, parts: Iterable[Html], **data: str) -> Html:
    return element("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, **data)


def thinned(y: Floats, most: int = MOST_POINTS) -> Bools:
    """Mask of the points to draw: the highest hundredth, and of the others every k-th."""
    kept = np.zeros(len(y), dtype=bool)
    if len(y) <= most:
        return ~kept
    kept[:: -(-len(y) // (most - most // 10))] = True
    kept[np.argsort(y, kind="stable")[-max(1, min(len(y) // 100, most // 10)) :]] = True
    return kept


def label_at(x: float, y: float, words: str, anchor: str = "middle", role: str = "tick") -> Html:
    return element("text", words, x=round(x, 1), y=round(y, 1), text_anchor=anchor, class_=role)


def rect(x: float, y: float, width: float, height: float, role: str, told: str | None = None) -> Html:
    """A filled rectangle; `told` is shown under the pointer."""
    title = element("title", told) if told else None
    place = {"x": round(x, 1), "y": round(y, 1), "width": round(max(width, 0), 1), "height": round(height, 1)}
    return element("rect", title, class_=role, **place)


def axis_data(axis: Axis, start: float, end: float) -> str:
    """What the page's script needs to turn pixels into values."""
    return f"{axis.scale} {axis.unit} {axis.low:.9g} {axis.high:.9g} {start:g} {end:g} {axis.label}"


def _on(axis: Axis, value: float) -> bool:
    return axis.low <= value <= axis.high


def _x_axis(box: Box, axis: Axis) -> Iterator[Html]:
    ticks = axis.ticks()
    for at, (_, words) in zip(box.x(axis, [value for value, _ in ticks]), ticks, strict=True):
        yield _segment(at, box.top, at, box.bottom, "grid")
        yield label_at(at, box.bottom + 17, words, _anchor(at, words))
    yield _segment(box.left, box.bottom, box.right, box.bottom, "axis")
    yield label_at((box.left + box.right) / 2, box.bottom + 34, axis.label, role="axis-label")


def _anchor(at: float, words: str) -> str:
    return "end" if at + len(words) * _LETTER_PX / 2 > WIDTH else "middle"


def _y_axis(box: Box, axis: Axis) -> Iterator[Html]:
    ticks = axis.ticks()
    for at, (_, words) in zip(box.y(axis, [value for value, _ in ticks]), ticks, strict=True):
        yield _segment(box.left, at, box.right, at, "grid")
        yield label_at(box.left - 6, at + 4, words, "end")
    yield label_at(4, 13, axis.label, "start", "axis-label")


def _segment(x1: float, y1: float, x2: float, y2: float, role: str) -> Html:
    return element("path", d=f"M{x1:.1f},{y1:.1f} {x2:.1f},{y2:.1f}", class_=role)


def _bands(box: Box, axis: Axis, bands: Sequence[Band], taken: Sequence[float]) -> Iterator[Html]:
    """All names stand on the first line that no other name has `taken`."""
    lines = [box.top + 12 + _LINE_PX * i for i in range(4)]
    y = next((line for line in lines if all(abs(line - each) >= _LINE_PX for each in taken)), lines[0])
    for band in bands:
        start, end = box.x(axis, [band.low, band.high])
        yield rect(start, box.top, end - start, box.bottom - box.top, "band", band.name)
        if end - start > len(band.name) * _LETTER_PX:
            half = len(band.name) * _WIDE_LETTER_PX / 2
            yield label_at(min(max((start + end) / 2, box.left + half), box.right - half), y, band.name)


def _mark(box: Box, x: Axis, y: Axis, mark: Mark) -> Html:
    if isinstance(mark, Bars):
        return _bars(box, x, y, mark)
    known = np.isfinite(mark.x) & np.isfinite(mark.y)
    if isinstance(mark, Points):
        places = np.stack([box.x(x, mark.x[known]), box.y(y, mark.y[known])], axis=1).round(1)
        path = "".join(f"M{a:g},{b:g}h0" for a, b in np.unique(places, axis=0))
        style = f"points {'large ' if mark.large else ''}c-{mark.role}"
        return element("path", d=path, class_=style, data_name=mark.name)
    path = _path(box.x(x, np.nan_to_num(mark.x)), box.y(y, np.nan_to_num(mark.y)), known, mark.step)
    style = f"line c-{mark.role}" + (" dashed" if mark.dashed else "")
    return element("path", d=path, class_=style, data_name=mark.name)


def _path(x: Floats, y: Floats, known: Bools, step: bool) -> str:
    words, pen_up = [], True
    for i in np.flatnonzero(known):
        if step and not pen_up:
            words.append(f"H{x[i]:.1f}")
        words.append(f"M{x[i]:.1f},{y[i]:.1f}h0" if pen_up else f"L{x[i]:.1f},{y[i]:.1f}")
        pen_up = i + 1 == len(x) or not known[i + 1]
    return "".join(words)


def _bars(box: Box, x: Axis, y: Axis, bars: Bars) -> Html:
    base = np.full(len(bars.top), y.low) if bars.base is None else bars.base
    edges, top, low = box.x(x, bars.edges), box.y(y, bars.top), box.y(y, base)
    tall = np.flatnonzero((bars.top > base) & np.isfinite(bars.top))
    path = "".join(f"M{edges[i]:.1f},{low[i]:.1f}V{top[i]:.1f}H{edges[i + 1]:.1f}V{low[i]:.1f}z" for i in tall)
    value = bars.top - (0 if bars.base is None else bars.base)
    at = " ".join(f"{(edges[i] + edges[i + 1]) / 2:.1f},{top[i]:.1f},{value[i]:.4g}" for i in tall)
    return element("path", d=path, class_=f"bars c-{bars.role}", data_name=bars.name, data_at=at)


def _label_rows(axis: Axis, limits: Sequence[Limit]) -> list[int]:
    """The line of text on which each name stands, so that none covers another."""
    box = Box(_LEFT, 0, WIDTH - _RIGHT, 1)
    ends: list[float] = []
    rows: list[int] = []
    for each in limits:
        start, end = _reach(float(box.x(axis, [each.value])[0]), each.name)
        row = next((i for i, taken in enumerate(ends) if start > taken), len(ends))
        ends[row : row + 1] = [end]
        rows.append(row)
    return rows


def _reach(at: float, name: str) -> tuple[float, float]:
    """Where a name above a line begins and ends: to its right where there is room."""
    width = len(name) * _LETTER_PX + 8
    return (at, at + width) if at + width <= WIDTH else (at - width, at)


def _upright(box: Box, axis: Axis, limit: Limit, row: int) -> Html:
    at = float(box.x(axis, [limit.value])[0])
    y = _TOP + _LINE_PX * row + 8
    side, anchor = (4, "start") if _reach(at, limit.name)[0] == at else (-4, "end")
    line = _segment(at, y - 8, at, box.bottom, f"limit c-{limit.role}")
    return element("g", line, label_at(at + side, y, limit.name, anchor, f"limit-name c-{limit.role}"))


class _Level(NamedTuple):
    """A limit across the drawing: the height of its line, and the line of text and the end at which its name stands."""

    limit: Limit
    at: float
    y: float
    right: bool


def _levels(box: Box, axis: Axis, limits: Sequence[Limit]) -> list[_Level]:
    """Names stand above their lines at the right end, where that is taken at the left one, else below."""
    found: list[_Level] = []
    for each in sorted(limits, key=lambda each: each.value):
        at = float(box.y(axis, [each.value])[0])
        places = [_Level(each, at, y, right) for y in (at - 4, at + 12) for right in (True, False)]
        found.append(next((place for place in places if not any(_cover(place, other) for other in found)), places[0]))
    return found


def _cover(one: _Level, other: _Level) -> bool:
    return one.right == other.right and abs(one.y - other.y) < _LINE_PX


def _across(box: Box, level: _Level) -> Html:
    role = level.limit.role
    x, anchor = (box.right - 4, "end") if level.right else (box.left + 4, "start")
    name = label_at(x, level.y, level.limit.name, anchor, f"limit-name c-{role}")
    return element("g", _segment(box.left, level.at, box.right, level.at, f"limit c-{role}"), name)
