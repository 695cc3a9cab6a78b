"""Axes of changes and forest plots: hand-worked ticks and pixels."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.page.axes import Axis, around, log
from analysis.page.forest import Change, Group, forest
from tests.analysis.test_report_html import drawing_numbers

HALF_TO_TWICE = Axis("change", "log", 0.5, 2.0, "change")
MIDDLE, LEFT, RIGHT, FIRST_PX, ROW_PX = 230.0, 112.0, 348.0, 19.5, 19.0
"""Pixels of no change, of the ends, and of the first row of a forest without headings."""


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        (around("", [1.01], 0.13, 3), ["-10%", "-5%", "0", "+5%", "+10%"]),
        (around("", [3.0, 0.9], 0.13, 3), ["-50%", "0", "+50%", "+200%"]),
        (around("", [1 / 3], 0.13, 3), ["-50%", "0", "+50%", "+200%"]),
        (around("", [], 0.13, 3), ["-10%", "-5%", "0", "+5%", "+10%"]),
        (Axis("", "linear", -0.05, 0.05, "points"), ["-4", "-2", "0", "+2", "+4"]),
        (log("", [2e13, 9e14], "count"), ["10T", "20T", "50T", "100T", "200T", "500T", "1P"]),
    ],
)
def test_ticks(axis: Axis, words: list[str]) -> None:
    assert [word for _, word in axis.ticks()] == words


@given(st.lists(st.floats(0, 1e12)), st.floats(0.01, 0.9))
def test_an_axis_of_changes_has_no_change_in_its_middle(values: list[float], least: float) -> None:
    axis = around("", values, least, 3)
    assert axis.place([1.0])[0] == pytest.approx(0.5)
    assert 1 + least <= axis.high * (1 + 1e-9) <= 4 * (1 + 1e-6)
    assert (1.0, "0") in axis.ticks()


def parts(drawing: str) -> tuple[list[tuple[float, float]], list[str]]:
    """Centres of the points, and the paths of intervals and arrows."""
    root = ElementTree.fromstring(drawing)
    points = [(float(each.get("cx", "nan")), float(each.get("cy", "nan"))) for each in root.iter("circle")]
    lines = [each.get("d", "") for each in root.iter("path") if "line" in each.get("class", "").split()]
    return points, lines


def test_rows_lie_below_each_other_with_their_intervals() -> None:
    rows = [Change("a", 1.0, (0.5, 2.0), "pass", "0%"), Change("b", 2.0, None, "fail", "+100%")]
    points, lines = parts(forest(HALF_TO_TWICE, (0.95, 1.05), [Group("", rows)], "l"))
    assert points == [(MIDDLE, FIRST_PX), (RIGHT, FIRST_PX + ROW_PX)]
    assert lines == [f"M{LEFT},19.5 {RIGHT},19.5"]


def test_what_goes_on_beyond_the_axis_ends_in_an_arrow() -> None:
    _, lines = parts(forest(HALF_TO_TWICE, None, [Group("", [Change("a", 1.0, (0.1, math.inf), "pass", "")])], "l"))
    assert lines == ["M112.0,19.5 348.0,19.5", "M118.0,15.5 112.0,19.5 118.0,23.5", "M342.0,15.5 348.0,19.5 342.0,23.5"]


def test_a_heading_takes_a_row_and_a_value_that_is_not_known_no_point() -> None:
    drawing = forest(HALF_TO_TWICE, None, [Group("chat", [Change("a", None, None, "pass", "–")])], "l")
    assert parts(drawing) == ([], [])
    assert re.findall(r"<text[^>]*>([^<]+)</text>", drawing)[-3:] == ["chat", "a", "–"]
    assert 'viewBox="0 0 480 88"' in drawing


def test_keys_stop_at_the_ends_and_the_value_of_each_row() -> None:
    chat = [Change("a", 1.0, (0.1, math.inf), "pass", "0%"), Change("b", None, (0.5, 2.0), "pass", "–")]
    drawing = forest(HALF_TO_TWICE, None, [Group("chat", chat), Group("", [Change("c", None, None, "fail", "–")])], "l")
    root = ElementTree.fromstring(drawing)
    assert root.get("data-x") == f"log change 0.5 2 {LEFT:g} {RIGHT:g} change"
    assert root.get("data-y") is None
    assert {each.get("data-name"): each.get("data-at") for each in root.iter("g")} == {
        "chat a: 0%": "112.0,38.5,0.1 230.0,38.5,1",  # the place where the axis ends, the value beyond it
        "chat b: –": "112.0,57.5,0.5 348.0,57.5,2",
        "c: –": "",
    }


CHANGES = st.builds(
    Change,
    st.text(max_size=5),
    st.none() | st.floats(0, allow_nan=False),
    st.none() | st.tuples(st.floats(0, 1), st.floats(1, allow_nan=False)),
    st.sampled_from(["pass", "fail"]),
    st.text(max_size=5),
)


@given(st.lists(CHANGES, max_size=5))
def test_any_changes_make_a_drawing(changes: list[Change]) -> None:
    drawing = forest(HALF_TO_TWICE, (0.9, 1.1), [Group("t", changes)], "l")
    assert "nan" not in drawing_numbers(drawing)
    assert "inf" not in drawing_numbers(drawing)
