"""Trials as a table: a row a figure, a column a tool; the median over the repeats and, in brackets, their range."""

from collections.abc import Callable, Sequence

import pandas as pd

from tests.bench.peers.trial import Trial

KEPT = 0.1  # a load is kept if the whole took at most this share longer than planned

Samples = list[float]
Group = Sequence[Trial]
"""The trials of one tool, in the order of their repeats."""


def of(trials: Group, streams: int, freeze: bool = False) -> list[Trial]:
    """The trials under one load that did not fail."""
    return [each for each in trials if each.figures and (each.load.streams, each.load.freeze) == (streams, freeze)]


def figure(name: str, streams: int, freeze: bool = False) -> Callable[[Group], Samples]:
    def samples(trials: Group) -> Samples:
        values = [each.figures.get(name) for each in of(trials, streams, freeze)]
        return [value for value in values if value is not None]

    return samples


def cost_us(streams: int) -> Callable[[Group], Samples]:
    """CPU of the whole tree over the tokens of the load, µs."""
    return lambda trials: [spent(each)[0] / spent(each)[1] * 1e6 for each in of(trials, streams)]


def spent(trial: Trial) -> tuple[float, float]:
    """CPU seconds and tokens."""
    return trial.figures["cpu_s"] or 0.0, trial.figures["tokens"] or 0.0


def marginal_us(small: int, large: int) -> Callable[[Group], Samples]:
    """CPU of a further token, µs: what starting, planning and reporting cost every run drops out."""

    def samples(trials: Group) -> Samples:
        pairs = [(spent(a), spent(b)) for a, b in zip(of(trials, small), of(trials, large), strict=False)]
        return [(b[0] - a[0]) / (b[1] - a[1]) * 1e6 for a, b in pairs]

    return samples


def error_ms(name: str, streams: int) -> Callable[[Group], Samples]:
    """What the tool reports − what the server's log says."""

    def samples(trials: Group) -> Samples:
        pairs = [(t.figures.get(f"said_{name}"), t.figures.get(f"true_{name}")) for t in of(trials, streams)]
        return [said - true for said, true in pairs if said is not None and true is not None]

    return samples


def kept(trial: Trial) -> bool:
    slower = trial.figures.get("slower")
    return slower is not None and slower <= KEPT


def kept_rates(trials: Group) -> Samples:
    """Per repeat: tokens per second under the largest load kept before the first that was not; 0 if none was."""
    loads = [each for each in trials if not each.load.freeze]
    repeats = max((sum(1 for each in loads if each.load == load) for load in {t.load for t in loads}), default=0)
    return [max(_climb(loads, repeat), default=0.0) for repeat in range(repeats)]


def _climb(trials: Group, repeat: int) -> Samples:
    rates = []
    for streams in sorted({each.load.streams for each in trials}):
        under = [each for each in trials if each.load.streams == streams]
        if repeat >= len(under) or not kept(under[repeat]):
            break
        rates.append(under[repeat].figures["rate"] or 0.0)
    return rates


def rows(small: int, large: int, frozen: int) -> dict[str, Callable[[Group], Samples]]:
    """By label; the loads are numbers of streams."""
    found = {
        f"CPU µs/token, all in, {small} streams": cost_us(small),
        f"CPU µs/token, all in, {large:,} streams": cost_us(large),
        "CPU µs/token, marginal": marginal_us(small, large),
        f"rate under {small} streams, tok/s": figure("rate", small),
        f"rate under {large:,} streams, tok/s": figure("rate", large),
        "highest rate kept, tok/s": kept_rates,
    }
    for streams in (small, large):
        for name, words in (("ttft", "TTFT"), ("itl", "ITL")):
            for rank in ("p50", "p99"):
                found[f"error of {words} {rank}, ms, {streams:,} streams"] = error_ms(f"{name}_{rank}", streams)
    return found | {
        f"a freeze of 500 ms: true longest gap, ms, {frozen} streams": figure("true_longest", frozen, True),
        "longest gap in the report, ms": figure("said_longest", frozen, True),
        "ITL p99 in the report, ms": figure("said_itl_p99", frozen, True),
        f"peak memory, MB, {large:,} streams": figure("peak_mb", large),
        f"start to first request, s, {small} streams": figure("start_s", small),
        f"last token to end, s, {small} streams": figure("report_s", small),
        f"last token to end, s, {large:,} streams": figure("report_s", large),
        f"server late p99, ms, {large:,} streams": figure("server_late_p99", large),
    }


def digits(value: float) -> str:
    """Three of them, but whole numbers from 100 on and thousandths at the most."""
    if round(value, 3) == 0:
        return "0"
    places = next((places for bound, places in ((100, 0), (10, 1), (1, 2)) if abs(value) >= bound), 3)
    return f"{value:,.{places}f}"


def cell(samples: Samples) -> str:
    if not samples:
        return "–"
    ordered = pd.Series(samples)
    middle, low, high = (digits(float(each)) for each in (ordered.median(), ordered.min(), ordered.max()))
    return middle if low == high else f"{middle} ({low} to {high})"


def table(trials: Sequence[Trial], tools: Sequence[str], loads: tuple[int, int, int]) -> pd.DataFrame:
    """Rows by label, a column a tool; `loads` are the small, the large and the frozen number of streams."""
    by_tool = {tool: [each for each in trials if each.tool == tool] for tool in tools}
    return pd.DataFrame(
        {tool: [cell(samples(by_tool[tool])) for samples in rows(*loads).values()] for tool in tools},
        index=list(rows(*loads)),
    )


def markdown(frame: pd.DataFrame) -> str:
    lines = [["", *map(str, frame.columns)], ["---"] * (len(frame.columns) + 1)]
    lines += [[str(label), *map(str, row)] for label, row in zip(frame.index, frame.to_numpy(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
