"""An estimate as one HTML page: the request to scale, prefill and decode side by side, and the roofline they lie on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from analysis.estimate.drawing import HEIGHT, WIDTH, Label, Rect, Shape, draw
from analysis.estimate.numbers import Estimate, Pass
from analysis.estimate.rows import assumption_lines, fact_rows, headline, phase_rows, what_if_rows
from analysis.estimate.units import amount, dollars, duration, number, share
from analysis.estimate.words import explain, stressed
from analysis.page.axes import linear, log
from analysis.page.figures import Limit, Line, Mark, Points
from analysis.page.figures import draw as plot
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
    page,
    seconds,
    table,
    text,
    tiles,
)

_HEAD_PX = 84
"""Height of the drawing's own headline, which the page has in its text."""


def render(estimate: Estimate) -> str:
    """The whole page."""
    decoding = estimate.decode_share_of_time
    said = f"Stresses {stressed(estimate)}: {share(1 - decoding)} of the time is prefill, {share(decoding)} decode"
    return page(headline(estimate), list(_sections(estimate)), [text(f"{said}.", role="sub")])


def _sections(estimate: Estimate) -> Iterator[Section]:
    yield Section("request", "One request", [tiles(_tiles(estimate)), _to_scale(estimate)])
    phases = table(_rows(("", "prefill", "a decode step"), phase_rows(estimate)), "Prefill and decode")
    facts = table(_rows(("", "", ""), list(fact_rows(estimate))), "Times, memory and money")
    drawn = columns(phases, facts, _roofline(estimate), _company(estimate))
    yield Section("phases", "Prefill and decode", [drawn])
    yield Section("meaning", "What it means", [text(each) for each in explain(estimate)])
    what_ifs = table(_rows(("what if", "TTFT", "ITL", "E2E"), what_if_rows(estimate)), "What if")
    yield Section("changes", "What would help", [what_ifs])
    lines = [element("li", each) for each in assumption_lines(estimate)]
    yield Section("about", "Assumed", [element("ul", *lines)])


def _rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """What is two spaces in on a terminal is so here too."""
    return Table(headings, [[cell.replace("  ", "\u2003", 1) for cell in row] for row in rows], sortable=False)


def _tiles(estimate: Estimate) -> list[tuple[str, str, str]]:
    cost = estimate.cost
    told = [
        ("prefill", duration(estimate.ttft_s), "TTFT, at the least"),
        ("prefill", estimate.prefill.bound, "is what bounds prefill"),
        ("decode", duration(estimate.itl_s), "ITL, at the least"),
        ("decode", estimate.decode.bound if estimate.decode else "–", "is what bounds decode"),
        ("muted", duration(estimate.e2e_s), "E2E"),
        ("muted", amount(estimate.kv_bytes, "B"), "KV cache of a request"),
        ("muted", f"{estimate.fitting:,}", "such requests fit"),
    ]
    if cost:
        told.append(("muted", dollars(1000 * (cost.input_usd + cost.output_usd)), "for a thousand requests"))
    return told


# --- the request to scale ---------------------------------------------------------------------------------------------


def _to_scale(estimate: Estimate) -> Html:
    shapes = [shape for shape in draw(estimate)[1:] if _bottom(shape) > _HEAD_PX]
    question = "Where does the time go?"
    drawing = element(
        "svg",
        *map(_drawn, shapes),
        viewBox=f"0 {_HEAD_PX} {WIDTH} {HEIGHT - _HEAD_PX}",
        role="img",
        aria_label=f"{question} {headline(estimate)}",
    )
    return figure(
        Figure(
            question,
            "Prefill is tall, for it takes all prompt tokens in one pass; each step of decode takes one. To scale.",
            drawing,
            _times(estimate),
            wide=True,
        )
    )


def _bottom(shape: Shape) -> float:
    if isinstance(shape, Label):
        return shape.y
    return shape.y + shape.height if isinstance(shape, Rect) else max(shape.y1, shape.y2)


def _drawn(shape: Shape) -> Html:
    if isinstance(shape, Rect):
        place = {"x": shape.x, "y": shape.y, "width": shape.width, "height": shape.height}
        return element("rect", class_=f"c-{shape.role}", **place)
    if isinstance(shape, Label):
        style = f"font-size: {shape.size}px; fill: var(--{shape.role}){'; font-weight: 600' if shape.bold else ''}"
        return element("text", shape.text, x=shape.x, y=shape.y, text_anchor=shape.anchor, style=style)
    path = f"M{shape.x1:.1f},{shape.y1:.1f} {shape.x2:.1f},{shape.y2:.1f}"
    return element("path", d=path, class_=f"line c-{shape.role}")


def _times(estimate: Estimate) -> Table:
    rows: list[list[Cell]] = [
        ["prefill", count(1), seconds(estimate.ttft_s), seconds(estimate.ttft_s)],
        ["decode", count(estimate.ask.decode_steps), seconds(estimate.itl_s), seconds(estimate.decode_s)],
    ]
    return Table(("phase", "passes", "a pass", "in all"), rows, sortable=False)


# --- the roofline -----------------------------------------------------------------------------------------------------


