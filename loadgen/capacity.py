"""A search for capacity as a directory of runs: each try is one, so that a search that was stopped goes on."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.capacity.search import Point, Search, Try, point_of
from loadgen.errors import UsageError

BOOK, PART = "capacity.json", ".part"
CLIENT_CODES = frozenset({"client_saturated", "load_not_delivered"})
"""Warnings that say a run did not put the load on the server that it should have."""

Measure = Callable[[Try, int, Path], "Mapping[str, Any] | None"]
"""(what to try, seed, directory) -> the summary of a run; None if it was stopped."""


@dataclass(frozen=True)
class Tried:
    """A try, the name of its directory, and the summary that lies there."""

    asked: Try
    name: str
    summary: Mapping[str, Any]


@dataclass
class Book:
    """What has been tried so far, and where it lies.

    Attributes:
        about: What the search is of; a search goes on only with the same.
        seed: Of the first try; each further one has the next.
        tries: In order.
    """

    path: Path
    about: Mapping[str, Any]
    seed: int
    tries: list[Tried] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, about: Mapping[str, Any], seed: int, resume: bool) -> "Book":
        """A new book in a new or empty directory, or the one that is there.

        Raises:
            UsageError: the directory is not empty; or, to go on, holds no search, or another one.
        """
        if resume:
            return cls._known(path, about)
        if path.exists() and any(each.name != BOOK + PART for each in path.iterdir()):
            raise UsageError(f"{path}: not empty: name a new directory with --out, or go on there with --resume")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise UsageError(f"{path}: cannot create the directory: {problem.strerror}") from None
        book = cls(path, about, seed)
        book.save({})
        return book

    @classmethod
    def _known(cls, path: Path, about: Mapping[str, Any]) -> "Book":
        try:
            said = json.loads((path / BOOK).read_text(encoding="utf-8"))
            book = cls(path, said["about"], said["seed"])
            tries = [(Try(float(each["load"]), float(each.get("stretch", 1.0))), str(each["run"]))
                     for each in said["points"]]  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"{path}: no search to go on with there: leave out --resume") from None
        different = [key for key in about if book.about.get(key) != json.loads(json.dumps(about[key]))]
        if different:
            raise UsageError(f"{path}: was a search of another {different[0]}: leave out --resume, or ask for the same")
        book.tries = [Tried(asked, name, _summary(path / name)) for asked, name in tries]
        return book

    def points(self) -> list[Point]:
        return [_point(each) for each in self.tries]

    def measure(self, asked: Try, measure: Measure) -> bool:
        """Try a load; False if the run was stopped, which leaves no try behind."""
        number = len(self.tries) + 1
        name = f"{number:02d}-{asked.load:g}"
        place = self.path / name
        if place.exists():  # begun by a search that was stopped
            place.rename(_free(place))
        summary = measure(asked, self.seed + number - 1, place)
        if summary is None:
            return False
        self.tries.append(Tried(asked, name, summary))
        return True

    def save(self, found: Mapping[str, Any]) -> None:
        """Write the book, with what has been found so far in front."""
        points = [asdict(each.asked) | {"run": each.name} for each in self.tries]
        document = {"format_version": 1, "about": self.about, "seed": self.seed, "points": points, **found}
        temporary = self.path / (BOOK + PART)
        try:
            temporary.write_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
            os.replace(temporary, self.path / BOOK)
        except OSError as problem:
            raise UsageError(f"{self.path / BOOK}: cannot be written: {problem.strerror}") from None


def search_of(
    first: float,
    *,
    whole: bool,
    precision: float,
    most_points: int,
    lowest: float | None,
    highest: float | None,
    longest: float = 1.0,
) -> Search:
    """Raises UsageError for bounds that make no sense."""
    low = lowest if lowest is not None else 1.0 if whole else 1e-3
    high = highest if highest is not None else 1e6
    if not 0 < low <= first <= high:
        raise UsageError(f"the search begins at {first:g}, which is not between its bounds {low:g} and {high:g}")
    return Search(first, precision, low, high, most_points, whole, longest)


def _point(tried: Tried) -> Point:
    """A load that our own side could not put on counts as one that the limits do not allow: nothing is known of it."""
    point = point_of(tried.asked.load, tried.summary, tried.asked.stretch)
    codes = {warning["code"] for warning in tried.summary["warnings"]}
    return replace(point, meets=False) if codes & CLIENT_CODES else point


def _summary(run: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(f"{run}: the run of a try is gone: start the search anew without --resume") from None
    return found


def _free(place: Path) -> Path:
    """A name beside `place` that nothing has yet."""
    number = 1
    while (other := place.with_name(f"{place.name}.stopped-{number}")).exists():
        number += 1
    return other
