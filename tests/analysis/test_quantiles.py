"""Exact quantiles: against numpy's definition, and in the order that any reader expects."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.quantiles import PERCENTILES, block, order_within, quantile, segment_quantile

seconds = st.floats(0, 1e6, allow_nan=False)
samples = st.lists(seconds, min_size=1, max_size=60)
ORDER = ("min", "p50", "p90", "p95", "p99", "p999", "max")


@given(samples)
def test_percentiles_are_those_of_numpy(values: list[float]) -> None:
    found = block(np.array(values))
    for name, q in PERCENTILES.items():
        assert found[name] == pytest.approx(np.quantile(values, q), rel=1e-12, abs=1e-12)
    assert found["n"] == len(values)


@given(st.lists(st.tuples(seconds, st.integers(1, 9)), min_size=1, max_size=40))
def test_statistics_ascend_and_counts_repeat_samples(pairs: list[tuple[float, int]]) -> None:
    values, counts = np.array([each for each, _ in pairs]), np.array([count for _, count in pairs])
    counted, repeated = block(values, counts), block(np.repeat(values, counts))
    assert counted["n"] == repeated["n"]
    for name in (*ORDER, "mean", "std"):
        assert counted[name] == pytest.approx(repeated[name], rel=1e-9, abs=1e-6)
    for found in (counted, repeated):
        assert [found[name] for name in ORDER] == sorted(found[name] for name in ORDER)


def test_no_samples_have_no_numbers() -> None:
    found = block(np.empty(0))
    assert found.pop("n") == 0
    assert set(found.values()) == {None}


def test_an_endless_sample_spoils_only_what_it_reaches() -> None:
    values = np.array([1.0, 2.0, 3.0, np.inf])
    assert quantile(values, 0.5) == 2.5
    assert quantile(values, 0.99) == np.inf


@given(st.lists(st.lists(st.integers(0, 10**12), max_size=12), min_size=1, max_size=8), st.floats(0, 1))
def test_quantiles_of_segments(parts: list[list[int]], q: float) -> None:
    sizes = [len(part) for part in parts]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    segment = np.repeat(np.arange(len(parts)), sizes)
    ordered = order_within(np.array([each for part in parts for each in part], dtype=np.int64), segment)
    found = segment_quantile(ordered, starts, q)
    for value, part in zip(found, parts, strict=True):
        assert np.isnan(value) if not part else value == pytest.approx(np.quantile(part, q), rel=1e-9)


def test_ordering_does_not_depend_on_the_size_of_the_values() -> None:
    values = np.array([2**62, 1, 2**61, 5], dtype=np.int64)
    assert order_within(values, np.array([0, 0, 7, 7])).tolist() == [1, 2**62, 5, 2**61]
