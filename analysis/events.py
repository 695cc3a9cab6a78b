"""Token events and the gaps between them as parallel arrays, grouped by request."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.quantiles import Ints, order_within

Small = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Events:
    """Every token event of a run, in order of request and, within it, of arrival.

    Attributes:
        row: Position of the request in `Run.requests`.
        arrival_ns: Arrival on the run's timeline.
        tokens: Tokens of the event, UNKNOWN where neither told nor implied.
        kind: Position in `record.KINDS`.
        read_id: The network read that completed the event.
        starts: The events of request i are `starts[i]` up to `starts[i + 1]`.
        seq: Number of the event within its request, where not all are here; with it `came` and `came_in`, how many
            events came of each request, and in how many reads.
    """

    row: Ints
    arrival_ns: Ints
    tokens: Small
    kind: npt.NDArray[np.int8]
    read_id: Small
    starts: Ints
    seq: Ints | None = None
    came: Ints | None = None
    came_in: Ints | None = None

    @cached_property
    def sizes(self) -> Ints:
        """How many events of each request are here."""
        return np.diff(self.starts)

    @property
    def per_request(self) -> Ints:
        """How many events of each request came."""
        return self.sizes if self.came is None else self.came

    def number(self, at: Ints) -> Ints:
        """How many events of its request came before each of those at these positions."""
        return at - self.starts[self.row[at]] if self.seq is None else self.seq[at]

    @cached_property
    def one_each(self) -> bool:
        """Whether every event is known to hold one token."""
        return bool(np.all(self.tokens == 1))

    @cached_property
    def reads(self) -> Ints:
        """Network reads of each request that completed an event."""
        if self.came_in is not None:
            return self.came_in
        new = np.ones(len(self.row), dtype=bool)
        new[1:] = self.read_id[1:] != self.read_id[:-1]
        new[self.starts[:-1][self.sizes > 0]] = True
        return np.asarray(self.sum_by_request(new))

    def sum_by_request(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum of one value per event over each request, 0 where it has no events."""
        dtype = np.int64 if values.dtype.kind in "biu" else values.dtype
        sums, filled = np.zeros(len(self.sizes), dtype), self.sizes > 0
        if len(values):
            sums[filled] = np.add.reduceat(values, self.starts[:-1][filled], dtype=dtype)
        return sums

    def first(self, missing: float = np.nan) -> npt.NDArray[np.float64]:
        """Arrival of each request's first event in nanoseconds."""
        return self._pick(self.starts[:-1], missing)

    def last(self, missing: float = np.nan) -> npt.NDArray[np.float64]:
        return self._pick(self.starts[1:] - 1, missing)

    def _pick(self, at: Ints, missing: float) -> npt.NDArray[np.float64]:
        result = np.full(len(at), missing)
        filled = self.sizes > 0
        result[filled] = self.arrival_ns[at[filled]]
        return result


@dataclass(frozen=True)
class Gaps:
    """Time between neighbouring token events of one request; a gap is named by the event that ends it.

    Attributes:
        row: Position of the request in `Run.requests`.
        gap_ns: Never negative: events are in order of arrival.
        end: Position of the ending event in `Events`.
        starts: The gaps of request i are `starts[i]` up to `starts[i + 1]`.
    """

    row: Ints
    gap_ns: Ints
    end: Ints
    starts: Ints

    def of(self, rows: npt.NDArray[np.bool_]) -> "Ints | slice":
        """Positions of the gaps of the requests in a mask: work in proportion to what is asked for."""
        if rows.all():
            return slice(None)
        sizes = np.where(rows, np.diff(self.starts), 0)
        skipped = self.starts[:-1] - (np.cumsum(sizes) - sizes)
        found: Ints = np.repeat(skipped, sizes) + np.arange(int(sizes.sum()))
        return found

    @cached_property
    def ordered_ns(self) -> Ints:
        """The gaps in ascending order within each request."""
        return order_within(self.gap_ns, self.row)


def gaps_of(events: Events, all_known: bool = True) -> Gaps:
    """The gaps; none where the events are not all of them (`all_known`)."""
    within = np.full(len(events.row), all_known)
    within[events.starts[:-1][events.per_request > 0]] = False
    sizes = np.maximum(events.per_request - 1, 0) * all_known
    gap_ns = np.diff(events.arrival_ns)[within[1:]]
    np.maximum(gap_ns, 0, out=gap_ns)
    row = np.repeat(np.arange(len(sizes)), sizes)
    return Gaps(row, gap_ns, np.flatnonzero(within), np.concatenate([[0], np.cumsum(sizes)]))
