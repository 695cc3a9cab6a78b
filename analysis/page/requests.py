"""Tables of the parts of a run, its worst requests, and what went wrong."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.page.figures import canvas
from analysis.page.lanes import LEGEND, Window, closed_ns, placed, strip
from analysis.page.shell import (
    Cell,
    Html,
    Number,
    Table,
    absent,
    count,
    element,
    joined,
    number,
    seconds,
    share,
    table,
    text,
)
from analysis.page.view import View
from analysis.quantiles import Floats

Part = Mapping[str, Any]
_WORST = 10
_SHOWN = (("ttft_s", "p50"), ("ttft_s", "p95"), ("itl_s", "p50"), ("itl_s", "p99"), ("gap_s", "p99"), ("e2e_s", "p50"))
_HEADINGS = (
    "ok",
    "of",
    "TTFT p50",
    "TTFT p95",
    "ITL p50",
    "ITL p99",
    "gap p99",
    "E2E p50",
    "stalls",
    "attained",
    "failed",
)


def breakdowns(summary: Part) -> list[Html]:
    parts = [("class", summary["by_class"]), ("turn", summary["by_turn"]), ("stage", summary["by_stage"])]
    found = [_breakdown(title, each) for title, each in parts if len(each) > 1]
    found += _sessions(summary["by_class"])
    return found or [text("The run has one class, one turn and one stage: there is nothing to compare.")]


def _breakdown(title: str, parts: Part) -> Html:
    rows = [[_name(name), *_cells(part)] for name, part in parts.items()]
    return joined([element("h3", f"By {title}"), table(Table((title, *_HEADINGS), rows), f"Numbers by {title}")])


def _name(name: str) -> Cell:
    return Number(name, float(name)) if name.isdecimal() else name or "no class"


def _cells(part: Part) -> list[Cell]:
    metrics, requests = part["metrics"], part["requests"]
    return [
        count(requests["ok"]),
        count(requests["planned"]),
        *(seconds(metrics[name][statistic]) for name, statistic in _SHOWN),
        count(part["stalls"]["count"]),
        share(part["goodput"]["attainment"]),
        count(requests["failed"]),
    ]


def _sessions(by_class: Part) -> list[Html]:
    known = {name: part["sessions"] for name, part in by_class.items() if part.get("sessions")}
    if not known:
        return []
    rows: list[list[Cell]] = [
        [
            name,
            count(one["n"]),
            count(one["of"]),
            number(one["steps"]["mean"]),
            seconds(one["wall_s"]["p50"]),
            seconds(one["wall_s"]["p95"]),
            seconds(one["model_s"]["p50"]),
            seconds(one["pause_s"]["p50"]),
            count(one["context_growth_tokens"]["p50"]),
            share(one["cached_share"]),
        ]
        for name, one in known.items()
    ]
    headings = (
        "class",
        "whole",
        "of",
        "steps (mean)",
        "wall p50",
        "wall p95",
        "model p50",
        "pauses p50",
        "prompt grew (tokens)",
        "cached",
    )
    told = text(
        "A session counts once all of its requests succeeded. Wall time is the waiting for the model plus the pauses "
        "(a user's thinking, an agent's tools).",
        role="sub",
    )
    return [element("h3", "Sessions"), told, table(Table(headings, rows), "Sessions by class")]


def worst(view: View) -> list[Html]:
    """The requests whose user waited longest in one go, before the first token or after it."""
    wait_s = longest_wait_s(view)
    known = int(np.sum(~np.isnan(wait_s)))
    if not known:
        return [absent("Which requests were worst?", "no measured request got a token")]
    rows = np.argsort(-wait_s, kind="stable")[: min(_WORST, known)]
    length_ns = float(np.max((closed_ns(view) - view.run.column("sent_ns"))[rows]))
    cells = [_worst_row(view, int(row), float(wait_s[row]), length_ns) for row in rows]
    headings = (
        "request",
        "class",
        "turn",
        "longest wait",
        "TTFT",
        "TPOT",
        "E2E",
        "prompt tokens",
        "output tokens",
        "outcome",
        f"timeline, to {seconds(length_ns / 1e9).text}",
    )
    swatches = [element("li", element("i", class_=f"fill c-{each.role}"), each.name) for each in LEGEND]
    return [
        text("The measured requests whose user waited longest in one go: for the first token, or in mid-stream."),
        element("ul", *swatches, class_="legend"),
        table(Table(headings, cells), "The worst requests"),
    ]


def longest_wait_s(view: View) -> Floats:
    """The longest time without news in each measured request that got a token; NaN elsewhere."""
    run = view.run
    longest_ns = np.zeros(len(run.requests))
    if run.cells is not None:
        longest_ns = run.cells.longest_ns.astype(np.float64)
    else:
        np.maximum.at(longest_ns, run.gaps.row, run.gaps.gap_ns)
    found = np.maximum(run.column("ttft_s"), longest_ns / 1e9)
    return np.where(view.rows, found, np.nan)


def _worst_row(view: View, row: int, wait_s: float, length_ns: float) -> list[Cell]:
    run = view.run
    request = run.requests.iloc[row]

    def told(name: str) -> float | None:
        value = run.column(name)[row]
        return None if np.isnan(value) else float(value)

    sent = run.column("sent_ns")[row]
    place = placed(Window(sent, sent + length_ns), 0, 300)
    timeline = canvas(300, 14, f"Timeline of {request['request_id']}", strip(view, row, 1, 12, place))
    return [
        str(request["request_id"]),
        str(request["class"]),
        count(told("turn")),
        seconds(wait_s),
        *(seconds(told(name)) for name in ("ttft_s", "tpot_s", "e2e_s")),
        count(told("prompt_tokens")),
        count(told("output_tokens")),
        str(request["outcome"]),
        timeline,
    ]


def outcomes(requests: Part) -> list[Html]:
    rows: list[list[Cell]] = [[_words(name), count(times)] for name, times in requests["by_outcome"].items()]
    found = [
        text(f"{requests['planned']:,} planned, {requests['sent']:,} sent, {requests['ok']:,} succeeded."),
        table(Table(("outcome", "requests"), rows), "Requests by outcome"),
    ]
    if not requests["errors"]:
        return [*found, text("No request failed.")]
    errors: list[list[Cell]] = [
        [
            count(each["count"]),
            _words(each["outcome"]),
            count(each["status"]),
            each["message"] or "no message",
            each["first_request_id"],
        ]
        for each in requests["errors"]
    ]
    headings = ("times", "outcome", "status", "what the server or the network said", "first request")
    return [*found, table(Table(headings, errors), "Errors")]


def _words(code: str) -> str:
    return code.replace("_", " ")


def warnings(found: list[dict[str, str]]) -> Html | None:
    if not found:
        return None
    entries = [element("li", element("b", each["code"]), f": {each['text']}") for each in found]
    return element("ul", *entries, class_="warnings", aria_label="Warnings")
