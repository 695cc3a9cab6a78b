"""What ran where, and a roofline's floor under what was measured."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import yaml

from analysis.page.axes import log, spanning
from analysis.page.figures import Limit, Points, draw, thinned
from analysis.page.prefill import thinning
from analysis.page.shell import Cell, Figure, Html, Number, Table, absent, columns, element, figure, table, text
from analysis.page.view import View, legend
from analysis.quantiles import Floats
from analysis.roofline import Roofline

_PLAIN = (
    "id",
    "target",
    "engine",
    "model",
    "endpoint",
    "transport",
    "started_at",
    "seed",
    "loop",
    "timestamp_source",
    "duration_s",
)
_TTFT = "How far above its floor is TTFT?"
_TPOT = "How far above its floor is TPOT?"


def about(meta: Mapping[str, Any]) -> list[Html]:
    facts = {name: meta.get(name) for name in _PLAIN}
    for group in ("host", "versions", "limits", "clock"):
        known = meta.get(group)
        facts |= {f"{group}: {name}": value for name, value in known.items()} if isinstance(known, Mapping) else {}
    terms = [
        part
        for name, value in facts.items()
        if value is not None
        for part in (element("dt", _words(name)), element("dd", _plain(value)))
    ]
    workload = meta.get("workload")
    found = [element("dl", *terms)]
    if isinstance(workload, Mapping):
        source = yaml.safe_dump(dict(workload), sort_keys=False, allow_unicode=True, width=100)
        found += [
            element("h3", "Workload, as it was resolved"),
            element("pre", source, tabindex="0", aria_label="Workload"),
        ]
    return found


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value >= 1e6 else str(value)


def floor(view: View, roofline: Roofline) -> list[Html]:
    """Measured TTFT, ITL and TPOT as multiples of what the request would take at least, alone on a replica's GPUs."""
    gpu = f"{roofline.tp} × {roofline.gpu.name}" if roofline.tp > 1 else f"one {roofline.gpu.name}"
    floors_s = floors(view, roofline)
    ttft, tpot = (np.where(view.rows & view.run.ok, each, np.nan) for each in multiples(view, *floors_s))
    told = text(
        f"The floor is what {roofline.model.name} on {gpu} takes for the request alone, by a roofline at "
        f"{roofline.compute_efficiency:.0%} of the peak arithmetic and {roofline.bandwidth_efficiency:.0%} of the peak "
        "bandwidth. 1× is as good as it gets; the rest is queueing, batching with others, and overhead. ITL is of each "
        "token on its own: its tail are passes that carried the prompts of others."
    )
    told_of = (("TTFT", ttft), ("ITL", itl_multiples(view, floors_s[1])), ("TPOT", tpot))
    known = [(name, values) for name, values in told_of if not np.isnan(values).all()]
    rows: list[list[Cell]] = [[name, *_row(values)] for name, values in known]
    numbers = [table(Table(("", "p50", "p95", "p99"), rows, sortable=False), "Multiples of the floor")] if rows else []
    return [
        told,
        *numbers,
        columns(_multiple(view, _TTFT, "TTFT", "prefill", ttft), _multiple(view, _TPOT, "TPOT", "decode", tpot)),
    ]


def floors(view: View, roofline: Roofline) -> tuple[Floats, Floats]:
    """Seconds of a prefill of each request's uncached prompt alone, and of a step at its mean context alone; NaN if
    unknown."""
    run = view.run
    prompt, output = run.column("prompt_tokens"), run.column("output_tokens")
    cached = np.minimum(np.nan_to_num(run.column("cached_tokens")), prompt - 1)
    prefill_s, step_s = np.full(len(prompt), np.nan), np.full(len(prompt), np.nan)
    for i in np.flatnonzero(prompt >= 1):
        prefill_s[i] = roofline.seconds(roofline.work([(int(prompt[i] - cached[i]), int(cached[i]))]))
    for i in np.flatnonzero((prompt >= 1) & (output > 1)):
        step_s[i] = roofline.seconds(roofline.work((), 1, round(prompt[i] + output[i] / 2)))
    return prefill_s, step_s


def multiples(view: View, prefill_s: Floats, step_s: Floats) -> tuple[Floats, Floats]:
    """TTFT and TPOT of each request over their floors."""
    return view.run.column("ttft_s") / prefill_s, view.run.column("tpot_s") / step_s


def itl_multiples(view: View, step_s: Floats) -> Floats:
    """ITL of each token over its request's floor; empty where ITL is undefined."""
    run = view.run
    if np.any(run.tokens_unknown & view.rows):
        return np.empty(0)
    if run.cells is not None:
        itl_s, counts, row = run.cells.samples(view.rows & run.streamed, per_token=True)
        return np.repeat(itl_s / step_s[row], counts)
    chosen = (view.rows & run.streamed)[run.gaps.row]
    tokens = run.events.tokens[run.gaps.end[chosen]].astype(np.int64)
    found = run.gaps.gap_ns[chosen] / 1e9 / tokens / step_s[run.gaps.row[chosen]]
    return np.repeat(found, tokens)


def _row(values: Floats) -> list[Number]:
    found = np.quantile(values[~np.isnan(values)], [0.5, 0.95, 0.99])
    return [Number(f"{each:,.3g}×", float(each)) for each in found]


def _multiple(view: View, question: str, name: str, phase: str, values: Floats) -> Html:
    known = values > 0
    if not known.any():
        return absent(question, f"no request has both a {name} and known lengths")
    kept = known.copy()
    kept[known] = thinned(values[known])
    groups, x = view.groups(phase, known), view.computed_tokens
    points = [Points(each.name, each.role, x[each.rows & kept], values[each.rows & kept]) for each in groups]
    y = log(f"{name} over its floor", [0.9, *values[known]], "times")
    data = Table(("", "p50", "p95", "p99"), [[name, *_row(values[known])]], sortable=False)
    return figure(
        Figure(
            question,
            "Multiples near 1 leave nothing to gain but a faster GPU. High ones at short prompts are overhead or "
            "queueing; high ones throughout are company: others' tokens in the same passes.",
            draw(
                spanning("prompt tokens to compute", x[known]),
                y,
                points,
                [Limit("floor", 1.0, "ink", across=True)],
                label=f"{question} {known.sum()} requests",
            ),
            data,
            legend(groups, "point"),
            thinning(int(known.sum()), int(kept.sum())),
        )
    )
