"""Whose prefill stood in the way: the waiting request that best explains a freeze of the whole engine.

An engine takes waiting prompts in order. Where prompts run whole, all of a freeze is between the last token before it
and the first tokens that end it; where they run in chunks, each pass is a freeze of its own, and the prompt is through
only at its last one. A request can only have caused a freeze that began when it was waiting already, and that is no
longer than its prompt can account for at the pace at which this server reads prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from analysis.quantiles import Bools, Floats, Ints
from analysis.run import Run
from analysis.stalls.frozen import Stalls
from analysis.stalls.level import Level

TOGETHER_NS = 10_000_000
"""What one pass of an engine sends arrives within this time."""
EXPLAINS = 0.5
"""Least share of a freeze that a prompt which was waiting at its start must account for."""
EXPLAINS_ALONE = 0.6
"""The same of prompts that came only while the engine stood still: most of it, as any request sent then ends it."""
PEERS, SIZES = 5, 50
SHIFTS = 60
USUALLY = 0.3
"""Prompts are harmless if those of about the same length stopped others for less than this part of their prefill."""


@dataclass(frozen=True)
class Waits:
    """Prompts that were waited for, in order of their first tokens; a preempted stream waits for its prompt again.

    Attributes:
        row: Position of the request in `Run.requests`.
        from_ns, until_ns: Since when it waited, and when its first token (or the next after a preemption) came.
        tokens: Prompt tokens to be computed: those from the prefix cache are left out. 0 where not known.
        since_ns, through_ns: From when until when it was read, once `read_at` some pace.
    """

    row: Ints
    from_ns: Ints
    until_ns: Ints
    tokens: Ints
    since_ns: Floats | None = None
    through_ns: Floats | None = None

    def take(self, chosen: Bools | Ints) -> "Waits":
        since, through = (None if each is None else each[chosen] for each in (self.since_ns, self.through_ns))
        row, from_ns, until_ns, tokens = (each[chosen] for each in (self.row, self.from_ns, self.until_ns, self.tokens))
        return Waits(row, from_ns, until_ns, tokens, since, through)

    def ordered(self) -> "Waits":
        return self.take(np.argsort(self.until_ns, kind="stable"))

    def shifted(self, by_ns: int, span_ns: tuple[int, int]) -> "Waits":
        """The same waits at another time; what leaves the span at its end comes in at its start."""
        start, length = span_ns[0], max(1, span_ns[1] - span_ns[0])
        by = start + (self.until_ns - start + by_ns) % length - self.until_ns
        since, through = (None if each is None else each + by for each in (self.since_ns, self.through_ns))
        return Waits(self.row, self.from_ns + by, self.until_ns + by, self.tokens, since, through).ordered()

    @cached_property
    def begin_ns(self) -> Ints:
        """The earliest at which each prefill can have begun: when it had been sent, and the one before was through."""
        before = np.concatenate([[np.iinfo(np.int64).min], self.until_ns[:-1]])
        begin: Ints = np.maximum(self.from_ns, before)
        return begin

    def read_at(self, pace_ns: float) -> "Waits":
        """With the times of reading, if all prompts are read evenly one after another, in the order in which they were
        sent where they end together.

        A pass in which a prompt is through goes on for the next one, so that a prompt is through before its first token
        and is begun before the first token of the one before. All NaN without a pace.
        """
        since, through = np.full(len(self.row), np.nan), np.full(len(self.row), np.nan)
        if np.isnan(pace_ns):
            return replace(self, since_ns=since, through_ns=through)
        together = np.cumsum(np.diff(self.until_ns, prepend=self.until_ns[:1]) > TOGETHER_NS)
        order = np.lexsort((self.from_ns, together))
        columns = self.from_ns[order], self.until_ns[order], self.tokens[order] * pace_ns
        free_ns = -np.inf
        for at, from_ns, until_ns, takes_ns in zip(order.tolist(), *(each.tolist() for each in columns), strict=True):
            since[at] = max(from_ns, free_ns)
            free_ns = through[at] = min(until_ns, since[at] + takes_ns)
        return replace(self, since_ns=since, through_ns=through)


@dataclass(frozen=True)
class Prefill:
    """How this server reads prompts, as far as the run shows it.

    Attributes:
        pace_ns: Nanoseconds per prompt token; NaN where no prompt is known.
        stopped: For prompts of about 2 ** (i / 2) tokens at position i: for how much of the time that it took to read
            one the other streams stood still, the median; NaN where few were read while anyone was decoding.
    """

    pace_ns: float
    stopped: Floats

    @classmethod
    def of(cls, waits: Waits, stopped: Level, decoding: Level) -> "Prefill":
        """Args as for `match`."""
        pace_ns = _pace_ns(waits)
        took = np.nan_to_num(waits.tokens * pace_ns).astype(np.int64)
        told = np.flatnonzero((decoding.mean(waits.until_ns - took, waits.until_ns) >= 1) & (took > 0))
        told = told[np.argsort(waits.tokens[told], kind="stable")]
        share = stopped.mean(waits.until_ns[told] - took[told], waits.until_ns[told])
        length = 2.0 ** (np.arange(SIZES) / 2)
        ends = np.searchsorted(waits.tokens[told], [length / 2, length * 2]).T
        middle = [np.median(share[low:high]) if high - low >= PEERS else np.nan for low, high in ends]
        return cls(pace_ns, np.array(middle))

    def stops_others(self, tokens: Ints) -> Bools:
        """Whether prompts of about such lengths usually stop others; True where nothing is known.

        An engine that reads prompts in small chunks stops nobody, whatever coincides with them.
        """
        size = np.round(2 * np.log2(np.maximum(tokens, 1))).astype(np.int64)
        return ~(self.stopped[np.minimum(size, SIZES - 1)] < USUALLY)

    def share(self, tokens: Ints, length_ns: Ints) -> Floats:
        """The part of a time that reading so many tokens takes, at most 1; NaN where it is not known how many."""
        return np.where(tokens > 0, np.minimum(tokens * self.pace_ns / length_ns, 1), np.nan)


def _pace_ns(waits: Waits) -> float:
    """The median over the longer prompts (at least half of the 95th percentile): short ones take a pass whatever their
    length. Prompts that share a pass begin and end together, so only the time since the last end counts."""
    known = waits.tokens > 0
    if not known.any():
        return float("nan")
    took = waits.until_ns - waits.begin_ns
    long = known & (waits.tokens >= 0.5 * np.quantile(waits.tokens[known], 0.95)) & (took > 1_000_000)
    return float(np.median(took[long] / waits.tokens[long])) if long.any() else float("nan")


@dataclass(frozen=True)
class Match:
    """For each freeze, the wait that explains it.

    Attributes:
        at: Position in `Waits`, -1 where none was found.
        ended: A first token of a request that had been waiting ended the freeze, whether or not that explains it.
        tokens: Prompt tokens of all requests whose first token came within the freeze, or of the one still in prefill.
        share: Part of the freeze that they account for, at most 1; NaN where no prompt length is known.
    """

    at: Ints
    ended: Bools
    tokens: Ints
    share: Floats

    @classmethod
    def none(cls, count: int) -> "Match":
        return cls(np.full(count, -1), np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64), np.zeros(count))

    def take(self, chosen: Ints) -> "Match":
        return Match(self.at[chosen], self.ended[chosen], self.tokens[chosen], self.share[chosen])

    def put(self, at: Ints, other: "Match") -> None:
        """Take those of another in at these positions."""
        for each in fields(self):
            getattr(self, each.name)[at] = getattr(other, each.name)

    @property
    def found(self) -> Bools:
        return self.at >= 0


def waits_of(run: Run, alone: Stalls) -> Waits:
    """Every wait of a run. `alone` are the stalls of streams that stopped while the others went on."""
    sent, first = run.column("sent_ns"), run.column("first_token_ns")
    prompt = run.column("prompt_tokens")
    prompt = np.where(np.isnan(prompt), run.column("asked_input_tokens"), prompt)
    fresh = np.nan_to_num(np.maximum(prompt - np.nan_to_num(run.column("cached_tokens")), 1))
    row = np.flatnonzero(~np.isnan(sent + first))
    again = _again(run, alone, prompt)
    return Waits(
        np.concatenate([row, again.row]),
        np.concatenate([sent[row].astype(np.int64), again.from_ns]),
        np.concatenate([first[row].astype(np.int64), again.until_ns]),
        np.concatenate([fresh[row].astype(np.int64), again.tokens]),
    ).ordered()


def _again(run: Run, alone: Stalls, prompt: Floats) -> Waits:
    """What a preempted stream has to compute again: its prompt, and all that it had said."""
    known = alone.take(~np.isnan(prompt[alone.row]))
    said = run.events.number(known.end)
    return Waits(known.row, known.start_ns, known.end_ns, prompt[known.row].astype(np.int64) + said)


def match(waits: Waits, prefill: Prefill, start_ns: Ints, end_ns: Ints, step_ns: float, stopped: Level) -> Match:
    """The culprit of each freeze [start, end] of the whole engine.

    Args:
        waits: All waits of the run, read at some pace.
        prefill: How fast its prompts are read.
        start_ns, end_ns: The freezes.
        step_ns: A usual pass.
        stopped: Share of the decoding streams that stood still over time.
    """
    if not len(waits.row):
        return Match.none(len(start_ns))
    slack = TOGETHER_NS + round(step_ns)
    low = np.searchsorted(waits.until_ns, start_ns + TOGETHER_NS, side="right")
    high = np.searchsorted(waits.until_ns, end_ns + TOGETHER_NS, side="right")
    within = _within(waits, low, high, start_ns, end_ns, start_ns + slack)
    last_ns = waits.until_ns[np.maximum(high - 1, 0)]
    length = np.maximum(end_ns - start_ns, 1)
    # A step later the streams go on; a busy engine's step is longer than usual, and a long freeze is followed by many.
    aligned = (high > low) & (last_ns >= end_ns - np.maximum(slack + round(step_ns / 2), length // 10))
    read = prefill.share(within.tokens, length)
    ended = aligned & (within.waiting | (read >= EXPLAINS_ALONE))
    explained = np.where(ended & prefill.stops_others(within.longest_tokens), read, 0.0)
    after, read_ns = _next(waits, high, start_ns, end_ns, start_ns + slack)
    harmful = (after >= 0) & prefill.stops_others(waits.tokens[after])
    coming = np.where(harmful, _share_of_pass(waits, prefill, after, start_ns, end_ns, stopped), 0.0)
    mostly_next = ended & (coming >= EXPLAINS) & (within.read_ns < read_ns)  # two prompts may share the pass
    use_first = ended & ~(explained < EXPLAINS) & ~mostly_next
    use_next = ~use_first & (coming >= EXPLAINS)
    at = np.where(use_first, within.largest, np.where(use_next, after, -1))
    tokens = np.where(use_next, waits.tokens[after], np.where(ended, within.tokens, 0))
    return Match(at, ended, tokens, np.where(use_next, coming, explained))


def first_match(
    tiers: Sequence[Waits], prefill: Prefill, start_ns: Ints, end_ns: Ints, step_ns: float, stopped: Level
) -> tuple[Match, Ints]:
    """As `match` among the first of several sets of waits, and of those that it leaves open among the next; and in
    which of them each was found."""
    found = match(tiers[0], prefill, start_ns, end_ns, step_ns, stopped)
    tier = np.zeros(len(start_ns), dtype=np.int64)
    for number, waits in enumerate(tiers[1:], 1):
        other = match(waits, prefill, start_ns, end_ns, step_ns, stopped)
        better = np.flatnonzero(~found.found & (other.found | other.ended))
        found.put(better, other.take(better))
        tier[better] = number
    return found, tier


def by_chance(
    tiers: Sequence[Waits], prefill: Prefill, start_ns: Ints, end_ns: Ints, step_ns: float, stopped: Level
) -> Floats:
    """The share of the freezes for which a culprit would be found if the waits had come at other times of the run.

    One share for each of SHIFTS circular shifts, spread over the run by the golden ratio so that no period of the load
    falls in with them. Args as for `first_match`.
    """
    ends = [(each.from_ns.min(), each.until_ns.max()) for each in tiers if len(each.row)]
    if not ends or not len(start_ns):
        return np.zeros(SHIFTS)
    span_ns = int(min(start_ns.min(), *(low for low, _ in ends))), int(max(end_ns.max(), *(high for _, high in ends)))
    turns = (np.arange(1, SHIFTS + 1) * (np.sqrt(5) - 1) / 2) % 1
    found = []
    for turn in turns:
        shifted = [each.shifted(round(turn * (span_ns[1] - span_ns[0])), span_ns) for each in tiers]
        found.append(first_match(shifted, prefill, start_ns, end_ns, step_ns, stopped)[0].found.mean())
    return np.array(found)


def _share_of_pass(waits: Waits, prefill: Prefill, at: Ints, start_ns: Ints, end_ns: Ints, stopped: Level) -> Floats:
    """The part of each freeze that a prompt accounts for which was read before and after it as well.

    Where the passes before and after it stopped most streams too, it is one of a kind, and the whole prompt speaks for
    it. Else only what the prompt takes beyond those passes.
    """
    begin_ns, until_ns = np.minimum(waits.begin_ns[at], start_ns), np.maximum(waits.until_ns[at], end_ns)
    outside = (start_ns - begin_ns) + (until_ns - end_ns)
    still = stopped.area(begin_ns, start_ns) + stopped.area(end_ns, until_ns)
    whole = waits.tokens[at] * prefill.pace_ns
    left = np.where(still >= outside / 2, whole, whole - outside)
    return np.asarray(np.clip(left / np.maximum(end_ns - start_ns, 1), 0, 1))


@dataclass(frozen=True)
class _Within:
    """Of some waits of each freeze: the one of which most was read in it, and how long that took; the longest prompt
    and the sum; and whether any of them had begun by a given instant. -1 and 0 where there are none."""

    largest: Ints
    read_ns: Floats
    longest_tokens: Ints
    tokens: Ints
    waiting: Bools


def _within(waits: Waits, low: Ints, high: Ints, start_ns: Ints, end_ns: Ints, by_ns: Ints) -> _Within:
    """Of the waits `low` up to `high` of each freeze; where there is no pace, the longest is the one."""
    sizes = np.maximum(high - low, 0)
    of = np.repeat(np.arange(len(low)), sizes)
    at = np.arange(len(of)) + np.repeat(low - (np.cumsum(sizes) - sizes), sizes)
    assert waits.since_ns is not None, "they were read at some pace"
    assert waits.through_ns is not None, "they were read at some pace"
    read = np.minimum(waits.through_ns[at], end_ns[of]) - np.maximum(waits.since_ns[at], start_ns[of])
    read = np.maximum(np.nan_to_num(read), 0)
    order = np.lexsort((at, waits.tokens[at], read, of))
    last, none = np.cumsum(sizes)[sizes > 0] - 1, sizes == 0
    largest, read_ns = np.full(len(low), -1), np.zeros(len(low))
    largest[~none], read_ns[~none] = at[order][last], read[order][last]
    since_ns = np.full(len(low), np.iinfo(np.int64).max)
    np.minimum.at(since_ns, of, waits.from_ns[at])
    longest = np.zeros(len(low), dtype=np.int64)
    np.maximum.at(longest, of, waits.tokens[at])
    tokens = np.bincount(of, weights=waits.tokens[at], minlength=len(low)).astype(np.int64)
    return _Within(largest, read_ns, longest, tokens, since_ns <= by_ns)


def _next(waits: Waits, high: Ints, start_ns: Ints, end_ns: Ints, by_ns: Ints) -> tuple[Ints, Floats]:
    """The wait that ends next after each freeze, if it had begun by then, and how long it was read within the freeze.

    Of those that end with it, the one of which most was read.
    """
    at = np.minimum(high, len(waits.row) - 1)
    until = np.searchsorted(waits.until_ns, waits.until_ns[at] + TOGETHER_NS, side="right")
    coming = _within(waits, at, until, start_ns, end_ns, by_ns)
    known = (high < len(waits.row)) & (waits.from_ns[coming.largest] <= by_ns)
    return np.where(known, coming.largest, -1), coming.read_ns
