import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.units import duration_text, parse_duration, parse_rate, plain, rate_text, to_ns


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("10s", 10.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1.5 s", 1.5),
        (".5s", 0.5),
        ("100us", 1e-4),
        ("1e-3s", 1e-3),
        (0, 0.0),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    "text", [60, 1.5, "60", "-1s", "5 minutes", "", "s", None, True, False, ["1s"], "1e999s", "nans", "1 year"]
)
def test_a_duration_needs_its_unit(text):
    with pytest.raises(ValueError, match="expected a duration such as 250ms, 10s or 5m"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "per_s"), [("4/s", 4.0), ("90/m", 1.5), ("3600 / h", 1.0), (2, 2.0), (0.5, 0.5)])
def test_rates(text, per_s):
    assert parse_rate(text) == pytest.approx(per_s, rel=1e-15)


@pytest.mark.parametrize("text", ["fast", "4", "0/s", 0, -1, True, None, float("inf"), float("nan"), "4/ms", {}])
def test_what_is_not_a_rate(text):
    with pytest.raises(ValueError, match="expected a rate above 0"):
        parse_rate(text)


@given(st.floats(min_value=1e-9, max_value=3e7))
def test_text_reads_back_as_the_same_number(number):
    assert parse_duration(duration_text(number)) == number
    assert parse_rate(rate_text(number)) == number


def test_plain_numbers_have_no_tail():
    assert [plain(8.0), plain(0.1), plain(-3.0)] == ["8", "0.1", "-3"]


def test_nanoseconds_are_rounded_not_cut():
    assert to_ns(0.3) == 300_000_000
    assert to_ns(1e-9 * 0.6) == 1
