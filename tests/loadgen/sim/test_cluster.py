"""Several replicas: who gets what, and what it costs to keep prefill and decode apart."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.sim import catalog
from loadgen.sim.core import Cluster, ClusterConfig, SimConfig, SimRequest
from loadgen.sim.pass_times import PassTimes
from tests.loadgen.sim.clusters import H100, MS, TOY, Roofline, advanced, stepped, submissions

READER, LONG = (0, SimRequest("reader", 100, 80)), (50 * MS, SimRequest("long", 16_000, 20))


def prefill_ns(tokens):
    return H100.seconds(H100.work([(tokens, 0)])) * 1e9


def placed(config, *arrivals):
    """The replica on which each request had its first token."""
    where = {}
    for result in stepped(config, submissions(*arrivals)).results:
        for token in result.tokens:
            where.setdefault(token.request_id, result.replica)
    return where


def test_round_robin_takes_turns():
    config = ClusterConfig(SimConfig(H100), 3)
    where = placed(config, *((0, SimRequest(name, 100, 2)) for name in "abcde"))
    assert where == dict(zip("abcde", [0, 1, 2, 0, 1], strict=True))


def test_the_least_loaded_is_the_one_with_the_fewest_unfinished_requests():
    config = ClusterConfig(SimConfig(H100), 2, "least_loaded")
    arrivals = [(0, SimRequest("a", 100, 100)), (MS, SimRequest("b", 100, 2)), (300 * MS, SimRequest("c", 100, 2))]
    assert placed(config, *arrivals, (301 * MS, SimRequest("d", 100, 2))) == {"a": 0, "b": 1, "c": 1, "d": 0}


def test_affinity_goes_where_the_prefix_is_cached():
    config = ClusterConfig(SimConfig(H100), 3, "prefix_affinity")
    blocks = {name: tuple(ord(name) * 1000 + i for i in range(10)) for name in "xyz"}
    first = [(i * MS, SimRequest(name, 160, 200, blocks[name])) for i, name in enumerate("xyz")]
    again = [(500 * MS + i, SimRequest(f"{name}2", 200, 2, blocks[name])) for i, name in enumerate("zyx")]
    assert placed(config, *first, *again) == {"x": 0, "y": 1, "z": 2, "z2": 2, "y2": 1, "x2": 0}


def test_affinity_gives_way_to_load_and_to_prompts_of_which_little_is_cached():
    config = ClusterConfig(SimConfig(H100), 2, "prefix_affinity")
    blocks = tuple(range(10))
    warm = [(i * 100 * MS, SimRequest(str(i), 160, 1000, blocks)) for i in range(10)]
    where = placed(config, *warm, (2000 * MS, SimRequest("other", 330, 2, (*blocks, *range(100, 110)))))
    assert [where[str(i)] for i in range(10)] == [0] * 9 + [1]
    assert where["other"] == 1


def test_long_prompts_go_apart():
    config = ClusterConfig(SimConfig(H100), 3, "long_apart", long_tokens=1000)
    arrivals = [(i, SimRequest(str(n), n, 50)) for i, n in enumerate([100, 5000, 200, 300, 6000, 1000])]
    assert placed(config, *arrivals) == {"100": 0, "200": 1, "300": 0, "1000": 1, "5000": 2, "6000": 2}
    stalled = stepped(ClusterConfig(SimConfig(H100, 0), 2), submissions(READER, (1, SimRequest("x", 10, 1)), LONG))
    apart = stepped(ClusterConfig(SimConfig(H100, 0), 2, "long_apart"), submissions(READER, LONG))
    assert max(stalled.gaps("reader")) > prefill_ns(16_000) > 20 * max(apart.gaps("reader"))


def test_disaggregation_removes_the_stalls_and_costs_the_transfer():
    config = ClusterConfig(SimConfig(H100, 0), prefill_replicas=1, link_bytes_per_s=10e9)
    apart, together = (stepped(c, submissions(READER, LONG)) for c in (config, SimConfig(H100, 0)))
    assert max(together.gaps("reader")) > prefill_ns(16_000)
    # Its own cache still has to come over: 100 tokens of 128 KiB.
    assert max(apart.gaps("reader")[1:]) < 0.02 * prefill_ns(16_000)
    for name, tokens in (("reader", 100), ("long", 16_000)):
        moved_ns = tokens * 131_072 / 10e9 * 1e9
        second = apart.streams[name][1]
        assert (second.cause, second.delay_ns) == ("transfer", pytest.approx(moved_ns, abs=MS * 6))
        assert apart.gaps(name)[0] >= moved_ns
    assert apart.ttft_ns("long") <= together.ttft_ns("long")
    assert {e.cause for e in apart.streams["reader"][2:]} == {"decode"}


def test_a_cache_that_comes_to_a_full_replica_waits_for_room():
    # Three blocks on the one that decodes: the second stream has room when the first has ended.
    config = ClusterConfig(SimConfig(TOY, kv_tokens=48), prefill_replicas=1, link_bytes_per_s=1e12)
    outcome = stepped(config, submissions((0, SimRequest("a", 17, 31)), (0, SimRequest("b", 17, 4))))
    assert outcome.streams["b"][1].at_ns > outcome.streams["a"][-1].at_ns
    assert outcome.streams["b"][1].cause == "queue"
    assert outcome.totals.preemptions == 0


@pytest.mark.parametrize("far", [False, True])
def test_requests_can_be_cancelled_on_their_way_between_replicas(far):
    config = ClusterConfig(SimConfig(H100), prefill_replicas=1, link_bytes_per_s=1e9)
    cluster = Cluster(config)
    cluster.submit(0, SimRequest("a", 1000, 5))
    now_ns = 60 * MS
    assert [token.number for result in cluster.step(now_ns) for token in result.tokens] == [1]
    assert (cluster.running, cluster.waiting) == (0, 1)
    cut = cluster.cancel(now_ns, "a")
    assert cut is not None
    assert len(cut.arrival_ns) == 1
    assert (cluster.waiting, cluster.next_ns, cluster.totals.cancelled) == (0, None, 1)
    assert cluster.cancel(now_ns, "a") is None


def test_waiting_agrees_with_queueing_theory():
    """Poisson arrivals, one at a time, constant service D, load r: the mean wait is r D / (2 (1 - r)) (M/D/1)."""
    config = SimConfig(H100, policy="static", max_num_seqs=1)
    service_ns = round(prefill_ns(2000))
    load, n = 0.5, 20_000
    at_ns = np.cumsum(np.random.default_rng(0).exponential(service_ns / load, n)).astype(int).tolist()
    outcome = advanced(config, submissions(*((t, SimRequest(str(i), 2000, 1)) for i, t in enumerate(at_ns))))
    assert outcome.totals.prefill_ns / n == pytest.approx(service_ns, abs=1)
    free_ns = waited_ns = 0
    for now_ns in at_ns:
        free_ns = max(free_ns, now_ns) + service_ns
        waited_ns += free_ns - service_ns - now_ns
    assert outcome.totals.queue_ns == waited_ns
    expected_ns = load * service_ns / (2 * (1 - load))
    assert outcome.totals.queue_ns / n == pytest.approx(expected_ns, rel=0.05)


def test_more_replicas_share_the_work():
    arrivals = [(i * 30 * MS, SimRequest(str(i), 1000, 20)) for i in range(200)]
    waits = [advanced(ClusterConfig(SimConfig(H100), n), submissions(*arrivals)).totals.queue_ns for n in (1, 2, 4)]
    assert all(later <= earlier for earlier, later in pairwise(waits))
    assert waits[-1] / 200 < 7 * MS  # on average less than the decode pass that is under way


@pytest.mark.parametrize(
    "bad",
    [
        {"replicas": 0},
        {"prefill_replicas": -1},
        {"link_bytes_per_s": 0},
        {"router": "long_apart"},
        {"router": "long_apart", "replicas": 3, "long_replicas": 3},
        {"router": "long_apart", "replicas": 3, "prefill_replicas": 1},
    ],
)
def test_impossible_clusters_are_refused(bad):
    with pytest.raises(ValueError, match=r"must"):
        ClusterConfig(SimConfig(H100), **bad)


ON_TWO = Roofline(catalog.gpu("h200"), catalog.model("llama-3.1-70b"), tp=2)
rooflines = st.sampled_from([H100, TOY, ON_TWO, Roofline(catalog.gpu("h200"), catalog.model("mixtral-8x7b"))])


@settings(deadline=None)
@given(rooflines, st.integers(1, 256), st.integers(0, 4000), st.sampled_from([0, 1, 4]))
def test_times_of_decode_passes_are_those_of_the_roofline(roofline, decodes, more, draft_tokens):
    times = PassTimes(SimConfig(roofline, 4096, draft_tokens=draft_tokens))
    context_tokens = decodes * (1 + more)
    if draft_tokens:
        work = roofline.work([(draft_tokens + 1, more)] * decodes)
    else:
        work = roofline.work([], decodes, context_tokens)
    exact_ns = roofline.seconds(work) * 1e9
    assert times.decode_ns(decodes, context_tokens) == pytest.approx(exact_ns, abs=1)
    assert times.mixed_ns([], decodes, context_tokens) == pytest.approx(exact_ns, abs=1)


@settings(deadline=None)
@given(rooflines, st.integers(1, 256), st.lists(st.integers(1, 500_000), min_size=1, max_size=50))
def test_a_run_takes_what_its_passes_take(roofline, decodes, contexts):
    times = PassTimes(SimConfig(roofline))
    contexts = np.sort(np.array(contexts)) + decodes
    run = times.decode_run_ns(decodes, contexts).tolist()
    assert run == [times.decode_ns(decodes, tokens) for tokens in contexts.tolist()]
