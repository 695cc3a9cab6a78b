"""Figures of stalls: which streams froze, for how long, and on whose account."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.page.axes import linear, spanning
from analysis.page.figures import Points, canvas, draw, label_at
from analysis.page.lanes import lanes
from analysis.page.shell import (
    Cell,
    Figure,
    Html,
    Table,
    absent,
    columns,
    count,
    element,
    figure,
    number,
    seconds,
    table,
    text,
)
from analysis.page.view import View
from analysis.quantiles import Floats
from analysis.report.wording import number as plain
from analysis.stalls.frozen import settings
from analysis.stalls.remedies import remedies

_HURTS = "Who hurts whom?"
_LENGTH = "Does a freeze last as long as the prompt that caused it?"
_EPISODES = 20


def stalls(view: View) -> list[Html]:
    """Of the measured requests; the drawing shows the others as well."""
    totals = view.summary["stalls"]
    if totals["share_of_requests"] is None:
        unseen = view.summary["undefined"].get("gap_s") or "no answer was streamed"
        why = view.run.undefined.get("stalls") or unseen
        return [text(f"Nothing can be said of freezes: {why}."), lanes(view)]
    if not totals["count"]:
        return [text(f"No measured stream froze: no gap was longer than {_rule(view)}.", _elsewhere(view)), lanes(view)]
    head = text(
        f"{totals['count']:,} stalls (gaps longer than {_rule(view)}) in {totals['requests']:,} streams, "
        f"{totals['share_of_requests']:.1%} of all; the longest lasted {seconds(totals['longest_s']).text}, and "
        f"streams stood still for {plain(totals['total_s'])} s in sum."
    )
    figures = columns(_hurts(view), _against_prompt(view))
    return [head, _causes(view), lanes(view), figures, *_remedies(view), _episodes(view)]


def _elsewhere(view: View) -> str:
    others = len(view.stalls.row) - view.summary["stalls"]["count"]
    return f"The {others} stalls outside of the measured stages are drawn, but not counted." if others else ""


def _rule(view: View) -> str:
    floor_s, factor = settings(view.run.meta)
    return f"{seconds(floor_s).text} and {factor:g} times the median gap of its own stream"


def _causes(view: View) -> Html:
    known = view.episodes
    causes = sorted(set(known.cause.tolist()), key=lambda cause: -float(known.frozen_s[known.cause == cause].sum()))
    rows = [_cause(view, cause) for cause in causes]
    return table(Table(("cause", "episodes", "streams", "frozen in sum", "longest"), rows), "Causes of stalls")


def _cause(view: View, cause: str) -> list[Cell]:
    known = view.episodes
    mine = known.cause == cause
    hit = len(np.unique(known.stalls.row[mine[known.of]]))
    longest_s = float((known.end_ns - known.start_ns)[mine].max()) / 1e9
    frozen_s = float(known.frozen_s[mine].sum())
    return [_words(cause), count(int(mine.sum())), count(hit), seconds(frozen_s), seconds(longest_s)]


def _remedies(view: View) -> list[Html]:
    found = remedies(view.run, view.episodes, view.interference)
    if not found:
        return []
    rows: list[list[Cell]] = [
        [_words(each["cause"]), each["remedy"], each["price"], seconds(each["saves_s"])] for each in found
    ]
    what = Table(("against", "what helps", "at what price", "frozen seconds it saves"), rows, "Computed from this run")
    return [element("h3", "What would help"), table(what, "Remedies")]


def _words(code: str) -> str:
    return code.replace("_", " ")


def _hurts(view: View) -> Html:
    cells = view.interference["matrix"]
    if not cells:
        return absent(_HURTS, "no freeze was caused by the prefill of another request")
    names = sorted({each[side] for each in cells for side in ("culprit_class", "victim_class")})
    frozen_s = np.zeros((len(names), len(names)))
    for each in cells:
        frozen_s[names.index(each["culprit_class"]), names.index(each["victim_class"])] = each["frozen_s"]
    shown = [name or "no class" for name in names]
    rows = [
        [name, *(seconds(value or None) for value in line)] for name, line in zip(shown, frozen_s.tolist(), strict=True)
    ]
    return figure(
        Figure(
            _HURTS,
            "Seconds that streams of a class (columns) stood still while a prompt of a class (rows) was read. Rows "
            "that hurt others belong into chunks, or onto GPUs of their own; columns that suffer need that most. "
            + _chance(view.interference),
            heat(shown, frozen_s),
            Table(("prompts of", *(f"froze {name}" for name in shown)), rows, sortable=False),
        )
    )


def _chance(told: Mapping[str, Any]) -> str:
    if told["aligned_share"] is None or told["chance_share"] is None:
        return ""
    return (
        f"{told['aligned_share']:.0%} of the freezes of the whole engine end with a prefill that explains them; had "
        f"the same requests come at other times, {told['chance_share']:.0%} would."
    )


def heat(names: list[str], values: Floats) -> Html:
    """A square of seconds: rows cause, columns suffer."""
    left, top, width = 96, 40, 480
    cell, height = (width - left - 8) / len(names), 34.0
    most = float(values.max()) or 1.0
    parts = [
        label_at(left - 8, 14, "prompts of", "end", "axis-label"),
        label_at(left, 14, "froze streams of", "start", "axis-label"),
    ]
    for i, name in enumerate(names):
        parts.append(label_at(left + cell * (i + 0.5), top - 8, _short(name, cell)))
        parts.append(label_at(left - 8, top + height * (i + 0.5) + 4, _short(name, left), "end"))
        for j, victim in enumerate(names):
            parts += _heat_cell(
                left + cell * j,
                top + height * i,
                cell,
                height,
                float(values[i, j]),
                most,
                f"prompts of {name} froze streams of {victim}",
            )
    return canvas(width, top + height * len(names) + 6, "Seconds frozen, by class of culprit and victim", parts)


def _heat_cell(x: float, y: float, width: float, height: float, value: float, most: float, told: str) -> list[Html]:
    place = {"x": round(x + 1, 1), "y": round(y + 1, 1), "width": round(width - 2, 1), "height": height - 2}
    level = 0.06 + 0.94 * value / most
    words = seconds(value).text if value else "–"
    title = element("title", f"{told}: {words}")
    return [
        element("rect", title, class_="c-prefill", fill_opacity=round(level if value else 0.04, 3), **place),
        label_at(x + width / 2, y + height / 2 + 4, words, role="cell on" if level > 0.55 else "cell"),
    ]


def _short(name: str, room_px: float) -> str:
    most = max(3, int(room_px / 7))
    return name if len(name) <= most else name[: most - 1] + "…"


def _against_prompt(view: View) -> Html:
    known = view.episodes
    length_s = (known.end_ns - known.start_ns) / 1e9
    tokens = np.where(known.culprit >= 0, view.computed_tokens[known.culprit], np.nan)
    told = known.interference & (tokens > 0)
    if not told.any():
        return absent(_LENGTH, "no freeze has a culprit of known prompt length")
    x = spanning("prompt tokens of the culprit to compute", tokens[told])
    y = linear("length of the freeze", length_s[told], "s")
    points = Points("freeze", "prefill", tokens[told], length_s[told])
    return figure(
        Figure(
            _LENGTH,
            "Points along a line through the origin mean that the whole prompt is read in one go, and everyone "
            "waits for it. A chunk limit on prefill cuts the line off at the length of a chunk."
            + _pace(tokens[told], length_s[told]),
            draw(x, y, [points], label=f"Freeze length against prompt tokens, {told.sum()} freezes"),
            Table(
                ("prompt tokens to compute", "freeze"),
                [
                    [count(float(t)), seconds(float(s))]
                    for t, s in sorted(zip(tokens[told], length_s[told], strict=True))
                ][:200],
            ),
        )
    )


def _pace(tokens: Floats, length_s: Floats) -> str:
    if len(tokens) < 5:
        return ""
    return f" Median: {plain(float(np.median(1e3 * length_s / tokens * 1e3)))} ms per 1,000 tokens."


def _episodes(view: View) -> Html:
    longest = sorted(view.summary["stalls"]["episodes"], key=lambda each: -each["duration_s"])[:_EPISODES]
    rows: list[list[Cell]] = [
        [
            number(each["start_s"]),
            seconds(each["duration_s"]),
            count(each["requests"]),
            count(each["bystanders"]),
            _words(each["cause"]),
            each["culprit_request_id"] or "–",
            count(each["culprit_prompt_tokens"]),
        ]
        for each in longest
    ]
    headings = ("at (s)", "lasted", "streams hit", "went on", "cause", "culprit", "its prompt tokens")
    return table(Table(headings, rows, f"The {len(rows)} longest episodes"), "Longest episodes")
