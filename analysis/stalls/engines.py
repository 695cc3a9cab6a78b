"""Which streams share an engine, where several stand behind one target: those whose tokens pause together.

All streams of an engine get a token with each of its passes. A pass that takes much longer than usual, because a prompt
was read with it, shows as a gap of the same start and the same end in each of them, while those of other engines get
their tokens. So do pauses; a stream that is held up on its own way shares its gap with nobody.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from analysis.quantiles import Floats, Ints
from analysis.run import Run
from analysis.stalls.level import Level

LONG, QUIET = 4.0, 2.0
"""Passes as long as so many usual ones tell engines apart. Whose gap is at least as long as the second took part: no
stream of the same engine misses the first by noise and the second too."""
MOST_GAPS = 400_000
"""Of more gaps than this, the longest."""
MOST_PARTS = 1_000_000
"""Of more passes than so many streams, one by one, could take part in, the longest."""
TOGETHER_NS = 2_000_000
"""What one pass sends arrives with less than this between one stream and the next."""
MOSTLY = 0.5
"""A stream is on the engine with which it takes part in more than this part of the long passes of either."""
ALL, OFTEN = 0.8, 0.25
"""There is one engine unless in so many long passes less than the first part of all streams stands still."""
BEFORE, PERHAPS = 3.0, 0.5
"""A stream that began up to so many usual passes before the end of a long one took part with this weight: engines that
read prompts first have the others decode afterwards."""
USUALLY = 0.7
"""Where a smaller part of the long gaps is shared, what streams share is chance: two were held up at the same time."""
FEW = 3
"""Fewer streams, or passes, tell nothing."""

UNKNOWN = -1


@dataclass(frozen=True)
class Passes:
    """Long passes in which several streams took part, in order of time.

    Attributes:
        start_ns, end_ns: From the token before it, of most of its streams, to the latest that it brought.
        members: How surely each stream took part in it, by its position in `Run.requests`.
        shared: What part of the long gaps belongs to one of them: the others are of streams that stood still alone.
    """

    start_ns: Ints
    end_ns: Ints
    members: list[dict[int, float]]
    shared: float


@dataclass(frozen=True)
class Silences:
    """Gaps of streams, as parallel arrays: position of the request, start and end on the run's timeline."""

    row: Ints
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def longer(cls, run: Run, length_ns: float) -> "Silences":
        gaps = run.gaps
        at = np.flatnonzero(gaps.gap_ns > length_ns)
        if len(at) > MOST_GAPS:
            at = at[np.argpartition(-gaps.gap_ns[at], MOST_GAPS)[:MOST_GAPS]]
        end_ns = run.events.arrival_ns[gaps.end[at]]
        return cls(gaps.row[at], end_ns - gaps.gap_ns[at], end_ns)


def engines_of(run: Run) -> Ints:
    """The engine of each request, from 0; UNKNOWN where it is not told. All 0 where nothing speaks for several.

    Different numbers at the same time need not be different engines: streams that never shared a long pass have nothing
    in common. And a number is given again when the streams of the one engine have ended. What can be relied on is that
    the streams of one number at one time are on one engine.
    """
    one = np.zeros(run.size, dtype=np.int64)
    step_ns = run.usual_gap_ns(one == 0)
    if run.cells is not None or np.isnan(step_ns):
        return one
    quiet = Silences.longer(run, QUIET * step_ns)
    if not (quiet.end_ns - quiet.start_ns > LONG * step_ns).any():
        return one
    passes = _passes(quiet, run.column("first_token_ns"), step_ns)
    if len(passes.members) < FEW or passes.shared < USUALLY or _all_stand_still(run, passes, quiet):
        return one
    number = _numbered(_groups(run, _not_too_many(run, passes)), run)
    return number if number.max(initial=0) > 0 else one


