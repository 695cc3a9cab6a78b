"""Figures of decode: how long each further token took, and what that depends on."""

import numpy as np

from analysis.latency import gap_samples, why_undefined
from analysis.page.axes import linear, log
from analysis.page.figures import Bars, Line, Mark, Points, draw, thinned
from analysis.page.prefill import near, over_time_data, tail_data, tail_drawing, thinning
from analysis.page.shell import Figure, Html, Swatch, Table, absent, count, figure, number, seconds
from analysis.page.view import View, legend
from analysis.quantiles import Bools, Floats
from analysis.record import KINDS
from analysis.stalls.level import Level

_SHAPE = "What does a reader wait for between tokens?"
_TAIL = "How slow is the slow end of decode?"
_DRIFTS = "Does decode slow down while the load lasts?"
_BATCH = "Does decode slow down with company?"
_BINS = 48
_ALL_KINDS = np.ones(len(KINDS), dtype=bool)


def decode(view: View) -> list[Html]:
    return [_against_batch(view), _tail(view), _over_time(view), _shape(view)]


def _gaps_s(view: View, rows: Bools) -> Floats:
    cells = view.run.cells
    if cells is not None:
        gaps_s, counts, _ = cells.samples(rows & view.run.streamed, per_token=False)
        return np.repeat(gaps_s, counts)
    return gap_samples(view.run, rows, _ALL_KINDS)[0]


def _itl(view: View, rows: Bools) -> tuple[Floats, Floats]:
    """ITL of each gap of the streams in `rows`, and how many tokens it counts for; empty where ITL is undefined."""
    run = view.run
    if np.any(run.tokens_unknown & rows):
        return np.empty(0), np.empty(0)
    if run.cells is not None:
        itl_s, counts, _ = run.cells.samples(rows & run.streamed, per_token=True)
        return itl_s, counts.astype(np.float64)
    chosen = (rows & run.streamed)[run.gaps.row]
    tokens = run.events.tokens[run.gaps.end[chosen]].astype(np.float64)
    return run.gaps.gap_ns[chosen] / 1e9 / tokens, tokens


def _metric(view: View) -> tuple[str, str]:
    """What stands for decode: ITL, or gaps where tokens per event are not known; and why."""
    if len(_itl(view, view.rows)[0]):
        return "ITL", ""
    return "gap", f"ITL is undefined ({why_undefined(view.run, view.rows, 'itl')}), so gaps between events are shown."


def _values(view: View, rows: Bools) -> Floats:
    """Samples of what stands for decode, each token once."""
    itl_s, tokens = _itl(view, rows)
    if _metric(view)[0] == "gap":
        return _gaps_s(view, rows)
    return itl_s if (tokens == 1).all() else np.repeat(itl_s, tokens.astype(np.int64))


def _against_batch(view: View) -> Html:
    run = view.run
    tpot_s, first, last = run.column("tpot_s"), run.column("first_token_ns"), run.column("last_token_ns")
    rows = view.rows & run.streamed & (tpot_s > 0)
    if not rows.any():
        return absent(_BATCH, "no answer had more than one token")
    company = np.full(len(rows), np.nan)
    company[rows] = Level.open(first, last).mean(first[rows], last[rows])
    groups, kept = view.groups("decode", rows), rows.copy()
    kept[rows] = thinned(tpot_s[rows])
    marks = [Points(each.name, each.role, company[each.rows & kept], tpot_s[each.rows & kept]) for each in groups]
    limits = view.limits("tpot", across=True)
    drawing = draw(
        linear("streams decoding meanwhile (mean)", company[rows]),
        linear("TPOT", [*tpot_s[rows], *near(limits, tpot_s[rows])], "s"),
        marks,
        limits,
        label=f"TPOT against streams, {rows.sum():,} requests",
    )
    return figure(
        Figure(
            _BATCH,
            "Decode is memory-bound: the weights are read once a step for all streams, so one more costs little "
            "until their KV caches weigh as much, or prefills of others come between. Steep growth means one of "
            "these.",
            drawing,
            _by_company(company[rows], tpot_s[rows]),
            legend(groups, "point"),
            thinning(int(rows.sum()), int(kept.sum())),
        )
    )


def _by_company(x: Floats, y: Floats) -> Table:
    edges = np.unique(np.quantile(x, np.linspace(0, 1, 7)))
    part = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, len(edges) - 2))
    rows = [
        [
            number(float(x[part == i].mean())),
            count(int((part == i).sum())),
            *(seconds(float(v)) for v in np.quantile(y[part == i], [0.5, 0.95])),
        ]
        for i in np.unique(part)
    ]
    return Table(("streams (mean)", "requests", "TPOT p50", "p95"), rows, sortable=False)


