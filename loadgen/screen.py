"""The panel on a terminal and the line in a log: text from what is known, whatever the width and the character set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.record import NEVER_SENT
from loadgen.streams import Stalled
from workloads.schedule import Stage

if TYPE_CHECKING:
    from loadgen.progress import Second

WIDTH = 100
ECHO = 2
FRAME = 4
"""Columns of the panel's border and padding."""

WIDE = 56
"""Columns that a speed takes with both of its percentiles and a curve that is worth looking at."""

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
ASCII = str.maketrans({"–": "-", "…": ".", "·": "|", "µ": "u"})

Words = tuple[str, str]
"""A text and its style."""


@dataclass(frozen=True)
class Standing:
    """How a run stands; None and missing values are what is not known (yet).

    Attributes:
        end_ns: Of the last stage.
        requests, measured: How many are to be measured where that ends the run, and how many were.
        waiting: Due and not sent.
        error: Class, outcome and words of the last failure.
        ttft_ns: Median and 95th percentile in the stage.
        itl_ns: Median and 99th percentile in the stage.
        seconds: The last ones, oldest first.
        stalled: The streams that are in a stall.
    """

    name: str
    now_ns: int
    stage: Stage
    end_ns: int | None
    requests: int | None
    measured: int
    sent: int
    in_flight: int
    waiting: int | None
    outcomes: Mapping[str, int]
    error: tuple[str, str, str] | None
    ttft_ns: tuple[int | None, int | None]
    itl_ns: tuple[int | None, int | None]
    seconds: "Sequence[Second | None]"
    tokens_per_s: float | None
    ended_per_s: float | None
    stalled: Stalled | None
    stalls: int
    note: str

    @property
    def failures(self) -> dict[str, int]:
        """The failed requests by outcome, the most frequent first."""
        failed = {name: n for name, n in self.outcomes.items() if n and name not in ("ok", "cancelled", *NEVER_SENT)}
        return dict(sorted(failed.items(), key=lambda item: -item[1]))


def panel_of(now: Standing, console: Console) -> Panel:
    """No line is as long as the console is wide: a ^C that it echoes would begin a new line, and shift the panel."""
    width = min(WIDTH, console.width - ECHO)
    plain = console.options.ascii_only
    inner = max(10, width - FRAME)
    rows: list[RenderableType] = [_stage_row(now, inner, plain)]
    rows += [_text(line, plain) for line in flowing([*_counts(now), *_kinds(now)], inner)]
    rows += [_text(row, plain) for row in _speed_rows(now, inner, ASCII_BARS if plain else BARS)]
    rows.append(_text([_stall(now)], plain))
    rows += [_text([words], plain) for words in _last_words(now)]
    title = _text([(f"loadgen: {now.name}", "bold")], plain)
    return Panel(Group(*rows), title=title, title_align="left", width=width)


def line_of(now: Standing) -> str:
    """All of it in one line, for a log."""
    counts, kinds = (", ".join(text for text, _ in words) for words in (_counts(now), _kinds(now)))
    counts += f" ({kinds})" if kinds else ""
    speeds = f"TTFT p50 {span(now.ttft_ns[0])} p95 {span(now.ttft_ns[1])}, ITL p50 {span(now.itl_ns[0])}"
    last = f"; last failure: {_failure(now)}" if now.error else ""
    note = f"; {now.note}" if now.note else ""
    return f"loadgen: {_when(now)}: {counts}; {speeds} p99 {span(now.itl_ns[1])}; {_stall(now)[0]}{last}{note}"


def sparkline(values: Sequence[float | None], bars: str = BARS) -> str:
    """One character a value, a blank for None, from 0 to the largest."""
    top = max((value for value in values if value is not None), default=0) or 1
    last = len(bars) - 1
    return "".join(" " if value is None else bars[min(last, int(value / top * len(bars)))] for value in values)


def span(ns: int | None) -> str:
    """A duration with three digits: 8.31 ms, 480 ms, 1.25 s."""
    if ns is None:
        return "–"
    if ns < 1_000_000_000:
        return f"{_digits(ns / 1e6)} ms"
    return f"{_digits(ns / 1e9)} s"


