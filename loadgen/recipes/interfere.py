"""`loadgen interfere`: the experiment on prefill/decode interference, or its result from a run directory."""

import random
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.arguments import access_of, body_fields
from loadgen.errors import UsageError
from loadgen.recipes.output import as_json, check_writable, colored, columns, kept_in, put, run_dir
from loadgen.recipes.run import target_of

if TYPE_CHECKING:
    from loadgen.interfere_measure import Options
    from loadgen.interfere_plan import Design

RESULT = "interfere.json"


def interfere(arguments: dict[str, Any]) -> int:
    """Measure unless a directory is given, then say what the directory shows."""
    from analysis.interfere.verdict import exit_status

    design = design_of(arguments)
    path = arguments["from_"]
    if path is None:
        path = run_dir(arguments["out"], "interfere")
        check_writable("--output", arguments["output"], path)
        _measure(design, arguments, path)
    result = result_of(path, design.max_freeze_s)
    put(as_json(result), path / RESULT)
    with kept_in(path):
        put(_rendered(result, path, arguments["format_"]), arguments["output"])
    if arguments["from_"] is None and not arguments["quiet"]:
        print(f"loadgen: results in {path}", file=sys.stderr)
    return _stopped_by_signal(path) or exit_status(result)


def design_of(arguments: Mapping[str, Any]) -> "Design":
    """Raises UsageError (one line) for what cannot be measured."""
    from loadgen.interfere_plan import Design

    if arguments["streams"] < 1 or arguments["repeats"] < 2:
        raise UsageError("--streams: at least 1; --repeats: at least 2")
    return Design(
        _lengths(arguments["lengths"]),
        arguments["streams"],
        arguments["repeats"],
        _duration_s("--rest", arguments["rest"]),
        random.getrandbits(32) if arguments["seed"] is None else arguments["seed"],
        max_freeze_s=None if arguments["max_freeze"] is None else _duration_s("--max-freeze", arguments["max_freeze"]),
    )


def result_of(path: Path, max_freeze_s: float | None) -> dict[str, Any]:
    """What the requests of a run directory say. Raises RunDirError where they are of another kind of run."""
    from analysis.interfere.result import interfere as result
    from analysis.rundir import RunDirError, read_run

    run = read_run(path)
    try:
        return result(run, max_freeze_s)
    except ValueError as problem:
        raise RunDirError(f"{path}: {problem}") from None


def _measure(design: "Design", arguments: Mapping[str, Any], out: Path) -> None:
    from loadgen.interfere_measure import measure

    with ExitStack() as stack:
        ran = measure(design, _options(arguments, out, stack))
    if ran.interrupted_by:
        print(f"loadgen: stopped early: {ran.interrupted_by}", file=sys.stderr)


def _options(arguments: Mapping[str, Any], out: Path, stack: ExitStack) -> "Options":
    """With no target: those of a simulated engine that lives as long as the stack."""
    from loadgen.interfere_measure import Options

    served = target_of(arguments, stack)
    access, body = access_of(arguments, served.url), body_fields(arguments["body"] or ())
    return Options(access, out, served.model, arguments["endpoint"], body, arguments["quiet"], served.engine)


def _lengths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 2:
        raise UsageError(f"--lengths {text}: expected prompt tokens above 1, as in 512,2048,8192")
    return found


def _duration_s(flag: str, text: str) -> float:
    from workloads.units import parse_duration

    try:
        seconds = parse_duration(0 if text.strip() == "0" else text)
    except ValueError as problem:
        raise UsageError(f"{flag} {text}: {problem}") from None
    if flag == "--max-freeze" and not seconds:
        raise UsageError(f"{flag} {text}: expected a duration above 0")
    return seconds


def _rendered(result: Mapping[str, Any], path: Path, kind: str) -> str:
    if kind == "json":
        return as_json(result)
    if kind == "html":
        from analysis.page.interfere import render
        from analysis.rundir import read_meta

        return render(result, read_meta(path))
    from analysis.interfere.text import render_interfere

    return render_interfere(result, columns(), colored())


def _stopped_by_signal(path: Path) -> int:
    from analysis.rundir import read_meta

    reason = read_meta(path).get("interrupted_by") or ""
    return 128 + signal.Signals[reason] if reason in signal.Signals.__members__ else 0
