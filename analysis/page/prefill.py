"""Figures of prefill: how long the first token took, and what that depends on."""

from dataclasses import dataclass

import numpy as np

from analysis.page.axes import MOST_TOLD, Axis, log, nines, spanning
from analysis.page.figures import Limit, Line, Mark, Points, draw, thinned
from analysis.page.shell import Cell, Figure, Html, Swatch, Table, absent, count, figure, number, seconds, share
from analysis.page.view import Group, View, legend
from analysis.quantiles import Bools, Floats
from analysis.server import Server

_GROWS = "Does TTFT grow with the prompt?"
_TAIL = "How slow is the slow end of TTFT?"
_DRIFTS = "Does TTFT stay the same while the load lasts?"
_QUEUES = "Is it the queue or the prefill?"
PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
HEADINGS = ("p50", "p90", "p95", "p99", "p99.9")


def prefill(view: View) -> list[Html]:
    """TTFT over time has queue and prefill apart where the server's /metrics were scraped."""
    apart = _Apart.of(view)
    if isinstance(apart, str):
        return [_against_prompt(view), _tail(view), _over_time(view, None), absent(_QUEUES, apart)]
    return [_against_prompt(view), _tail(view), _over_time(view, apart)]


def _answered(view: View) -> Bools:
    return view.rows & view.run.ok & ~np.isnan(view.run.column("ttft_s"))


def _against_prompt(view: View) -> Html:
    rows = _answered(view) & (view.computed_tokens > 0)
    if not rows.any():
        return absent(_GROWS, "no request with a first token has a known prompt length")
    x, y = view.computed_tokens, view.run.column("ttft_s")
    groups = view.groups("prefill", rows)
    shown = rows.copy()
    shown[rows] = thinned(y[rows])
    marks = [Points(each.name, each.role, x[each.rows & shown], y[each.rows & shown]) for each in groups]
    limits = view.limits("ttft", across=True)
    drawing = draw(
        spanning("prompt tokens to compute", x[rows]),
        log("TTFT", [*y[rows], *near(limits, y[rows])]),
        marks,
        limits,
        label=f"TTFT against prompt tokens, {rows.sum():,} requests",
    )
    return figure(
        Figure(
            _GROWS,
            "Prefill is compute-bound: alone on the GPU, TTFT grows with the tokens to compute. The lower edge of "
            "the points is that price; what lies far above it has waited, in a queue or for others' prompts.",
            drawing,
            _by_length(x[rows], y[rows]),
            legend(groups, "point"),
            thinning(int(rows.sum()), int(shown.sum())),
        )
    )


def thinning(known: int, drawn: int) -> str:
    """What to say where not every point is drawn."""
    if drawn == known:
        return ""
    return (
        f"{drawn:,} of {known:,} requests are drawn: the slowest, and of the others an even choice. The data count all."
    )


def near(limits: list[Limit], values: Floats) -> list[float]:
    """Limits that are close enough to the values to be worth the room."""
    if not len(values):
        return []
    low, high = float(np.min(values)) / 3, float(np.max(values)) * 10
    return [each.value for each in limits if low <= each.value <= high]


def _by_length(x: Floats, y: Floats) -> Table:
    """TTFT in up to eight equally filled ranges of the prompt length."""
    edges = np.unique(np.quantile(x, np.linspace(0, 1, 9)))
    part = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, len(edges) - 2))
    rows: list[list[Cell]] = []
    for i in np.unique(part):
        lengths, mine = x[part == i], y[part == i]
        p50, p95 = np.quantile(mine, [0.5, 0.95])
        told = f"{lengths.min():,.0f} to {lengths.max():,.0f}"
        rows.append([told, count(len(mine)), seconds(float(p50)), seconds(float(p95)), seconds(float(mine.max()))])
    return Table(("prompt tokens to compute", "requests", "TTFT p50", "p95", "max"), rows, sortable=False)


def _tail(view: View) -> Html:
    rows = _answered(view)
    if not rows.any():
        return absent(_TAIL, "no request had a first token")
    ttft_s, groups, limits = view.run.column("ttft_s"), view.groups("prefill", rows), view.limits("ttft")
    x = log("TTFT", [*ttft_s[rows], *near(limits, ttft_s[rows])])
    samples = [(each, ttft_s[each.rows]) for each in groups]
    return figure(
        Figure(
            _TAIL,
            "The share of requests whose first token came within a time; each step up is one nine more. A limit is "
            "met where its class crosses the dashed line above the limit's percentile.",
            tail_drawing(x, samples, limits, "TTFT by percentile"),
            tail_data(samples, "requests"),
            legend(groups, "line"),
        )
    )


def tail_drawing(x: Axis, samples: list[tuple[Group, Floats]], limits: list[Limit], label: str) -> Html:
    """Distributions on a scale of nines; each as far as its number of samples reaches."""
    y = nines(max(len(values) for _, values in samples))
    return draw(x, y, [_distribution(each, values) for each, values in samples], limits, label=label)


