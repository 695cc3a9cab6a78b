"""A forest plot: values with their intervals, one a row; of changes about a band in which nothing counts as changed."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from analysis.page.axes import Axis
from analysis.page.figures import WIDTH, Box, axis_data, canvas, label_at, rect
from analysis.page.shell import Html, element

_LEFT, _RIGHT, _TOP, _BOTTOM = 112, 132, 10, 40
_LETTER_PX = 8.8
"""About the width of a letter where the page is narrow, which makes them large."""
_ROW_PX = 19
_ARROW_PX = 6


class Change(NamedTuple):
    """A row. `ends` may be infinite; None is not known. `role` names the colour, `told` stands at the right end."""

    name: str
    value: float | None
    ends: tuple[float, float] | None
    role: str
    told: str


class Group(NamedTuple):
    """Rows under a heading; none is drawn for an empty title."""

    title: str
    rows: Sequence[Change]


def forest(axis: Axis, band: tuple[float, float] | None, groups: Sequence[Group], label: str) -> Html:
    """What lies beyond the axis is drawn as an arrow at its end; `label` is read out in place of the drawing."""
    lines: list[tuple[str, Change | None]] = []
    for group in groups:
        lines += [(group.title, None)] * bool(group.title) + [(group.title, row) for row in group.rows]
    bottom = _TOP + _ROW_PX * len(lines)
    box = Box(_LEFT, _TOP, WIDTH - _RIGHT, bottom)
    parts = [*_ground(box, axis, band)]
    for i, (title, change) in enumerate(lines):
        y = _TOP + _ROW_PX * (i + 0.5)
        heading = label_at(4, y + 4, title, "start", "group")
        parts.append(heading if change is None else _row(box, axis, title, change, y))
    return canvas(WIDTH, bottom + _BOTTOM, label, parts, data_x=axis_data(axis, box.left, box.right))


def _ground(box: Box, axis: Axis, band: tuple[float, float] | None) -> Iterator[Html]:
    """The band, the grid with its labels, and the line of no change."""
    if band is not None:
        start, end = box.x(axis, band)
        yield rect(start, box.top, end - start, box.bottom - box.top, "band", "within the tolerance")
    ticks, free = axis.ticks(), 0.0
    for at, (_, words) in zip(box.x(axis, [value for value, _ in ticks]), ticks, strict=True):
        yield _line(at, box.top, at, box.bottom, "axis" if words == "0" and band else "grid")
        half = _LETTER_PX * len(words) / 2
        if at - half >= free:
            yield label_at(at, box.bottom + 15, words)
            free = at + half + 8
    yield label_at((box.left + box.right) / 2, box.bottom + 33, axis.label, role="axis-label")


def _row(box: Box, axis: Axis, group: str, change: Change, y: float) -> Html:
    colour = f"c-{change.role}"
    marks = [*_interval(box, axis, change, y, colour)]
    if change.value is not None and math.isfinite(change.value):
        x = round(float(box.x(axis, [change.value])[0]), 1)
        marks.append(element("circle", cx=x, cy=round(y, 1), r=3.6, class_=f"solid {colour}"))
    return element(
        "g",
        *marks,
        label_at(box.left - 8, y + 4, change.name, "end"),
        label_at(box.right + 8, y + 4, change.told, "start", f"told {colour}"),
        data_name=f"{group} {change.name}: {change.told}".strip(),
        data_at=_stops(box, axis, change, y),
    )


def _stops(box: Box, axis: Axis, change: Change, y: float) -> str:
    """Where the page's script stops in a row, with the value there: its low end, its value, its high end."""
    low, high = change.ends or (None, None)
    known = [each for each in (low, change.value, high) if each is not None and math.isfinite(each)]
    places = box.x(axis, known)
    return " ".join(f"{x:.1f},{y:.1f},{value:.6g}" for x, value in zip(places, known, strict=True))


def _interval(box: Box, axis: Axis, change: Change, y: float, colour: str) -> Iterator[Html]:
    """From end to end, with an arrow where an end lies beyond the axis."""
    if change.ends is None:
        return
    low, high = change.ends
    left, right = box.x(axis, [low, high])
    yield _line(left, y, right, y, f"line {colour}")
    for beyond, at, inward in ((low < axis.low, left, 1), (high > axis.high, right, -1)):
        if beyond:
            back = at + inward * _ARROW_PX
            yield element("path", d=f"M{back:.1f},{y - 4:.1f} {at:.1f},{y:.1f} {back:.1f},{y + 4:.1f}",
                          class_=f"line {colour}")  # fmt: skip


def _line(x1: float, y1: float, x2: float, y2: float, role: str) -> Html:
    return element("path", d=f"M{x1:.1f},{y1:.1f} {x2:.1f},{y2:.1f}", class_=role)
