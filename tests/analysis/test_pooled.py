"""Several runs judged as one: every number as over all their requests, every interval as wide as the runs differ."""

import numpy as np
import pandas as pd
import pytest

from analysis.intervals import BLOCKS, COSINES, in_order, spread
from analysis.limits import Limit
from analysis.pooled import pool, run_numbers, starts_ns
from analysis.report.text import render
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.synthetic import Server, simulate

LIMITS = [
    Limit("ttft", "p50", "<", 9), Limit("itl", "p50", "<", 9), Limit("itl", "mean", "<", 9),
    Limit("attainment", None, ">", 0.1), Limit("goodput", None, ">", 0.1), Limit("output_tokens_per_s", None, ">", 1),
    Limit("fluidity", None, ">", 0.1), Limit("errors", None, "<", 0.9),
]  # fmt: skip
WORKLOAD = {"name": "w", "good": {"ttft": 0.25}, "fluidity": {"ttft": 0.25, "tbt": 0.021}}


def runs(*itl_s: float, failures: float = 0.1, requests: int = 300) -> list[Run]:
    return [
        simulate(Server(load=0.3, itl_s=each, failures=failures), requests, 10, seed, workload=WORKLOAD, id=f"r{seed}")
        for seed, each in enumerate(itl_s)
    ]


def test_the_numbers_are_those_of_all_requests_together() -> None:
    parts = runs(0.02, 0.02, 0.03)
    found, each = summarize(pool(parts), LIMITS), [summarize(part, LIMITS) for part in parts]
    for name in ("planned", "ok", "failed"):
        assert found["requests"][name] == sum(one["requests"][name] for one in each)
    assert found["run"]["duration_s"] == pytest.approx(sum(one["run"]["duration_s"] for one in each))
    values = np.concatenate([part.column("ttft_s") for part in parts])
    assert found["metrics"]["ttft_s"]["p95"] == pytest.approx(np.nanquantile(values, 0.95))
    gaps = np.concatenate([part.gaps.gap_ns for part in parts]) / 1e9
    assert found["metrics"]["itl_s"]["p99"] == pytest.approx(np.quantile(gaps, 0.99))
    assert found["tokens"]["output"] == sum(one["tokens"]["output"] for one in each)
    tokens = sum(one["throughput"]["output_tokens_per_s"] * one["run"]["duration_s"] for one in each)
    assert found["throughput"]["output_tokens_per_s"] == pytest.approx(tokens / found["run"]["duration_s"])


def test_each_run_stands_beside_the_others_with_its_own_numbers() -> None:
    parts = runs(0.02, 0.03)
    found = summarize(pool(parts), LIMITS)["by_stage"]
    assert list(found) == ["main of run 1", "main of run 2"]
    for name, part in zip(found, parts, strict=True):
        alone = summarize(part, LIMITS)
        assert found[name]["metrics"]["itl_s"]["p99"] == pytest.approx(alone["metrics"]["itl_s"]["p99"])
        for key, ends in alone["requests"]["ci95"].items():
            assert found[name]["requests"]["ci95"][key] == pytest.approx(ends)
        ends = alone["metrics"]["itl_s"]["ci95"]["p95"]
        assert found[name]["metrics"]["itl_s"]["ci95"]["p95"] == pytest.approx(ends)
    assert "main of run 2" in render(summarize(pool(parts), LIMITS))


def width(run: Run, at: int) -> float:
    low, high = summarize(run, LIMITS)["slo"]["limits"][at]["ci95"]
    return float(high - low)


@pytest.mark.parametrize("at", [1, 2], ids=["p50", "mean"])
def test_intervals_widen_where_runs_differ_more_than_by_chance(at: int) -> None:
    alike, apart = pool(runs(0.02, 0.02, 0.02)), pool(runs(0.019, 0.02, 0.021))
    assert width(alike, at) < width(runs(0.02)[0], at)
    assert width(apart, at) > 2.5 * width(alike, at)


