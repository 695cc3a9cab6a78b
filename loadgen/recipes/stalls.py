"""`loadgen stalls`: why the streams of a run froze."""

from collections.abc import Mapping
from typing import Any

from loadgen.recipes.output import as_json, colored, columns, put


def stalls(arguments: dict[str, Any]) -> int:
    """Exit status 0 whatever was found."""
    from analysis.rundir import RunDirError, read_run
    from analysis.stalls.report import stalls_report

    path = arguments["run_dir"]
    try:
        told = stalls_report(read_run(path), arguments["request"])
    except ValueError as problem:
        raise RunDirError(f"{path}: {problem}") from None
    put(as_json(told) if arguments["format_"] == "json" else _rendered(told))
    return 0


def _rendered(told: Mapping[str, Any]) -> str:
    from analysis.stalls.text import render_stalls

    return render_stalls(told, width=columns(), color=colored())