def _distribution(group: Group, values: Floats) -> Line:
    steps = np.linspace(0, np.log10(min(max(len(values), 2), MOST_TOLD)), 160)
    q = 1 - 10**-steps
    return Line(group.name, group.role, np.quantile(values, q), q)


def tail_data(samples: list[tuple[Group, Floats]], noun: str) -> Table:
    rows: list[list[Cell]] = [
        [each.name, count(len(values)), *(seconds(float(v)) for v in np.quantile(values, PERCENTILES))]
        for each, values in samples
    ]
    return Table(("class", noun, *HEADINGS), rows)


@dataclass(frozen=True)
class _Apart:
    """What the server's own account makes of TTFT: the means of each bin of time, NaN where none was answered."""

    queue_s: Floats
    prefill_s: Floats

    @classmethod
    def of(cls, view: View) -> "_Apart | str":
        """Or why it is not known."""
        server = Server.of(view.run)
        if server is None:
            return "the server's /metrics were not scraped, and only they tell the two apart"
        start, end = view.edges_s[:-1] * 1e9, view.edges_s[1:] * 1e9
        means = []
        for phase in ("queue", "prefill"):
            seconds_, requests = (server.growth(f"{phase}_{what}", start, end) for what in ("s", "requests"))
            means.append(np.divide(seconds_, requests, out=np.full(len(start), np.nan), where=requests > 0))
        if np.isnan(means).all(axis=1).any():
            return "the server's /metrics do not tell the time in the queue and in prefill"
        return cls(*means)

    def marks(self, view: View) -> list[Mark]:
        return [
            Line("queue (the server's mean)", "ink", view.middles_s, self.queue_s),
            Line("prefill (the server's mean)", "ink", view.middles_s, self.prefill_s, dashed=True),
        ]

    def words(self) -> str:
        queue_s, prefill_s = np.nansum(self.queue_s), np.nansum(self.prefill_s)
        total_s = float(queue_s + prefill_s)
        part = round(float(queue_s) / total_s, 3) if total_s else None
        told = "" if part is None else f" Here the queue is {share(part).text if part else 'next to nothing'} of both."
        return (
            " Queue and prefill are the server's own account: a queue is cured by more replicas or fewer requests; "
            f"prefill itself by a faster GPU, shorter prompts or prefix caching.{told}"
        )


def _over_time(view: View, apart: _Apart | None) -> Html:
    question = _DRIFTS if apart is None else f"{_DRIFTS} {_QUEUES}"
    rows = view.run.ok & ~np.isnan(view.run.column("ttft_s"))
    if not rows.any():
        return absent(question, "no request had a first token")
    at_s, ttft_s = view.run.column("sent_ns")[rows] / 1e9, view.run.column("ttft_s")[rows]
    p50, p95 = view.quantiles(at_s, ttft_s, (0.5, 0.95))
    kept = thinned(ttft_s, 1500)
    marks: list[Mark] = [
        Points("request", "queue", at_s[kept], ttft_s[kept]),
        Line("median", "prefill", view.middles_s, p50),
        Line("p95", "prefill", view.middles_s, p95, dashed=True),
    ]
    swatches = [
        Swatch(f"TTFT, median of {view.bin_s:g} s", "prefill", "line"),
        Swatch("TTFT p95", "prefill", "dashed"),
        Swatch("a request", "queue", "point"),
    ]
    columns, told = {"TTFT p50": p50, "TTFT p95": p95}, ttft_s
    if apart is not None:
        marks += apart.marks(view)
        swatches += [Swatch("queue (the server's mean)", "ink", "line"), Swatch("prefill (the same)", "ink", "dashed")]
        columns |= {"queue": apart.queue_s, "prefill": apart.prefill_s}
        told = np.concatenate([told, *(worth(each, ttft_s) for each in (apart.queue_s, apart.prefill_s))])
    limits = view.limits("ttft", across=True)
    return figure(
        Figure(
            question,
            "By the time of sending. A steady rise means that requests arrive faster than they are served: no "
            "percentile of such a run holds for a longer one. Single peaks are bursts of arrivals."
            + (apart.words() if apart else ""),
            draw(view.clock, log("TTFT", [*told, *near(limits, ttft_s)]), marks, limits, view.bands, "TTFT over time"),
            over_time_data(view, columns),
            swatches,
            thinning(len(ttft_s), int(kept.sum())),
        )
    )


def worth(values: Floats, beside: Floats) -> Floats:
    """Those that are large enough to be worth the room on a logarithmic axis beside others."""
    return values[values > float(np.min(beside)) / 30]


def over_time_data(view: View, columns: dict[str, Floats]) -> Table:
    """Durations by bin of time."""
    rows = [
        [number(float(at)), *(seconds(None if np.isnan(v) else float(v)) for v in values)]
        for at, *values in zip(view.edges_s[:-1], *columns.values(), strict=True)
    ]
    return Table(("from (s)", *columns), rows, sortable=False)
