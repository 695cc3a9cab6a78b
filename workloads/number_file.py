"""Columns of whole numbers from a file: one a line, a CSV file with a header, or a column of one."""

import csv
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAX_NUMBERS = 5_000_000


def numbers(file: str, columns: tuple[str, ...] = ()) -> NDArray[np.float64]:
    """Rows of numbers of at least 0, one column of them if `columns` is empty, else those named in the header.

    Raises:
        ValueError: One line that names file and line.
    """
    try:
        return _numbers(file, columns, Path(file).stat().st_mtime_ns)
    except OSError as error:
        raise ValueError(f"{file[:200]} cannot be read: {error.strerror or error}") from None


@lru_cache(maxsize=16)
def _numbers(file: str, columns: tuple[str, ...], mtime_ns: int) -> NDArray[np.float64]:  # noqa: ARG001 - a cache key
    with Path(file).open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        found = np.array(list(_rows(csv.reader(lines), file, columns)), dtype=np.float64)
    if not len(found):
        raise ValueError(f"{file} holds no numbers")
    found.flags.writeable = False
    return found


def _rows(reader: Iterable[list[str]], file: str, columns: tuple[str, ...]) -> Iterator[list[float]]:
    at: list[int] | None = None if columns else [0]
    n = 0
    try:
        for line, cells in enumerate(reader, 1):
            if not any(cell.strip() for cell in cells):
                continue
            if at is None:
                at = _positions(cells, columns, f"{file}:{line}")
                continue
            n += 1
            if n > MAX_NUMBERS:
                raise ValueError(f"{file} holds more than {MAX_NUMBERS:,} numbers: a sample of them would do")
            yield [_number(cells, i, f"{file}:{line}") for i in at]
    except csv.Error as error:
        raise ValueError(f"{file} is not a text file of numbers: {error}") from None


def _positions(header: list[str], columns: tuple[str, ...], where: str) -> list[int]:
    names = [cell.strip() for cell in header]
    for column in columns:
        if column not in names:
            raise ValueError(f"{where} has no column {column!r}; its columns are: {', '.join(names)}")
    return [names.index(column) for column in columns]


def _number(cells: list[str], i: int, where: str) -> float:
    text = cells[i].strip() if i < len(cells) else ""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (value >= 0 and value.is_integer()):
        raise ValueError(f"{where} has {text[:40]!r} where a whole number of at least 0 was expected")
    return value
