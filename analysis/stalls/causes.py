"""Why streams froze: stalls put together into episodes, and the cause of each, where the client's data prove it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from analysis.quantiles import Bools, Floats, Ints
from analysis.record import UNKNOWN as NOT_TOLD
from analysis.run import Run
from analysis.server import Server, was_short_of_cache
from analysis.stalls.culprits import SHIFTS, Match, Prefill, Waits, by_chance, first_match, waits_of
from analysis.stalls.engines import LONG, UNKNOWN, engines_of
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
    """Streams of a run over time: how many were decoding, and how many of these stood still."""

    decoding: Level
    still: Level

    @classmethod
    def of(cls, run: Run, still: Stalls, rows: Bools) -> "Streams":
        """Those of the requests in the mask; `still` as `standing_still` finds it."""
        decoding = Level.open(run.column("first_token_ns")[rows], run.column("last_token_ns")[rows])
        mine = rows[still.row]
        return cls(decoding, Level.open(still.start_ns[mine], still.end_ns[mine]))

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
        engine: On which engine each was, as `engines_of` numbers them.
        cause: One of CAUSES.
        match: Whose prefill explains each; only episodes with that cause are named for it.
        chance: What share of the shared freezes would have found a culprit by chance, at each of several trials.
        waits: What `match` points into.
        pace_ns: Nanoseconds that the server takes to read a prompt token; NaN where it is not known.
        streams: All streams of the run.
        beside: Those of each engine.
    """

    stalls: Stalls
    starts: Ints
    start_ns: Ints
    end_ns: Ints
    engine: Ints
    cause: Words
    match: Match
    chance: Floats
    waits: Waits
    pace_ns: float
    streams: Streams
    beside: dict[int, Streams]

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
    stalls = found.take(rows[found.row] & ("episodes" not in run.undefined))
    engine, still = engines_of(run), standing_still(run)
    beside = {each: Streams.of(run, still, engine == each) for each in {0, *engine.tolist()}}
    on, burst, together = engine[stalls.row], followed_by_burst(run, stalls), np.full(len(stalls.row), np.nan)
    for each, streams in beside.items():
        together[on == each] = streams.together(stalls.start_ns[on == each], stalls.end_ns[on == each])
    shared = ~burst & ~(together < TOGETHER)
    kinds = (burst, shared, ~burst & ~shared)
    groups = [list(_episodes(stalls, [(on == each) & mine for mine in kinds])) for each in beside]
    sizes = [sizes for parts in groups for _, sizes in parts]
    order = np.concatenate([order for parts in groups for order, _ in parts])
    kind = np.repeat(np.tile(np.arange(len(kinds)), len(groups)), [len(each) for each in sizes])
    return _explained(run, stalls.take(order), np.concatenate(sizes), kind, engine, still, beside)


def _episodes(stalls: Stalls, kinds: Sequence[Bools]) -> Iterator[tuple[Ints, Ints]]:
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


