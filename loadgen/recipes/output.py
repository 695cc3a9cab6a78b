"""Where results go: stdout, or the file that was asked for."""

import json
import os
import sys
from pathlib import Path

from loadgen.errors import UsageError


def as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def put(text: str, output: Path | None = None) -> None:
    """Print, or write to `output`. Raises UsageError where the file cannot be written."""
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"--output {output}: {problem.strerror}") from None


def colored() -> bool:
    """Whether stdout shows colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def columns() -> int:
    """Width of a page of text: that of the terminal, 100 where there is none, 120 at most."""
    import shutil

    return min(120, shutil.get_terminal_size((100, 24)).columns)
