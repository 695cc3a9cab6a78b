import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capacity.search import (
    FAR,
    Point,
    Search,
    Try,
    bracket,
    errors,
    knee,
    levels,
    outcome,
    pareto,
    point_of,
)
from analysis.intervals import student_t
from analysis.slo import FAIL, NO_VERDICT, PASS


def tried(load, verdict, margin=None, stretch=1.0, requests=1000):
    """A try with a verdict, or without one and a margin."""
    margin = {PASS: 0.5, FAIL: 2.0}[verdict] if margin is None else margin
    return Point(load, verdict, margin <= 1, margin, stretch, requests=requests)


def run(search, tries):
    """All tries of a search; `tries` makes a point of what to try and the number of earlier tries of that load."""
    points = []
    while (asked := search.next_try(points)) is not None:
        points.append(tries(asked, sum(point.load == asked.load for point in points)))
    return points


def sharply(edge):
    return lambda asked, _: tried(asked.load, PASS if asked.load <= edge else FAIL, stretch=asked.stretch)


@settings(deadline=None, max_examples=60)
@given(edge=st.floats(0.01, 5000), first=st.floats(0.5, 20))
def test_the_edge_is_found_to_the_precision_in_few_tries(edge, first):
    search = Search(first, most_points=40)
    points = run(search, sharply(edge))
    found = outcome(points, search)
    assert found["settled"]
    assert found["passes_at"] <= edge < found["fails_at"] <= found["passes_at"] * 1.05 * (1 + 1e-6)
    assert abs(found["capacity"] / edge - 1) < 0.05
    assert len(points) <= abs(math.log2(edge / first)) + 2 + 5 + 1


def test_twelve_tries_are_enough_for_an_edge_sixty_times_the_first_load():
    search = Search(1.0)
    assert outcome(run(search, sharply(57)), search)["settled"]


def noisy(edge, steepness, scatter, dice):
    """A server whose share of the limit is (load / edge)^steepness, seen with an error that falls with the length."""

    def tries(asked, _):
        error = scatter / math.sqrt(asked.stretch)
        level = steepness * math.log(asked.load / edge) + dice.gauss(0, error)
        verdict = NO_VERDICT if abs(level) < 1.96 * error else FAIL if level > 0 else PASS
        return Point(asked.load, verdict, level <= 0, math.exp(level), asked.stretch, error, round(40 * asked.stretch))

    return tries


@pytest.mark.parametrize("steepness", [0.7, 3.0, 30.0])
def test_an_edge_that_is_hard_to_see_is_found_by_longer_tries(steepness):
    wrong, covered, search = [], 0, Search(3.0, longest=math.inf)
    for seed in range(20):
        points = run(search, noisy(10.0, steepness, 0.5, random.Random(seed)))
        found = outcome(points, search)
        wrong.append(abs(found["capacity"] / 10 - 1))
        covered += found["ci95"][0] * 0.99 <= 10 <= found["ci95"][1] * 1.01
        assert len(points) <= 12
        lengths = [point.stretch for point in points]
        assert lengths == sorted(lengths)
        assert {1.0, 250.0} <= set(lengths) <= {1.0, 250.0, 500.0, 1000.0, 2000.0}
    assert max(wrong) < 0.05
    assert covered >= 17


def test_without_longer_tries_the_search_says_that_it_does_not_know():
    search = Search(3.0)
    found = outcome(run(search, noisy(10.0, 1.0, 0.5, random.Random(1))), search)
    assert not found["settled"]


def test_a_server_that_only_short_tries_find_fast_enough():
    """A queue that takes longer to build up than a short try lasts."""

    def tries(asked, _):
        if asked.stretch == 1:
            return tried(asked.load, NO_VERDICT, 0.5 if asked.load <= 20 else 9, requests=1000)
        return tried(asked.load, PASS if asked.load <= 6 else FAIL, None, asked.stretch, 1000)

    search = Search(4.0, longest=50)
    found = outcome(run(search, tries), search)
    assert found["settled"]
    assert abs(found["capacity"] / 6 - 1) < 0.05


