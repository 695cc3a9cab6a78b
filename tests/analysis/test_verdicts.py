"""How often verdicts are wrong: small versions of tests/bench/verdicts.py, always of the same runs."""

from dataclasses import replace

from tests.bench.engine_runs import ENGINE_LOADS
from tests.bench.verdicts import LOADS, Load, compared, gated, truth

CALM = LOADS[0]


def test_a_server_compared_with_itself_is_hardly_ever_worse_or_better() -> None:
    found = compared(replace(CALM, requests=240, tokens=10), 1.0, runs=16)
    assert found["worse"] + found["better"] <= 1


def test_a_decode_slower_by_15_percent_is_found() -> None:
    assert compared(replace(CALM, tokens=20), 1.15, runs=8, first_seed=500)["itl worse"] >= 7


def test_gates_near_their_limit_are_not_wrong() -> None:
    load = Load("calm", CALM.server, 600, 10)
    found = gated(load, 6, truth(load, requests=12_000), first_seed=900)
    for (metric, where), verdicts in found.items():
        assert not verdicts["fail" if where == "inside" else "pass"], (metric, where)
    for metric in ("ttft.p50", "itl.p50"):
        assert found[metric, "inside"]["pass"] + found[metric, "outside"]["fail"] >= 11, metric


def test_a_simulated_engine_is_not_worse_than_itself_and_slower_memory_is_found() -> None:
    load = replace(ENGINE_LOADS[0], requests=200)
    same, slower = compared(load, 1.0, runs=4), compared(load, 1.15, runs=4, first_seed=100)
    assert not same["wrong"]
    assert slower["itl worse"] >= 3
