"""`loadgen report`: the numbers of a run directory, a killed run's too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.limits import parse_limits
from analysis.slo import MAX_ERRORS
from loadgen.arguments import gate_rules, merged_limits
from loadgen.recipes.output import as_json, colored, columns, put


def report(arguments: dict[str, Any]) -> int:
    """The numbers of a run directory, a killed run's too; judged by its own limits unless others are given."""
    from analysis.slo import exit_status

    summary = summary_of(arguments["run_dir"], arguments)
    put(rendered(summary, arguments["format_"]), arguments["output"])
    return exit_status(summary)


def summary_of(path: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run directory, by the limits and rules recorded in it and those given now."""
    from analysis.rundir import RunDirError, read_run
    from analysis.summary import summarize

    run = read_run(path)
    now = {name: value for name, value in gate_rules(arguments).items() if value is not None and value is not False}
    gate = {"max_errors": MAX_ERRORS} | {k: v for k, v in (run.meta.get("gate") or {}).items() if v is not None} | now
    slo = (run.meta.get("workload") or {}).get("slo") or {}
    try:
        texts = arguments["slo"] or ()
        limits = parse_limits(
            merged_limits({}, texts) if texts and "run_dir" in arguments else slo, gate.get("allow_e2e", False)
        )
        return summarize(run, limits, bool(gate.get("strict_point")), max_errors=gate["max_errors"])
    except ValueError as problem:
        raise RunDirError(f"{path}: {problem}") from None


def rendered(summary: Mapping[str, Any], kind: str) -> str:
    if kind == "json":
        return as_json(summary)
    if kind == "markdown":
        from analysis.report_ci import markdown

        return markdown(summary)
    from analysis.report_text import render

    return render(summary, width=columns(), color=colored())
