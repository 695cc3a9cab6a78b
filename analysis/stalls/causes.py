"""Why streams froze: stalls put together into episodes, and the cause of each, where the client's data prove it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from analysis.columns import numbers
from analysis.quantiles import Bools, Floats, Ints
from analysis.record import UNKNOWN
from analysis.run import Run
from analysis.server import Server, was_short_of_cache
from analysis.stalls.culprits import Match, Prefill, Waits, by_chance, match, waits_of
from analysis.stalls.frozen import Stalls, standing_still
from analysis.stalls.level import Level

BURST_NS = 2_000_000
"""Tokens that arrive within this time came at once."""
TOUCH_NS = 10_000_000
"""Stalls that overlap by less, or by less than a tenth of the earlier one, follow one another."""
MOST = 0.5
"""More than this share of the other streams is most of them."""
TOGETHER = 0.8
"""A stall was shared if most others stood still for at least this part of it: they may stop and go on a step apart."""
DOUBTFUL = 0.2
"""Where at least this part of the trials at other times finds as many culprits, none of them is named."""
ANOTHER = 0.5
"""Less than so many other streams, on average over time, is nobody to compare with."""

Words = npt.NDArray[np.str_]
CAUSES = ("prefill_interference", "engine_pause", "preemption", "one_stream", "buffering", "client", "unknown")


@dataclass(frozen=True)
class Streams:
    """The streams of a run over time: how many were decoding, and how many of these stood still."""

    decoding: Level
    still: Level

    @classmethod
    def of(cls, run: Run) -> "Streams":
        still = standing_still(run)
        decoding = Level.open(run.column("first_token_ns"), run.column("last_token_ns"))
        return cls(decoding, Level.open(still.start_ns, still.end_ns))

    def together(self, start_ns: Ints, end_ns: Ints) -> Floats:
        """For how much of each stall most of the other streams stood still too; NaN where there was hardly another."""
        at = self.stopped.at_ns
        others, still = self.decoding.at(at) - 1, self.still.at(at) - 1
        known = Level(at, (others > 0).astype(np.float64)).area(start_ns, end_ns)
        most = Level(at, (still > MOST * others) & (others > 0)).area(start_ns, end_ns)
        enough = known > ANOTHER * (end_ns - start_ns)
        return np.asarray(np.divide(most, known, out=np.full(len(start_ns), np.nan), where=enough))

    @cached_property
    def stopped(self) -> Level:
        """The share of the decoding streams that stood still."""
        return self.still.share_of(self.decoding)


@dataclass(frozen=True)
class Episodes:
    """Episodes as parallel arrays, in order of start; the stalls of episode i are `starts[i]` up to `starts[i + 1]`.

    Attributes:
        stalls: Their stalls, episode by episode.
        cause: One of CAUSES.
        match: Whose prefill explains each; only episodes with that cause are named for it.
        chance: What share of the shared freezes would have found a culprit by chance, at each of several trials.
        waits: What `match` points into.
        prefill, streams: What the whole run shows of its prompts and of its streams.
    """

    stalls: Stalls
    starts: Ints
    start_ns: Ints
    end_ns: Ints
    cause: Words
    match: Match
    chance: Floats
    waits: Waits
    prefill: Prefill
    streams: Streams

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def of(self) -> Ints:
        """The episode of each stall."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @cached_property
    def frozen_s(self) -> Floats:
        """Seconds that streams stood still, summed over the streams hit."""
        frozen: Floats = np.bincount(self.of, weights=self.stalls.stalled_s, minlength=len(self)).astype(np.float64)
        return frozen

    @property
    def interference(self) -> Bools:
        return np.asarray(self.cause == "prefill_interference")

    @cached_property
    def culprit(self) -> Ints:
        """Position of the culprit in `Run.requests`; -1 where there is none."""
        if not len(self.waits.row):
            return np.full(len(self), -1)
        return np.where(self.interference, self.waits.row[self.match.at], -1)


def diagnose(run: Run, found: Stalls, rows: Bools) -> Episodes:
    """The episodes of the stalls of the requests in the mask `rows`. All other requests are evidence all the same."""
    timed = "episodes" not in run.undefined
    stalls, streams = found.take(rows[found.row] & timed), Streams.of(run)
    burst = followed_by_burst(run, stalls)
    shared = ~burst & ~(streams.together(stalls.start_ns, stalls.end_ns) < TOGETHER)
    groups = list(_episodes(stalls, (burst, shared, ~burst & ~shared)))
    kind = np.repeat(np.arange(3), [len(sizes) for _, sizes in groups])
    order = np.concatenate([order for order, _ in groups])
    return _explained(run, stalls.take(order), np.concatenate([sizes for _, sizes in groups]), kind, streams)


