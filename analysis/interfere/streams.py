"""What streams that decode got, and how long they stood still, in any window of time.

A stream's *freeze* in a window is its longest gap between token events that overlaps the window; the freeze of the
window is the median over its streams. A window counts only if the same number of streams decoded from its beginning to
its end and none began or ended in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from analysis.quantiles import Bools, Floats, Ints
from analysis.record import UNKNOWN
from analysis.run import Run

VICTIM, INJECTED = "victim", "injected"
"""Classes of the experiment's requests."""
MOST_WINDOWS = 200
STANDS_OUT_STEPS = 3


@dataclass(frozen=True)
class Window:
    """One window, and what its streams show of it.

    Attributes:
        freeze_s: Of each stream.
        tokens: That each got between the two ends.
        chunks: Of how many equal pieces the time that the streams lost is made; NaN where they hardly lost any.
    """

    start_ns: float
    end_ns: float
    freeze_s: Floats
    tokens: Ints
    chunks: Floats


@dataclass(frozen=True)
class Injection:
    """One injected prompt whose window counts. `tokens` is the length as planned, `prompt_tokens` as counted."""

    tokens: int
    prompt_tokens: float
    ttft_s: float
    window: Window

    @property
    def freeze_s(self) -> float:
        return float(np.median(self.window.freeze_s))

    @property
    def chunks(self) -> float:
        """NaN where most streams hardly lost any time."""
        return float(np.median(self.window.chunks))


@dataclass(frozen=True)
class Streams:
    """The streams of a run, in order of their requests.

    Attributes:
        count: How many are meant to decode at once.
        sent_ns, first_ns, over_ns: Of each; `first_ns` is NaN for one without tokens, `over_ns` its last token or end.
        arrival_ns: Of the events of each.
        reached: Tokens up to and including each event.
    """

    count: int
    sent_ns: Floats
    first_ns: Floats
    over_ns: Floats
    arrival_ns: list[Ints]
    reached: list[Ints]

    @classmethod
    def of(cls, run: Run, count: int) -> "Streams":
        rows = np.flatnonzero(run.where("class", VICTIM) & ~np.isnan(run.column("sent_ns")))
        parts = [slice(*run.events.starts[row : row + 2]) for row in rows]
        tokens = np.where(run.events.tokens == UNKNOWN, 1, run.events.tokens)
        last, end = run.column("last_token_ns")[rows], run.column("end_ns")[rows]
        return cls(
            count,
            run.column("sent_ns")[rows],
            run.column("first_token_ns")[rows],
            np.where(np.isnan(last), end, last),
            [run.events.arrival_ns[part] for part in parts],
            [np.cumsum(tokens[part], dtype=np.int64) for part in parts],
        )

    @cached_property
    def step_s(self) -> float:
        """The usual gap between two token events of a stream; NaN without any."""
        gaps = [np.diff(each) for each in self.arrival_ns]
        return float(np.median(np.concatenate(gaps))) / 1e9 if any(map(len, gaps)) else float("nan")

    def steady(self, start_ns: float, end_ns: float) -> Ints | None:
        """The streams that decode during a window; None if one began or ended in it, or some are missing."""
        there = (self.first_ns <= start_ns) & (self.over_ns > end_ns)
        touched = (self.sent_ns <= end_ns) & (self.over_ns >= start_ns)
        changed: Bools = touched & ~there
        return None if changed.any() or there.sum() != self.count else np.flatnonzero(there)

    def window(self, start_ns: float, end_ns: float) -> Window | None:
        """None where the streams changed."""
        there = self.steady(start_ns, end_ns)
        if there is None:
            return None
        spans = [self._events(int(i), start_ns, end_ns) for i in there]
        gaps_s = [
            np.diff(self.arrival_ns[i][low : high + 2]) / 1e9 for i, (low, high) in zip(there, spans, strict=True)
        ]
        tokens = [self.reached[i][high] - self.reached[i][low] for i, (low, high) in zip(there, spans, strict=True)]
        return Window(
            start_ns,
            end_ns,
            np.array([each.max() for each in gaps_s]),
            np.array(tokens, dtype=np.int64),
            np.array([chunks(each, self.step_s) for each in gaps_s]),
        )

    def _events(self, stream: int, start_ns: float, end_ns: float) -> tuple[int, int]:
        """The last event not after the start of a window, and the last before its end; another one follows."""
        at = self.arrival_ns[stream]
        low = int(np.searchsorted(at, start_ns, side="right")) - 1
        return low, max(low, int(np.searchsorted(at, end_ns, side="left")) - 1)

    def quiet(self, busy_from_ns: Floats, busy_until_ns: Floats) -> Iterator[tuple[float, float]]:
        """The stretches in which all streams decode and nothing else is under way, from the first event of all on."""
        marks = np.concatenate([self.sent_ns, self.first_ns, self.over_ns, busy_from_ns, busy_until_ns])
        for start_ns, end_ns in pairwise(np.unique(marks[~np.isnan(marks)]).tolist()):
            middle_ns = (start_ns + end_ns) / 2
            there = self.steady(middle_ns, middle_ns)
            if there is None or ((busy_from_ns <= middle_ns) & (middle_ns < busy_until_ns)).any():
                continue
            begin_ns = max(self._next(int(i), start_ns) for i in there)
            if begin_ns < end_ns:
                yield begin_ns, end_ns

    def _next(self, stream: int, t_ns: float) -> float:
        at = self.arrival_ns[stream]
        return float(at[min(int(np.searchsorted(at, t_ns, side="right")), len(at) - 1)])


def chunks(gaps_s: Floats, step_s: float) -> float:
    """How many gaps as long as the longer ones make up all the time that a stream lost.

    Every long gap (over a quarter of the longest, and over the geometric mean of that and a usual step) counts with
    what it exceeds a step. Their sum over the upper median of these is the number of equal pieces, the last one in
    part. NaN where the longest is no three steps: long ones then do not stand out from jitter.
    """
    longest_s = float(gaps_s.max())
    if not longest_s >= STANDS_OUT_STEPS * step_s:
        return float("nan")
    excess_s = gaps_s[gaps_s >= max(longest_s / 4, np.sqrt(step_s * longest_s))] - step_s
    return float(excess_s.sum() / np.quantile(excess_s, 0.5, method="higher"))


def control_s(streams: Streams, quiet: list[tuple[float, float]], length_s: float) -> Floats:
    """The freezes in windows of this length in which nothing was sent: at most MOST_WINDOWS, none overlapping another.

    Where no quiet stretch is that long, the windows are as long as the longest one.
    """
    if not quiet:
        return np.empty(0)
    longest_ns = max(end - start for start, end in quiet)
    length_ns = max(1.0, min(length_s * 1e9, longest_ns * (1 - 1e-9)))
    starts = np.concatenate([start + length_ns * np.arange((end - start) // length_ns) for start, end in quiet])
    chosen = starts[np.linspace(0, len(starts) - 1, min(len(starts), MOST_WINDOWS)).astype(int)]
    found = [streams.window(float(start_ns), float(start_ns) + length_ns) for start_ns in chosen]
    return np.array([np.median(each.freeze_s) for each in found if each is not None], dtype=np.float64)
