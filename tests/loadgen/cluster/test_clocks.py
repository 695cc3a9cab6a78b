"""The clock of another machine against ours: what round trips can tell, and what they cannot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cluster.clocks import ClockFit, Reading, best, fit

MS, S = 1_000_000, 1_000_000_000

ROUND_TRIPS = {
    "both ways took as long": ((0, 1_000 + 500, 1_000), 1_000, 501),
    "all of it was the way there": ((0, 1_000 + 1_000, 1_000), 1_500, 501),
    "all of it was the way back": ((0, 1_000, 1_000), 500, 501),
    "an hour behind": ((7_200 * S, 3_600 * S + 50, 7_200 * S + 100), -3_600 * S, 51),
}


@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_a_round_trip_tells_the_offset_to_half_of_what_it_took(case: str) -> None:
    times, ahead_ns, error_ns = ROUND_TRIPS[case]
    reading = Reading.of(*times)
    assert (reading.ahead_ns, reading.error_ns) == (ahead_ns, error_ns)


def test_the_quickest_round_trip_is_the_best() -> None:
    assert best([Reading(0, 5, 30), Reading(1, 9, 10), Reading(2, 7, 20)]) == Reading(1, 9, 10)


FITS = {
    "one reading": ([Reading(0, 50, 10)], 50, 0.0, 10),
    "readings that differ by less than their errors: no drift": (
        [Reading(0, 100, 10), Reading(S, 104, 10), Reading(2 * S, 96, 10)], 100, 0.0, 14),
    "a drift of 10 ppm that the errors cannot explain": (
        [Reading(0, 0, 10), Reading(S, 10_000, 10), Reading(2 * S, 20_000, 10)], 0, 1e-5, 10),
    "a slow round trip in between says nothing": (
        [Reading(0, 100, 10), Reading(S, 5_000, 9_000), Reading(2 * S, 100, 10)], 100, 0.0, 10),
    "a slow round trip at the end bounds the error all the same": (
        [Reading(0, 100, 10), Reading(2 * S, 100, 9_000)], 100, 0.0, 9_000),
    "a step in between, which no straight line explains, is in the error": (
        [Reading(0, 0, 10), Reading(S, 3_000, 10), Reading(2 * S, 0, 10)], 1_000, 0.0, 2_010),
}  # fmt: skip


@pytest.mark.parametrize("case", FITS)
def test_offset_drift_and_error_of_readings(case: str) -> None:
    readings, ahead_ns, drift, error_ns = FITS[case]
    found = fit(readings)
    assert found.ahead_ns == pytest.approx(ahead_ns, abs=0.5)
    assert found.drift == pytest.approx(drift, abs=1e-12)
    assert found.error_ns == pytest.approx(error_ns, abs=1.5)


@given(
    ahead_ns=st.integers(-(10**13), 10**13),
    drift=st.floats(-5e-4, 5e-4),
    rounds=st.lists(st.tuples(st.integers(0, 20 * MS), st.integers(0, 20 * MS)), min_size=1, max_size=30),
    every_ns=st.integers(50 * MS, 60 * S),
)
def test_a_clock_that_runs_evenly_is_never_further_off_than_was_stated(
    ahead_ns: int, drift: float, rounds: list[tuple[int, int]], every_ns: int
) -> None:
    """However long each way takes."""

    def ahead_at(at_ns: float) -> float:
        return ahead_ns + drift * at_ns

    readings = []
    for number, (way_there, way_back) in enumerate(rounds):
        sent_ns = number * every_ns
        met_ns = sent_ns + way_there
        readings.append(Reading.of(sent_ns, round(met_ns + ahead_at(met_ns)), met_ns + way_back))
    found = fit(readings)
    swing_ns = abs(drift) * 20 * MS + 2  # within one round trip the clock drifts too
    for at_ns in np.linspace(readings[0].at_ns, readings[-1].at_ns, 9):
        assert abs(found.ahead_ns + found.drift * at_ns - ahead_at(at_ns)) <= found.error_ns + swing_ns


@given(
    ahead_ns=st.integers(-(10**9), 10**9),
    drift=st.floats(-5e-4, 5e-4),
    taken_ns=st.integers(-(10**13), 10**13),
    at_ns=st.lists(st.integers(-S, 10**13), min_size=1, max_size=20),
)
def test_what_was_read_there_comes_back_to_the_nanosecond_and_in_order(
    ahead_ns: int, drift: float, taken_ns: int, at_ns: list[int]
) -> None:
    there = np.array([round(at + ahead_ns + drift * at) for at in sorted(at_ns)], dtype=np.int64)
    placed = ClockFit(float(taken_ns + ahead_ns), drift, 0, 1).placed(there, taken_ns)
    assert np.abs(placed - np.array(sorted(at_ns))).max() <= 2
    assert (np.diff(placed) >= 0).all()
