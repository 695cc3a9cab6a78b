"""A search for capacity as one HTML page: the answer, what each load did to prefill and decode, and every try."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from analysis.capacity.text import longest
from analysis.limits import Limit as Asked
from analysis.limits import parse_limits
from analysis.page.axes import Axis, linear, log, spanning
from analysis.page.figures import Limit, Line, Mark, Points, draw
from analysis.page.prefill import near
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
    element,
    facing,
    figure,
    number,
    page,
    seconds,
    share,
    table,
    text,
    tiles,
)
from analysis.quantiles import Floats
from analysis.report.wording import number as plain
from analysis.report.wording import quantity

Part = Mapping[str, Any]

_VERDICTS = ("pass", "fail", "no_verdict")
_TOLD = {"verdict": "verdict", "ttft_p95_s": "TTFT p95", "itl_p99_s": "ITL p99", "goodput_rps": "good requests/s",
         "requests_per_s": "requests/s", "output_tokens_per_s": "tokens/s",
         "stream_tokens_per_s": "tokens/s of a stream", "attainment": "attained"}  # fmt: skip


def render(found: Part, about: Part, runs: Sequence[str] = ()) -> str:
    """The whole page.

    Args:
        found: `analysis.capacity.text.document` of the search.
        about: What was searched, as the search's book has it: the `workload` as resolved, and the `target` and `model`,
            or the `simulated` engine.
        runs: Names of the run directories of the tries, in the order of `curve`; none where they are not known.
    """
    title = f"Capacity of {about['workload'].get('name') or 'a workload'}"
    return page(title, list(_sections(found, about, runs)), [_about_line(about, found["engine"]), _answer(found)])


def _about_line(about: Part, engine: str | None) -> Html:
    simulated = about.get("simulated")
    if simulated:
        facts = [f"simulated: {simulated['model']} on {simulated['replicas']} × {simulated['tp']} {simulated['gpu']}"]
    else:
        facts = [str(each) for each in (about.get("target"), engine, about.get("model")) if each]
    return element("p", " · ".join(facts), class_="sub")


def _answer(found: Part) -> Html:
    if found["capacity"] is None:
        return element("p", "No load that was tried passes", class_="verdict fail")
    role = "no_verdict" if found["settled"] is False else "pass"
    unsure = " (not settled)" if found["settled"] is False else ""
    return element("p", f"{_load(found['capacity'], found)}{unsure}", class_=f"verdict {role}")


def _load(load: float, found: Part) -> str:
    return f"{load:g} {found['unit']}"


def _sections(found: Part, about: Part, runs: Sequence[str]) -> Iterator[Section]:
    limits = parse_limits(about["workload"].get("slo") or {}, allow_e2e=True)
    yield Section("answer", "Answer", list(_told(found, about)))
    if any(row["requests_per_s"] for row in found["curve"]):
        yield Section("phases", "Prefill and decode under load", [_phases(found, limits)])
        yield Section(
            "load", "What the load brought", [columns(_rates(found), _kept(found), _tokens(found), _front(found))]
        )
    yield Section("tries", "Every try", [_tries(found, runs)])
    source = yaml.safe_dump(dict(about["workload"]), sort_keys=False, allow_unicode=True, width=100)
    yield Section("about", "What was searched", [element("pre", source, tabindex="0", aria_label="Workload")])


def _told(found: Part, about: Part) -> Iterator[Html]:
    yield text(f"{found['reason'][:1].upper()}{found['reason'][1:]}.")
    best = longest(found["curve"]).get(found["passes_at"])
    if best:
        yield text(f"At {_load(best['load'], found)}, the highest load tried that meets the limits:", role="sub")
        yield tiles(_tiles(found, best))
    limits = [f"{name}: {', '.join(texts)}" for name, texts in (about["workload"].get("slo") or {}).items() if texts]
    yield text("The limits that have to pass are", "; ".join(limits) + ".", role="sub")


def _tiles(found: Part, best: Part) -> list[tuple[str, str, str]]:
    told = [
        ("prefill", seconds(best["ttft_p95_s"]), "TTFT p95"),
        ("decode", seconds(best["itl_p99_s"]), "ITL p99"),
        ("good", number(best["goodput_rps"]), "good requests/s"),
        ("good", share(best["attainment"]), "attainment"),
        ("muted", number(best["requests_per_s"]), "requests/s"),
        ("muted", number(best["output_tokens_per_s"]), "tokens/s"),
        ("decode", number(best["stream_tokens_per_s"]), "tokens/s of a stream"),
    ]
    if found["knee"] is not None:
        told.append(("ink", Number(f"{found['knee']:g}", found["knee"]), "knee of goodput"))
    return [(role, value.text, label) for role, value, label in told]


# --- figures ----------------------------------------------------------------------------------------------------------


def _phases(found: Part, limits: Sequence[Asked]) -> Html:
    prefill = _latency(
        found,
        "ttft_p95_s",
        "prefill",
        _asked(limits, ("ttft", "ttft_due"), "p95"),
        "Flat while requests find the server free; it turns up where they begin to wait for each other. From the due "
        "time where there is one, so that waiting on our side counts too.",
    )
    decode = _latency(
        found,
        "itl_p99_s",
        "decode",
        _asked(limits, ("itl", "gap"), "p99"),
        "Grows with the streams that share each step, and jumps where the prefills of others come between.",
    )
    return facing([prefill], [decode])


def _asked(limits: Sequence[Asked], metrics: Sequence[str], statistic: str) -> list[Limit]:
    """The limits on one of the metrics at this percentile, as lines; those of classes that agree as one."""
    classes: dict[float, list[str]] = {}
    for each in limits:
        if each.metric in metrics and each.statistic == statistic and each.is_upper:
            classes.setdefault(each.value, []).append(each.class_name)
    return [
        Limit(f"{', '.join(names)} < {quantity('ttft', statistic, value)}", value, across=True)
        for value, names in classes.items()
    ]


def _latency(found: Part, key: str, phase: str, limits: Sequence[Limit], answer: str) -> Html:
    question = f"What does the load do to {_TOLD[key]}?"
    values = _column(found, key)
    if not (values > 0).any():
        return absent(question, "it is undefined in every try")
    y = log(_TOLD[key], [*values, *near(list(limits), values[values > 0])])
    return _figure(found, question, answer, y, [(key, phase)], limits)


def _rates(found: Part) -> Html:
    y = linear("requests/s", [*_column(found, "goodput_rps"), *_column(found, "requests_per_s")])
    return _figure(
        found,
        "How many requests were good?",
        "Answered are all that succeeded, good those that met every limit on a single request. Beyond the knee more "
        "load brings no more good requests, and then fewer.",
        y,
        [("requests_per_s", "queue"), ("goodput_rps", "good")],
    )


def _kept(found: Part) -> Html:
    return _figure(
        found,
        "For what share of the requests was the promise kept?",
        "Attainment: good requests of all that were due, failed ones and those never sent included.",
        Axis("attained", "linear", 0.0, 1.0, "share"),
        [("attainment", "good")],
    )


def _tokens(found: Part) -> Html:
    return _figure(
        found,
        "How many tokens a second were written?",
        "Levels off where the server is full: what lies beyond only waits.",
        linear("output tokens/s", _column(found, "output_tokens_per_s")),
        [("output_tokens_per_s", "decode")],
    )


def _figure(
    found: Part, question: str, answer: str, y: Axis, lines: Sequence[tuple[str, str]], limits: Sequence[Limit] = ()
) -> Html:
    """Columns of the curve over the load, with the answer and the knee marked; the points by verdict."""
    x = _axis(found)
    marks: list[Mark] = [_mean_line(found, key, role) for key, role in lines]
    for key, _ in lines[-1:]:
        marks += _points(found, _column(found, "load"), _column(found, key))
    drawing = draw(x, y, marks, [*_edges(found), *limits], label=question)
    swatches = [Swatch(_TOLD[key], role, "line") for key, role in lines]
    keys = [key for key, _ in lines]
    return figure(Figure(question, answer, drawing, _data(found, keys), [*swatches, *_swatches(found)]))


def _axis(found: Part) -> Axis:
    return spanning(f"load ({found['unit']})", _column(found, "load"))


def _edges(found: Part) -> list[Limit]:
    """The answer, the lowest load that fails and the knee, as lines; what coincides as one."""
    names: dict[float, list[str]] = {}
    for name, load in (("capacity", found["capacity"]), ("fails", found["fails_at"]), ("knee", found["knee"])):
        if load is not None:
            names.setdefault(load, []).append(name)
    roles = {"capacity": "pass", "fails": "fail", "knee": "ink"}
    return [Limit(f"{', '.join(each)} {load:g}", load, roles[each[0]]) for load, each in names.items()]


def _mean_line(found: Part, key: str, role: str) -> Line:
    """Through the mean of the tries of each load."""
    loads, values = _column(found, "load"), _column(found, key)
    known = np.isfinite(values)
    x = np.unique(loads[known])
    return Line(_TOLD[key], role, x, np.array([values[known & (loads == each)].mean() for each in x]))


def _points(found: Part, x: Floats, y: Floats) -> list[Mark]:
    """A mark for each try, so that the load is told under the pointer."""
    return [
        Points(
            f"{_load(row['load'], found)}: {_words(row['verdict'])}",
            row["verdict"],
            x[i : i + 1],
            y[i : i + 1],
            large=True,
        )
        for i, row in enumerate(found["curve"])
    ]


def _swatches(found: Part) -> list[Swatch]:
    met = {row["verdict"] for row in found["curve"]}
    return [Swatch(_words(verdict), verdict, "point") for verdict in _VERDICTS if verdict in met]


def _words(verdict: str) -> str:
    return {"pass": "passes", "fail": "fails", "no_verdict": "no verdict"}[verdict]


def _front(found: Part) -> Html:
    question = "What do users pay for throughput?"
    stream, total = _column(found, "stream_tokens_per_s"), _column(found, "output_tokens_per_s")
    known = (stream > 0) & (total > 0)
    if not known.any():
        return absent(question, "no try knows both the tokens per second in all and those of a stream")
    best = np.isin(_column(found, "load"), found["pareto"]) & known
    order = np.flatnonzero(best)[np.argsort(stream[best], kind="stable")]
    marks: list[Mark] = [Line("no load beats these", "ink", stream[order], total[order], dashed=True)]
    return figure(
        Figure(
            question,
            "Each load as tokens per second that one user sees (the median, 1/TPOT) and that all get together: to the "
            "right is faster, up is cheaper. No load beats those on the line in both.",
            draw(
                linear("tokens/s of a stream", stream),
                linear("tokens/s in all", total),
                [*marks, *_points(found, stream, total)],
                label=question,
            ),
            _data(found, ["stream_tokens_per_s", "output_tokens_per_s"]),
            [Swatch("no load beats these", "ink", "dashed"), *_swatches(found)],
        )
    )


def _column(found: Part, key: str) -> Floats:
    return np.array([np.nan if row[key] is None else row[key] for row in found["curve"]], dtype=np.float64)


# --- tables -----------------------------------------------------------------------------------------------------------


def _data(found: Part, keys: Sequence[str]) -> Table:
    rows: list[list[Cell]] = [
        [_load_cell(row), _verdict_cell(row), *(_cell(key, row[key]) for key in keys)] for row in _by_load(found)
    ]
    return Table((found["unit"], "verdict", *(_TOLD[key] for key in keys)), rows)


def _by_load(found: Part) -> list[Part]:
    return sorted(found["curve"], key=lambda row: float(row["load"]))


def _load_cell(row: Part) -> Number:
    return Number(f"{row['load']:g}", row["load"])


def _verdict_cell(row: Part) -> Html:
    return element("b", row["verdict"].replace("_", " "), class_=row["verdict"])


def _cell(key: str, value: float | None) -> Number:
    if key == "attainment":
        return share(value)
    return seconds(value) if key.endswith("_s") and "_per_" not in key else Number(plain(value), value)


def _tries(found: Part, runs: Sequence[str]) -> Html:
    if not found["curve"]:
        return text("No load was tried.")
    keys = ["ttft_p95_s", "itl_p99_s", "goodput_rps", "attainment", "requests_per_s", "output_tokens_per_s",
            "stream_tokens_per_s"]  # fmt: skip
    rows: list[list[Cell]] = []
    for i, row in enumerate(found["curve"]):
        numbers, name = [_cell(key, row[key]) for key in keys], list(runs[i : i + 1])
        rows.append([_load_cell(row), _verdict_cell(row), *numbers, str(row["worst_limit"] or ""), *name])
    headings = [found["unit"], "verdict", *(_TOLD[key] for key in keys), "held back by"]
    return table(Table([*headings, "run"] if runs else headings, rows, "In the order of trying"), "Every try")