def test_users_are_whole():
    search = Search(1, whole=True)
    points = run(search, sharply(11))
    assert all(point.load == int(point.load) for point in points)
    assert outcome(points, search) | {"reason": ""} == {
        "capacity": 11.0, "ci95": [11.0, 11.0], "passes_at": 11.0, "fails_at": 12.0, "settled": True, "reason": "",
        "tries": len(points),
    }  # fmt: skip


def test_an_edge_that_passed_by_luck_is_not_the_answer():
    search = Search(8.0, precision=0.2, most_points=20)

    def tries(asked, earlier):
        lucky = asked.load == 8 and not earlier
        return tried(asked.load, PASS if lucky or asked.load < 7 else FAIL, 0.99 if lucky else None)

    found = outcome(run(search, tries), search)
    assert found["settled"]
    assert found["passes_at"] < 7


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(2, 0.5, 1), (1, 0.25, 1)], [(1, 0.25), (2, 0.5)]),
        ([(1, 0.8, 1), (1, 0.4, 3)], [(1, 0.5)]),  # tries of one load, by their length
        ([(1, 0.6, 1), (2, 0.2, 3), (3, 0.7, 1)], [(1, 0.3), (2, 0.3), (3, 0.7)]),  # violators pooled
        ([(1, 0.6, 1), (2, 0.5, 1), (3, 0.1, 1)], [(1, 0.4), (2, 0.4), (3, 0.4)]),
    ],
)
def test_levels_rise(points, expected):
    found = levels([Point(load, NO_VERDICT, True, stretch=stretch) for load, _, stretch in points],
                   [level for _, level, _ in points])  # fmt: skip
    assert [load for load, _ in found] == [load for load, _ in expected]
    assert [level for _, level in found] == pytest.approx([level for _, level in expected])


@pytest.mark.parametrize(
    ("point", "level"),
    [
        (Point(1.0, NO_VERDICT, True, 0.5), math.log(0.5)),
        (Point(1.0, NO_VERDICT, False, 2.0), math.log(2.0)),
        (Point(1.0, FAIL, False, 90.0), FAR),
        (Point(1.0, PASS, True, 0.0), -FAR),  # no error at all of those that are allowed
        (Point(1.0, PASS, True, 0.001), -FAR),
        (Point(1.0, NO_VERDICT, None, None), FAR),  # nothing succeeded
        (Point(1.0, NO_VERDICT, False, 0.4), FAR),  # what our own side could not put on
        (Point(1.0, FAIL, True, 0.9), FAR),  # the value is within the limit, what never came is not
    ],
)
def test_the_level_of_a_try(point, level):
    assert point.level == pytest.approx(level)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], (None, None)),
        ([(1, PASS)], (1, None)),
        ([(1, FAIL)], (None, 1)),
        ([(1, PASS), (2, PASS), (4, FAIL)], (2, 4)),
        ([(1, FAIL, 3.0), (2, PASS, 0.5)], (None, 1)),  # what passes above a failure is luck
        ([(1, FAIL, 1.1), (2, PASS, 0.5)], (2, None)),  # or the failure is, if it is a near one
    ],
)
def test_bracket(points, expected):
    assert bracket([tried(*point) for point in points]) == expected


@pytest.mark.parametrize(
    ("points", "settled", "word"),
    [
        ([], False, "nothing was tried"),
        ([(1, FAIL)], False, "no load"),
        ([(1, PASS), (2, PASS)], False, "lies higher"),
        ([(1, PASS), (2, FAIL)], False, "between 1 and 2"),
        ([(1, PASS), (1.04, FAIL)], True, "1 meets the limits, 1.04 does not"),
        ([(1, NO_VERDICT, 0.99), (1.04, FAIL)], False, "not known to 5%"),
    ],
)
def test_how_sure_the_answer_is(points, settled, word):
    found = outcome([tried(*point) for point in points], Search(1.0))
    assert found["settled"] is settled
    assert word in found["reason"]


def test_a_handful_of_requests_settles_nothing():
    few = [tried(1, PASS, requests=60), tried(1.04, FAIL, requests=60)]
    assert not outcome(few, Search(1.0))["settled"]
    assert outcome([*few, tried(1, PASS, requests=40), tried(1.04, FAIL, requests=40)], Search(1.0))["settled"]