def _explained(
    run: Run,
    stalls: Stalls,
    sizes: Ints,
    kind: Ints,
    engine: Ints,
    still: Stalls,
    beside: dict[int, Streams],
) -> Episodes:
    """The episodes in order of start, each with its cause. Kinds: 0 followed by a burst, 1 shared, 2 alone."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    start_ns = np.minimum.reduceat(stalls.start_ns, starts[:-1]) if len(sizes) else stalls.start_ns
    end_ns = np.maximum.reduceat(stalls.end_ns, starts[:-1]) if len(sizes) else stalls.end_ns
    waits = waits_of(run, stalls.take(np.repeat(kind, sizes) == 2))
    order = np.argsort(start_ns, kind="stable")
    first = np.concatenate([[0], np.cumsum(sizes[order])])
    members = np.arange(first[-1]) + np.repeat(starts[:-1][order] - first[:-1], sizes[order])
    kind, start_ns, end_ns, on = kind[order], start_ns[order], end_ns[order], engine[stalls.row[starts[:-1][order]]]
    found, chance, pace_ns = _matched(run, waits, start_ns, end_ns, kind == 1, on, engine, beside)
    shared, several = kind == 1, np.zeros(len(kind), dtype=bool)
    believed = found.found & bool(np.mean(chance >= found.found[shared].mean()) <= DOUBTFUL if shared.any() else False)
    for each, streams in beside.items():
        if each != UNKNOWN:
            several[on == each] = streams.decoding.mean(start_ns[on == each], end_ns[on == each]) > 1 + ANOTHER
    cause = _causes(run, kind, found, believed, several, start_ns, end_ns)
    everyone = Streams.of(run, still, np.ones(len(engine), dtype=bool))
    return Episodes(stalls.take(members), first, start_ns, end_ns, on, cause, found, chance, waits, pace_ns,
                    everyone, beside)  # fmt: skip


def _matched(
    run: Run,
    waits: Waits,
    start_ns: Ints,
    end_ns: Ints,
    shared: Bools,
    on: Ints,
    engine: Ints,
    beside: Mapping[int, Streams],
) -> tuple[Match, Floats, float]:
    """Whose prefill explains each freeze, the chance of it, and the pace of prefill.

    First of the requests that are known to be on its engine, then also of those with long prompts of which it is not
    known where they are. All engines read prompts at the pace of the one with most of them.
    """
    step_ns, where = usual_step_ns(run), engine[waits.row]
    most = max(beside, key=lambda each: (each != UNKNOWN, int((where == each).sum())))
    usual = Prefill.of(waits.take(where == most), beside[most].stopped, beside[most].decoding)
    found, trials = Match.none(len(start_ns)), np.zeros(SHIFTS)
    for each, streams in beside.items():
        sets = [np.flatnonzero(where == each)]
        if UNKNOWN in beside:
            long = (where == UNKNOWN) & (waits.tokens * usual.pace_ns > LONG * step_ns)
            sets.append(np.flatnonzero((where == each) | long))
        tiers, mine = [waits.take(at).read_at(usual.pace_ns) for at in sets], np.flatnonzero(on == each)
        known, tier = first_match(tiers, usual, start_ns[mine], end_ns[mine], step_ns, streams.stopped)
        for number, its in enumerate(sets):
            named = known.found & (tier == number)
            known.at[named] = its[known.at[named]]
        found.put(mine, known)
        asked = mine[shared[mine]]
        trials += len(asked) * by_chance(tiers, usual, start_ns[asked], end_ns[asked], step_ns, streams.stopped)
    return found, trials / max(1, shared.sum()), usual.pace_ns


def _causes(run: Run, kind: Ints, found: Match, believed: Bools, several: Bools, start_ns: Ints, end_ns: Ints) -> Words:
    return np.select(
        [
            client_was_late(run, start_ns, end_ns, kind == 0),
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
    usual_ns = run.usual_gap_ns(np.ones(run.size, dtype=bool))
    return 0.0 if np.isnan(usual_ns) else usual_ns


def followed_by_burst(run: Run, stalls: Stalls) -> Bools:
    """Do the tokens that come at once at its end make up for at least half of those missed (gap / tpot)?

    A request that came in two bursts seems twice as fast as it was: none counts as faster than is usual in the run.
    """
    tokens, gap_s, tpot_s = burst_tokens(run, stalls), (stalls.end_ns - stalls.start_ns) / 1e9, run.column("tpot_s")
    usual_s = np.median(tpot_s[~np.isnan(tpot_s)]) if len(stalls.row) and not np.isnan(tpot_s).all() else 0.0
    made_up = tokens * np.maximum(tpot_s[stalls.row], usual_s) >= gap_s / 2
    return np.asarray(made_up & (tokens > 1))


def burst_tokens(run: Run, stalls: Stalls) -> Floats:
    """Tokens that came at once at the end of each stall."""
    events = run.events
    if not len(stalls.row):
        return np.empty(0)
    after = _first_later(events.arrival_ns, stalls.end, events.starts[stalls.row + 1], stalls.end_ns + BURST_NS)
    total = np.concatenate([[0], np.cumsum(events.tokens, dtype=np.int64)])
    per_event = run.column("output_tokens")[stalls.row] / events.per_request[stalls.row]
    known = events.tokens[stalls.end] != NOT_TOLD  # of all events of a request, or of none
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


def client_was_late(run: Run, start_ns: Ints, end_ns: Ints, burst: Bools) -> Bools:
    """Whether our own lateness looks like a freeze. The kernel's stamps do not depend on us, except that one read has
    one, that of its last bytes: what had to wait for it comes in a burst."""
    late = loop_lag_s(run, start_ns, end_ns) >= (end_ns - start_ns) / 2e9
    return np.asarray(late & (burst | (run.meta.get("timestamp_source") != "kernel")))


def loop_lag_s(run: Run, start_ns: Ints, end_ns: Ints) -> Floats:
    """The longest delay of our own event loop in each interval; 0 where it is not known."""
    lag_s = np.zeros(len(start_ns))
    at, known = run.sampled("client", "t_ns"), run.sampled("client", "loop_lag_max_s")
    if at is None or known is None:
        return lag_s
    order = np.argsort(at, kind="stable")  # several workers may have sampled
    at, known = at[order], np.nan_to_num(known)[order]
    low = np.searchsorted(at, start_ns, side="left")
    high = np.searchsorted(at, end_ns + 1_500_000_000, side="right")  # a sample speaks of the second before it
    bounds = np.stack([low, high], axis=1).ravel()
    found = np.maximum.reduceat(np.append(known, 0.0), bounds)[::2] if len(bounds) else lag_s
    return np.where(high > low, found, 0.0)
