"""Do 95 % intervals cover the truth in 95 of 100 runs? By kind of run and percentile, for ours and for others.

    python -m tests.bench.intervals [--runs 200]

The true percentile is that of a run 1,000 times as long. What is wanted of ours: 90 to 99 %. Beside it:

naive       the bootstrap over single samples, as if they were independent
blocks      the percentile bootstrap over 20 blocks of time, as if these were independent
mlperf      the upper bound of the MLPerf load generator (99 % one-sided, samples taken for independent): the share of
            runs in which the truth is not above it
open        share of runs in which our interval has no upper end; it then counts as covering above
width       half width of ours relative to the truth (median, of those with both ends)
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from analysis.intervals import Sample, early_stopping, in_order, quantile_interval
from analysis.quantiles import Floats, Ints, Ordered
from tests.analysis.synthetic import ar1, waits

Generator = Callable[[int, np.random.Generator], tuple[Floats, int]]
"""From a number of requests to samples in order of time, and how many of them belong to each request."""

LEVELS = (0.5, 0.95, 0.99)
DRAWS = 200


@dataclass(frozen=True)
class Case:
    name: str
    requests: int
    make: Generator


def independent(count: int, rng: np.random.Generator) -> tuple[Floats, int]:
    return np.exp(0.5 * rng.standard_normal(count)), 1


def autoregressive(memory: float, count: int, rng: np.random.Generator) -> tuple[Floats, int]:
    """TTFT whose logarithm is an AR(1) series."""
    return np.exp(0.5 * ar1(count, memory, rng)), 1


def queue(load: float, count: int, rng: np.random.Generator) -> tuple[Floats, int]:
    """TTFT of an M/D/1 queue: one prefill and the wait for those before, in a steady state."""
    wait = waits(load, rng.exponential(1.0, count + 5000))[5000:]
    return 1 + wait + 0.05 * rng.random(count), 1


def tokens(count: int, rng: np.random.Generator) -> tuple[Floats, int]:
    """ITL: 40 tokens a request, with a level of the moment, one of the request, and noise of the token."""
    level = np.exp(0.1 * ar1(count, 0.9, rng) + 0.1 * rng.standard_normal(count))
    return (level[:, None] * np.exp(0.3 * rng.standard_normal((count, 40)))).ravel(), 40


CASES = [
    Case("independent", 1000, independent),
    Case("AR(1) 0.8", 1500, partial(autoregressive, 0.8)),
    Case("AR(1) 0.95", 5000, partial(autoregressive, 0.95)),
    Case("M/D/1 50 %", 1500, partial(queue, 0.5)),
    Case("M/D/1 70 %", 3000, partial(queue, 0.7)),
    Case("M/D/1 80 %", 8000, partial(queue, 0.8)),
    Case("M/D/1 90 %", 8000, partial(queue, 0.9)),
    Case("tokens", 300, tokens),
    Case("tokens", 1500, tokens),
]


def measure(case: Case, runs: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(7)
    truth = np.quantile(case.make(case.requests * 1000 // case.make(1, rng)[1], rng)[0], LEVELS)
    found: dict[float, list[list[float]]] = {q: [] for q in LEVELS}
    for _ in range(runs):
        values, per_request = case.make(case.requests, rng)
        blocks = in_order(np.arange(case.requests, dtype=float), np.ones(case.requests, dtype=bool))
        sample = Sample(values, None, np.repeat(blocks, per_request))
        ordered = Ordered.of(values)
        drawn = [_resampled(sample, ordered, each, rng) for each in (len(values), 20)]
        for q, true in zip(LEVELS, truth, strict=True):
            found[q].append(_one(sample, ordered, q, float(true), drawn))
    return [_row(case, q, np.array(found[q])) for q in LEVELS]


def _one(sample: Sample, ordered: Ordered, q: float, true: float, drawn: list[Floats]) -> list[float]:
    low, high = quantile_interval([sample], ordered, q) or (np.nan, np.nan)
    others = [np.quantile(each[:, LEVELS.index(q)], [0.025, 0.975]) for each in drawn]
    bound = early_stopping(ordered, q)
    return [low <= true <= high, true < low, true > high, np.isinf(high), (high - low) / 2 / true,
            *(float(a <= true <= b) for a, b in others), np.nan if bound is None else bound >= true]  # fmt: skip


def _resampled(sample: Sample, ordered: Ordered, blocks: int, rng: np.random.Generator) -> Floats:
    """Percentiles of samples drawn anew by blocks of equal length."""
    count = len(sample.values)
    order = np.argsort(sample.values, kind="stable")
    block: Ints = np.arange(count) * blocks // count
    found = []
    for _ in range(DRAWS):
        times = np.bincount(rng.integers(0, blocks, blocks), minlength=blocks)
        up_to = np.cumsum(times[block[order]])
        at = np.searchsorted(up_to, np.array(LEVELS) * up_to[-1])
        found.append(ordered.values[at])
    return np.array(found)


def _row(case: Case, q: float, found: Floats) -> dict[str, object]:
    covers, below, above, opened, width, naive, blocks, mlperf = found.T
    percent = {
        "ours": covers, "too high": below, "too low": above, "open": opened, "naive": naive, "blocks": blocks,
        "mlperf": mlperf,
    }  # fmt: skip
    shown = {name: "–" if np.isnan(each).all() else f"{100 * np.nanmean(each):.0f} %" for name, each in percent.items()}
    finite = width[np.isfinite(width)]
    return {
        "run": case.name, "requests": case.requests, "percentile": f"p{100 * q:.0f}", **shown,
        "width": f"{100 * np.median(finite):.0f} %" if len(finite) else "–",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    asked = parser.parse_args()
    for case in CASES:
        print(pd.DataFrame(measure(case, asked.runs)).to_string(index=False, header=case is CASES[0]), flush=True)


if __name__ == "__main__":
    main()
