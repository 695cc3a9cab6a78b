"""Streams over time: what each request was doing when, as strips of its two phases with its freezes drawn over them."""

from collections.abc import Callable, Iterator
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from analysis.page.axes import clock, written
from analysis.page.figures import canvas, label_at, rect
from analysis.page.shell import Cell, Figure, Html, Swatch, Table, absent, count, element, figure, number, seconds
from analysis.page.view import View
from analysis.quantiles import Floats, Ints

_QUESTION = "What did it look like?"
_WIDE, _LEFT, _RIGHT = 1180, 14, 16
_LANE_PX, MOST_LANES, MOST_STREAMS = 9, 64, 400
_AROUND = 120
"""About so many requests fit into the time that is drawn."""

LEGEND = (Swatch("until the first token", "prefill"), Swatch("decode", "decode"), Swatch("frozen", "freeze"))

Place = Callable[[float], float]
"""Pixels of an instant in nanoseconds, kept inside the drawing."""


class Window(NamedTuple):
    start_ns: float
    end_ns: float


def lanes(view: View) -> Html:
    run = view.run
    sent, over = run.column("sent_ns"), closed_ns(view)
    known = ~np.isnan(sent + over)
    if not known.any():
        return absent(_QUESTION, "no request was ever open")
    window = _window(view, sent[known])
    rows = np.flatnonzero(known & (over >= window.start_ns) & (sent <= window.end_ns))
    rows = rows[np.argsort(sent[rows], kind="stable")][:MOST_STREAMS]
    lane = pack(sent[rows], over[rows])
    rows, lane = rows[lane < MOST_LANES], lane[lane < MOST_LANES]
    return figure(
        Figure(
            _QUESTION,
            "Each row is a place that one stream after another takes, over time: first its prefill, then its "
            "decode; a freeze is drawn over it. Freezes that stand above one another, with a prefill running to "
            "their end, are prefill interference.",
            _draw(view, window, rows, lane),
            _data(view, rows),
            LEGEND,
            _note(view, window, len(rows), int(known.sum())),
            wide=True,
        )
    )


def closed_ns(view: View) -> Floats:
    """When each request was over: at its last token, else at its end."""
    last = view.run.column("last_token_ns")
    return np.where(np.isnan(last), view.run.column("end_ns"), last)


def pack(start: Floats, end: Floats) -> Ints:
    """The first free lane for each interval, in order of start."""
    free_at: list[float] = []
    found = np.empty(len(start), dtype=np.int64)
    for i, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = next((at for at, free in enumerate(free_at) if free <= begin), len(free_at))
        free_at[lane : lane + 1] = [until]
        found[i] = lane
    return found


def _note(view: View, window: Window, drawn: int, known: int) -> str:
    if drawn == known:
        return ""
    why = "where streams stood still longest in sum" if view.summary["stalls"]["count"] else "the middle of the run"
    span = f"{window.start_ns / 1e9:.1f} s to {window.end_ns / 1e9:.1f} s"
    return f"{drawn:,} of {known:,} requests are drawn, those open from {span}: {why}."


def _window(view: View, sent_ns: Floats) -> Window:
    """The whole run, or enough of it for a few hundred requests at most, around the freezes that cost most."""
    whole_ns = view.end_s * 1e9
    length = max(whole_ns * _AROUND / len(sent_ns), 2e9)
    if length >= whole_ns:
        return Window(0.0, whole_ns)
    start = min(max(0.0, _worst_moment(view, length) - length / 2), whole_ns - length)
    return Window(start, start + length)


