"""`loadgen compare`: is a candidate slower than a base?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.recipes.output import as_json, colored, columns, put


def compare(arguments: dict[str, Any]) -> int:
    """0 nothing worse, 1 something worse, 3 unclear (see `analysis.compare.numbers.exit_status`)."""
    from analysis.compare.numbers import compare as compare_runs
    from analysis.compare.numbers import exit_status

    base = _runs([arguments["base"], *(arguments["more_base"] or ())])
    candidate = _runs([arguments["candidate"], *(arguments["more_candidate"] or ())])
    try:
        found = compare_runs(base, candidate, _tolerance(arguments["tolerance"]))
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    text = _page(found, base, candidate) if arguments["format_"] == "html" else _rendered(found, arguments["format_"])
    put(text, arguments["output"])
    return exit_status(found)


def _page(found: Mapping[str, Any], base: Sequence[Any], candidate: Sequence[Any]) -> str:
    from analysis.page.compare import render

    return render(found, base, candidate)


def _runs(paths: Sequence[Path]) -> list[Any]:
    """Raises UsageError where a run is there twice."""
    from analysis.rundir import read_run
    from loadgen.recipes.repeat import check_distinct

    runs = [read_run(path) for path in paths]
    check_distinct(paths, runs)
    return runs


def _tolerance(text: str) -> float:
    from analysis.units import share

    return share(text)


def _rendered(found: Mapping[str, Any], kind: str) -> str:
    if kind == "json":
        return as_json(found)
    from analysis.compare import text as compare_text

    if kind == "markdown":
        return compare_text.markdown(found)
    return compare_text.render(found, width=columns(), color=colored())
