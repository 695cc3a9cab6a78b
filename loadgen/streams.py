"""The streams that are being read right now, for whoever wants to know which of them stand still."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from analysis.record import RequestRecord
from loadgen.connection import Connection
from loadgen.openai_http import HttpEngine

LATEST_GAPS = 9


@dataclass
class Streams:
    """The requests that are on a connection, by id.

    Attributes:
        known: False where nobody says: another transport, or other processes.
    """

    open: dict[str, tuple[RequestRecord, Connection]] = field(default_factory=dict)
    known: bool = False

    def watch(self, engine: object) -> None:
        """From now on the open requests of an engine, if it says which they are."""
        if isinstance(engine, HttpEngine):
            self.open, self.known = engine.open, True

    def decoding(self) -> Iterator[tuple[RequestRecord, Connection]]:
        """Those of which a token has come, and not the end."""
        return ((each, where) for each, where in self.open.values() if each.arrival_ns and each.end_ns is None)

    def silent_ns(self, now_ns: int, floor_ns: int, factor: float) -> list[int]:
        """For how long each stream that is in a stall has had nothing.

        A stall is as in `tally.stalls`, but by a mean gap: thousands of streams cannot be asked for their median four
        times a second.
        """
        silences = ((record, now_ns - connection.arrival_ns) for record, connection in self.decoding())
        return [ns for record, ns in silences if ns > floor_ns and ns > factor * _usual_gap_ns(record)]


def _usual_gap_ns(record: RequestRecord) -> float:
    """The mean gap, of the whole stream or of its latest tokens: the smaller, as an earlier stall raises either."""
    arrival_ns = record.arrival_ns
    gaps = len(arrival_ns) - 1
    if not gaps:
        return 0.0
    latest = min(gaps, LATEST_GAPS)
    last_ns = arrival_ns[-1]
    return min((last_ns - arrival_ns[0]) / gaps, (last_ns - arrival_ns[-1 - latest]) / latest)
