"""One request drawn to scale, as a list of rectangles, lines and texts: whatever can draw those can draw it.

Coordinates are pixels from the upper left; colours are named by role, so that a page can have a light and a dark set.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from analysis.estimate.numbers import FLOOR, Estimate, Pass
from analysis.estimate.rows import replica, request
from analysis.estimate.units import count, duration, share

Role = Literal["page", "ink", "muted", "track", "prefill", "decode"]
Anchor = Literal["start", "middle", "end"]

WIDTH, HEIGHT = 960, 470
_LEFT, _RIGHT = 24, 936
_SPAN = _RIGHT - _LEFT
_TALL, _FLAT = 60, 18
"""A prefill is tall, for it takes all prompt tokens at once; a decode step takes one."""

_CLOSE_UP_SHARE = 0.55
_STEP_PX = (10.0, 60.0)
"""Least and greatest width of a decode step in the close-up."""


@dataclass(frozen=True, slots=True)
class Rect:
    x: float
    y: float
    width: float
    height: float
    role: Role


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    role: Role


@dataclass(frozen=True, slots=True)
class Label:
    """`y` is the base line."""

    x: float
    y: float
    text: str
    size: int = 13
    role: Role = "ink"
    anchor: Anchor = "start"
    bold: bool = False


Shape = Rect | Line | Label


def draw(estimate: Estimate) -> list[Shape]:
    """Shapes from back to front, inside WIDTH x HEIGHT."""
    return [
        Rect(0, 0, WIDTH, HEIGHT, "page"),
        Label(_LEFT, 30, replica(estimate), 17, bold=True),
        Label(_LEFT, 52, request(estimate)),
        Label(_LEFT, 70, _sums(estimate), role="muted"),
        *_whole(estimate, top=106),
        *_close_up(estimate, top=240),
        *_meters(estimate, top=368),
        Label(_LEFT, HEIGHT - 14, FLOOR, 11, "muted"),
    ]


def _sums(estimate: Estimate) -> str:
    itl = f"ITL {duration(estimate.itl_s)}  ·  " if estimate.itl_s else ""
    decoding = share(estimate.decode_share_of_time)
    return f"TTFT {duration(estimate.ttft_s)}  ·  {itl}E2E {duration(estimate.e2e_s)}, {decoding} of it decoding"


def _whole(estimate: Estimate, top: float) -> Iterator[Shape]:
    px_per_s = _SPAN / estimate.e2e_s
    first, base = estimate.ttft_s * px_per_s, top + _TALL
    yield Label(_LEFT, top - 12, "the whole request", 12, "muted")
    yield Rect(_LEFT, top, max(1, first), _TALL, "prefill")
    yield from _steps(_LEFT + first, base, (estimate.itl_s or 0) * px_per_s, estimate.ask.decode_steps)
    yield from _axis(estimate.e2e_s, base)


def _steps(x: float, base: float, step_px: float, steps: int) -> Iterator[Shape]:
    """One rectangle a step where they can be told apart, else one for all of them."""
    if not steps:
        return
    if step_px < 3:
        yield Rect(x, base - _FLAT, step_px * steps, _FLAT, "decode")
        return
    for i in range(steps):
        yield Rect(x + i * step_px, base - _FLAT, step_px - 1, _FLAT, "decode")


def _axis(length_s: float, base: float) -> Iterator[Shape]:
    yield Line(_LEFT, base, _RIGHT, base, "muted")
    tick_s = _nice(length_s / 8)
    for i in range(math.floor(length_s / tick_s + 1e-9) + 1):
        x = _LEFT + _SPAN * i * tick_s / length_s
        yield Line(x, base, x, base + 5, "muted")
        if x < _RIGHT - 20:
            yield Label(x, base + 19, _tick(i * tick_s, tick_s), 11, "muted", "middle" if i else "start")


def _tick(seconds: float, tick_s: float) -> str:
    scale, unit = (1, "s") if tick_s >= 0.1 else (1e-3, "ms") if tick_s >= 1e-4 else (1e-6, "µs")
    return f"{seconds / scale:g} {unit}"


def _nice(value: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def _close_up(estimate: Estimate, top: float) -> Iterator[Shape]:
    """The first token to a scale at which steps can be seen; of a much longer prefill only the end."""
    if not estimate.itl_s:
        return
    low, high = (px / estimate.itl_s for px in _STEP_PX)
    px_per_s = min(max(_CLOSE_UP_SHARE * _SPAN / estimate.ttft_s, low), high)
    full, room = estimate.ttft_s * px_per_s, _CLOSE_UP_SHARE * _SPAN
    first, base, step_px = min(full, room), top + _TALL, estimate.itl_s * px_per_s
    steps = min(estimate.ask.decode_steps, int((_SPAN - first) / step_px))
    scale = f"around the first token, {duration(step_px / px_per_s)} a step"
    yield Label(_LEFT, top - 12, scale + (" (the prefill begins further left)" if full > room else ""), 12, "muted")
    yield Rect(_LEFT, top, first, _TALL, "prefill")
    if full > room:
        yield from (Line(_LEFT + 8 * i, top + _TALL, _LEFT + 8 * i + 14, top, "page") for i in (1, 2))
    yield from _steps(_LEFT + first, base, step_px, steps)
    yield Line(_LEFT, base, _RIGHT, base, "muted")
    yield from _captions(estimate, first, base)


def _captions(estimate: Estimate, first: float, base: float) -> Iterator[Shape]:
    step = estimate.decode
    if step:
        text = f"prefill: {count(estimate.prefill.work.tokens, 'token')} in one pass"
        yield Label(_LEFT, base + 18, text, 12, "prefill", bold=True)
        text = f"decode: {count(estimate.ask.decode_steps, 'step')} of {count(step.work.tokens, 'token')}"
        yield Label(_LEFT + max(first, 260), base + 18, text, 12, "decode", bold=True)


def _meters(estimate: Estimate, top: float) -> Iterator[Shape]:
    yield Label(_LEFT, top, "share of the peak", 12, "muted")
    columns = (("compute", _LEFT + 130), ("memory bandwidth", _LEFT + 550))
    yield from (Label(x, top, name, 12, "muted") for name, x in columns)
    phases: tuple[tuple[Role, Pass | None], ...] = (("prefill", estimate.prefill), ("decode", estimate.decode))
    for row, (role, one) in enumerate((role, one) for role, one in phases if one):
        y = top + 14 + 28 * row
        yield Label(_LEFT, y + 13, role, 13, role, bold=True)
        for value, (_, x) in zip((one.compute_utilisation, one.bandwidth_utilisation), columns, strict=True):
            yield Rect(x, y, 300, 16, "track")
            yield Rect(x, y, max(1, 300 * value), 16, role)
            yield Label(x + 310, y + 13, share(value))