def _worst_moment(view: View, length_ns: float) -> float:
    """The middle of the stretch of this length in which measured streams froze longest in sum, or of the run."""
    found, whole_ns = view.stalls.take(view.rows[view.stalls.row]), view.end_s * 1e9
    if not len(found.row):
        return whole_ns / 2
    quarter = length_ns / 4
    lost_s = np.bincount((found.start_ns // quarter).astype(np.int64), found.stalled_s, int(whole_ns // quarter) + 4)
    return float(np.argmax(np.convolve(lost_s, np.ones(4), mode="valid")) * quarter + length_ns / 2)


def _draw(view: View, window: Window, rows: Ints, lane: Ints) -> Html:
    height = _LANE_PX * (int(lane.max(initial=0)) + 1) + 8
    place = placed(window, _LEFT, _WIDE - _RIGHT)
    parts = list(_axis(window, height, place))
    for row, y in zip(rows.tolist(), (6 + _LANE_PX * lane).tolist(), strict=True):
        parts += strip(view, row, y, _LANE_PX - 2, place)
    return canvas(_WIDE, height + 42, f"{len(rows)} streams over time", parts)


def placed(window: Window, left: float, right: float) -> Place:
    scale = (right - left) / max(window.end_ns - window.start_ns, 1.0)
    return lambda at: left + (min(max(at, window.start_ns), window.end_ns) - window.start_ns) * scale


def _axis(window: Window, height: float, place: Place) -> Iterator[Html]:
    start_s, end_s = window.start_ns / 1e9, window.end_ns / 1e9
    step_s = clock(end_s - start_s).ticks()[1][0]
    for i in range(ceil(start_s / step_s - 1e-9), floor(end_s / step_s + 1e-9) + 1):
        x = place(i * step_s * 1e9)
        yield element("path", d=f"M{x:.1f},2 {x:.1f},{height}", class_="grid")
        yield label_at(x, height + 15, written(i * step_s, "clock", end_s))
    yield label_at(_WIDE / 2, height + 34, "time since the start", role="axis-label")


def strip(view: View, row: int, y: float, height: float, place: Place) -> Iterator[Html]:
    """One request: prefill, decode, and its freezes."""
    run = view.run
    sent, first, over = (
        float(each[row]) for each in (run.column("sent_ns"), run.column("first_token_ns"), closed_ns(view))
    )
    if np.isnan(sent + over):
        return
    told = _told(view, row)
    begun = over if np.isnan(first) else first
    yield rect(place(sent), y, max(place(begun) - place(sent), 0.6), height, "c-prefill", told)
    if not np.isnan(first):
        yield rect(place(first), y, place(over) - place(first), height, "c-decode", told)
    yield from _freezes(view, row, y + height * 0.15, height * 0.7, place)


def _freezes(view: View, row: int, y: float, height: float, place: Place) -> Iterator[Html]:
    """All freezes of a stream as one path: a bad run has tens of thousands."""
    mine = view.stalls.take(np.arange(*np.searchsorted(view.stalls.row, [row, row + 1])))
    spans = [(place(start), place(end)) for start, end in zip(mine.start_ns, mine.end_ns, strict=True)]
    path = "".join(f"M{a:.1f},{y:.1f}h{b - a:.1f}v{height:.1f}h{a - b:.1f}z" for a, b in spans if b > a)
    if path:
        longest = int(np.argmax(mine.end_ns - mine.start_ns))
        length_s, at_s = (mine.end_ns - mine.start_ns)[longest] / 1e9, mine.start_ns[longest] / 1e9
        told = f"{len(mine.row)} stalls, the longest of {seconds(float(length_s)).text} at {at_s:.2f} s"
        yield element("path", element("title", f"{told} · {_told(view, row)}"), d=path, class_="solid c-freeze")


def _told(view: View, row: int) -> str:
    requests = view.run.requests
    ttft_s, tokens = view.run.column("ttft_s")[row], view.run.column("output_tokens")[row]
    facts = [
        str(requests["request_id"].iloc[row]),
        str(requests["class"].iloc[row]),
        f"{view.prompt_tokens[row]:,.0f} prompt tokens" if view.prompt_tokens[row] > 0 else "",
        f"{tokens:,.0f} output tokens" if tokens > 0 else "",
        f"TTFT {seconds(float(ttft_s)).text}" if ttft_s > 0 else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _data(view: View, rows: Ints) -> Table:
    run, found = view.run, view.stalls
    sent_s, over_s = run.column("sent_ns") / 1e9, closed_ns(view) / 1e9
    frozen_s = np.bincount(found.row, found.stalled_s, len(run.requests))
    ids, classes = run.requests["request_id"], run.requests["class"]
    cells: list[list[Cell]] = [
        [
            str(ids.iloc[row]),
            str(classes.iloc[row]),
            number(float(sent_s[row])),
            seconds(_known(run.column("ttft_s")[row])),
            number(float(over_s[row])),
            count(_known(view.prompt_tokens[row])),
            seconds(float(frozen_s[row]) or None),
        ]
        for row in rows
    ]
    return Table(("request", "class", "sent (s)", "TTFT", "over (s)", "prompt tokens", "frozen"), cells)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
