"""`loadgen init`: a workload file to start from."""

from typing import Any

from loadgen.errors import UsageError
from loadgen.recipes.output import as_json, put


def init(arguments: dict[str, Any]) -> int:
    """A workload file to start from; a file that exists is left alone."""
    from workloads.init_text import schema, starter

    try:
        text = as_json(schema()) if arguments["schema"] else starter(arguments["shape"])
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    output = arguments["output"]
    if output is not None and output.exists():
        raise UsageError(f"--output {output}: exists already; name another file, or remove this one")
    put(text, output)
    return 0
