"""`loadgen stalls`: why the streams of a run froze."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadgen.recipes.output import as_json, colored, columns, put

if TYPE_CHECKING:
    from analysis.run import Run


def stalls(arguments: dict[str, Any]) -> int:
    """Exit status 0 whatever was found."""
    from analysis.rundir import RunDirError, read_run
    from analysis.stalls.report import stalls_report

    path = arguments["run_dir"]
    run = read_run(path)
    try:
        told = stalls_report(run, arguments["request"])
    except ValueError as problem:
        raise RunDirError(f"{path}: {problem}") from None
    if why := _unknown(run, told["stalls"]):
        told["stalls"]["undefined"] = why
    put(as_json(told) if arguments["format_"] == "json" else _rendered(told))
    return 0


def _unknown(run: "Run", stalls: Mapping[str, Any]) -> str | None:
    """Why stalls, or the episodes of those that were counted, are not known; None where they are."""
    from analysis.latency import why_undefined

    if stalls["count"]:
        return run.undefined.get("episodes")
    if stalls["share_of_requests"] is not None:
        return None
    why = run.undefined.get("stalls")
    if why is None:
        return why_undefined(run, run.measured, "gap")
    tool = run.meta.get("imported")
    alike = ", ".join(name for name, reason in run.undefined.items() if reason == why)
    return f"{why}, so {alike} are undefined for this result of {tool['kind']}" if tool else why


def _rendered(told: Mapping[str, Any]) -> str:
    from analysis.stalls.text import render_stalls

    text, stalls = render_stalls(told, width=columns(), color=colored()), told["stalls"]
    if stalls["count"] and "undefined" in stalls and not told["timeline"]:
        text += f"\nWhich of them happened together, and why, is not known: {stalls['undefined']}.\n"
    return text
