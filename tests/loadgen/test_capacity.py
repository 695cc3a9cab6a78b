"""The book of a search: tries that survive a stop, and go on with the same answer."""

import json
from pathlib import Path

import pytest

from analysis.capacity.search import Search, Try, outcome
from loadgen.capacity import Book, Tried, search_of
from loadgen.errors import UsageError

ABOUT = {"workload": {"name": "w"}, "target": "here"}


def summary(verdict, value=1.0, codes=()):
    limit = {"operator": "<", "value": value, "limit": 2.0}
    return {
        "requests": {"ok": 9}, "slo": {"verdict": verdict, "limits": [limit]},
        "warnings": [{"code": code} for code in codes],
    }  # fmt: skip


def measuring(edge, stop_at=None, seen=None):
    """A run that passes up to `edge`; the `stop_at`-th is stopped half way."""
    count = 0

    def measure(asked, seed, place):
        nonlocal count
        count += 1
        place.mkdir()
        if seen is not None:
            seen.append((asked, seed))
        if count == stop_at:
            return None
        found = summary("pass" if asked.load <= edge else "fail", 1.0 if asked.load <= edge else 3.0)
        (place / "summary.json").write_text(json.dumps(found))
        return found

    return measure


def search_on(book, search, measure):
    while (asked := search.next_try(book.points())) is not None:
        if not book.measure(asked, measure):
            return
        book.save({})


@pytest.mark.parametrize("stop_at", range(1, 11))
def test_a_stopped_search_goes_on_to_the_same_answer(stop_at, tmp_path):
    search, whole, parts = Search(3.0, longest=4.0), [], []
    book = Book.open(tmp_path / "whole", ABOUT, 7, resume=False)
    search_on(book, search, measuring(20.0, seen=whole))
    first = Book.open(tmp_path / "parts", ABOUT, 7, resume=False)
    search_on(first, search, measuring(20.0, stop_at, parts))
    again = Book.open(tmp_path / "parts", ABOUT, 99, resume=True)
    search_on(again, search, measuring(20.0, seen=parts))
    assert outcome(again.points(), search) == outcome(book.points(), search)
    assert list(dict.fromkeys(parts)) == whole
    stopped = list((tmp_path / "parts").glob("*.stopped-1"))
    assert len(stopped) == (stop_at <= len(whole))


def test_what_a_search_cannot_go_on_with_is_one_line(tmp_path):
    Book.open(tmp_path / "a", ABOUT, 1, resume=False)
    with pytest.raises(UsageError, match="not empty"):
        Book.open(tmp_path / "a", ABOUT, 1, resume=False)
    with pytest.raises(UsageError, match="another target"):
        Book.open(tmp_path / "a", ABOUT | {"target": "there"}, 1, resume=True)
    with pytest.raises(UsageError, match="no search"):
        Book.open(tmp_path / "b", ABOUT, 1, resume=True)
    (tmp_path / "a" / "capacity.json").write_text("{")
    with pytest.raises(UsageError, match="no search"):
        Book.open(tmp_path / "a", ABOUT, 1, resume=True)


def test_the_runs_of_a_search_must_still_be_there(tmp_path):
    book = Book.open(tmp_path, ABOUT, 1, resume=False)
    book.measure(Try(2.0), measuring(5.0))
    book.save({})
    (tmp_path / "01-2" / "summary.json").unlink()
    with pytest.raises(UsageError, match="is gone"):
        Book.open(Path(tmp_path), ABOUT, 1, resume=True)


def test_a_load_that_our_own_side_could_not_put_on_is_not_passed(tmp_path):
    book = Book.open(tmp_path, ABOUT, 1, resume=False)
    saturated = summary("no_verdict", 1.0, ["client_saturated"])
    book.tries = [Tried(Try(2.0), "x", saturated), Tried(Try(1.0), "y", summary("no_verdict"))]
    assert [point.meets for point in book.points()] == [False, True]


def test_bounds_that_make_no_sense():
    with pytest.raises(UsageError, match="between its bounds"):
        search_of(5, whole=False, precision=0.05, most_points=3, lowest=None, highest=4)
