"""Streams of the experiment that are on several engines. Freezes in ms; a usual gap is 10, noise 50."""

import math

import numpy as np
import pytest

from analysis.interfere.apart import on_one_engine, several_engines, stopped
from analysis.interfere.streams import Injection, Window

STEP_S, NOISE_S = 0.010, 0.050


def window(*freezes_ms: float) -> Window:
    count = len(freezes_ms)
    pieces = np.array([1.0 if each > 30 else math.nan for each in freezes_ms])
    return Window(0.0, 1.0, np.array(freezes_ms) / 1e3, np.arange(count), pieces)


def injection(tokens: int, *freezes_ms: float) -> Injection:
    return Injection(tokens, float(tokens), 0.3, window(*freezes_ms))


@pytest.mark.parametrize(
    ("freezes", "expected", "why"),
    [
        ((280, 20, 281, 20), [True, False, True, False], "two stand still, two go on"),
        ((280, 270, 281, 275), None, "all stand still"),
        ((12, 10, 25, 10), None, "nobody does"),
        ((40, 10, 10, 10), None, "one for less than it may well stand still without any prompt"),
        ((140, 10, 10, 10), [True, False, False, False], "one, for longer than that"),
        ((45, 10, 31, 10), None, "two, but not for the same reason"),
        ((45, 10, 44, 10), [True, False, True, False], "two that a short pass stops"),
    ],
)
def test_who_stood_still(freezes: tuple[float, ...], expected: list[bool] | None, why: str) -> None:
    found = stopped(window(*freezes), STEP_S, NOISE_S)
    assert (None if found is None else found.tolist()) == expected, why


TWO = [
    injection(1, 12, 10, 10, 11),
    injection(2048, 76, 20, 76, 21),
    injection(2048, 20, 75, 21, 76),
    injection(8192, 280, 20, 281, 21),
    injection(8192, 21, 280, 20, 281),
]


def test_several_engines_are_told_by_the_longest_prompts() -> None:
    assert several_engines(TWO, STEP_S, NOISE_S)
    assert not several_engines([injection(8192, 280, 281), injection(8192, 279, 280)], STEP_S, NOISE_S)
    assert not several_engines([TWO[-1]], STEP_S, NOISE_S), "one injection is no pattern"
    one_hiccup = [injection(8192, 12, 11, 13, 12)] * 3 + [injection(8192, 300, 11, 12, 12)]
    assert not several_engines(one_hiccup, STEP_S, NOISE_S)


def test_each_prompt_is_judged_by_the_streams_of_its_engine() -> None:
    found, elsewhere = on_one_engine([*TWO, injection(8192, 20, 21, 20, 22)], STEP_S, NOISE_S)
    assert elsewhere == 1
    assert [round(each.freeze_s * 1e3, 1) for each in found] == [10.5, 76.0, 75.5, 280.5, 280.5]
    assert found[1].window.tokens.tolist() == [0, 2]
    assert [each.chunks for each in found[1:]] == [1.0] * 4
