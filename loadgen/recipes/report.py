"""`loadgen report`: the numbers of a run directory, a killed run's too."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.limits import parse_limits
from loadgen.arguments import gate_rules, merged_limits
from loadgen.errors import UsageError
from loadgen.otel import checked, send, shown
from loadgen.recipes.output import as_json, colored, columns, put

if TYPE_CHECKING:
    from analysis.roofline import Roofline
    from analysis.run import Run


def report(arguments: dict[str, Any]) -> int:
    """The numbers of a run directory, judged by its own limits unless others are given."""
    from analysis.rundir import read_run
    from analysis.slo import exit_status

    kind, spans_to = arguments["format_"], checked(arguments["otel_endpoint"])
    if spans_to is not None and (kind == "vllm" or arguments["more"]):
        raise UsageError("--otel-endpoint: the spans of one run, with any --format but vllm")
    if kind == "vllm":
        if arguments["more"]:
            raise UsageError("--format vllm is the shape of one run: name one")
        put(_as_vllm(arguments["run_dir"], read_run(arguments["run_dir"])), arguments["output"])
        return 0
    run, summary = _asked(arguments)
    text = page_of(run, summary, roofline_of(arguments)) if kind == "html" else rendered(summary, kind)
    put(text, arguments["output"])
    if spans_to is not None:
        print(f"loadgen: {send(run, spans_to)} spans sent to {shown(spans_to)}", file=sys.stderr)
    return exit_status(summary)


def _asked(arguments: Mapping[str, Any]) -> "tuple[Run, dict[str, Any]]":
    """The run that was named, or several of them as one."""
    if not arguments["more"]:
        return judged(arguments["run_dir"], arguments)
    from loadgen.recipes.repeat import together

    return together([arguments["run_dir"], *arguments["more"]], arguments)


def summary_of(path: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run directory, by the limits and rules recorded in it and those given now."""
    return judged(path, arguments)[1]


def judged(path: Path, arguments: Mapping[str, Any]) -> "tuple[Run, dict[str, Any]]":
    """A run directory and its summary."""
    from analysis.rundir import RunDirError, read_run

    run = read_run(path)
    try:
        return run, summary_by(run, arguments)
    except ValueError as problem:
        raise RunDirError(f"{path}: {problem}") from None


def summary_by(run: "Run", arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run by its own limits and rules, and those given now. Raises ValueError (one line)."""
    from analysis.slo import MAX_ERRORS
    from analysis.summary import summarize

    now = {name: value for name, value in gate_rules(arguments).items() if value is not None and value is not False}
    gate = {"max_errors": MAX_ERRORS} | {k: v for k, v in (run.meta.get("gate") or {}).items() if v is not None} | now
    slo = (run.meta.get("workload") or {}).get("slo") or {}
    texts = arguments["slo"] or ()
    limits = parse_limits(
        merged_limits({}, texts) if texts and "run_dir" in arguments else slo, gate.get("allow_e2e", False)
    )
    return summarize(run, limits, bool(gate.get("strict_point")), max_errors=gate["max_errors"])


def rendered(summary: Mapping[str, Any], kind: str) -> str:
    """A summary as text, json, markdown, csv or junit."""
    if kind == "json":
        return as_json(summary)
    if kind == "markdown":
        from analysis.report.markdown import markdown

        return markdown(summary)
    if kind == "junit":
        from analysis.report.junit import junit

        return junit(summary)
    if kind == "csv":
        from analysis.report.csv import csv_text

        return csv_text(summary)
    from analysis.report.text import render

    return render(summary, width=columns(), color=colored())


def page_of(run: "Run", summary: Mapping[str, Any], roofline: "Roofline | None" = None) -> str:
    """The report as one HTML page."""
    from analysis.page.report import render

    return render(run, summary, roofline)


def roofline_of(arguments: Mapping[str, Any]) -> "Roofline | None":
    """The replica whose floor times are set against, if the user named one. Raises UsageError."""
    if not arguments["gpu"]:
        return None
    from analysis.roofline import Roofline
    from loadgen.sim import catalog

    try:
        model = catalog.model(arguments["model_spec"] or "llama-3.1-8b")
        return Roofline(catalog.gpu(arguments["gpu"]), model, tp=arguments["tp"])
    except ValueError as problem:
        raise UsageError(str(problem)) from None


def _as_vllm(path: Path, run: "Run") -> str:
    """vLLM's result shape, on one line as vLLM writes it."""
    from analysis.report.vllm import to_vllm
    from analysis.rundir import RunDirError

    try:
        return json.dumps(to_vllm(run), allow_nan=False, ensure_ascii=False) + "\n"
    except ValueError as problem:
        raise RunDirError(f"{path}: {problem}") from None
