"""Figures of the load: what was asked, what was done, and how busy it kept the server."""

import numpy as np

from analysis.page.axes import linear
from analysis.page.figures import Bars, Line, Mark, draw
from analysis.page.shell import Figure, Html, Swatch, Table, absent, figure, number
from analysis.page.view import View
from analysis.quantiles import Floats
from analysis.stalls.level import Level
from analysis.throughput import token_arrivals

_RATES = "Was the load delivered, and was it good?"
_BUSY = "How many requests were open, and in which phase?"
_READ = "How many prompt tokens a second were read?"
_WRITTEN = "How many output tokens a second were written?"


def load(view: View) -> list[Html]:
    return [_rates(view), _in_flight(view), _prompt_rate(view), _output_rate(view)]


def _rates(view: View) -> Html:
    run = view.run
    if np.isnan(view.start_s).all():
        return absent(_RATES, "no request was due or sent")
    columns = {"sent": view.per_second(run.column("sent_ns") / 1e9)}
    marks, swatches = [_line(view, "sent", "ink", columns["sent"])], [Swatch("sent", "ink", "line")]
    if not np.isnan(run.column("due_ns")).all():
        columns["offered"] = view.per_second(run.column("due_ns") / 1e9)
        marks.insert(0, _line(view, "offered", "queue", columns["offered"], dashed=True))
        swatches.append(Swatch("offered: due by the plan", "queue", "dashed"))
    columns["succeeded"] = view.per_second(view.start_s[run.ok])
    if view.good.limited.any():
        columns["good"] = view.per_second(view.start_s[run.ok & view.good.good])
        marks.insert(0, Bars("good", "good", view.edges_s, columns["good"]))
        swatches.append(Swatch("good: met every limit of its class", "good"))
    else:
        marks.insert(0, Bars("succeeded", "queue", view.edges_s, columns["succeeded"]))
        swatches.append(Swatch("succeeded", "queue"))
    y = linear("requests/s", np.concatenate(list(columns.values())))
    return figure(
        Figure(
            _RATES,
            "By start, in requests per second. Where good falls below offered, users were let down, whatever the "
            "throughput; where sent falls below offered, the client or a cap on open requests held the load back.",
            draw(view.clock, y, marks, bands=view.bands, label="Rates over time"),
            _data(view, columns),
            swatches,
        )
    )


def _line(view: View, name: str, role: str, values: Floats, dashed: bool = False) -> Mark:
    """A rate of each bin, held over the bin."""
    return Line(name, role, view.edges_s, np.append(values, values[-1]), step=True, dashed=dashed)


def _data(view: View, columns: dict[str, Floats]) -> Table:
    rows = [
        [number(float(at)), *(number(float(value)) for value in values)]
        for at, *values in zip(view.edges_s[:-1], *columns.values(), strict=True)
    ]
    return Table(("from (s)", *columns), rows, sortable=False)


def _in_flight(view: View) -> Html:
    run = view.run
    sent, first, last, end = (run.column(name) for name in ("sent_ns", "first_token_ns", "last_token_ns", "end_ns"))
    over = np.where(np.isnan(first), end, first)
    prefill, decode = (_mean_open(view, start, stop) for start, stop in ((sent, over), (first, last)))
    if not (prefill + decode > 0).any():
        return absent(_BUSY, "no request was ever open")
    marks = [
        Bars("decode", "decode", view.edges_s, decode),
        Bars("waiting for the first token", "prefill", view.edges_s, decode + prefill, decode),
    ]
    return figure(
        Figure(
            _BUSY,
            f"Mean of each {view.bin_s:g} s. Streams in decode are the batch that shares each step; requests "
            "without a first token are in prefill or in a queue. If they pile up, the server cannot follow.",
            draw(view.clock, linear("open requests", decode + prefill), marks, bands=view.bands, label="Open requests"),
            _data(view, {"before the first token": prefill, "in decode": decode}),
            [Swatch("before the first token", "prefill"), Swatch("in decode", "decode")],
        )
    )


def _mean_open(view: View, start_ns: Floats, end_ns: Floats) -> Floats:
    return Level.open(start_ns, end_ns).mean(view.edges_s[:-1] * 1e9, view.edges_s[1:] * 1e9)


def _prompt_rate(view: View) -> Html:
    first_s, known = view.run.column("first_token_ns") / 1e9, view.run.column("prompt_tokens")
    rows = ~np.isnan(first_s + known)
    if not rows.any():
        return absent(_READ, "the server told no prompt length")
    rate = view.per_second(first_s[rows], known[rows])
    answer = (
        "Prompts count when their first token comes. The highest steady level is near what prefill can do on this "
        "server."
    )
    return _tokens(view, _READ, answer, "prefill", rate)


def _output_rate(view: View) -> Html:
    _, arrival_ns, tokens = token_arrivals(view.run)
    if not len(arrival_ns):
        return absent(_WRITTEN, "no token came")
    rate = view.per_second(arrival_ns / 1e9, tokens)
    answer = (
        "By arrival. It grows with the streams that decode together, until memory or the prefills of others set an end "
        "to it."
    )
    return _tokens(view, _WRITTEN, answer, "decode", rate)


def _tokens(view: View, question: str, answer: str, role: str, rate: Floats) -> Html:
    marks = [Bars("tokens/s", role, view.edges_s, rate)]
    drawing = draw(view.clock, linear("tokens/s", rate), marks, bands=view.bands, label=question)
    return figure(Figure(question, answer, drawing, _data(view, {"tokens/s": rate})))
