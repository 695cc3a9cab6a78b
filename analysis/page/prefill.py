"""Figures of prefill: how long the first token took, and what that depends on."""

import numpy as np

from analysis.page.axes import MOST_TOLD, Axis, linear, log, nines, spanning
from analysis.page.figures import Bars, Limit, Line, Mark, Points, draw, thinned
from analysis.page.shell import Cell, Figure, Html, Swatch, Table, absent, count, figure, seconds, share
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
    return [_against_prompt(view), _tail(view), _over_time(view), _queue(view)]


def _answered(view: View) -> Bools:
    return view.rows & view.run.ok & ~np.isnan(view.run.column("ttft_s"))


def _against_prompt(view: View) -> Html:
    rows = _answered(view) & (view.prompt_tokens > 0)
    if not rows.any():
        return absent(_GROWS, "no request with a first token has a known prompt length")
    x, y = view.prompt_tokens, view.run.column("ttft_s")
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
    return Table(("prompt tokens", "requests", "TTFT p50", "p95", "max"), rows, sortable=False)


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


def _over_time(view: View) -> Html:
    rows = view.run.ok & ~np.isnan(view.run.column("ttft_s"))
    if not rows.any():
        return absent(_DRIFTS, "no request had a first token")
    at_s, ttft_s = view.run.column("sent_ns")[rows] / 1e9, view.run.column("ttft_s")[rows]
    p50, p95 = view.quantiles(at_s, ttft_s, (0.5, 0.95))
    kept = thinned(ttft_s, 1500)
    marks: list[Mark] = [
        Points("request", "queue", at_s[kept], ttft_s[kept]),
        *_lines(view, "prefill", p50, p95, "p95"),
    ]
    limits = view.limits("ttft", across=True)
    y = log("TTFT", [*ttft_s, *near(limits, ttft_s)])
    return figure(
        Figure(
            _DRIFTS,
            "By the time of sending. A steady rise means that requests arrive faster than they are served: no "
            "percentile of such a run holds for a longer one. Single peaks are bursts of arrivals.",
            draw(view.clock, y, marks, limits, view.bands, "TTFT over time"),
            over_time_data(view, {"TTFT p50": p50, "TTFT p95": p95}),
            [
                Swatch(f"median of {view.bin_s:g} s", "prefill", "line"),
                Swatch("p95", "prefill", "dashed"),
                Swatch("a request", "queue", "point"),
            ],
            thinning(len(ttft_s), int(kept.sum())),
        )
    )


def _lines(view: View, role: str, low: Floats, high: Floats, name: str) -> list[Mark]:
    return [Line("median", role, view.middles_s, low), Line(name, role, view.middles_s, high, dashed=True)]


def over_time_data(view: View, columns: dict[str, Floats]) -> Table:
    """Durations by bin of time."""
    rows = [
        [count(at), *(seconds(None if np.isnan(v) else float(v)) for v in values)]
        for at, *values in zip(view.edges_s[:-1], *columns.values(), strict=True)
    ]
    return Table(("from (s)", *columns), rows, sortable=False)


def _queue(view: View) -> Html:
    server = Server.of(view.run)
    if server is None:
        return absent(_QUEUES, "the server's /metrics were not scraped, and only they tell the two apart")
    start, end = view.edges_s[:-1] * 1e9, view.edges_s[1:] * 1e9
    means = []
    for phase in ("queue", "prefill"):
        seconds_, requests = (server.growth(f"{phase}_{what}", start, end) for what in ("s", "requests"))
        means.append(np.divide(seconds_, requests, out=np.full(len(start), np.nan), where=requests > 0))
    if np.isnan(means).all(axis=1).any():
        return absent(_QUEUES, "the server's /metrics do not tell the time in the queue and in prefill")
    queue, computed = np.nan_to_num(means[0]), np.nan_to_num(means[1])
    marks = [
        Bars("prefill", "prefill", view.edges_s, computed),
        Bars("queue", "queue", view.edges_s, computed + queue, computed),
    ]
    drawing = draw(
        view.clock,
        linear("mean per request", computed + queue, "s"),
        marks,
        bands=view.bands,
        label="Queue and prefill over time",
    )
    total = float((queue + computed).sum())
    told = f" Here the queue is {share(float(queue.sum()) / total).text} of it." if total else ""
    return figure(
        Figure(
            _QUEUES,
            "By the server's own account. A queue is cured by more replicas or fewer requests; prefill itself by a "
            f"faster GPU, shorter prompts or prefix caching.{told}",
            drawing,
            over_time_data(view, {"queue": means[0], "prefill": means[1]}),
            [Swatch("prefill", "prefill"), Swatch("queue", "queue")],
        )
    )
