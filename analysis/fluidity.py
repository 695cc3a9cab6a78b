"""Fluidity: the share of token deadlines that a stream met, with slack carried over from early tokens.

The fluidity index of Etalon (Agrawal et al., arXiv 2407.07000). The first token is due a TTFT target after the request
was sent, each further one a TBT target (time between tokens) after the one before it was due. A token that comes early
leaves its slack to the next, as a reader's buffer does. A token that is late misses its deadline and one more for every
TBT that it is late; the clock then starts anew at its arrival.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.quantiles import Bools, Floats, Ints
from analysis.record import UNKNOWN
from analysis.run import Run
from analysis.units import seconds, share


@dataclass(frozen=True, slots=True)
class Targets:
    """What a workload says of fluidity; a good request has met the share `at_least` of its deadlines (None: any)."""

    ttft_s: float = 1.0
    tbt_s: float = 0.1
    at_least: float | None = None


def targets(run: Run) -> Targets:
    """Raises ValueError (one line) for what is no duration or share."""
    workload = run.meta.get("workload")
    said: Mapping[str, Any] = (workload.get("fluidity") if isinstance(workload, Mapping) else None) or {}
    least = said.get("at_least")
    plain = Targets()
    return Targets(
        seconds(said.get("ttft", plain.ttft_s)),
        seconds(said.get("tbt", plain.tbt_s)),
        None if least is None else share(least),
    )


def fluidity(run: Run, rows: Bools, ttft_s: float, tbt_s: float) -> Floats:
    """One share per request of the run.

    NaN for requests outside the mask `rows`, those that failed or were merely played back, and those of which it is not
    known how many tokens an event held.

    Args:
        run: The run.
        rows: Mask of the requests.
        ttft_s, tbt_s: The targets, above 0. ValueError for others.
    """
    met, missed = deadlines(run, rows, ttft_s, tbt_s)
    total = met + missed
    return np.asarray(np.divide(met, total, out=np.full(len(met), np.nan), where=total > 0))


def run_fluidity(run: Run, rows: Bools, ttft_s: float, tbt_s: float) -> float | None:
    """The share over all deadlines of the requests in the mask `rows`; None where there are none."""
    met, missed = (int(each.sum()) for each in deadlines(run, rows, ttft_s, tbt_s))
    return met / (met + missed) if met + missed else None


def deadlines(run: Run, rows: Bools, ttft_s: float, tbt_s: float) -> tuple[Ints, Ints]:
    """How many deadlines each request met and missed; none where `fluidity` is NaN. Args as there.

    Late by what is due: with u = arrival - (tokens before) x TBT, a token is late if its u is above the base of its
    deadlines. The base is sent + TTFT until a token is late, and then the u of that token: so the base is the highest u
    so far, and the late tokens are those that raise it.
    """
    if not (ttft_s > 0 and tbt_s > 0):
        raise ValueError(f"fluidity needs targets above 0: ttft {ttft_s:g} s, tbt {tbt_s:g} s")
    events = run.events
    counted = rows & run.streamed & ~run.tokens_unknown & (events.per_request > 0) & ~np.isnan(run.column("sent_ns"))
    mine = np.flatnonzero(counted[events.row])
    row = events.row[mine]
    tokens = np.where(events.tokens[mine] == UNKNOWN, 1, events.tokens[mine]).astype(np.int64)
    before = np.cumsum(tokens) - tokens
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    before -= np.repeat(before[begins], np.diff(np.append(begins, len(row))))
    ttft_ns, tbt_ns = round(ttft_s * 1e9), max(1, round(tbt_s * 1e9))
    u = events.arrival_ns[mine] - run.column("sent_ns")[row].astype(np.int64) - before * tbt_ns
    late_ns = u - _base(u, begins, ttft_ns)
    missed = np.where(late_ns > 0, 1 + late_ns // tbt_ns, 0)
    met = tokens - (late_ns > 0)
    return _per_request(row, met, run.size), _per_request(row, missed, run.size)


def _per_request(row: Ints, values: Ints, count: int) -> Ints:
    total: Ints = np.bincount(row, weights=values, minlength=count).astype(np.int64)
    return total


def _base(u: Ints, begins: Ints, ttft_ns: int) -> Ints:
    """The highest u before each event of its request, at least the TTFT target."""
    if not len(u):
        return u
    before = np.concatenate([[ttft_ns], u[:-1]])
    before[begins] = ttft_ns
    # One running maximum for all requests: each is lifted above those before it.
    span = int(before.max() - before.min()) + 1
    lift = np.repeat(np.arange(len(begins)) * span, np.diff(np.append(begins, len(u))))
    return np.asarray(np.maximum.accumulate(before + lift) - lift)
