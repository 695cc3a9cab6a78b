"""The streams that are being read right now, for whoever wants to know which of them stand still."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from analysis.record import RequestRecord
from workloads.spec import Stall

LATEST_GAPS = 9


class Heard(Protocol):
    """A connection, as far as it matters here: when something came over it last."""

    arrival_ns: int


Open = Mapping[str, tuple[RequestRecord, Heard]]


class Engine(Protocol):
    """What sends requests and says which of them are on a connection."""

    @property
    def open(self) -> Open: ...


class Stalled(NamedTuple):
    """How many streams stand still, and since when the first of them does; None where none does."""

    streams: int = 0
    since_ns: int | None = None

    @classmethod
    def together(cls, parts: "Iterable[Stalled]") -> "Stalled":
        counts, since_ns = zip(*parts, strict=True)
        return cls(sum(counts), min((each for each in since_ns if each is not None), default=None))

    def longest_ns(self, now_ns: int) -> int:
        return 0 if self.since_ns is None else max(0, now_ns - self.since_ns)


@dataclass
class Streams:
    """The requests of this process that are on a connection, by id, and what other processes told of theirs.

    Attributes:
        known: False as long as nobody says anything.
    """

    open: Open = field(default_factory=dict)
    told: Stalled = field(default_factory=Stalled)
    known: bool = False

    def watch(self, engine: Engine) -> None:
        """From now on the open requests of an engine."""
        self.open, self.known = engine.open, True

    def hear(self, told: Iterable[Stalled]) -> None:
        """What each of several processes told last."""
        self.told, self.known = Stalled.together(told), True

    def decoding(self) -> Iterator[tuple[RequestRecord, Heard]]:
        """Those of this process of which a token has come, and not the end."""
        return ((each, where) for each, where in self.open.values() if each.arrival_ns and each.end_ns is None)

    def stalled(self, now_ns: int, stall: Stall) -> Stalled:
        """The streams that are in a stall.

        A stall is as in `tally.stalls`, but by a mean gap: thousands of streams cannot be asked for their median four
        times a second.
        """
        floor_ns = round(stall.floor * 1e9)
        silent = [
            heard.arrival_ns
            for record, heard in self.decoding()
            if now_ns - heard.arrival_ns > max(floor_ns, stall.factor * _usual_gap_ns(record))
        ]
        return Stalled.together([Stalled(len(silent), min(silent, default=None)), self.told])


def _usual_gap_ns(record: RequestRecord) -> float:
    """The mean gap, of the whole stream or of its latest tokens: the smaller, as an earlier stall raises either."""
    arrival_ns = record.arrival_ns
    gaps = len(arrival_ns) - 1
    if not gaps:
        return 0.0
    latest = min(gaps, LATEST_GAPS)
    last_ns = arrival_ns[-1]
    return min((last_ns - arrival_ns[0]) / gaps, (last_ns - arrival_ns[-1 - latest]) / latest)
