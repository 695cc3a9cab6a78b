"""What an importer makes of another tool's result, and the parts that all importers share.

An importer is pure: from the bytes of a document to the records of a run and what run.json says of it. What the tool
did not write down is left out of the records and named under `undefined`; nothing is filled in.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from analysis.quantiles import Floats, Ints
from analysis.record import ANSWER, THINKING, UNKNOWN, RequestRecord

CLASS, STAGE = "imported", "imported"
NO_DUE = "the result does not say when a request was due"
NO_KINDS = "the result does not say which tokens were thinking"
NO_CONNECTS = "the result does not list connections"
NO_STARTS = "the result does not say when a request was sent"
NO_TOKENS = "the result lists no token between the first and the last of a request"
ENDS_ONLY = ("itl", "gap", "stalls")
"""What is undefined where the events of a run are not all of them."""

_LONGEST_S = 9e6  # nanoseconds of about 104 days are exact as floats
_MOST_TOKENS = 2**31


@dataclass(frozen=True)
class Imported:
    """A run as another tool saw it.

    Attributes:
        meta: What run.json holds, less what only the caller knows (id, versions of our own, the time of importing).
        records: In order of sending; never empty.
    """

    meta: dict[str, Any]
    records: list[RequestRecord]


@dataclass
class Source:
    """What an importer found out about a run as a whole.

    Attributes:
        kind, file: The tool, and the name of the document.
        undefined: Reason by metric for what cannot be rebuilt.
        notes: Sentences for the user, in the order of importance.
    """

    kind: str
    file: str
    loop: str | None
    stages: list[dict[str, Any]]
    model: str | None = None
    target: str | None = None
    endpoint: str | None = None
    tool_version: str | None = None
    started_at: str | None = None
    epoch_ns_at_start: int | None = None
    concurrency: int | None = None
    undefined: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def meta(self) -> dict[str, Any]:
        name = re.sub(r"\.jsonl?$", "", self.file)
        return {
            "name": name,
            "workload": {"name": name, "concurrency": self.concurrency},
            "target": self.target and re.sub(r"//[^/@]*@", "//", self.target),
            "model": self.model,
            "endpoint": self.endpoint,
            "seed": None,
            "loop": self.loop,
            "stages": self.stages,
            "clock": {"epoch_ns_at_start": self.epoch_ns_at_start, "stepped_ns": 0},
            "timestamp_source": "user",
            "started_at": self.started_at,
            "imported": {"kind": self.kind, "file": self.file, "tool_version": self.tool_version},
            "undefined": self.undefined,
            "warnings": [{"code": "imported", "text": text} for text in self.notes],
        }


def stage(
    name: str, start_ns: int, end_ns: int | None, offered_rps: float | None, measured: bool = True
) -> dict[str, Any]:
    return {
        "name": name, "start_ns": start_ns, "end_ns": end_ns, "measured": measured, "offered_rps": offered_rps,
    }  # fmt: skip


def to_ns(seconds: Floats, name_of: Callable[[int], str]) -> Ints:
    """Durations in whole nanoseconds. ValueError, with the name of the first wrong one, unless from 0 to 104 days."""
    wrong = np.flatnonzero(~((seconds >= 0) & (seconds <= _LONGEST_S)))
    if len(wrong):
        raise ValueError(
            f"{name_of(int(wrong[0]))}: {seconds[wrong[0]]:g} s: expected a time from 0 to {_LONGEST_S:.0e} s"
        )
    return np.rint(seconds * 1e9).astype(np.int64)


def check_tokens(count: int | None, where: str) -> None:
    """ValueError, with the place, unless a count that is there is from 0 to 2**31."""
    if count is not None and not 0 <= count < _MOST_TOKENS:
        raise ValueError(f"{where}: {count}: expected a number of tokens from 0 to {_MOST_TOKENS}")


def add_events(
    record: RequestRecord,
    arrival_ns: Ints,
    tokens: Ints | None = None,
    answer_ns: int | None = None,
) -> None:
    """Give a record its token events, each read on its own.

    Args:
        record: Without token events so far.
        arrival_ns: In ascending order.
        tokens: Of each event; None = the tool does not say.
        answer_ns: When the answer began: what came before was thinking. None = all of it is answer.
    """
    count = len(arrival_ns)
    told = np.full(count, UNKNOWN) if tokens is None else tokens
    kinds = np.where(arrival_ns < (answer_ns or 0), THINKING, ANSWER)
    record.arrival_ns.frombytes(arrival_ns.astype(np.int64).tobytes())
    record.n_tokens.frombytes(told.astype(np.int32).tobytes())
    record.kind.frombytes(kinds.astype(np.int8).tobytes())
    record.chars.frombytes(bytes(4 * count))
    record.read_id.frombytes(np.arange(count, dtype=np.int32).tobytes())


def from_start(instants_ns: Ints, name_of: Callable[[int], str]) -> Ints:
    """Instants on a wall clock as instants from the first of them. ValueError unless they lie within 104 days."""
    since_ns: Ints = instants_ns - instants_ns.min()
    to_ns(since_ns / 1e9, lambda position: f"{name_of(position)} after the first request")
    return since_ns


def started_at(epoch_ns: int) -> str:
    return datetime.fromtimestamp(epoch_ns / 1e9, UTC).isoformat(timespec="seconds")


def last_instant(records: Iterable[RequestRecord]) -> int:
    """The last thing that is known to have happened, in nanoseconds."""
    found = [max(each.sent_ns or 0, each.end_ns or 0, *each.arrival_ns[-1:]) for each in records]
    return max(found, default=0)


def counted(count: int, total: int, text: str) -> list[str]:
    """A note on `count` of `total` requests, or none."""
    return [f"{count} of {total} requests {text}"] if count else []


def merged(*parts: Mapping[str, str | None]) -> dict[str, str]:
    """Reasons by metric; those that are None fall away."""
    return {name: why for part in parts for name, why in part.items() if why}
