"""The report as one HTML file that opens anywhere: verdict first, then prefill and decode side by side, then why."""

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.limits import ALL
from analysis.page.decode import decode
from analysis.page.load import load
from analysis.page.prefill import prefill
from analysis.page.requests import breakdowns, outcomes, warnings, worst
from analysis.page.run import about, floor
from analysis.page.shell import (
    Cell,
    Html,
    Section,
    Table,
    columns,
    count,
    element,
    facing,
    number,
    page,
    seconds,
    share,
    table,
    text,
    tiles,
)
from analysis.page.stalls import stalls
from analysis.page.view import View
from analysis.report.wording import interval, limit_name, quantity
from analysis.report.wording import number as plain
from analysis.roofline import Roofline
from analysis.run import Run

Part = Mapping[str, Any]
_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
_BOUNDS = ("p50", "p90", "p95", "p99", "p999")
_PREFILL = {"ttft_due_s": "TTFT from due", "ttft_s": "TTFT from sent", "ttfat_s": "TTFAT"}
_DECODE = {"itl_s": "ITL", "gap_s": "gap", "tpot_s": "TPOT"}
_VERDICTS = {
    "pass": "SLO: pass",
    "fail": "SLO: fail",
    "no_verdict": "SLO: no verdict",
    None: "No SLO was asked",
}


def render(run: Run, summary: Part, roofline: Roofline | None = None) -> str:
    """The whole page.

    Args:
        run: What was measured.
        summary: `analysis.summary.summarize` of that run, with the limits it is to be judged by.
        roofline: The replica behind the endpoint, where known: measured times are set against its floor.
    """
    view = View(run, summary)
    told = summary["run"]
    title = f"{told['workload'] or 'unknown workload'} on {told['model'] or 'unknown model'}"
    return page(title, list(_sections(view, roofline)), [_load_line(summary), _verdict_line(summary["slo"])])


def _sections(view: View, roofline: Roofline | None) -> Iterator[Section]:
    summary = view.summary
    yield Section("verdict", "Verdict", list(_verdict(summary)))
    yield Section("phases", "Prefill and decode", [facing(_phase(view, "prefill"), _phase(view, "decode"))])
    if roofline:
        yield Section("floor", "Against the roofline", floor(view, roofline))
    yield Section("stalls", "Stalls", stalls(view))
    yield Section("load", "Load", [columns(*load(view))])
    yield Section("parts", "Classes, turns and sessions", breakdowns(summary))
    yield Section("worst", "Worst requests", worst(view))
    yield Section("outcomes", "Outcomes and errors", outcomes(summary["requests"]))
    yield Section("about", "What ran where", about(view.run.meta))


def _load_line(summary: Part) -> Html:
    run = summary["run"]
    facts = [f"{run['loop'] or 'unknown'} loop"]
    facts += [f"{plain(run['offered_rps'])} requests/s planned"] if run["offered_rps"] else []
    facts += [f"{run['concurrency']} users"] if run["concurrency"] else []
    facts += [f"{plain(run['duration_s'])} s measured"]
    facts += [str(run[name]) for name in ("started_at", "target", "engine") if run[name]]
    return element("p", " · ".join(facts), class_="sub")


def _verdict_line(slo: Part) -> Html:
    return element("p", _VERDICTS[slo["verdict"]], class_=f"verdict {slo['verdict'] or 'none'}")


def _verdict(summary: Part) -> Iterator[Html]:
    limits = summary["slo"]["limits"]
    if limits:
        headings = ("verdict", "class", "limit", "value", "95% interval", "why")
        yield table(Table(headings, [_limit_row(each) for each in limits]), "Limits and their verdicts")
    if not summary["run"]["complete"]:
        by = summary["run"]["interrupted_by"]
        yield text(f"The run was cut short{f' by {by}' if by else ''}: what it measured is shown, and judged as such.")
    yield tiles(_tiles(summary))
    if found := warnings(summary["warnings"]):
        yield element("h3", "Warnings")
        yield found


