import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.capacity.search import Point, Search, bracket, knee, outcome, pareto, passes, point_of


def tried(load, verdict, meets=None):
    return Point(load, verdict, verdict == "pass" if meets is None else meets)


def run(search, verdict_at):
    """All tries of a search against a rule from load and number of the try to a verdict."""
    points = []
    while (load := search.next_load(points)) is not None:
        points.append(tried(load, verdict_at(load, sum(p.load == load for p in points))))
    return points


@given(edge=st.floats(0.01, 5000), first=st.floats(0.5, 20))
def test_the_edge_is_found_to_the_precision_in_few_tries(edge, first):
    search = Search(first, most_points=40)
    points = run(search, lambda load, _: "pass" if load <= edge else "fail")
    found = outcome(points, search)
    assert found["settled"]
    assert found["capacity"] <= edge < found["fails_at"] <= found["capacity"] * 1.05 * (1 + 1e-6)
    steps = abs(math.log2(edge / first)) + 2
    assert len(points) <= steps + 5 + 1


def test_twelve_tries_are_enough_for_an_edge_sixty_times_the_first_load():
    search = Search(1.0)
    assert outcome(run(search, lambda load, _: "pass" if load <= 57 else "fail"), search)["settled"]


def test_users_are_whole():
    search = Search(1, whole=True)
    points = run(search, lambda load, _: "pass" if load <= 11 else "fail")
    assert all(point.load == int(point.load) for point in points)
    assert outcome(points, search) | {"reason": ""} == {
        "capacity": 11.0, "fails_at": 12.0, "settled": True, "reason": "", "tries": len(points),
    }  # fmt: skip


def test_an_edge_that_passed_by_luck_is_not_the_answer():
    search = Search(8.0, precision=0.2, most_points=20)
    lucky = {8.0: iter(["pass", "fail"])}
    points = run(search, lambda load, _: next(lucky[load]) if load in lucky else "pass" if load < 7 else "fail")
    found = outcome(points, search)
    assert found["settled"]
    assert found["capacity"] < 7


@pytest.mark.parametrize(
    ("verdicts", "believed"),
    [
        (["pass"], True),
        (["pass", "fail"], False),
        (["no_verdict+"], True),
        (["no_verdict-"], False),
        (["no_verdict+", "no_verdict-"], False),
        (["pass", "no_verdict-"], True),
        (["fail", "no_verdict+"], False),
    ],
)
def test_certain_tries_decide(verdicts, believed):
    assert passes([tried(1.0, v.rstrip("+-"), v.endswith("+") or v == "pass") for v in verdicts]) is believed


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], (None, None)),
        ([(1, "pass")], (1, None)),
        ([(1, "fail")], (None, 1)),
        ([(1, "pass"), (2, "pass"), (4, "fail")], (2, 4)),
        ([(1, "fail"), (2, "pass")], (None, 1)),  # what passes above a failure is luck
    ],
)
def test_bracket(points, expected):
    assert bracket([tried(*point) for point in points]) == expected


@pytest.mark.parametrize(
    ("points", "settled", "word"),
    [
        ([], False, "nothing was tried"),
        ([(1, "fail")], False, "no load"),
        ([(1, "pass"), (2, "pass")], False, "lies higher"),
        ([(1, "pass"), (2, "fail")], False, "between 1 and 2"),
        ([(1, "pass"), (1.04, "fail")], True, "1 passes in 1 of 1"),
        ([(1, "no_verdict"), (1.04, "fail")], False, "longer runs"),
    ],
)
def test_how_sure_the_answer_is(points, settled, word):
    found = outcome([tried(load, verdict, verdict != "fail") for load, verdict in points], Search(1.0))
    assert found["settled"] is settled
    assert word in found["reason"]


def test_a_point_says_how_much_of_its_limits_was_taken():
    limits = [
        {"operator": "<", "value": 0.4, "limit": 0.5},
        {"operator": ">", "value": 0.9, "limit": 0.99},
    ]
    point = point_of(3.0, {"slo": {"verdict": "fail", "limits": limits}})
    assert (point.load, point.verdict, point.meets) == (3.0, "fail", False)
    assert point.margin == pytest.approx(1.1)
    unknown = [*limits, {"operator": "<", "value": None, "limit": 1}]
    assert point_of(3.0, {"slo": {"verdict": "no_verdict", "limits": unknown}}).meets is None


def test_knee():
    loads = np.arange(1, 21)
    assert knee(loads, np.minimum(loads, 12)) == 12
    assert knee(loads, loads) is None
    assert knee([1, 2], [1, 2]) is None
    assert knee([1, 2, 3], [5, 5, 5]) is None


def test_pareto():
    points = [(1, 9), (2, 8), (2, 7), (3, 1), (1, 3), (5, 8)]
    assert [points[i] for i in pareto(points)] == [(5, 8), (1, 9)]