def _tail(view: View) -> Html:
    groups = view.groups("decode", view.rows & view.run.streamed)
    samples = [(each, found) for each in groups if len(found := _values(view, each.rows))]
    if not samples:
        return absent(_TAIL, "no answer had more than one token event")
    name, why = _metric(view)
    limits = view.limits(name.lower())
    together = np.concatenate([values for _, values in samples])
    x = log(name, [*reach(together), *(each.value for each in limits)])
    return figure(
        Figure(
            _TAIL,
            f"The share of tokens that came within a time of the one before. {why} A knee is a second kind of step: "
            "tokens that waited for a prefill. Averages hide it; readers do not.",
            tail_drawing(x, samples, limits, f"{name} by percentile"),
            tail_data(samples, "samples"),
            legend([each for each, _ in samples], "line"),
        )
    )


def reach(values: Floats) -> Floats:
    """What an axis must hold: all but the very least, which arrive with another in one read."""
    positive = values[values > 0]
    found: Floats = np.quantile(positive, [0.001, 1]) if len(positive) else positive
    return found


def _over_time(view: View) -> Html:
    run = view.run
    if run.cells is not None:
        return absent(_DRIFTS, "the run did not keep its token events (--keep-events)")
    chosen = run.streamed[run.gaps.row]
    if not chosen.any():
        return absent(_DRIFTS, "no answer had more than one token event")
    at_s, gap_s = run.events.arrival_ns[run.gaps.end[chosen]] / 1e9, run.gaps.gap_ns[chosen] / 1e9
    p50, p99 = view.quantiles(at_s, gap_s, (0.5, 0.99))
    marks: list[Mark] = [
        Line("median", "decode", view.middles_s, p50),
        Line("p99", "decode", view.middles_s, p99, dashed=True),
    ]
    limits = view.limits("itl", "gap", across=True)
    y = log("gap", [*p50, *p99, *(each.value for each in limits)])
    return figure(
        Figure(
            _DRIFTS,
            "Gaps between token events by arrival. The median is the pace of a step; p99 is what prefills of others "
            "and pauses add. The two drift apart where long prompts arrive.",
            draw(view.clock, y, marks, limits, view.bands, "Gaps over time"),
            over_time_data(view, {"gap p50": p50, "gap p99": p99}),
            [Swatch(f"median of {view.bin_s:g} s", "decode", "line"), Swatch("p99", "decode", "dashed")],
        )
    )


def _shape(view: View) -> Html:
    gaps_s = _gaps_s(view, view.rows)
    if not (gaps_s > 0).any():
        return absent(_SHAPE, "no answer had two token events at different times")
    limits = view.limits("itl", "gap")
    x = log("time between tokens", [*reach(gaps_s), *(each.value for each in limits)])
    edges = np.geomspace(x.low, x.high, _BINS + 1)
    counts = _histogram(gaps_s, edges)
    marks: list[Mark] = [Bars("gaps between events", "decode", edges, counts)]
    swatches = [Swatch("gaps between token events", "decode")]
    itl_s = _values(view, view.rows) if _metric(view)[0] == "ITL" else gaps_s
    if len(itl_s) != len(gaps_s):
        marks.append(Line("ITL", "ink", np.append(edges[:-1], edges[-1]), _closed(_histogram(itl_s, edges)), step=True))
        swatches.append(Swatch("ITL: gaps divided over their tokens", "ink", "line"))
    y = log("samples", [0.6, *counts, *marks[-1].y] if isinstance(marks[-1], Line) else [0.6, *counts], "count")
    return figure(
        Figure(
            _SHAPE,
            "Both axes are logarithmic, so that one frozen token in a million shows. The tall peak is the usual "
            "step of the engine; peaks to its right are steps that carried a prefill, or freezes. What is below the "
            "axis counts at its end.",
            draw(x, y, marks, limits, label="Distribution of gaps"),
            _shape_data(edges, counts),
            swatches,
        )
    )


def _histogram(values: Floats, edges: Floats) -> Floats:
    found, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return found.astype(np.float64)


def _closed(counts: Floats) -> Floats:
    return np.append(np.maximum(counts, 0.1), max(counts[-1], 0.1))


def _shape_data(edges: Floats, counts: Floats) -> Table:
    rows = [
        [seconds(float(edges[i])), seconds(float(edges[i + 1])), count(int(counts[i]))] for i in np.flatnonzero(counts)
    ]
    return Table(("from", "to", "gaps"), rows, sortable=False)