def _roofline(estimate: Estimate) -> Html:
    roofline, ridge = estimate.roofline, estimate.roofline.ridge_flops_per_byte
    passes = [("prefill", estimate.prefill), *([("decode", estimate.decode)] if estimate.decode else [])]
    batches = _batches(estimate)
    at = [one.work.flops_per_byte for _, one in (*passes, *batches)]
    rates = [one.work.flops / one.seconds for _, one in (*passes, *batches)]
    x = log("FLOP per byte moved", [*at, ridge / 10, ridge * 10], "count")
    y = log("FLOP/s", [*rates, roofline.peak_flops * 1.05, roofline.peak_bandwidth * x.low], "count")
    marks: list[Mark] = [
        _roof("peak", "queue", roofline.peak_flops, roofline.peak_bandwidth, (x.low, x.high)),
        _roof("reached in practice", "ink", roofline.reached_flops, roofline.reached_bandwidth, (x.low, x.high)),
        *(_point(f"decode, a batch of {batch:,}", "decode", one) for batch, one in batches),
        *(_point(f"{name}, as asked", name, one) for name, one in passes),
    ]
    limits = [Limit(f"ridge {number(ridge)}", ridge, "ink")]
    limits += [
        Limit(f"{name} {number(one.work.flops_per_byte)}", one.work.flops_per_byte, name) for name, one in passes
    ]
    question = "What is each phase bound by?"
    return figure(
        Figure(
            question,
            "Left of the ridge a pass waits for memory, right of it for arithmetic. Prefill shares one reading of the "
            "weights among all prompt tokens; decode reads them for one token of each stream. A larger batch moves "
            "decode to the right: the points are batches of 1, 2, 4, 8, … as far as the memory goes.",
            plot(x, y, marks, limits, label=f"Roofline. {question}"),
            _points_table([*passes, *((f"decode at {batch:,}", one) for batch, one in batches)]),
            [
                Swatch("peak", "queue", "line"),
                Swatch("reached in practice", "ink", "dashed"),
                Swatch("prefill", "prefill", "point"),
                Swatch("decode", "decode", "point"),
            ],
        )
    )


def _roof(name: str, role: str, flops: float, bandwidth: float, ends: tuple[float, float]) -> Line:
    x = np.array([ends[0], min(max(flops / bandwidth, ends[0]), ends[1]), ends[1]])
    return Line(name, role, x, np.minimum(flops, bandwidth * x), dashed=role == "ink")


def _point(name: str, role: str, one: Pass) -> Points:
    work = one.work
    return Points(name, role, np.array([work.flops_per_byte]), np.array([work.flops / one.seconds]), large=True)


def _batches(estimate: Estimate) -> list[tuple[int, Pass]]:
    """A decode step at 1, 2, 4, … such requests, and at the most that fit."""
    sizes = {2**i for i in range(30) if 2**i <= estimate.fitting} | ({estimate.fitting} if estimate.fitting else set())
    found = [(size, Estimate(estimate.roofline, replace(estimate.ask, batch=size)).decode) for size in sorted(sizes)]
    return [(size, step) for size, step in found if step]


def _points_table(passes: Sequence[tuple[str, Pass]]) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            Number(number(one.work.flops_per_byte), one.work.flops_per_byte),
            Number(amount(one.work.flops / one.seconds, "FLOP/s"), one.work.flops / one.seconds),
            Number(amount(one.work.bytes / one.seconds, "B/s"), one.work.bytes / one.seconds),
            one.bound,
            Number(duration(one.seconds), one.seconds),
        ]
        for name, one in passes
    ]
    return Table(("pass", "FLOP/byte", "arithmetic", "memory", "bound by", "takes"), rows)


def _company(estimate: Estimate) -> Html:
    question, batches = "What does company cost a stream?", _batches(estimate)
    if len(batches) < 2:
        return absent(question, "the answer has no decode, or no two such requests fit into the memory")
    sizes = np.array([size for size, _ in batches], dtype=np.float64)
    itl_s = np.array([one.seconds for _, one in batches])
    total = sizes / itl_s
    rows: list[list[Cell]] = [
        [count(size), seconds(each_s), count(1 / each_s), count(rate)]
        for size, each_s, rate in zip(sizes, itl_s, total, strict=True)
    ]
    mine = estimate.ask.batch
    asked = [Limit(f"as asked: {mine:,}", mine, "ink")] if sizes[0] <= mine <= sizes[-1] else []
    return figure(
        Figure(
            question,
            "Streams that decode together share the reading of the weights, so that tokens get cheaper and hardly "
            f"slower, until their KV caches weigh as much or arithmetic is the limit. The {sizes[-1]:,.0f} that fit "
            f"get {total[-1] / total[0]:.3g} times the tokens per second of one alone, in all.",
            plot(
                log("such requests that decode together", [*sizes, 2.0], "count"),
                linear("ITL", itl_s, "s"),
                [Line("ITL", "decode", sizes, itl_s), Points("ITL", "decode", sizes, itl_s, large=True)],
                asked,
                label=question,
            ),
            Table(("batch", "ITL", "tokens/s of a stream", "tokens/s in all"), rows),
            [Swatch("ITL of every stream", "decode", "line")],
        )
    )
