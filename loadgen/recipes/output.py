"""Where results go: stdout, or the file that was asked for."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.errors import UsageError

RUNS = Path("runs")
"""Where directories go that nobody has named."""


def as_json(value: object) -> str:
    """Where stdout lacks characters, they are escaped: as question marks they would be other values."""
    unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    return json.dumps(value, indent=2, ensure_ascii=not unicode, allow_nan=False) + "\n"


def put(text: str, output: Path | None = None, flag: str = "--output") -> None:
    """Print, or write to `output`, which `flag` named. Raises UsageError where the file cannot be written."""
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        output.write_text(text, encoding="utf-8", errors="replace")  # names of files may be no text
    except OSError as problem:
        raise _unwritable(flag, output, problem) from None


def check_writable(flag: str, output: Path | None, *places: Path) -> None:
    """Better now than after long runs into `places`. Raises UsageError where the file could not be written."""
    if output is None or output.is_fifo():  # opening one waits for its reader
        return
    to_be_made = {folder for place in places for folder in (place, *place.parents)}
    if output.parent in to_be_made and not output.parent.exists():
        return
    try:
        new = not os.path.lexists(output)
        output.open("ab").close()
        if new:
            output.unlink()
    except OSError as problem:
        raise _unwritable(flag, output, problem) from None


def _unwritable(flag: str, output: Path, problem: OSError) -> UsageError:
    return UsageError(f"{flag} {output}: {problem.strerror}")


def run_dir(out: Path | None, name: str) -> Path:
    """The directory that --out names, or else one of its own for what is called `name`.

    Raises UsageError for a name that cannot be recorded in the directory itself.
    """
    path = Path(out or RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(f"--out {str(os.fsencode(path))[1:]}: not a name in UTF-8: name another directory") from None
    return path


@contextmanager
def kept_in(places: object) -> Iterator[None]:
    """While results are shown: what goes wrong with that does not hide where they are."""
    try:
        yield
    except UsageError as problem:
        raise UsageError(f"{problem}; results in {places}") from None


def colored() -> bool:
    """Whether stdout shows colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def columns() -> int:
    """Width of a page of text: that of the terminal, 100 where there is none, 120 at most."""
    import shutil

    return min(120, shutil.get_terminal_size((100, 24)).columns)
