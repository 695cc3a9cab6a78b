"""One look at a run that goes on: `python -m loadgen.look DIR NUMBER END_NS` prints what it says as JSON.

It waits until every request that was due before END_NS has ended, which the samples that the run takes of itself tell.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.looks import as_of, can_settle, unsettled
from analysis.report.wording import limit_name, quantity
from analysis.run import Run
from analysis.rundir import RunDirError, read_run
from analysis.slo import MAX_ERRORS
from analysis.summary import summarize

if TYPE_CHECKING:
    import pandas as pd

NICENESS = 10
LONGEST_PAUSE_S = 10.0
SILENT_NS = 10_000_000_000
"""A worker that has given no sample of itself for so long, while others have, is gone."""

GRACE_NS = 1_000_000_000
"""What was due so shortly before a sample may not have been begun then."""


def known_up_to_ns(client: "pd.DataFrame | None", workers: int) -> tuple[int, bool]:
    """Up to which due time every request has ended, by the samples of all workers; and whether one of them is gone."""
    if client is None or not len(client) or "oldest_ns" not in client:
        return 0, False
    last = client.sort_values("t_ns").groupby("worker").tail(1)
    gone = bool((last["t_ns"] < last["t_ns"].max() - SILENT_NS).any())
    if len(last) < workers:
        return 0, gone
    oldest_ns = last["oldest_ns"].astype("Float64").fillna(last["t_ns"])
    return int(min((last["t_ns"] - GRACE_NS).min(), oldest_ns.min())), gone


def snapshot(folder: Path) -> Run:
    """The run as it is now: a copy is read, as the journals grow while they are."""
    with tempfile.TemporaryDirectory() as place:
        for path in [folder / "run.json", *folder.glob("journal*.bin")]:
            shutil.copyfile(path, Path(place) / path.name)
        return read_run(Path(place))


def look(run: Run, number: int, gone: bool) -> dict[str, Any]:
    """What is settled and what is not, in words; `can_settle` says whether more of the same could."""
    seen, gate = as_of(run, number), run.meta.get("gate") or {}
    summary = summarize(seen, max_errors=gate.get("max_errors") or MAX_ERRORS)
    left = unsettled(summary)
    return {
        "names": [_name(each) for each in left],
        "unsettled": _by_reason(left),
        "settled": [_told(each) for each in summary["slo"]["limits"] if each not in left],
        "can_settle": any(can_settle(each) for each in left),
        "worker_gone": gone,
    }


def _by_reason(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The limits without a verdict, those for one reason together."""
    names: dict[str, list[str]] = {}
    for each in entries:
        names.setdefault(each["reason"], []).append(_name(each))
    return [f"{', '.join(some)} ({reason})" for reason, some in names.items()]


def _name(entry: Mapping[str, Any]) -> str:
    return limit_name(entry) if entry["class"] == "all" else f"{entry['class']}:{limit_name(entry)}"


def _told(entry: Mapping[str, Any]) -> str:
    return f"{_name(entry)} {quantity(entry['metric'], entry['statistic'], entry['value'])} {entry['verdict']}"


def _when_known(folder: Path, end_ns: int) -> tuple[Run, bool]:
    """The run once all is known up to an instant, or a worker of it is gone. Raises OSError when all of it is."""
    parent, pause_s = os.getppid(), 1.0
    while os.getppid() == parent:
        run = snapshot(folder)
        known_ns, gone = known_up_to_ns(run.client, run.meta["workers"])
        if known_ns >= end_ns or gone:
            return run, gone
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 1.5 * pause_s)
    raise ProcessLookupError("the run that was to be looked at is gone")


def main() -> int:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # a process that measures may be ahead of others
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    folder, number, end_ns = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    try:
        run, gone = _when_known(folder, end_ns)
        print(json.dumps(look(run, number, gone)))
    except (RunDirError, OSError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
