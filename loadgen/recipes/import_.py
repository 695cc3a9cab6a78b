"""`loadgen import`: another tool's result as a run directory, so that report, stalls, gate and compare work on it."""

import re
import stat
import sys
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.recipes.output import kept_in, put, run_dir


def import_(arguments: dict[str, Any]) -> int:
    """Turn a result into a run directory; stdout gets its name, stderr what could not be rebuilt."""
    from analysis.importers.read import read_result
    from analysis.rundir import RunWriter

    file: Path = arguments["result"]
    try:
        imported = read_result(_bytes(file), file.name, arguments["kind"])
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    out = run_dir(arguments["out"], _plain(imported.meta["name"]))
    writer = RunWriter.create(out, _described(imported.meta, out))
    writer.append(imported.records)
    writer.close({"interrupted_by": None})
    _summarize(out)
    _tell(imported.meta, len(imported.records), arguments["quiet"])
    with kept_in(out):
        put(f"{out}\n")
    return 0


def _bytes(file: Path) -> bytes:
    """Of a file or a pipe; a device may have no end."""
    try:
        mode = file.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise UsageError(f"{file}: a device: name the file that the tool wrote")
        return file.read_bytes()
    except OSError as problem:
        raise UsageError(f"{file}: {problem.strerror}") from None


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "imported"


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