def _limit_row(each: Part) -> list[Cell]:
    unit = each["metric"], each["statistic"]
    asked = f"{limit_name(dict(each))} {each['operator']} {quantity(*unit, each['limit'])}"
    verdict = element("b", each["verdict"].replace("_", " "), class_=each["verdict"])
    scope = "all" if each["class"] == ALL else each["class"]
    ends = interval(*unit, each["ci95"]) or "–"
    return [verdict, scope, asked, quantity(*unit, each["value"]), ends, each["reason"] or ""]


def _tiles(summary: Part) -> list[tuple[str, str, str]]:
    metrics, stalled, good = summary["metrics"], summary["stalls"], summary["goodput"]
    ttft, since = (metrics["ttft_due_s"], " from due") if metrics["ttft_due_s"]["n"] else (metrics["ttft_s"], "")
    pace, name = (metrics["itl_s"], "ITL") if metrics["itl_s"]["n"] else (metrics["gap_s"], "gap")
    told = [
        ("prefill", seconds(ttft["p50"]), f"TTFT p50{since}"),
        ("prefill", seconds(ttft["p95"]), f"TTFT p95{since}"),
        ("decode", seconds(pace["p50"]), f"{name} p50"),
        ("decode", seconds(pace["p99"]), f"{name} p99"),
        ("freeze", count(None if stalled["share_of_requests"] is None else stalled["count"]), "stalls"),
        ("good", number(good["requests_per_s"]), "good requests/s"),
        ("good", share(good["attainment"]), "attainment"),
        ("muted", share(summary["requests"]["error_rate"]), "errors"),
    ]
    return [(role, value.text, label) for role, value, label in told]


def _phase(view: View, phase: str) -> list[Html]:
    if phase == "prefill":
        head, figures = _latencies(view.summary, _PREFILL), prefill(view)
        title = "Prefill: bound by compute, sets TTFT"
    else:
        head, figures = _latencies(view.summary, _DECODE), decode(view)
        title = "Decode: bound by memory, sets ITL"
    return [element("h3", title, class_=f"c-{phase}"), head, *figures]


def _latencies(summary: Part, names: Mapping[str, str]) -> Html:
    metrics, shown = summary["metrics"], dict(names)
    if not metrics["ttft_due_s"]["n"]:
        shown.pop("ttft_due_s", None)
    if not summary["phases"]["thinking"]:
        shown.pop("ttfat_s", None)
    rows: list[list[Cell]] = [
        [label, *(seconds(metrics[name][column]) for column in _COLUMNS), count(metrics[name]["n"])]
        for name, label in shown.items()
    ]
    reasons: dict[str, list[str]] = {}
    for name, label in shown.items():
        if name in summary["undefined"]:
            reasons.setdefault(summary["undefined"][name], []).append(label)
    why = [text(f"{', '.join(labels)}: undefined, {reason}.", role="note") for reason, labels in reasons.items()]
    headings = ("", *(name.replace("p999", "p99.9") for name in _COLUMNS), "n")
    numbers = table(Table(headings, rows, sortable=False), "Latencies")
    return element("div", numbers, *why, _intervals(metrics, shown), class_="compact")


def _intervals(metrics: Part, names: Mapping[str, str]) -> Html:
    """How well the run knows its percentiles."""
    rows: list[list[Cell]] = []
    for name, label in names.items():
        ends = metrics[name]["ci95"] or {}
        rows.append([label, *(interval("ttft", each, ends.get(each)) or "too few" for each in _BOUNDS)])
    headings = ("", *(name.replace("p999", "p99.9") for name in _BOUNDS))
    return element(
        "details",
        element("summary", "95% intervals of the percentiles"),
        table(Table(headings, rows, sortable=False), "Intervals of the percentiles"),
    )