def test_the_variance_between_runs_by_hand() -> None:
    """Two runs whose blocks show no change over time and whose totals are +48 and -48.

    within 0; between = 2 / 1 * (48^2 + 48^2) = 9216, known with one degree of freedom.
    """
    sums = np.concatenate([np.ones(BLOCKS), -np.ones(BLOCKS)])
    for given in ([sums], [sums[:BLOCKS], sums[BLOCKS:]]):
        found = spread(given)
        assert (found.variance, found.freedom) == (pytest.approx(9216), pytest.approx(1))
    within = spread([np.random.default_rng(1).standard_normal(BLOCKS)])
    assert within.freedom == COSINES
    empty = np.concatenate([np.zeros(BLOCKS), np.random.default_rng(1).standard_normal(BLOCKS)])
    assert spread([empty]) == within  # a run without anything does not count


def test_every_run_has_blocks_of_its_own() -> None:
    run = np.repeat([0, 1], [96, 48])
    labels = in_order(np.arange(144.0), np.ones(144, dtype=bool), run)
    assert labels[:96].tolist() == np.repeat(np.arange(48), 2).tolist()
    assert labels[96:].tolist() == list(range(48, 96))


def test_places_on_one_timeline() -> None:
    parts = runs(0.02, 0.03, requests=40)
    found = pool(parts)
    first, second = starts_ns(found)
    assert first == 0
    assert second > max(np.nanmax(parts[0].column(name)) for name in ("end_ns", "last_token_ns"))
    assert run_numbers(parts[0]) is None
    numbers = run_numbers(found)
    assert numbers is not None
    assert numbers.tolist() == [0] * 40 + [1] * 40
    assert found.requests["session"].is_unique
    assert pool(parts[:1]) is parts[0]


def test_samples_of_server_and_client_move_along() -> None:
    samples = pd.DataFrame({"t_ns": [0, 5], "running": [1, 2]})
    parts = [part.but(server=samples, client=samples) for part in runs(0.02, 0.02, requests=40)]
    found = pool([*parts, parts[0].but(server=None, client=None)])
    at = [0, 5, *(int(starts_ns(found)[1]) + each for each in (0, 5))]
    assert found.server is not None
    assert found.client is not None
    assert found.server["t_ns"].tolist() == found.client["t_ns"].tolist() == at


def test_one_run_that_was_cut_short_leaves_no_verdict() -> None:
    first, second = runs(0.02, 0.02)
    found = summarize(pool([first, second.but(meta={**second.meta, "complete": False})]), LIMITS)
    assert found["slo"]["verdict"] == "no_verdict"
    assert not found["run"]["complete"]


def test_runs_of_something_else_are_refused() -> None:
    first, second = runs(0.02, 0.02, requests=40)
    with pytest.raises(ValueError, match="another target"):
        pool([first, second.but(meta={**second.meta, "target": "elsewhere"})])
    with pytest.raises(ValueError, match="another workload"):
        pool([first, second.but(meta={**second.meta, "workload": {"name": "other"}})])
    with pytest.raises(ValueError, match="no runs"):
        pool([])
    seeds = [
        run.but(meta={**run.meta, "workload": {**WORKLOAD, "seed": seed}}) for seed, run in enumerate((first, second))
    ]
    assert len(pool(seeds).requests) == 80


@pytest.mark.parametrize("killed_first", [True, False])
def test_a_run_that_was_killed_ends_where_it_ended_wherever_it_stands(killed_first: bool) -> None:
    whole, other = runs(0.02, 0.02)
    half_ns = float(np.nanmedian(other.column("end_ns")))
    rows = other.column("end_ns") <= half_ns
    requests = other.requests[rows]
    chunks = other.chunks[other.chunks["request_id"].isin(requests["request_id"])]
    killed = Run({**other.meta, "complete": False}, requests, chunks)
    alone = [summarize(each)["throughput"] | {"s": summarize(each)["run"]["duration_s"]} for each in (killed, whole)]
    found = summarize(pool([killed, whole] if killed_first else [whole, killed]))
    assert found["run"]["duration_s"] == pytest.approx(sum(each["s"] for each in alone))
    for name in ("requests_per_s", "output_tokens_per_s"):
        each_s = sum(each[name] * each["s"] for each in alone)
        assert found["throughput"][name] == pytest.approx(each_s / sum(each["s"] for each in alone)), name
