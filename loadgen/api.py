"""The commands as functions, for notebooks and scripts: the same flags, the results as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from analysis.run import Run


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        path: Its directory.
        exit_status: What the command would have ended with: 0 pass, 1 a limit missed, 3 no verdict.
        summary: The document that `--format json` prints.
        run: `run.requests` and `run.chunks` are pandas tables, a row a request and a row a token event.
    """

    path: Path
    exit_status: int
    summary: Mapping[str, Any] = field(repr=False)
    run: "Run" = field(repr=False)


def run(workload: str, **flags: Any) -> Measured:
    """`loadgen run`, quietly. Raises LoadgenError for what the command refuses, and for a run that was stopped."""
    from analysis.rundir import read_run
    from loadgen.commands import as_our_errors
    from loadgen.recipes.run import measured

    with as_our_errors():
        path, summary, status = measured(_arguments(workload, flags))
    return Measured(path, status, summary, read_run(path))


def _arguments(workload: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """All flags of the command, those not given as it has them by default."""
    from loadgen import cli

    known: dict[str, Any] = {name: parameter.default for name, parameter in signature(cli.run).parameters.items()}
    unknown = set(flags) - set(known)
    if unknown:
        raise UsageError(f"loadgen.run: no flag {unknown.pop()!r}; `loadgen run --help` lists them")
    return {**known, "quiet": True, **flags, "workload": str(workload)}
