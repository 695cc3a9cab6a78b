"""What becomes of finished requests, as counts: small, quick to add up, and fit to be sent from process to process."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.record import NEVER_SENT, RequestRecord
from workloads.schedule import Schedule

UNIT_NS = 100_000
"""Resolution of the times, up to 1,000 units; beyond, three digits. A request's gaps fall on few distinct values, and
all times of a run on some thousands."""


@dataclass
class Times:
    """Durations: how often each came, in UNIT_NS rounded down to at most three digits, and their exact sum."""

    counts: Counter[int] = field(default_factory=Counter)
    total_ns: int = 0

    def add(self, ns: int) -> None:
        self.counts[_coarse(ns // UNIT_NS)] += 1
        self.total_ns += max(0, ns)

    def update(self, other: "Times") -> None:
        self.counts.update(other.counts)
        self.total_ns += other.total_ns

    def quantile_ns(self, q: float) -> int | None:
        """The least value that at least the share `q` does not exceed; None where there are none."""
        left = q * self.counts.total()
        for value in sorted(self.counts):
            left -= self.counts[value]
            if left <= 0:
                return value * UNIT_NS
        return None


def _coarse(units: int) -> int:
    if units < 1000:
        return max(0, units)
    step: int = 10 ** (len(str(units)) - 3)
    return units - units % step


@dataclass
class Tally:
    """What has ended since it was last told.

    Attributes:
        ended: Requests by class and outcome.
        measured: Those of measured stages.
        prompt_tokens, output_tokens, stalls: By class.
        ttft, itl: Of those that are ok, by stage and class.
        lag: From due to sent; open loop only.
        error: Class, outcome and words of the last that failed; None if none did.
    """

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    measured: int = 0
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    output_tokens: Counter[str] = field(default_factory=Counter)
    stalls: Counter[str] = field(default_factory=Counter)
    ttft: dict[tuple[str, str], Times] = field(default_factory=dict)
    itl: dict[tuple[str, str], Times] = field(default_factory=dict)
    lag: Times = field(default_factory=Times)
    error: tuple[str, str, str] | None = None

    def add(self, record: RequestRecord, schedule: Schedule) -> None:
        name, outcome = record.class_name, record.outcome
        self.ended[name, outcome] += 1
        self.measured += any(stage.measured and stage.name == record.stage for stage in schedule.stages)
        if outcome in NEVER_SENT:
            return
        if outcome not in ("ok", "cancelled"):
            status = f"{record.status}" if record.status and record.status >= 300 else None
            self.error = name, outcome, " ".join(filter(None, (status, record.error)))
        stall = schedule.workload.stall
        self.stalls[name] += stalls(record, round(stall.floor * 1e9), stall.factor)
        self.prompt_tokens[name] += record.prompt_tokens or 0
        self.output_tokens[name] += record.completion_tokens or len(record.arrival_ns)
        if record.sent_ns is not None:
            self._time(record, record.sent_ns)

    def _time(self, record: RequestRecord, sent_ns: int) -> None:
        if record.due_ns is not None:
            self.lag.add(sent_ns - record.due_ns)
        if record.outcome == "ok" and record.arrival_ns:
            key = record.stage, record.class_name
            self.ttft.setdefault(key, Times()).add(record.arrival_ns[0] - sent_ns)
            _add_gaps(self.itl.setdefault(key, Times()), record)


def _add_gaps(itl: Times, record: RequestRecord) -> None:
    """One entry per distinct value: a request of a thousand tokens must not hold up the loop."""
    per_token_ns, tokens = token_gaps(record)
    values, where = np.unique(per_token_ns // UNIT_NS, return_inverse=True)
    for value, count in zip(values.tolist(), np.bincount(where, tokens).tolist(), strict=True):
        itl.counts[_coarse(value)] += int(count)
    itl.total_ns += int((per_token_ns * tokens).sum())


def token_gaps(record: RequestRecord) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each gap between token events, nanoseconds per token and how many tokens it counts for.

    Both are empty if it is not known how many tokens each event carried.
    """
    gaps_ns = _gaps_ns(record)
    tokens = np.array(record.n_tokens, dtype=np.int64)[1:]
    if record.completion_tokens in (None, len(record.arrival_ns)):
        tokens = np.where(tokens < 0, 1, tokens)
    if record.choices > 1 or (tokens < 1).any():
        return gaps_ns[:0], tokens[:0]
    return gaps_ns // tokens, tokens


def _gaps_ns(record: RequestRecord) -> NDArray[np.int64]:
    arrival_ns = np.array(record.arrival_ns, dtype=np.int64)
    return arrival_ns[1:] - arrival_ns[:-1]


def stalls(record: RequestRecord, floor_ns: int, factor: float) -> int:
    """Gaps longer than `floor_ns` and than `factor` times the median gap of the request."""
    gaps_ns = _gaps_ns(record)
    if record.outcome != "ok" or not gaps_ns.size or gaps_ns.max() <= floor_ns:
        return 0
    return int(np.count_nonzero(gaps_ns > max(floor_ns, factor * float(np.median(gaps_ns)))))
