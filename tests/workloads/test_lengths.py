from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from workloads.lengths import (
    Constant,
    CountLaw,
    Empirical,
    Geometric,
    LogNormal,
    Normal,
    TimeLaw,
    Uniform,
    Zipf,
    tokens,
)

DATA = Path(__file__).parent / "data"

N = 100_000


def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize(
    ("law", "mean", "std"),
    [
        (Constant(value=600), 600, 0),
        (Uniform(low=4, high=12), 8, np.sqrt(80 / 12)),  # nine values: (9² − 1) / 12
        (Normal(mean=200, std=30), 200, 30),
        (LogNormal(mean=60, p95=200), 60, None),
        (LogNormal(mean=60, sigma=0.5), 60, 60 * np.sqrt(np.exp(0.25) - 1)),
        (Geometric(mean=5), 5, np.sqrt(20)),  # variance (1 − p) / p² with p = 1/5
        (Geometric(mean=1), 1, 0),
        (Zipf(s=0, low=4, high=12), 8, np.sqrt(80 / 12)),  # no slope: uniform
        (Zipf(s=1, low=1, high=3), 18 / 11, np.sqrt(36 / 11 - (18 / 11) ** 2)),  # weights 6 : 3 : 2
        (Empirical(file=str(DATA / "lengths.txt")), 300, np.sqrt(55_000)),  # 100, 200, 200, 700
        (Empirical(file=str(DATA / "lengths.csv"), column="output_tokens"), 940 / 3, 880 * np.sqrt(2) / 3),
    ],
    ids=str,
)
def test_draws_have_the_law_s_mean_and_spread(law, mean, std):
    drawn = tokens(law, rng(), N)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert law.expectation() == pytest.approx(mean)
    if std is not None:
        assert drawn.std() == pytest.approx(std, rel=0.02)


@pytest.mark.parametrize(("mean", "p95"), [(60, 200), (250, 600), (8, 20), (100, 100.5), (100, 386)])
def test_p95_of_a_lognormal_law(mean, p95):
    assert np.quantile(LogNormal(mean=mean, p95=p95).draw(rng(), 400_000), 0.95) == pytest.approx(p95, rel=0.02)


def test_both_ends_of_a_uniform_law_are_as_likely_as_the_middle():
    values, counts = np.unique(tokens(Uniform(low=4, high=12), rng(), N), return_counts=True)
    assert values.tolist() == list(range(4, 13))
    assert counts / N == pytest.approx(np.full(9, 1 / 9), rel=0.05)


def test_bounds_clip_and_are_counted_in_the_expectation():
    law = Geometric(mean=3, min=2, max=4)
    drawn = tokens(law, rng(), N)
    assert sorted(set(drawn.tolist())) == [2, 3, 4]
    # P(1) = 1/3, P(2) = 2/9, P(3) = 4/27, the rest 8/27: 2·(1/3 + 2/9) + 3·4/27 + 4·8/27 = 74/27.
    assert law.expectation() == pytest.approx(74 / 27, rel=0.01)
    assert drawn.mean() == pytest.approx(74 / 27, rel=0.01)


def test_nothing_is_shorter_than_one_token():
    assert tokens(Normal(mean=1, std=10), rng(), 1000).min() == 1


@given(
    st.one_of(
        st.integers(1, 10**6),
        st.fixed_dictionaries({"law": st.just("uniform"), "low": st.integers(1, 5), "high": st.integers(5, 9)}),
        st.fixed_dictionaries({"law": st.just("lognormal"), "mean": st.integers(1, 500), "sigma": st.floats(0, 3)}),
        st.fixed_dictionaries({"law": st.just("geometric"), "mean": st.floats(1, 50), "max": st.integers(1, 99)}),
    )
)
def test_a_law_reads_back_from_what_it_is_written_as(value):
    adapter = TypeAdapter(CountLaw)
    law = adapter.validate_python(value)
    assert adapter.validate_python(adapter.dump_python(law, mode="json")) == law


def test_times_are_written_with_their_unit():
    adapter = TypeAdapter(TimeLaw)
    law = adapter.validate_python({"law": "lognormal", "mean": "1500ms", "p95": "4s"})
    assert (law.mean, law.p95) == (1.5, 4.0)
    assert adapter.dump_python(law, mode="json") == {"law": "lognormal", "mean": "1.5s", "p95": "4s"}
    assert adapter.dump_python(adapter.validate_python(0), mode="json") == "0s"


def test_a_zipf_law_by_rank():
    values, counts = np.unique(tokens(Zipf(s=1.2, low=10, high=2000), rng(), N), return_counts=True)
    chances = np.arange(10, 2001) ** -1.2
    chances /= chances.sum()
    assert (values[0], values[:5].tolist()) == (10, [10, 11, 12, 13, 14])
    assert counts[:5] / N == pytest.approx(chances[:5], rel=0.07)  # 3,500 or more of each
    assert (values > 1000).sum() > 100  # the tail is there
    assert counts[values > 1000].sum() / N == pytest.approx(chances[991:].sum(), rel=0.1)


def test_the_numbers_of_a_file_come_as_often_as_there():
    values, counts = np.unique(tokens(Empirical(file=str(DATA / "lengths.txt")), rng(), N), return_counts=True)
    assert values.tolist() == [100, 200, 700]
    assert counts / N == pytest.approx([0.25, 0.5, 0.25], rel=0.03)
    clipped = tokens(Empirical(file=str(DATA / "lengths.txt"), max=300), rng(), 1000)
    assert sorted(set(clipped.tolist())) == [100, 200, 300]
