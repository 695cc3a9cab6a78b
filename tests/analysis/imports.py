"""Imported documents as runs, and documents made of a good one by changing a key."""

import copy
import json
from pathlib import Path
from typing import Any

from analysis.importers.imported import Imported
from analysis.importers.read import read_result
from analysis.run import Run
from analysis.summary import summarize

DATA = Path(__file__).parent.parent / "data" / "imports"


def imported(name: str, kind: str | None = None) -> Imported:
    """A file of tests/data/imports."""
    return read_result((DATA / name).read_bytes(), name, kind)


def import_json(value: Any, kind: str | None = None) -> Imported:
    return read_result(json.dumps(value).encode(), "result.json", kind)


def run_of(found: Imported) -> Run:
    return Run.from_records({"format_version": 1, "id": "x", "complete": True, **found.meta}, found.records)


def summary_of(found: Imported) -> dict[str, Any]:
    return summarize(run_of(found), [])


def changed(value: Any, *path: Any, to: Any = None, drop: bool = False) -> Any:
    """A copy with the entry at `path` replaced or dropped."""
    result = copy.deepcopy(value)
    place = result
    for key in path[:-1]:
        place = place[key]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return result


def texts(found: Imported) -> str:
    return "\n".join(each["text"] for each in found.meta["warnings"])
