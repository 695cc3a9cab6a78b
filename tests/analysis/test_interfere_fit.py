import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.interfere.fit import pooled_intervals, spread_of, theil_sen

POSITIVE = st.floats(1e-3, 1e3)
GROUPS = st.lists(st.lists(POSITIVE, min_size=1, max_size=5), min_size=1, max_size=5)


def test_a_line_through_points_on_a_line() -> None:
    x = np.array([1.0, 1, 2, 2, 4, 4])
    line = theil_sen(x, 3 + 0.5 * x)
    assert line is not None
    assert (line.per_x, line.at_zero) == pytest.approx((0.5, 3))
    assert line.ci95 == pytest.approx((0.5, 0.5))


def test_one_wild_point_does_not_move_the_slope() -> None:
    x = np.repeat([1.0, 2, 4, 8, 16], 3)
    y = 3 + 0.5 * x
    y[4] += 100
    line = theil_sen(x, y)
    assert line is not None
    assert line.per_x == pytest.approx(0.5)
    assert line.ci95 is not None
    assert line.ci95[0] <= 0.5 <= line.ci95[1]


@pytest.mark.parametrize("x", [[], [3.0], [3.0, 3.0]])
def test_no_line_without_two_places(x: list[float]) -> None:
    assert theil_sen(np.array(x), np.array(x)) is None


def test_no_interval_where_a_place_has_one_point() -> None:
    line = theil_sen(np.array([1.0, 2, 2]), np.array([1.0, 2, 2]))
    assert line is not None
    assert line.ci95 is None


def test_the_spread_of_a_group_is_that_of_all() -> None:
    alone, many = np.array([100.0]), np.array([10.0, 10.5, 11.0])
    first, second = pooled_intervals([alone, many], 1e-9)
    assert first is not None
    assert second is not None
    # The same factor around each, but for one sample against three.
    assert np.log(first[1] / 100) == pytest.approx(np.log(second[1] / 10.5) * np.sqrt(3))


def test_nothing_tells_of_the_spread_of_single_samples() -> None:
    assert pooled_intervals([np.array([1.0]), np.array([2.0]), np.empty(0)], 1e-9) == [None, None, None]
    assert spread_of([np.empty(0)], 1e-9) == [{"median": None, "ci95": None, "max": None}]


def test_far_below_the_floor_samples_scatter_by_an_amount() -> None:
    small, large = np.array([0.001, 0.003, 0.005]), np.array([1.0, 1.2, 1.4])
    found = pooled_intervals([small, large], 0.1)
    assert found[0] is not None
    assert 0 <= found[0][0] < 0.003 < found[0][1] < 0.1


@settings(deadline=None)
@given(groups=GROUPS, factor=st.floats(0.1, 10), floor=st.floats(1e-3, 1))
def test_intervals_hold_the_median_and_follow_the_unit(groups: list[list[float]], factor: float, floor: float) -> None:
    arrays = [np.array(group) for group in groups]
    found = pooled_intervals(arrays, floor)
    scaled = pooled_intervals([factor * each for each in arrays], factor * floor)
    for group, ends, others in zip(arrays, found, scaled, strict=True):
        assert (ends is None) == (max(map(len, arrays)) < 2)
        if ends is not None and others is not None:
            assert ends[0] * (1 - 1e-9) <= np.median(group) + 1e-9 or len(group) % 2 == 0
            assert others == pytest.approx((factor * ends[0], factor * ends[1]), rel=1e-6, abs=1e-9)


def test_intervals_cover_what_they_promise() -> None:
    rng = np.random.default_rng(5)
    truth = np.array([0.02, 0.04, 0.08, 0.16, 0.3])
    hits = 0
    for _ in range(400):
        groups = [rng.lognormal(np.log(each), 0.1, 3) for each in truth]
        ends = pooled_intervals(groups, 1e-6)
        hits += sum(low <= each <= high for each, (low, high) in zip(truth, filter(None, ends), strict=True))
    assert 0.93 < hits / 2000 < 0.99