def _passes(quiet: Silences, first_ns: Floats, step_ns: float) -> Passes:
    """Gaps that ended together, one of them long, are one pass; streams that began as it ended, or a few usual passes
    before, were in it too.

    Gaps need not have begun together: a stream may begin between two prefills, when the others have long been waiting.
    """
    order = np.argsort(quiet.end_ns, kind="stable")
    row, start_ns, end_ns = quiet.row[order], quiet.start_ns[order], quiet.end_ns[order]
    firsts = np.flatnonzero(np.diff(end_ns, prepend=end_ns[:1] - TOGETHER_NS - 1) > TOGETHER_NS)
    ended_ns, sizes = np.maximum.reduceat(end_ns, firsts), np.diff(np.append(firsts, len(row)))
    # Of most of its streams: one that was preempted long before may go on with the same pass.
    began_ns = start_ns[np.lexsort((start_ns, np.repeat(np.arange(len(sizes)), sizes)))][firsts + sizes // 2]
    long = end_ns - start_ns > LONG * step_ns
    told = (sizes > 1) & (ended_ns - began_ns > LONG * step_ns)  # one alone is no evidence, whoever begins meanwhile
    shared = float(long[np.repeat(told, sizes)].sum() / long.sum())
    new = np.argsort(first_ns, kind="stable")  # those without tokens, which have NaN, come last
    new_ns, before_ns = first_ns[new], end_ns[firsts[told]] - TOGETHER_NS
    since = np.searchsorted(new_ns, before_ns - BEFORE * step_ns)
    until = np.searchsorted(new_ns, ended_ns[told] + TOGETHER_NS, side="right")
    members = []
    for at, size, low, high, sure_ns in zip(firsts[told], sizes[told], since, until, before_ns, strict=True):
        weights = np.where(new_ns[low:high] >= sure_ns, 1.0, PERHAPS)
        begun = dict(zip(new[low:high].tolist(), weights.tolist(), strict=True))
        members.append(begun | dict.fromkeys(row[at : at + size].tolist(), 1.0))
    return Passes(began_ns[told], ended_ns[told], members, shared)


def _not_too_many(run: Run, passes: Passes) -> Passes:
    """The longest, where going through all of them stream by stream would take too long."""
    streams = Level.open(run.column("first_token_ns"), run.column("last_token_ns")).at(passes.end_ns)
    most = int(MOST_PARTS / max(1.0, float(np.mean(streams))))
    longest = np.sort(np.argsort(passes.start_ns - passes.end_ns, kind="stable")[:most])
    members = [passes.members[at] for at in longest]
    return Passes(passes.start_ns[longest], passes.end_ns[longest], members, passes.shared)


def _all_stand_still(run: Run, passes: Passes, quiet: Silences) -> bool:
    """Whether in nearly every long pass all streams stand still. Pauses stop all engines: in many they may."""
    middle_ns = (passes.start_ns + passes.end_ns) // 2
    decoding = Level.open(run.column("first_token_ns"), run.column("last_token_ns")).at(middle_ns)
    still = Level.open(quiet.start_ns, quiet.end_ns).at(middle_ns)
    told = decoding >= FEW
    return not told.any() or bool(np.quantile(still[told] / decoding[told], OFTEN) >= ALL)


def _groups(run: Run, passes: Passes) -> Ints:
    """A number for each request: that of the streams with which it took part in most of the long passes of either."""
    group, at_passes = _first_groups(run, passes)
    either, both = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for there, took in at_passes:
        several = [(name, 2 * took[name] > count) for name, count in sorted(there.items())]
        for i, (name, part) in enumerate(several):
            for other, theirs in several[i + 1 :]:
                either[name, other] += part or theirs
                both[name, other] += part and theirs
    root = {name: name for there, _ in at_passes for name in there}
    for a, b in sorted(both, key=lambda pair: -_agreement(both[pair], either[pair])):
        if _agreement(both[a, b], either[a, b]) > MOSTLY:
            root |= {name: root[a] for name, its in root.items() if its == root[b]}
    found = np.full(len(group), UNKNOWN)
    told = group != UNKNOWN
    found[told] = [root[name] for name in group[told].tolist()]
    return found


def _first_groups(run: Run, passes: Passes) -> tuple[Ints, list[tuple[Counter[int], Counter[int]]]]:
    """Each stream put with those before it. Also, for each pass, how many streams of each group were decoding before
    it, and how many took part."""
    first_ns, last_ns = run.column("first_token_ns"), run.column("last_token_ns")
    low = np.searchsorted(passes.end_ns, first_ns - TOGETHER_NS)
    high = np.searchsorted(passes.end_ns, last_ns + TOGETHER_NS, side="right")
    start_ns = passes.start_ns.tolist()
    seen = [(Counter[int](), Counter[int]()) for _ in start_ns]
    found = np.full(len(first_ns), UNKNOWN)
    fresh = 0
    for request in np.argsort(first_ns, kind="stable").tolist():
        parts = [(at, passes.members[at].get(request, 0.0)) for at in range(low[request], high[request])]
        parts = [(at, part) for at, part in parts if part or start_ns[at] >= first_ns[request]]
        if not any(part for _, part in parts):
            continue
        best = _best_group(parts, seen)
        group = fresh if best is None else best
        fresh += group == fresh
        found[request] = group
        for at, part in parts:
            seen[at][0][group] += 1
            seen[at][1][group] += part > 0
    return found, seen


def _best_group(parts: list[tuple[int, float]], seen: list[tuple[Counter[int], Counter[int]]]) -> int | None:
    """With which group a stream took part in the most passes, given how surely it took part in each; None with none."""
    either, both = dict[int, float](), dict[int, float]()
    for at, part in parts:
        there, took = seen[at]
        for group, count in there.items():
            theirs = 2 * took[group] > count
            either[group] = either.get(group, 0.0) + (part or theirs)
            both[group] = both.get(group, 0.0) + part * theirs
    told = {group: _agreement(both[group], either[group]) for group in both}
    best = max(told, key=told.__getitem__, default=None)
    return best if best is not None and told[best] > MOSTLY else None


def _agreement(both: float, either: float) -> float:
    """The share of the long passes of either in which both took part, by the rule of succession: few say little."""
    return (both + 1) / (either + 2)


def _numbered(group: Ints, run: Run) -> Ints:
    """Each group's number is the lowest that no other has while any of its streams lasts."""
    told = group != UNKNOWN
    names, at = np.unique(group[told], return_inverse=True)
    begin, end = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    np.minimum.at(begin, at, run.column("first_token_ns")[told])
    np.maximum.at(end, at, run.column("last_token_ns")[told])
    number, taken_until = np.zeros(len(names), dtype=np.int64), list[float]()
    for i in np.argsort(begin, kind="stable").tolist():
        free = next((j for j, until in enumerate(taken_until) if until < begin[i]), len(taken_until))
        taken_until[free : free + 1] = [end[i]]
        number[i] = free
    found = np.full(len(group), UNKNOWN)
    found[told] = number[at]
    return found
