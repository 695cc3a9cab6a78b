"""Numbers from a run.

`read_run(directory)` gives its tables (`run.requests`, `run.chunks`: pandas), `summarize(run)` the document that every
report shows.
"""

from typing import Any

__all__ = ["read_run", "summarize"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: what they need takes a while."""
    if name == "read_run":
        from analysis.rundir import read_run

        return read_run
    if name == "summarize":
        from analysis.summary import summarize

        return summarize
    raise AttributeError(f"module 'analysis' has no attribute {name!r}")
