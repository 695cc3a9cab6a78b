"""Load-test an LLM endpoint from Python: `loadgen.run("chat", target=…)` is `loadgen run chat --target …`."""

from typing import Any

__all__ = ["run"]


def run(workload: str, **flags: Any) -> Any:
    """Run a workload as the command does; returns a `loadgen.api.Measured` (summary, tables, directory).

    `flags` are those of `loadgen run`, with underscores: `target`, `rate`, `out`, `slo=["ttft.p95<800ms"]`, ….

    Raises:
        loadgen.errors.LoadgenError: what the command would print as its one line.
    """
    from loadgen.api import run as measured

    return measured(workload, **flags)
