"""`loadgen import`: another tool's result as a run directory, so that report, stalls, gate and compare work on it."""

import re
import sys
import time
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError


def import_(arguments: dict[str, Any]) -> int:
    """Turn a result into a run directory; stdout gets its name, stderr what could not be rebuilt."""
    from analysis.importers.read import read_result
    from analysis.rundir import RunWriter

    file: Path = arguments["result"]
    try:
        imported = read_result(_bytes(file), file.name, arguments["kind"])
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    out = arguments["out"] or _default_out(imported.meta["name"])
    writer = RunWriter.create(out, _described(imported.meta, out))
    writer.append(imported.records)
    writer.close({"interrupted_by": None})
    _summarize(out)
    _tell(imported.meta, len(imported.records), arguments["quiet"])
    print(out)
    return 0


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise UsageError(f"{file}: {problem.strerror}") from None


def _default_out(name: str) -> Path:
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "imported"
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{plain}"


def _described(meta: dict[str, Any], out: Path) -> dict[str, Any]:
    from loadgen.measure import versions

    return {"id": out.name, **meta, "versions": versions(), "gate": {}, "interrupted_by": None}


def _summarize(out: Path) -> None:
    from analysis.rundir import read_run, write_summary
    from analysis.summary import summarize

    write_summary(out, summarize(read_run(out)))


def _tell(meta: dict[str, Any], count: int, quiet: bool) -> None:
    if quiet:
        return
    print(f"loadgen: {count} requests of {meta['imported']['kind']}", file=sys.stderr)
    for warning in meta["warnings"]:
        print(f"loadgen: {warning['text']}", file=sys.stderr)
