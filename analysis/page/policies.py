"""One schedule under several policies as one HTML page: what each does to prefill, to decode and to the streams."""

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.page.axes import Axis, linear, log
from analysis.page.forest import Change, Group, forest
from analysis.page.shell import (
    Cell,
    Figure,
    Html,
    Number,
    Section,
    Swatch,
    Table,
    absent,
    columns,
    count,
    element,
    figure,
    number,
    page,
    seconds,
    share,
    table,
    text,
)

Part = Mapping[str, Any]

_TTFT = {"TTFT p50": "ttft_p50_s", "p95": "ttft_p95_s", "p99": "ttft_p99_s"}
_ITL = {"ITL p50": "itl_p50_s", "p99": "itl_p99_s", "longest gap": "gap_max_s"}
_GOOD = {"good requests/s": "goodput_rps", "attained": "attainment", "tokens/s": "output_tokens_per_s"}
_STALLS = {"stalled": "stalled_s", "stalls": "stalls", "per 1k tokens": "stalls_per_1k"}
_CACHE = {"cached": "cached_share", "preemptions": "preemptions"}
_SHARES = ("attainment", "cached_share")
_COUNTS = ("stalls", "preemptions")


def render(document: Part) -> str:
    """The whole page of `{workload, seed, policies}`, with a row of `analysis.report.policies.row` for each policy."""
    title = f"{document['workload']} under {len(document['policies'])} policies"
    head = [text(f"Simulated: the same schedule (seed {document['seed']}) under each policy.", role="sub")]
    return page(title, list(_sections(document)), head)


def _sections(document: Part) -> Iterator[Section]:
    drawn = columns(
        _range(document, "What does each policy do to prefill?", _TTFT, "prefill",
               "From the median TTFT to p99, with p95 as a point."),
        _range(document, "What does each policy do to decode?", _ITL, "decode",
               "From the median ITL to the longest gap of all, with ITL p99 as a point."),
        _level(document, "Who serves most requests well?", "goodput_rps", "good",
               "Good requests a second: those that met every limit on a single request."),
        _level(document, "Who makes streams stand still?", "stalled_s", "freeze",
               "Seconds that streams stood still, in sum."),
    )  # fmt: skip
    yield Section("policies", "Prefill and decode under each policy", [drawn])
    yield Section("numbers", "All numbers", [_numbers(document)])


def _range(document: Part, question: str, names: Mapping[str, str], role: str, answer: str) -> Html:
    """A line from the first to the last of three durations, with a point at the second."""
    keys = list(names.values())
    rows = [each for each in document["policies"] if all(each[key] for key in keys)]
    if not rows:
        return absent(question, "no policy gave a sample")
    axis = log(f"{', '.join(names)}", [each[key] for each in rows for key in keys])
    low, middle, high = keys
    changes = [
        Change(each["policy"], each[middle], (each[low], each[high]), role, f"{_cell(middle, each[middle]).text}")
        for each in rows
    ]
    swatches = [Swatch(f"{' to '.join(list(names)[::2])}", role, "line"), Swatch(list(names)[1], role, "point")]
    return _figure(document, question, answer, axis, changes, names, swatches)


def _level(document: Part, question: str, key: str, role: str, answer: str) -> Html:
    rows = [each for each in document["policies"] if each[key] is not None]
    if not rows:
        return absent(question, "no policy has a value")
    name = next(label for label, of in (*_GOOD.items(), *_STALLS.items()) if of == key)
    axis = linear(name, [each[key] for each in rows], "s" if key.endswith("_s") else "count")
    changes = [Change(each["policy"], each[key], (0.0, each[key]), role, _cell(key, each[key]).text) for each in rows]
    return _figure(document, question, answer, axis, changes, _GOOD if key in _GOOD.values() else _STALLS, [])


def _figure(
    document: Part,
    question: str,
    answer: str,
    axis: Axis,
    changes: list[Change],
    names: Mapping[str, str],
    swatches: list[Swatch],
) -> Html:
    drawing = forest(axis, None, [Group("", changes)], question)
    return figure(Figure(question, answer, drawing, _table(document, names), swatches))


def _table(document: Part, names: Mapping[str, str]) -> Table:
    rows: list[list[Cell]] = [
        [str(each["policy"]), *(_cell(key, each[key]) for key in names.values())] for each in document["policies"]
    ]
    return Table(("policy", *names), rows)


def _numbers(document: Part) -> Html:
    names = _TTFT | {f"ITL {name}" if name == "p99" else name: key for name, key in _ITL.items()}
    names |= _GOOD | _STALLS | _CACHE
    rows: list[list[Cell]] = [
        [str(each["policy"]), *(_cell(key, each[key]) for key in names.values()), _verdict(each["verdict"]),
         str(each["hardware"])]
        for each in document["policies"]
    ]  # fmt: skip
    headings = ["policy", *names, "SLO", "hardware"]
    return element("div", table(Table(headings, rows), "All numbers"), class_="compact")


def _cell(key: str, value: float | None) -> Number:
    if key in _SHARES:
        return share(value)
    if key in _COUNTS or value == 0:
        return count(value)
    return seconds(value) if key.endswith("_s") and "_per_" not in key else number(value)


def _verdict(verdict: str | None) -> Html:
    return element("b", (verdict or "not asked").replace("_", " "), class_=verdict)
