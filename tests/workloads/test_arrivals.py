import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.arrivals import Constant, Gamma, Poisson

PROCESSES = [Constant(), Poisson(), Gamma(0.5), Gamma(3.0)]


def rng(seed=1):
    return np.random.default_rng(seed)


def test_constant_is_i_over_rate_without_drift():
    offsets = Constant().offsets(rng(), 50, 20)
    assert (np.rint(offsets * 1e9) == np.arange(1000) * 20_000_000).all()


@pytest.mark.parametrize(
    ("rate", "horizon_s", "count"),
    [(30, 2, 60), (0.1, 30, 3), (3, 1 / 3, 1), (4, 0.6, 3), (1000, 0.0015, 2), (7, 0.01, 1), (1 / 3, 30, 10)],
)
def test_rate_times_duration_is_the_count_of_a_constant_process(rate, horizon_s, count):
    offsets = Constant().offsets(rng(), rate, horizon_s)
    assert len(offsets) == count
    assert offsets == pytest.approx([i / rate for i in range(count)])


def test_fractions_of_a_millisecond_are_kept():
    assert Constant().offsets(rng(), 3000, 0.001) == pytest.approx([0, 1 / 3000, 2 / 3000], abs=1e-12)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_a_count_is_kept_exactly(process):
    for count in (0, 1, 7, 1000):
        offsets = process.offsets(rng(), 5, count / 5, count)
        assert len(offsets) == count
        assert ((offsets >= 0) & (offsets < max(count / 5, 1e-9))).all()


@settings(deadline=None)
@given(
    process=st.sampled_from(PROCESSES),
    seed=st.integers(0, 2**32),
    rate=st.floats(0.01, 50),
    horizon_s=st.floats(0.001, 20),
)
def test_offsets_ascend_within_the_horizon(process, seed, rate, horizon_s):
    offsets = process.offsets(rng(seed), rate, horizon_s)
    assert (np.diff(offsets) >= 0).all()
    assert ((offsets >= 0) & (offsets < horizon_s)).all()
    assert (offsets == process.offsets(rng(seed), rate, horizon_s)).all()


@pytest.mark.parametrize(("process", "cv"), [(Poisson(), 1.0), (Gamma(0.5), 0.5), (Gamma(3.0), 3.0)], ids=str)
def test_gaps_have_the_wanted_mean_and_spread(process, cv):
    gaps = np.diff(process.offsets(rng(), 10, 4000))
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_a_poisson_process_has_poisson_counts_in_disjoint_seconds():
    counts = np.bincount(Poisson().offsets(rng(), 10, 4000).astype(int), minlength=4000)
    assert counts.mean() == pytest.approx(10, rel=0.02)
    assert counts.var() / counts.mean() == pytest.approx(1, rel=0.07)
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 0.05


def test_a_bursty_process_starts_no_busier_than_it_goes_on():
    first = [len(Gamma(4.0).offsets(rng(seed), 10, 1)) for seed in range(1500)]
    assert np.mean(first) == pytest.approx(10, rel=0.1)
