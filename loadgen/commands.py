"""The recipes: what each command does, from its arguments to its exit status. Only here do the three packages meet."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.limits import parse_limits
from analysis.slo import MAX_ERRORS
from loadgen.arguments import access_of, body_fields, gate_rules, merged_limits, run_options, workload_of
from loadgen.errors import LoadgenError, UsageError

if TYPE_CHECKING:
    from loadgen.probe import Findings
    from workloads.schedule import Schedule
    from workloads.spec import Workload

FORMATS = {
    "run": ("text", "json", "markdown"),
    "report": ("text", "json", "markdown"),
    "plan": ("text", "json"),
    "probe": ("text", "json"),
}


def call(recipe: str, arguments: dict[str, Any]) -> int:
    """Follow a recipe; what the user did wrong becomes one line on stderr and an exit status."""
    try:
        with _foreign_errors():
            _check_format(recipe, arguments)
            return int(RECIPES[recipe](arguments))
    except LoadgenError as problem:
        print(f"loadgen: {problem}", file=sys.stderr)
        return problem.exit_status


@contextmanager
def _foreign_errors() -> Iterator[None]:
    """The pure packages know nothing of exit statuses: their errors become ours here."""
    from analysis.rundir import RunDirError
    from loadgen.host import HostError
    from workloads.spec import WorkloadError

    try:
        yield
    except (WorkloadError, RunDirError, HostError) as problem:
        raise UsageError(str(problem)) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `| head` has read enough
        raise UsageError("the output was closed before all was written") from None


def _check_format(recipe: str, arguments: Mapping[str, Any]) -> None:
    known = FORMATS.get(recipe)
    if known and arguments["format_"] not in known:
        raise UsageError(f"--format {arguments['format_']}: expected {', '.join(known)}")


# --- run --------------------------------------------------------------------------------------------------------------


def run(arguments: dict[str, Any]) -> int:
    """Measure, then report what the run directory says, so that both can never differ."""
    from loadgen.measure import measure

    workload = workload_of(arguments)
    out = arguments["out"] or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{workload.name}"
    with ExitStack() as stack:
        target, model = _target(arguments, stack)
        stopped = measure(workload, _schedule(workload), run_options(arguments, target, model, out))
    if stopped is not None:
        print(f"loadgen: ended at once; `loadgen report {out}` reads what was measured", file=sys.stderr)
        return 128 + stopped
    summary = _summary(out, arguments)
    _write_summary(out, summary)
    _print(_rendered(summary, arguments["format_"]))
    if not arguments["quiet"]:
        print(f"loadgen: results in {out}", file=sys.stderr)
    return _status_of_run(summary, out)


def _schedule(workload: "Workload") -> "Schedule":
    from workloads.schedule import build

    return build(workload, random.getrandbits(32) if workload.seed is None else workload.seed)


def _target(arguments: Mapping[str, Any], stack: ExitStack) -> tuple[str, str | None]:
    """The target and model asked for, or a simulated engine that lives as long as the stack."""
    if arguments["target"] is not None:
        return arguments["target"], arguments["model"]
    from loadgen.sim.child import LocalServer

    server = LocalServer().start()
    stack.callback(server.stop)
    if not arguments["quiet"]:
        what = f"{server.model} on one simulated H100"
        print(f"loadgen: no --target: driving the built-in engine ({what}) at {server.url}", file=sys.stderr)
    return server.url, arguments["model"] or server.model


def _status_of_run(summary: Mapping[str, Any], out: Path) -> int:
    from analysis.rundir import read_meta
    from analysis.slo import exit_status

    reason = read_meta(out)["interrupted_by"]
    if reason in signal.Signals.__members__:
        return 128 + signal.Signals[reason]
    if reason:
        print(f"loadgen: stopped early: {reason}", file=sys.stderr)
        return 3
    status = exit_status(summary)
    if status == 3 and not summary["requests"]["ok"]:
        first = next(iter(summary["requests"]["errors"]), None)
        why = f": {first['count']} x {first['message'] or first['outcome']}" if first else ""
        print(f"loadgen: no verdict: no request succeeded{why}", file=sys.stderr)
    return status


# --- plan -------------------------------------------------------------------------------------------------------------


def plan(arguments: dict[str, Any]) -> int:
    from workloads.plan_text import plan as plan_of
    from workloads.plan_text import render_plan

    outline = plan_of(_schedule(workload_of(arguments)))
    _print(_json(outline) if arguments["format_"] == "json" else render_plan(outline))
    return 0


# --- init -------------------------------------------------------------------------------------------------------------


def init(arguments: dict[str, Any]) -> int:
    """A workload file to start from; a file that exists is left alone."""
    from workloads.init_text import schema, starter

    try:
        text = _json(schema()) if arguments["schema"] else starter(arguments["shape"])
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    if arguments["output"] is None:
        _print(text)
    elif arguments["output"].exists():
        raise UsageError(f"--output {arguments['output']}: exists already; name another file, or remove this one")
    else:
        _write_text(arguments["output"], text)
    return 0


# --- report -----------------------------------------------------------------------------------------------------------


def report(arguments: dict[str, Any]) -> int:
    """The numbers of a run directory, a killed run's too; judged by its own limits unless others are given."""
    from analysis.slo import exit_status

    summary = _summary(arguments["run_dir"], arguments)
    text = _rendered(summary, arguments["format_"])
    if arguments["output"] is None:
        _print(text)
    else:
        _write_text(arguments["output"], text)
    return exit_status(summary)


def _summary(path: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
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


def _rendered(summary: Mapping[str, Any], kind: str) -> str:
    if kind == "json":
        return _json(summary)
    if kind == "markdown":
        from analysis.report_ci import markdown

        return markdown(summary)
    import shutil

    from analysis.report_text import render

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return render(summary, width=min(120, shutil.get_terminal_size((100, 24)).columns), color=color)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    from analysis.rundir import write_summary

    write_summary(path, summary)


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"--output {path}: {problem.strerror}") from None


# --- probe ------------------------------------------------------------------------------------------------------------


def probe(arguments: dict[str, Any]) -> int:
    """What the endpoint can do; exit status 3 where it gives no streamed answer."""
    import asyncio

    from loadgen.calibrate import find_model
    from loadgen.openai_api import BodyOptions
    from loadgen.probe import explore
    from loadgen.probe_text import findings_json, render_findings

    access = access_of(arguments, arguments["target"])
    body = body_fields(arguments["body"] or ())

    async def look() -> "Findings":
        model = arguments["model"] or await find_model(access)
        return await explore(access, BodyOptions(model=model, endpoint=arguments["endpoint"], extra=body))

    found = asyncio.run(look())
    _print(_json(findings_json(access, found)) if arguments["format_"] == "json" else render_findings(access, found))
    return 0 if found.streams else 3


# --- serve ------------------------------------------------------------------------------------------------------------


def serve(arguments: dict[str, Any]) -> int:
    """The simulated engine in this process, until a signal comes."""
    from loadgen.sim.options import Options
    from loadgen.sim.server import serve as serve_forever

    def announce(where: Mapping[str, Any]) -> None:
        print(
            f"loadgen: {where['model']} on one simulated {options.gpu} at {where['url']} (Ctrl-C ends)", file=sys.stderr
        )

    own = {f.name for f in fields(Options)}
    options = Options(**{name: value for name, value in arguments.items() if name in own})
    serve_forever(options, arguments["host"], arguments["port"], announce)
    return 0


RECIPES: dict[str, Callable[[dict[str, Any]], int]] = {
    "run": run,
    "plan": plan,
    "init": init,
    "report": report,
    "probe": probe,
    "serve": serve,
}
