"""One side of a comparison: several runs pooled, and what they say of one metric with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis import goodput
from analysis.goodput import Good
from analysis.intervals import (
    FEW_BLOCKS,
    Z95,
    Interval,
    Sample,
    in_order,
    quantile_interval,
    ratio_interval,
    share_interval,
    too_few,
)
from analysis.latency import METRICS, sample
from analysis.limits import ALL, Limit, quantile_of
from analysis.quantiles import Bools, Floats, Ordered
from analysis.run import Run
from analysis.stalls.frozen import Stalls, find
from analysis.throughput import Flow, flow, measured_windows, per_block, start_ns


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval and a wider one that holds together with those of other metrics.

    An end may be infinite. Without intervals there is a reason. `shown` is what people call the value, where that is
    not what is compared.
    """

    value: float | None
    ends: Interval | None = None
    together: Interval | None = None
    reason: str | None = None
    shown: float | None = None


@dataclass(frozen=True)
class Member:
    """One run of a side, with what does not depend on the metric."""

    run: Run
    good: Good

    @cached_property
    def start_ns(self) -> Floats:
        return start_ns(self.run)

    @cached_property
    def flow(self) -> Flow:
        return flow(self.run, measured_windows(self.run))

    @cached_property
    def stalls(self) -> Stalls:
        return find(self.run)

    def rows(self, class_name: str) -> Bools:
        return self.run.measured & self.kin(class_name)

    def kin(self, class_name: str) -> Bools:
        """The requests of a class in all stages, warm-up included."""
        everyone = np.ones(self.run.size, dtype=bool)
        return everyone if class_name == ALL else self.run.classes.get(class_name, ~everyone)


def members(runs: Sequence[Run], good: dict[str, float], limits: Sequence[Limit]) -> list[Member]:
    return [Member(run, goodput.judge(run, good, limits)) for run in runs]


def estimate(side: Sequence[Member], class_name: str, metric: str, statistic: str | None, z: float) -> Estimate:
    """What a side says of a metric (named as in limits); `z` is the normal quantile of the wider interval."""
    if metric in METRICS:
        return _latency(side, class_name, metric, statistic or "", z)
    if metric == "output_tokens_per_s":
        return _token_rate(side, class_name, z)
    sums = [_sums(each, each.rows(class_name), metric) for each in side]
    hits, trials = (float(sum(one[part].sum() for one in sums)) for part in (0, 1))
    if not trials:
        return Estimate(None, reason="nothing to count")
    bounds = ratio_interval if metric == "stall" else share_interval
    ends, together = bounds(sums), bounds(sums, z)
    return Estimate(hits / trials, ends, together, None if ends else FEW_BLOCKS)


def _latency(side: Sequence[Member], class_name: str, metric: str, statistic: str, z: float) -> Estimate:
    samples = [_sample(each, class_name, metric) for each in side]
    if not all(len(each.values) for each in samples):
        return Estimate(None, reason="undefined")
    ordered, q = _pooled(samples), quantile_of(statistic) or 0.0
    value = float(ordered.at(np.array([q]))[0])
    if few := too_few(statistic, q, len(ordered)):
        return Estimate(value, reason=few)
    ends, together = (quantile_interval(samples, ordered, q, each) for each in (Z95, z))
    return Estimate(value, ends, together, None if ends else FEW_BLOCKS)


def _sample(member: Member, class_name: str, metric: str) -> Sample:
    rows = member.rows(class_name)
    return sample(member.run, rows, metric, in_order(member.start_ns, rows))


def _pooled(samples: Sequence[Sample]) -> Ordered:
    values = np.concatenate([each.values for each in samples])
    if all(each.counts is None for each in samples):
        return Ordered.of(values)
    counts = [np.ones(len(each.values), dtype=np.int64) if each.counts is None else each.counts for each in samples]
    return Ordered.of(values, np.concatenate(counts))


def _sums(member: Member, rows: Bools, metric: str) -> tuple[Floats, Floats]:
    """Hits and trials of each block of time: of attainment, of errors, or stalls and thousands of tokens."""
    run, blocks = member.run, in_order(member.start_ns, rows)
    if metric == "stall":
        streams = rows & run.streamed & ("stalls" not in run.undefined)
        output = run.column("output_tokens")
        tokens = np.where(np.isnan(output), run.events.per_request, output)
        hits = member.stalls.row[streams[member.stalls.row]]
        return per_block(blocks[hits]), per_block(blocks[streams], tokens[streams] / 1000)
    if metric == "errors":
        of = rows & run.sent
        hit = of & ~run.where("outcome", "ok", "cancelled")
    else:
        of = goodput.due(run, rows)
        hit = of & member.good.good
    return per_block(blocks[hit]), per_block(blocks[of])


def _token_rate(side: Sequence[Member], class_name: str, z: float) -> Estimate:
    """Output tokens per second, over the blocks of time in which they came.

    In an open loop they are compared by request due: how many of them chance put into a run is not the server's doing.
    """
    sums = [_tokens_over(each, class_name) for each in side]
    total, over = (float(sum(one[part].sum() for one in sums)) for part in (0, 1))
    length_s = sum(each.flow.length_s for each in side)
    if not total or not over:
        return Estimate(None, reason="no tokens came inside the measured stages")
    ends, together = ratio_interval(sums), ratio_interval(sums, z)
    return Estimate(total / over, ends, together, None if ends else FEW_BLOCKS, shown=total / length_s)


def _tokens_over(member: Member, class_name: str) -> tuple[Floats, Floats]:
    """Tokens of each block, and the requests due in it, or its seconds where none has a due time."""
    flowed, rows = member.flow, member.rows(class_name)
    mine = member.kin(class_name)[flowed.row]
    tokens = per_block(flowed.block[mine], flowed.tokens[mine])
    if member.run.meta.get("loop") != "open":
        return tokens, np.full(len(tokens), flowed.length_s / len(tokens))
    return tokens, per_block(flowed.due[rows & (flowed.due >= 0)])