def test_how_well_a_level_is_known():
    def level(load, value, stretch=1.0, error=None, verdict=NO_VERDICT):
        return Point(load, verdict, value <= 0, math.exp(value), stretch, error)

    assert errors([level(1, -0.3), level(2, 0.2, 4.0)]) == [0.5, 0.25]  # nothing is known of their scatter
    assert errors([level(1, -0.3, error=0.1), level(2, 0.4, verdict=FAIL)]) == [0.1, pytest.approx(0.4 / 1.959964)]
    same = [level(1, -0.1, 4.0, 0.9), level(1, -0.3, 4.0), level(1, -0.2, 4.0, 0.01)]
    scatter = math.sqrt(4 * (0.1**2 + 0.1**2) / 2) * student_t(2) / 1.959964
    assert errors(same) == pytest.approx([scatter / 2, scatter / 2, 0.01])


def test_a_long_try_lasts_until_it_has_enough_requests():
    search = Search(2.0, longest=100)
    assert search.next_try([]) == Try(2.0)
    assert search.next_try([tried(2.0, PASS, requests=400)]) == Try(4.0)
    short = [tried(2.0, PASS, requests=400), tried(4.0, FAIL)]
    assert search.next_try(short) == Try(2.0, 25.0)
    long = tried(2.0, PASS, 0.5, 25.0, 10_000)
    assert search.next_try([*short, long]) == Try(2.83, 25.0)
    assert search.next_try([short[0], tried(4.0, NO_VERDICT, 1.2), long]) == Try(4.0, 25.0)
    assert Search(2.0, longest=8).next_try(short) == Try(2.0, 8.0)
    by_far = tried(2.0, PASS, 0.1, requests=400)
    assert search.next_try([by_far, short[1]]) == Try(2.83, 25.0)
    assert Search(2.0).next_try(short) == Try(2.83, 1.0)


LIMIT = {"class": "all", "metric": "ttft", "statistic": "p95", "operator": "<", "ci95": None}


def summary(*limits, verdict=FAIL, ok=300):
    return {"requests": {"ok": ok}, "slo": {"verdict": verdict, "limits": [LIMIT | each for each in limits]}}


@pytest.mark.parametrize(
    ("limit", "margin", "error"),
    [
        ({"value": 0.4, "limit": 0.5}, 0.8, None),
        ({"value": 0.4, "limit": 0.5, "ci95": [0.3, 0.5]}, 0.8, math.log(4 / 3) / 1.959964),
        ({"metric": "errors", "value": 0.0, "limit": 0.01, "ci95": [0.0, 0.002]}, 0.0, None),
        ({"metric": "attainment", "operator": ">", "value": 0.95, "limit": 0.9, "ci95": [0.94, 0.96]}, 0.5,
         math.log(0.05 / 0.04) / 1.959964),
        ({"metric": "goodput", "operator": ">", "value": 4.0, "limit": 5.0}, 1.25, None),
        ({"metric": "goodput", "operator": ">", "value": 0.0, "limit": 5.0}, math.inf, None),
    ],
)  # fmt: skip
def test_a_point_says_how_much_of_its_limit_was_taken(limit, margin, error):
    point = point_of(3.0, summary(limit), 4.0)
    assert point.margin == pytest.approx(margin)
    assert point.error == (None if error is None else pytest.approx(error))
    assert (point.load, point.stretch, point.requests) == (3.0, 4.0, 300)


def test_the_tightest_limit_counts_and_an_unknown_one_is_a_miss():
    near, far = {"value": 0.49, "limit": 0.5}, {"value": 0.1, "limit": 0.5}
    point = point_of(3.0, summary(far, near, verdict=PASS))
    assert (point.verdict, point.meets, point.margin) == (PASS, True, pytest.approx(0.98))
    unknown = point_of(3.0, summary(far, {"value": None, "limit": 1}, verdict=NO_VERDICT))
    assert (unknown.meets, unknown.level) == (None, FAR)


def test_knee():
    loads = np.arange(1, 21)
    assert knee(loads, np.minimum(loads, 12)) == 12
    assert knee(loads, loads) is None
    assert knee([1, 2], [1, 2]) is None
    assert knee([1, 2, 3], [5, 5, 5]) is None


def test_pareto():
    points = [(1, 9), (2, 8), (2, 7), (3, 1), (1, 3), (5, 8)]
    assert [points[i] for i in pareto(points)] == [(5, 8), (1, 9)]
