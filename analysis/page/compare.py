"""The comparison of two sides as one HTML page: the verdict, what changed by how much, and both distributions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.compare import words
from analysis.latency import sample
from analysis.limits import ALL, parse_limits
from analysis.page.axes import Axis, around, log, nice
from analysis.page.decode import reach
from analysis.page.figures import Limit
from analysis.page.forest import Change, forest
from analysis.page.forest import Group as Rows
from analysis.page.prefill import near, tail_data, tail_drawing
from analysis.page.requests import warnings
from analysis.page.shell import (
    Cell,
    Figure,
    Html,
    Number,
    Section,
    Table,
    absent,
    columns,
    count,
    element,
    facing,
    figure,
    page,
    table,
    text,
    tiles,
)
from analysis.page.view import MOST_CLASSES, Group, legend, limit_words
from analysis.quantiles import Bools, Floats
from analysis.report.wording import limit_name, percent
from analysis.run import Run

Part = Mapping[str, Any]
Sides = Mapping[str, Sequence[Run]]

PREFILL, DECODE = ("ttft", "ttft_due", "ttfat"), ("itl", "gap", "tpot", "stall")
_ROLES = {"better": "pass", "same": "pass", "worse": "fail", "unclear": "no_verdict"}
_VERDICTS = {
    "worse": ("Worse", "At least one of the metrics that decide is worse by more than the tolerance, by all of its "
              "interval."),
    "unclear": ("Unclear", "No metric that decides is shown to be worse, but at least one may be: its interval reaches "
                "beyond the tolerance, or it has none."),
    "same": ("No change", "No metric that decides can be worse by more than the tolerance, nor is one better by more."),
    "better": ("Better", "No metric that decides can be worse by more than the tolerance, and at least one is better "
               "by more than that."),
}  # fmt: skip
_MET = " A limit is met where the line of a side crosses the dashed line above the limit's percentile."
_MOST_TOLD = 8
_LEAST, _MOST = 2.5, 3.0
"""An axis of changes reaches this many tolerances at least, and to four times the base at most."""


def render(comparison: Part, base: Sequence[Run], candidate: Sequence[Run]) -> str:
    """The whole page.

    Args:
        comparison: `analysis.compare.numbers.compare` of these runs.
        base, candidate: The runs of each side, for their distributions.
    """
    sides = comparison["sides"]
    title = f"{_named(sides['candidate'])} against {_named(sides['base'])}"
    name, _ = _VERDICTS[comparison["verdict"]]
    head = [_sides_line(comparison), element("p", name, class_=f"verdict {_ROLES[comparison['verdict']]}")]
    return page(title, list(_sections(comparison, {"base": base, "candidate": candidate})), head)


def _named(side: Part) -> str:
    first, *others = side["runs"]
    return f"{first} and {len(others)} more" if others else str(first)


def _sides_line(comparison: Part) -> Html:
    facts = [f"{percent(comparison['tolerance'])}% tolerance"]
    for name, side in comparison["sides"].items():
        facts.append(f"{name}: {side['ok']:,} of {side['requests']:,} requests ok")
    return element("p", " · ".join(facts), class_="sub")


def _sections(comparison: Part, sides: Sides) -> Iterator[Section]:
    metrics = comparison["metrics"]
    deciding = [each for each in metrics if each["decides"]]
    yield Section("verdict", "Verdict", list(_verdict(comparison, deciding)))
    yield Section("changes", "What changed", list(_changes(comparison, deciding)))
    yield Section("distributions", "Prefill and decode, both sides", [_distributions(sides)])
    yield Section("numbers", "All numbers", list(_numbers(metrics)))
    yield Section("about", "What was compared", [_about(comparison["sides"])])


def _verdict(comparison: Part, deciding: Sequence[Part]) -> Iterator[Html]:
    yield text(_VERDICTS[comparison["verdict"]][1])
    counts = [(verdict, sum(each["verdict"] == verdict for each in deciding)) for verdict in _ROLES]
    yield tiles((_ROLES[verdict], f"{n}", verdict) for verdict, n in counts)
    if told := [each for each in deciding if _matters(each, comparison["verdict"])]:
        most = sorted(told, key=_distance, reverse=True)[:_MOST_TOLD]
        which = f": the {len(most)} of {len(told)} metrics that changed most" if len(told) > len(most) else ""
        yield table(_table(most, f"What made it {comparison['verdict']}{which}"), "What made the verdict")
    if found := warnings(comparison["warnings"]):
        yield element("h3", "Warnings")
        yield found


def _matters(each: Part, verdict: str) -> bool:
    """Whether a metric has a part in the verdict."""
    if verdict == "unclear":
        return bool(each["may_be_worse"])
    return verdict != "same" and bool(each["verdict"] == verdict)


def _distance(each: Part) -> float:
    """How far a metric is from no change, on a scale that ratios and differences share."""
    if each["difference"] is not None:
        return abs(float(each["difference"]))
    return abs(math.log(each["ratio"])) if each["ratio"] else math.inf


# --- changes ----------------------------------------------------------------------------------------------------------


def _changes(comparison: Part, deciding: Sequence[Part]) -> Iterator[Html]:
    ratios = [each for each in deciding if each["difference"] is None and each["metric"] != "errors"]
    tolerance = comparison["tolerance"]
    prefill, decode, others = (
        [each for each in ratios if _phase(each) == phase] for phase in ("prefill", "decode", "other")
    )
    how = (
        f"Grey is the tolerance of {percent(tolerance)}%: worse is what lies beyond it with the whole of its line, the "
        "95% interval; an arrow goes on beyond the axis."
    )
    yield columns(
        _ratios("How did prefill change?", how, prefill, tolerance),
        _ratios("How did decode change?", how, decode, tolerance),
        _ratios("How did requests as a whole change?", how, others, tolerance),
        _differences(comparison, [each for each in deciding if each["metric"] == "errors"]),
    )


def _phase(each: Part) -> str:
    return "prefill" if each["metric"] in PREFILL else "decode" if each["metric"] in DECODE else "other"


def _ratios(question: str, how: str, metrics: Sequence[Part], tolerance: float) -> Html:
    known = [each for each in metrics if each["ratio"] is not None]
    if not known:
        return absent(question, "no metric that decides has a value on both sides")
    reached = [value for each in known for value in (each["ratio"], *(each["ci95"] or ()))]
    axis = around("candidate against base", reached, (1 + tolerance) ** _LEAST - 1, _MOST)
    drawing = forest(axis, (1 / (1 + tolerance), 1 + tolerance), _by_class(known), question)
    return figure(Figure(question, how, drawing, _table(metrics, "")))


def _differences(comparison: Part, metrics: Sequence[Part]) -> Html:
    question, allowed = "How did errors change?", comparison["error_tolerance"]
    known = [each for each in metrics if each["difference"] is not None]
    if not known:
        return absent(question, "no request was sent on one of the sides")
    reached = [abs(value) for each in known for value in (each["difference"], *(each["ci95"] or ()))]
    most = nice(min(1.0, max(_LEAST * allowed, *reached)))
    axis = Axis("percentage points of the requests", "linear", -most, most, "points")
    how = f"By difference, as a ratio of few errors says little; up to {percent(allowed)} pp either way is allowed."
    drawing = forest(axis, (-allowed, allowed), _by_class(known), question)
    return figure(Figure(question, how, drawing, _table(metrics, "")))


def _by_class(metrics: Sequence[Part]) -> list[Rows]:
    classes = list(dict.fromkeys(each["class"] for each in metrics))
    return [
        Rows("" if classes == [ALL] else _scope(name), [_change(each) for each in metrics if each["class"] == name])
        for name in classes
    ]


def _change(each: Part) -> Change:
    ends = each["ci95"]
    value = each["ratio"] if each["difference"] is None else each["difference"]
    told = f"{words.change(each)} {each['verdict']}"
    return Change(_metric(each), value, None if ends is None else (ends[0], ends[1]), _ROLES[each["verdict"]], told)


def _metric(each: Part) -> str:
    return "tokens/s" if each["metric"] == "output_tokens_per_s" else limit_name(each)


def _scope(class_name: str) -> str:
    return "all requests" if class_name == ALL else class_name or "no class"


# --- distributions ----------------------------------------------------------------------------------------------------


def _distributions(sides: Sides) -> Html:
    runs = [run for side in sides.values() for run in side]
    sizes: dict[str, int] = {}
    for run in runs:
        for name, mine in run.classes.items():
            sizes[name] = sizes.get(name, 0) + int((mine & run.measured).sum())
    names = sorted((name for name in sizes if sizes[name]), key=lambda name: -sizes[name])[:MOST_CLASSES]
    shown = [ALL] if len(sizes) < 2 else names
    pace = "gap" if any(np.any(run.tokens_unknown & run.measured) for run in runs) else "itl"
    return facing(
        [_tail(sides, name, "ttft", "prefill") for name in shown],
        [_tail(sides, name, pace, "decode") for name in shown],
    )


def _tail(sides: Sides, class_name: str, metric: str, phase: str) -> Html:
    of = "" if class_name == ALL else f" of {_scope(class_name)}"
    question = f"Is the slow end of {metric.upper() if metric != 'gap' else 'gaps'}{of} slower?"
    values = [(name, _values(runs, class_name, metric)) for name, runs in sides.items()]
    if missing := [name for name, found in values if not len(found)]:
        return absent(question, f"{metric.upper()} is undefined for the {' and the '.join(missing)}")
    roles = {"base": "queue", "candidate": phase}
    samples = [(Group(name, roles[name], np.ones(len(found), dtype=bool)), found) for name, found in values]
    limits, together = _limits(sides, class_name, metric), np.concatenate([found for _, found in values])
    told = [*reach(together), *near(limits, reach(together))]
    x = log(metric.upper() if metric != "gap" else "gap", told)
    return figure(
        Figure(
            question,
            "The share that came within a time; each step up is one nine more. The side whose line lies further right "
            "is the slower one there." + (_MET if limits else ""),
            tail_drawing(x, samples, limits, question),
            tail_data(samples, "samples"),
            legend([group for group, _ in samples], "line"),
        )
    )


def _limits(sides: Sides, class_name: str, metric: str) -> list[Limit]:
    """The limits of the base's workload, by which both sides are judged."""
    workload = sides["base"][0].meta.get("workload")
    slo = workload.get("slo") if isinstance(workload, Mapping) else None
    return [
        Limit(
            f"{'' if each.class_name == class_name or class_name == ALL else 'all requests '}"
            f"{limit_words(metric, each.statistic, each.operator, each.value)}",
            each.value,
        )
        for each in parse_limits(slo or {}, allow_e2e=True)
        if each.metric == metric and (class_name == ALL or each.class_name in (ALL, class_name))
    ]


