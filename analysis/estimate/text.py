"""An estimate for a terminal: prefill and decode side by side, one request drawn to scale, and what it means."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analysis.estimate.numbers import Estimate
from analysis.estimate.rows import assumption_lines, fact_rows, headline, phase_rows, what_if_rows
from analysis.estimate.units import count, duration, share
from analysis.estimate.words import explain
from analysis.report.terminal import as_text

PREFILL, DECODE = "dark_orange", "cyan"
_CLOSE_UP_SHARE = 0.6


def render(
    estimate: Estimate, timeline: bool = False, explained: bool = False, width: int = 100, color: bool = False
) -> str:
    """The whole page, ending in a line break; made for a `width` of 80 or more."""
    parts = [*_tables(estimate)]
    parts += [*_timeline(estimate, width)] if timeline else []
    parts += [*_explained(estimate)] if explained else []
    return as_text([*parts, *_assumptions(estimate)], width, color)


def _tables(estimate: Estimate) -> Iterator[RenderableType]:
    yield Text(headline(estimate), style="bold")
    phases = _table("", Text("prefill", PREFILL), Text("a decode step", DECODE))
    for row in phase_rows(estimate):
        phases.add_row(*row)
    yield Padding(phases, (1, 0, 0, 2))
    facts = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, show_header=False)
    facts.add_column(style="bold")
    facts.add_column(justify="right")
    facts.add_column()
    for row in fact_rows(estimate):
        facts.add_row(*row)
    yield Padding(facts, (1, 0, 0, 2))


def _table(first: str, *headings: str | Text) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _timeline(estimate: Estimate, width: int) -> Iterator[RenderableType]:
    columns = min(width - 4, 112)
    yield _title("One request to scale")
    yield _inset(_whole(estimate, columns))
    yield _inset(_legend(estimate))
    if estimate.itl_s:
        cell_s, line = _close_up(estimate, estimate.itl_s, columns)
        yield _inset(Text(f"around the first token, {duration(cell_s)} a column", style="dim"))
        yield _inset(line)
    yield Padding(_meters(estimate, 26 if width >= 100 else 18), (1, 0, 0, 2))


def _whole(estimate: Estimate, columns: int) -> Text:
    """The request from the start of its prefill to its last token; what is there gets a column at least."""
    first = columns
    if estimate.decode:
        first = min(max(1, round(columns * (1 - estimate.decode_share_of_time))), columns - 1)
    return Text("█" * first, PREFILL) + Text("▒" * (columns - first), DECODE)


def _legend(estimate: Estimate) -> Text:
    steps = estimate.ask.decode_steps
    legend = Text("█ prefill ", PREFILL) + Text(f"1 pass of {duration(estimate.ttft_s)}")
    if steps:
        decode = f"{count(steps, 'step')} of {duration(estimate.itl_s)} = {duration(estimate.decode_s)}"
        legend += Text("   ▒ decode ", DECODE) + Text(decode)
    return legend


def _close_up(estimate: Estimate, itl_s: float, columns: int) -> tuple[float, Text]:
    """Seconds a column, and the prefill with the first steps behind it, all to one scale.

    A step takes two to eight columns, to be seen as one; so the beginning of a much longer prefill is cut off (`…`).
    """
    room = round(_CLOSE_UP_SHARE * columns)
    cell_s = min(itl_s / 2, max(estimate.ttft_s / room, itl_s / 8))
    wide = max(1, round(estimate.ttft_s / cell_s))
    head = Text("…" + "█" * (room - 1) if wide > room else "█" * wide, PREFILL)
    step = round(itl_s / cell_s)
    steps = min(estimate.ask.decode_steps, (columns - len(head) - 2) // step)
    more = " …" if steps < estimate.ask.decode_steps else ""
    return cell_s, head + Text(("▏" + "▒" * (step - 1)) * steps, DECODE) + Text(more)


def _meters(estimate: Estimate, cells: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("of the peak", "compute", "", "memory bandwidth", ""):
        table.add_column(heading, no_wrap=True)
    for name, one, style in (("prefill", estimate.prefill, PREFILL), ("decode", estimate.decode, DECODE)):
        if one:
            compute, memory = one.compute_utilisation, one.bandwidth_utilisation
            bars = [_meter(value, cells, style) for value in (compute, memory)]
            table.add_row(name, bars[0], share(compute), bars[1], share(memory))
    return table


def _meter(value: float, cells: int, style: str) -> Text:
    filled = round(cells * value)
    return Text("█" * filled, style) + Text("░" * (cells - filled), "dim")


def _explained(estimate: Estimate) -> Iterator[RenderableType]:
    yield _title("What it means")
    yield from (_inset(Text(paragraph)) for paragraph in explain(estimate))
    table = _table("what if", "TTFT", "ITL", "E2E")
    for row in what_if_rows(estimate):
        table.add_row(*row)
    yield Padding(table, (1, 0, 0, 2))


def _assumptions(estimate: Estimate) -> Iterator[RenderableType]:
    yield _title("Assumed")
    lines = Table.grid(padding=(0, 1, 0, 0))
    for line in assumption_lines(estimate):
        lines.add_row("-", line)
    yield _inset(lines)


def _title(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))


def _inset(content: RenderableType) -> RenderableType:
    return Padding(content, (0, 0, 0, 2))