def _digits(value: float) -> str:
    """Three digits, so that a number that changes stays where it is."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def flowing(parts: Sequence[Words], width: int, between: str = "   ") -> Iterator[list[Words]]:
    """The parts in as few lines as their texts need, none of them split."""
    line: list[Words] = []
    used = 0
    for text, style in parts:
        if line and used + len(between) + len(text) > width:
            yield line
            line, used = [], 0
        line += [(between, "")] * bool(line) + [(text, style)]
        used += len(text) + len(between) * (used > 0)
    if line:
        yield line


def _text(parts: Sequence[Words], plain: bool) -> Text:
    """One line, cut where it is too long."""
    line = Text(no_wrap=True, overflow="crop" if plain else "ellipsis")
    for text, style in parts:
        line.append(text.translate(ASCII).encode("ascii", "replace").decode() if plain else text, style)
    return line


def _stage_row(now: Standing, inner: int, plain: bool) -> RenderableType:
    text = _text([(_when(now), "")], plain)
    left = inner - len(text.plain) - 2
    total, done = _share_done(now)
    if total is None or left < 8:
        return text
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_row(text, ProgressBar(total=total, completed=min(done, total), width=min(40, left)))
    return row


def _share_done(now: Standing) -> tuple[int | None, int]:
    if now.requests is not None:
        return now.requests, now.measured
    if now.stage.end_ns is None:
        return None, 0
    return now.stage.end_ns - now.stage.start_ns, now.now_ns - now.stage.start_ns


def _when(now: Standing) -> str:
    """The stage, where in it the run is, and what is left of all stages."""
    stage, in_ns = now.stage, now.now_ns - now.stage.start_ns
    if stage.end_ns is None:
        return f"{stage.name}  {_clock_time(in_ns)}" + (f", {now.measured} of {now.requests}" if now.requests else "")
    if now.now_ns > stage.end_ns:
        return f"{stage.name}  {_clock_time(in_ns)}, waiting for the last answers"
    of, left = stage.end_ns - stage.start_ns, (now.end_ns or stage.end_ns) - now.now_ns
    return f"{stage.name}  {_clock_time(in_ns)} of {_clock_time(of)}, {_clock_time(left)} left"


def _counts(now: Standing) -> Iterator[Words]:
    if now.waiting is not None:
        yield f"{now.sent + now.waiting} due", ""
    yield f"{now.sent} sent", ""
    yield f"{now.in_flight} in flight", ""
    ok, failed = now.outcomes.get("ok", 0), sum(now.failures.values())
    yield f"{ok} ok", "green" if ok else ""
    if now.tokens_per_s is not None:
        yield f"{now.tokens_per_s:,.0f} tok/s", ""
    yield f"{failed} failed", "bold red" if failed else ""


def _kinds(now: Standing) -> list[Words]:
    """Of the failures, the most frequent first."""
    return [(f"{count} {name}", "red") for name, count in now.failures.items()]


def _speed_rows(now: Standing, inner: int, bars: str) -> Iterator[list[Words]]:
    """TTFT, ITL and the requests that end: numbers of the stage, and the last seconds as a curve."""
    seconds = now.seconds
    ended = [None if each is None else each.ended for each in seconds]
    rate = "–" if now.ended_per_s is None else f"{_digits(now.ended_per_s)}/s"
    wide = inner >= WIDE
    rows: list[tuple[str, str, Sequence[float | None], str]] = [
        ("TTFT", _percentiles(now.ttft_ns, "95", wide), [each and each.ttft_ns for each in seconds], "cyan"),
        ("ITL", _percentiles(now.itl_ns, "99", wide), [each and each.itl_ns for each in seconds], "magenta"),
        ("ended", rate, ended, "green"),
    ]
    widest = max(len(numbers) for _, numbers, _, _ in rows)
    room = inner - 6 - widest - 2
    for name, numbers, values, style in rows:
        curve = sparkline(values[-room:], bars) if room > 0 else ""
        yield [(f"{name:<6}", "bold"), (f"{numbers:<{widest}}  ", ""), (curve, style)]


def _percentiles(ns: tuple[int | None, int | None], upper: str, wide: bool) -> str:
    last = f"p{upper} {span(ns[1]):>7}"
    return f"p50 {span(ns[0]):>7}  {last}" if wide else last


def _stall(now: Standing) -> Words:
    if now.stalled and now.stalled.streams:
        streams = f"{now.stalled.streams} stream{'s' * (now.stalled.streams != 1)}"
        return f"stalled: {streams}, up to {span(now.stalled.longest_ns(now.now_ns))}", "bold yellow"
    so_far = f"{now.stalls} stall{'s' * (now.stalls != 1)}"
    return f"{so_far} so far" if now.stalls else so_far, "yellow" if now.stalls else ""


def _last_words(now: Standing) -> Iterator[Words]:
    if now.error is not None:
        yield f"last failure: {_failure(now)}", "red"
    if now.note:
        yield now.note, "yellow"


def _failure(now: Standing) -> str:
    assert now.error is not None
    name, outcome, words = now.error
    return ": ".join(filter(None, (name, outcome, words)))


def _clock_time(ns: int) -> str:
    minutes, seconds = divmod(ns // 1_000_000_000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