def _values(runs: Sequence[Run], class_name: str, metric: str) -> Floats:
    """Samples of all runs of a side, each token once."""
    found = []
    for run in runs:
        rows = run.measured if class_name == ALL else run.measured & _rows(run, class_name)
        one = sample(run, rows, metric, np.zeros(len(rows), dtype=np.int64))
        found.append(one.values if one.counts is None else np.repeat(one.values, one.counts))
    return np.concatenate(found)


def _rows(run: Run, class_name: str) -> Bools:
    return run.classes.get(class_name, np.zeros(len(run.measured), dtype=bool))


# --- tables -----------------------------------------------------------------------------------------------------------


def _numbers(metrics: Sequence[Part]) -> Iterator[Html]:
    for title, decides in (("These decide", True), ("Also measured", False)):
        if shown := [each for each in metrics if each["decides"] == decides]:
            yield element("h3", title)
            yield table(_table(shown, ""), title)


def _table(metrics: Sequence[Part], caption: str) -> Table:
    headings = ("class", "metric", "base", "candidate", "change", "95% interval", "verdict", "why")
    return Table(headings, [_row(each) for each in metrics], caption)


def _row(each: Part) -> list[Cell]:
    sides = [Number(told, each[side]) for told, side in zip(words.values(each), ("base", "candidate"), strict=True)]
    change = Number(words.change(each), each["ratio"] if each["difference"] is None else each["difference"])
    verdict = element("b", each["verdict"], class_=_ROLES[each["verdict"]])
    ends = words.ends(each) or "–"
    return [_scope(each["class"]), _metric(each), *sides, change, ends, verdict, each["reason"] or ""]


def _about(sides: Part) -> Html:
    rows: list[list[Cell]] = [
        [
            name,
            ", ".join(side["runs"]),
            count(side["ok"]),
            count(side["requests"]),
            *(str(side[key] or "unknown") for key in ("model", "target", "timestamp_source")),
        ]
        for name, side in sides.items()
    ]
    headings = ("side", "runs", "ok", "of", "model", "target", "arrivals stamped by")
    return table(Table(headings, rows, sortable=False), "The two sides")