def _episodes(stalls: Stalls, kinds: tuple[Bools, ...]) -> Iterator[tuple[Ints, Ints]]:
    """For each kind of stall its stalls, episode by episode, and how many stalls each episode has.

    Stalls of one kind that overlap in time are one episode. Those of several kinds have several causes: a stream that
    its proxy holds up says nothing of the engine that stops meanwhile.
    """
    touch = np.minimum(TOUCH_NS, (stalls.end_ns - stalls.start_ns) // 10)
    for mine in kinds:
        at = np.flatnonzero(mine)
        at = at[np.argsort(stalls.start_ns[at], kind="stable")]
        reach = np.maximum.accumulate(stalls.end_ns[at] - touch[at])
        begins = np.flatnonzero(np.concatenate([[True], stalls.start_ns[at][1:] >= reach[:-1]])[: len(at)])
        yield at, np.diff(np.append(begins, len(at)))


def _explained(run: Run, stalls: Stalls, sizes: Ints, kind: Ints, streams: Streams) -> Episodes:
    """The episodes in order of start, each with its cause. Kinds: 0 followed by a burst, 1 shared, 2 alone."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    start_ns = np.minimum.reduceat(stalls.start_ns, starts[:-1]) if len(sizes) else stalls.start_ns
    end_ns = np.maximum.reduceat(stalls.end_ns, starts[:-1]) if len(sizes) else stalls.end_ns
    waits = waits_of(run, stalls.take(np.repeat(kind, sizes) == 2))
    prefill, step_ns = Prefill.of(waits, streams.stopped, streams.decoding), usual_step_ns(run)
    order = np.argsort(start_ns, kind="stable")
    sizes, kind, start_ns, end_ns = sizes[order], kind[order], start_ns[order], end_ns[order]
    first = np.concatenate([[0], np.cumsum(sizes)])
    members = np.arange(first[-1]) + np.repeat(starts[order] - first[:-1], sizes)
    found = match(waits, prefill, start_ns, end_ns, step_ns, streams.stopped)
    shared = kind == 1
    chance = by_chance(waits, prefill, start_ns[shared], end_ns[shared], step_ns, streams.stopped)
    believed = found.found & bool(np.mean(chance >= found.found[shared].mean()) <= DOUBTFUL if shared.any() else False)
    decoding = streams.decoding.mean(start_ns, end_ns)
    cause = _causes(run, kind, found, believed, decoding > 1 + ANOTHER, start_ns, end_ns)
    return Episodes(stalls.take(members), first, start_ns, end_ns, cause, found, chance, waits, prefill, streams)


def _causes(run: Run, kind: Ints, found: Match, believed: Bools, several: Bools, start_ns: Ints, end_ns: Ints) -> Words:
    return np.select(
        [
            client_was_late(run, start_ns, end_ns),
            kind == 0,
            (kind == 1) & believed,
            (kind == 1) & several & ~found.found,
            (kind == 2) & was_short_of_cache(Server.of(run), start_ns, end_ns),
            (kind == 2) & several,
        ],
        ["client", "buffering", "prefill_interference", "engine_pause", "preemption", "one_stream"],
        "unknown",
    )


def usual_step_ns(run: Run) -> float:
    """The median gap between token events: about one pass of the engine. 0 without gaps."""
    usual_ns = run.usual_gap_ns(np.ones(len(run.requests), dtype=bool))
    return 0.0 if np.isnan(usual_ns) else usual_ns


def followed_by_burst(run: Run, stalls: Stalls) -> Bools:
    """Do the tokens that come at once at its end make up for at least half of those missed (gap / tpot)?"""
    tokens, gap_s = burst_tokens(run, stalls), (stalls.end_ns - stalls.start_ns) / 1e9
    made_up = tokens * run.column("tpot_s")[stalls.row] >= gap_s / 2
    return np.asarray(made_up & (tokens > 1))


def burst_tokens(run: Run, stalls: Stalls) -> Floats:
    """Tokens that came at once at the end of each stall."""
    events = run.events
    if not len(stalls.row):
        return np.empty(0)
    after = _first_later(events.arrival_ns, stalls.end, events.starts[stalls.row + 1], stalls.end_ns + BURST_NS)
    total = np.concatenate([[0], np.cumsum(events.tokens, dtype=np.int64)])
    per_event = run.column("output_tokens")[stalls.row] / events.per_request[stalls.row]
    known = events.tokens[stalls.end] != UNKNOWN  # of all events of a request, or of none
    return np.where(known, total[after] - total[stalls.end], (after - stalls.end) * per_event)


def _first_later(arrival_ns: Ints, low: Ints, high: Ints, limit_ns: Ints) -> Ints:
    """The first event of each range `low` up to `high` that arrived after the limit, else `high`; all at once."""
    low, high = low.copy(), high.copy()
    while (open_ := low < high).any():
        middle = np.where(open_, (low + high) // 2, 0)
        later = arrival_ns[middle] > limit_ns
        high = np.where(open_ & later, middle, high)
        low = np.where(open_ & ~later, middle + 1, low)
    return low


def client_was_late(run: Run, start_ns: Ints, end_ns: Ints) -> Bools:
    """Kernel stamps do not depend on the client; without them its own lateness can look like a stall."""
    return np.asarray(loop_lag_s(run, start_ns, end_ns) >= (end_ns - start_ns) / 2e9)


def loop_lag_s(run: Run, start_ns: Ints, end_ns: Ints) -> Floats:
    """The longest delay of our own event loop in each interval; 0 where it cannot have mattered, or is not known."""
    lag_s = np.zeros(len(start_ns))
    if run.client is None or run.meta.get("timestamp_source") == "kernel" or "loop_lag_max_s" not in run.client:
        return lag_s
    order = np.argsort(at := numbers(run.client, "t_ns"), kind="stable")  # several workers may have sampled
    at, known = at[order], np.nan_to_num(numbers(run.client, "loop_lag_max_s"))[order]
    low = np.searchsorted(at, start_ns, side="left")
    high = np.searchsorted(at, end_ns + 1_500_000_000, side="right")  # a sample speaks of the second before it
    bounds = np.stack([low, high], axis=1).ravel()
    found = np.maximum.reduceat(np.append(known, 0.0), bounds)[::2] if len(bounds) else lag_s
    return np.where(high > low, found, 0.0)
