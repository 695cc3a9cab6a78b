"""From a command to its recipe, and from the recipe's errors to one line and an exit status.

A recipe is what a command does, from its arguments to its exit status: one module of `loadgen.recipes` each, with a
function of the same name. Only there do the three packages meet.
"""

import atexit
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from loadgen.errors import LoadgenError, UsageError

FORMATS = {
    "run": ("text", "json", "markdown", "csv", "junit"),
    "report": ("text", "json", "markdown", "csv", "junit", "html", "vllm"),
    "compare": ("text", "json", "markdown", "html"),
    "stalls": ("text", "json"),
    "plan": ("text", "json"),
    "probe": ("text", "json"),
    "estimate": ("text", "json", "html"),
    "simulate": ("text", "json", "markdown", "csv", "junit"),
    "capacity": ("text", "json", "html"),
    "interfere": ("text", "json", "html"),
    "doctor": ("text", "json"),
}


def call(recipe: str, arguments: dict[str, Any]) -> int:
    """Follow a recipe; what the user did wrong becomes one line on stderr and an exit status."""
    gc.set_threshold(50_000)  # imports make objects and no garbage: looking for it took a tenth of their time
    atexit.register(gc.freeze)  # nor need the interpreter look through all of them once more as it ends
    try:
        with as_our_errors():
            import_module("loadgen.host").keep_memory()
            _check_format(recipe, arguments)
            if arguments.get("no_color"):
                os.environ["NO_COLOR"] = "1"  # whatever writes colours heeds it
            return int(getattr(import_module(f"loadgen.recipes.{recipe}"), recipe)(arguments))
    except LoadgenError as problem:
        print(f"loadgen: {problem}", file=sys.stderr)
        return problem.exit_status


@contextmanager
def as_our_errors() -> Iterator[None]:
    """The pure packages know nothing of exit statuses: their errors become ours here."""
    from analysis.rundir import RunDirError
    from loadgen.host import HostError
    from workloads.spec import WorkloadError

    try:
        yield
    except (WorkloadError, RunDirError, HostError) as problem:
        raise UsageError(str(problem)) from None


def _check_format(recipe: str, arguments: Mapping[str, Any]) -> None:
    known = FORMATS.get(recipe)
    if known and arguments["format_"] not in known:
        raise UsageError(f"--format {arguments['format_']}: expected {', '.join(known)}")
