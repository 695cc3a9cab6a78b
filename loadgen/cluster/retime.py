"""A journal that was written by another clock, on the timeline of the run."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.columns import ROW_FIELDS
from analysis.journal import Journal, read_journal

Place = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""From instants of that clock to instants of the run, in nanoseconds."""

_INSTANTS = tuple(at for at, name in enumerate(ROW_FIELDS) if name in ("due_ns", "sent_ns", "headers_ns", "end_ns"))
_ARRIVALS = ROW_FIELDS.index("arrival_ns")


def retime(journal: Path, place: Place) -> None:
    """Puts every instant of a journal where it belongs; due times too, so that no latency depends on the clocks.

    The file is replaced in one step. Raises OSError, JournalError.
    """
    temporary = journal.with_name(journal.name + ".part")
    try:
        with closing(Journal(temporary, keep_text=True)) as placed:  # what must not be kept is not in there
            for kind, content in read_journal(journal):
                placed.append(kind, _PLACED.get(kind, _same)(content, place))
        temporary.replace(journal)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _requests(rows: list[list[Any]], place: Place) -> list[list[Any]]:
    return [_row(row, place) for row in rows]


def _row(row: list[Any], place: Place) -> list[Any]:
    known = [at for at in _INSTANTS if row[at] is not None]
    arrivals = np.frombuffer(row[_ARRIVALS], dtype=np.int64)
    placed = place(np.concatenate([np.array([row[at] for at in known], dtype=np.int64), arrivals]))
    moved = list(row)
    for at, instant in zip(known, placed.tolist(), strict=False):
        moved[at] = instant
    moved[_ARRIVALS] = placed[len(known) :].tobytes()
    return moved


def _samples(samples: list[dict[str, Any]], place: Place) -> list[dict[str, Any]]:
    times = place(np.array([sample["t_ns"] for sample in samples], dtype=np.int64)).tolist()
    return [sample | {"t_ns": t_ns} for sample, t_ns in zip(samples, times, strict=True)]


def _same(content: Any, place: Place) -> Any:  # noqa: ARG001 - nothing in it has a time
    return content


_PLACED: dict[str, Callable[[Any, Place], Any]] = {"requests": _requests, "client": _samples}
