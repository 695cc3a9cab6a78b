"""Axes and marks: hand-worked ticks and pixels, and drawings that are well-formed whatever the numbers."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from analysis.page.axes import Axis, clock, linear, log, nice, nines, spanning
from analysis.page.figures import HEIGHT, WIDTH, Band, Bars, Limit, Line, Mark, Points, draw, thinned
from analysis.page.shell import Html

UNIT = Axis("u", "linear", 0.0, 1.0)
LEFT, RIGHT, TOP, BOTTOM = 58, 466, 26, 230
"""The inner part of a drawing without limits, in pixels."""


def tree(drawing: Html) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


def path(drawing: Html, role: str) -> str:
    found = [each.get("d") or "" for each in tree(drawing).iter("path") if role in (each.get("class") or "").split()]
    assert len(found) == 1
    return found[0]


TICKS = [
    (linear("", [0.43], "s"), ["0", "100 ms", "200 ms", "300 ms", "400 ms", "500 ms"]),
    (linear("", [4.3], "s"), ["0", "1 s", "2 s", "3 s", "4 s", "5 s"]),
    (linear("", [3e-6], "s"), ["0", "1 µs", "2 µs", "3 µs"]),
    (linear("", [23_000]), ["0", "5,000", "10k", "15k", "20k", "25k"]),
    (linear("", [4e6]), ["0", "1M", "2M", "3M", "4M"]),
    (linear("", [0.5], "share"), ["0%", "10%", "20%", "30%", "40%", "50%"]),
    (linear("", []), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    (linear("", [0.0, math.nan]), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    (log("", [0.003, 0.4]), ["3 ms", "10 ms", "30 ms", "100 ms", "300 ms"]),
    (log("", [0.012, 0.4]), ["10 ms", "20 ms", "50 ms", "100 ms", "200 ms", "500 ms"]),
    (log("", [0.0002, 12]), ["100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]),
    (log("", [1, 9, 30], "count"), ["0.5", "1", "2", "5", "10", "20", "50"]),
    (log("", [1.2, 3], "times"), ["1×", "2×", "5×"]),
    (log("", [0.0, -1]), ["1 ms", "3 ms", "10 ms", "30 ms", "100 ms", "300 ms", "1 s"]),
    (clock(45), ["0 s", "10 s", "20 s", "30 s", "40 s"]),
    (clock(600), ["0:00", "2:00", "4:00", "6:00", "8:00", "10:00"]),
    (clock(9000), ["0:00:00", "0:30:00", "1:00:00", "1:30:00", "2:00:00", "2:30:00"]),
    (clock(0.25), ["0 s", "0.05 s", "0.1 s", "0.15 s", "0.2 s", "0.25 s"]),
    (nines(1000), ["0", "p50", "p90", "p99", "p99.9"]),
    (nines(150), ["0", "p50", "p90", "p99"]),
    (nines(1), ["0", "p50", "p90"]),
]


@pytest.mark.parametrize(("axis", "words"), TICKS)
def test_ticks(axis: Axis, words: list[str]) -> None:
    assert [word for _, word in axis.ticks()] == words


@pytest.mark.parametrize(
    ("axis", "values", "places"),
    [
        (UNIT, [0, 0.25, 1, -3, 7], [0, 0.25, 1, 0, 1]),
        (Axis("", "log", 0.01, 100), [0.01, 1, 10, 0], [0, 0.5, 0.75, 0]),
        (Axis("", "nines", 0, 0.999), [0, 0.9, 0.99, 0.999, 1], [0, 1 / 3, 2 / 3, 1, 1]),
    ],
)
def test_place(axis: Axis, values: list[float], places: list[float]) -> None:
    assert axis.place(values).tolist() == pytest.approx(places)


@pytest.mark.parametrize(("value", "expected"), [(1, 1), (1.1, 2), (2.1, 5), (0.06, 0.1), (5e-7, 5e-7), (999, 1000)])
def test_nice(value: float, expected: float) -> None:
    assert nice(value) == pytest.approx(expected)


def test_an_axis_turns_logarithmic_where_values_span_much() -> None:
    assert spanning("", [1, 29]).scale == "linear"
    assert spanning("", [1, 31]).scale == "log"
    assert spanning("", [0, 0]).scale == "linear"


PLAUSIBLE = st.floats(1e-9, 1e15) | st.just(0.0) | st.floats(-1e15, -1e-9)
FINITE = some.arrays(np.float64, st.integers(0, 30), elements=PLAUSIBLE)


@given(FINITE)
def test_axes_hold_their_values_and_have_few_ticks(values: np.ndarray) -> None:
    for axis in (linear("", values), log("", values), spanning("", values)):
        known = values[values > 0] if axis.scale == "log" else values[values >= 0]
        assert (known >= axis.low * (1 - 1e-9)).all()
        assert (known <= axis.high * (1 + 1e-9)).all()
        assert len(axis.ticks()) <= 12


def test_points() -> None:
    points = Points("p", "prefill", np.array([0, 1, 0.5, 0.5, np.nan]), np.array([0, 1, 0.5, 0.5, 1]))
    drawing = draw(UNIT, UNIT, [points])
    assert (
        path(drawing, "points") == f"M{LEFT},{BOTTOM}h0M{(LEFT + RIGHT) // 2},{(TOP + BOTTOM) // 2}h0M{RIGHT},{TOP}h0"
    )


def test_a_line_is_broken_where_there_is_no_value() -> None:
    x, y = np.array([0, 0.5, 1, 1, 1]), np.array([0, 1, np.nan, np.nan, 0])
    drawing = draw(UNIT, UNIT, [Line("l", "decode", x, y)])
    assert path(drawing, "line") == f"M{LEFT}.0,{BOTTOM}.0h0L262.0,{TOP}.0M{RIGHT}.0,{BOTTOM}.0h0"


def test_a_step_holds_its_value() -> None:
    drawing = draw(UNIT, UNIT, [Line("l", "decode", np.array([0, 1.0]), np.array([0, 1.0]), step=True)])
    assert path(drawing, "line") == f"M{LEFT}.0,{BOTTOM}.0h0H{RIGHT}.0L{RIGHT}.0,{TOP}.0"


def test_bars_stand_on_their_base_and_tell_their_own_height() -> None:
    bars = Bars("b", "decode", np.array([0, 0.5, 1]), np.array([0.75, 0.5]), np.array([0.25, 0.5]))
    drawing = draw(UNIT, UNIT, [bars])
    assert path(drawing, "bars") == f"M{LEFT}.0,179.0V77.0H262.0V179.0z"  # the second one has no height
    assert 'data-at="160.0,77.0,0.5"' in drawing


def test_limits_and_bands() -> None:
    limits = [Limit("a", 0.5), Limit("b", 0.51), Limit("beyond", 3.0), Limit("level", 0.5, across=True)]
    drawing = draw(UNIT, UNIT, [], limits, [Band("warmup", 0, 0.5)])
    names = {each.text: (each.get("x"), each.get("y")) for each in tree(drawing).iter("text")}
    assert "beyond" not in names
    assert names["a"][1] != names["b"][1]  # side by side they would cover each other
    assert "level" in names
    assert "warmup" in names


def test_names_of_levels_that_are_close_stand_at_both_ends() -> None:
    drawing = draw(UNIT, UNIT, [], [Limit("a", 0.5, across=True), Limit("b", 0.52, across=True)])
    anchors = {each.text: each.get("text-anchor") for each in tree(drawing).iter("text")}
    assert (anchors["a"], anchors["b"]) == ("end", "start")


def test_no_name_covers_another() -> None:
    limits = [Limit(name, 0.97, across=True) for name in "abcd"]
    drawing = draw(UNIT, UNIT, [], limits, [Band("warmup", 0, 0.5), Band("drain", 0.8, 1)])
    told = {each.text: each.attrib for each in tree(drawing).iter("text")}
    places = [(told[name]["text-anchor"], float(told[name]["y"])) for name in "abcd"]
    assert [anchor for anchor, _ in places] == ["end", "start", "end", "start"]
    assert places[0][1] == places[1][1] == places[2][1] - 16 == places[3][1] - 16
    assert told["warmup"]["y"] == told["drain"]["y"]
    assert all(abs(float(told["drain"]["y"]) - y) >= 13 for _, y in places)


def test_the_script_is_told_the_axes() -> None:
    drawing = draw(Axis("two words", "log", 0.001, 10, "s"), UNIT, [])
    assert f'data-x="log s 0.001 10 {LEFT} {RIGHT} two words"' in drawing
    assert f'data-y="linear count 0 1 {BOTTOM} {TOP} u"' in drawing


ANY = some.arrays(np.float64, 8, elements=PLAUSIBLE | st.sampled_from([math.nan, math.inf, -math.inf]))


@given(ANY, ANY, st.text(max_size=8))
def test_any_numbers_and_names_make_a_drawing(x: np.ndarray, y: np.ndarray, name: str) -> None:
    marks: list[Mark] = [
        Points(name, "prefill", x, y),
        Line(name, "decode", x, y),
        Bars(name, "decode", np.arange(9.0), y),
    ]
    drawing = draw(
        log(name, x), spanning(name, y), marks, [Limit(name, 1.0), Limit(name, 2.0, across=True)], label=name
    )
    assert tree(drawing).get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
    for each in tree(drawing).iter():
        pixels = re.findall(r"-?[\d.]+", each.get("d") or "")
        assert all(-1 <= float(pixel) <= WIDTH for pixel in pixels)
        assert "nan" not in (each.get("d") or "")


def test_thinning_keeps_all_of_few_and_the_highest_of_many() -> None:
    assert thinned(np.arange(100.0), most=100).all()
    y = np.zeros(10_000)
    y[1234] = 1.0
    kept = thinned(y, most=1000)
    assert kept[1234]
    assert 800 <= kept.sum() <= 1000
