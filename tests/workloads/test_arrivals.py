import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.arrivals import Constant, Gamma, OnOff, Poisson, Ramp, Sine, Varying

PROCESSES = [
    Constant(),
    Poisson(),
    Gamma(0.5),
    Gamma(3.0),
    Varying(OnOff(0.7, 1.9)),
    Varying(Sine(3.0, 1.0)),
    Varying(Ramp(1, 6, 200), Constant()),
    Varying(Ramp(6, 1, 200), Gamma(2.0)),
]


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


def test_a_constant_ramp_has_the_i_th_arrival_where_the_integral_of_the_rate_is_i():
    # From 2/s to 8/s in 30 s: the integral is 2t + t²/10, which is 150 at 30 s.
    offsets = Varying(Ramp(2, 8, 30), Constant()).offsets(rng(), 5, 30)
    assert len(offsets) == 150
    assert 2 * offsets + offsets**2 / 10 == pytest.approx(np.arange(150), abs=1e-9)
    falling = Varying(Ramp(8, 2, 30), Constant()).offsets(rng(), 5, 30)
    assert 8 * falling - falling**2 / 10 == pytest.approx(np.arange(150), abs=1e-9)


def test_a_level_ramp_is_no_ramp():
    assert Varying(Ramp(5, 5, 30), Constant()).offsets(rng(), 5, 30) == pytest.approx(np.arange(150) / 5)


PROFILES = [Ramp(1, 9, 100), Ramp(9, 1, 100), OnOff(10, 20), OnOff(0.1, 5), Sine(60, 0.5), Sine(7, 1), Sine(1000, 0)]


@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_times_are_the_inverse_of_the_mass(profile):
    times = rng().random(300) * 100
    if isinstance(profile, OnOff):  # no mass passes in the pauses
        times = times[times % (profile.burst_s + profile.pause_s) < profile.burst_s]
    masses = np.array([profile.mass(t) for t in times])
    # Where the rate falls to nothing, a rounding error of the mass is a wide stretch of time.
    assert profile.times(masses) == pytest.approx(times, abs=1e-4 if profile == Sine(7, 1) else 1e-7)


@pytest.mark.parametrize("profile", [Ramp(1, 9, 60), OnOff(10, 20), Sine(60, 0.8)], ids=str)
def test_the_rate_given_is_the_mean(profile):
    assert profile.mass(60) == pytest.approx(60)
    assert len(Varying(profile).offsets(rng(), 500, 60)) == pytest.approx(30_000, rel=0.02)


def test_bursts_come_in_the_on_periods_alone_and_are_poisson_there():
    offsets = Varying(OnOff(10, 20)).offsets(rng(), 4, 3000)
    assert (offsets % 30).max() < 10
    assert len(offsets) == pytest.approx(12_000, rel=0.03)
    bursts = np.bincount((offsets // 30).astype(int), minlength=100)
    assert bursts.var() / bursts.mean() == pytest.approx(1, rel=0.4)  # 100 bursts: standard error 0.14
    gaps = np.diff(offsets)
    inside = gaps[gaps < 20]
    assert inside.mean() == pytest.approx(1 / 12, rel=0.03)
    assert inside.std() / inside.mean() == pytest.approx(1, rel=0.05)


def test_a_day_in_an_hour_by_the_minute():
    # 20/s with amplitude 0.5 over an hour: minute m has 1200 + 600·(cos(2πm/60) − cos(2π(m + 1)/60))·60/2π arrivals.
    offsets = Varying(Sine(3600, 0.5)).offsets(rng(), 20, 3600)
    counts = np.histogram(offsets, bins=60, range=(0, 3600))[0]
    edges = np.cos(2 * np.pi * np.arange(61) / 60)
    expected = 1200 + 600 * (edges[:-1] - edges[1:]) * 60 / (2 * np.pi)
    assert expected.sum() == pytest.approx(72_000)
    assert (expected.max(), expected.min()) == (pytest.approx(1800, rel=0.01), pytest.approx(600, rel=0.02))
    # Poisson counts: chi-square of 60 minutes has mean 60 and standard deviation 11.
    assert 25 < ((counts - expected) ** 2 / expected).sum() < 105


def test_a_process_keeps_its_spread_on_a_ramp():
    ramp = Ramp(5, 15, 3000)
    offsets = Varying(ramp, Gamma(3.0)).offsets(rng(), 10, 3000)
    gaps = np.diff([ramp.mass(t) for t in offsets])
    assert gaps.std() / gaps.mean() == pytest.approx(3, rel=0.05)
    first, second = (offsets < 1500).sum(), (offsets >= 1500).sum()
    assert second / first == pytest.approx(12.5 / 7.5, rel=0.1)
