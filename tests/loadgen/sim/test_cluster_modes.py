"""Two ways through one engine: token by token, and from one finished request to the next."""

import pytest
from hypothesis import given, settings

from loadgen.sim.core import Cluster, SimConfig, SimRequest
from tests.loadgen.sim.clusters import H100, MS, Act, advanced, clusters, histories, stepped, submissions


@settings(max_examples=100, deadline=None)
@given(clusters(), histories())
def test_both_give_the_same_tokens_at_the_same_times_for_the_same_reasons(config, acts):
    far = advanced(config, acts)
    with pytest.MonkeyPatch.context() as patch:
        forget_after(patch, 20)
        near = stepped(config, acts)
    assert near.streams == far.streams
    assert near.totals == far.totals


def forget_after(patch: pytest.MonkeyPatch, passes: int) -> None:
    """Lets a server forget its past after so few passes."""
    for module in ("passes", "replica"):
        patch.setattr(f"loadgen.sim.{module}.TRIM", passes)


@settings(max_examples=80, deadline=None)
@given(clusters(), histories())
def test_every_token_leaves_once_and_every_block_comes_back(config, acts):
    outcome = stepped(config, acts)
    asked = {act.submit.request_id: act.submit for act in acts if act.submit is not None}
    numbers = {name: [] for name in asked}
    last = dict.fromkeys(asked, False)
    clock = {}
    for result in outcome.results:
        assert clock.get(result.replica, 0) <= result.start_ns < result.end_ns
        clock[result.replica] = result.end_ns
        assert len({token.request_id for token in result.tokens}) == len(result.tokens)
        for token in result.tokens:
            assert not last[token.request_id]
            last[token.request_id] = token.last
            numbers[token.request_id] += range(token.number - token.count + 1, token.number + 1)
            assert 0 <= token.delay_ns <= result.end_ns
            assert token.culprit != token.request_id
            assert (token.culprit is not None) == (token.cause == "prefill_interference")
    cancelled = {act.cancel for act in acts if act.cancel is not None}
    for name, request in asked.items():
        assert numbers[name] == list(range(1, len(numbers[name]) + 1))
        fits = outcome.cluster.fits(request.prompt_tokens, request.output_tokens)
        assert (len(numbers[name]) == request.output_tokens) == last[name]
        assert last[name] or name in cancelled or not fits
    check_empty(outcome.cluster)
    totals = outcome.totals
    assert totals.generation_tokens == sum(map(len, numbers.values()))
    assert totals.finished == sum(last.values())
    assert totals.finished + totals.cancelled == sum(
        outcome.cluster.fits(request.prompt_tokens, request.output_tokens) for request in asked.values()
    )


def check_empty(cluster: Cluster) -> None:
    assert (cluster.running, cluster.waiting, cluster.kv_used_share) == (0, 0, 0)
    for replica in cluster.replicas:
        scheduler = replica.scheduler
        assert (scheduler.pool.used, scheduler.pool.shared, scheduler.context_tokens) == (0, 0, 0)
        assert not {**scheduler.prefilling, **scheduler.decoding}


def test_a_late_caller_loses_nothing():
    arrivals = submissions((0, SimRequest("a", 300, 20)), (3 * MS, SimRequest("b", 2000, 5)))
    prompt = stepped(SimConfig(H100), arrivals)
    cluster = Cluster(SimConfig(H100))
    for act in arrivals:
        act.on(cluster)
    assert cluster.step(10_000 * MS) == prompt.results
    assert cluster.next_ns is None


def test_what_is_under_way_is_what_comes_out():
    cluster = Cluster(SimConfig(H100))
    assert (cluster.next_ns, cluster.step(0), cluster.under_way()) == (None, [], [])
    cluster.submit(5 * MS, SimRequest("a", 300, 3))
    assert cluster.next_ns == 5 * MS
    assert cluster.step(5 * MS) == []
    (begun,) = cluster.under_way()
    assert cluster.next_ns == begun.end_ns
    assert cluster.step(begun.end_ns - 1) == []
    (ended,) = cluster.step(begun.end_ns)
    assert ended is begun
    (begun,) = cluster.under_way()
    cluster.cancel(begun.start_ns + 1, "a")
    (changed,) = cluster.step(begun.end_ns)
    assert (len(begun.tokens), changed.tokens) == (1, [])
    assert cluster.next_ns is None


def test_a_request_that_comes_during_a_pass_takes_part_in_the_next():
    outcome = stepped(SimConfig(H100), submissions((0, SimRequest("a", 4000, 4)), (MS, SimRequest("b", 90, 1))))
    assert [[token.request_id for token in result.tokens] for result in outcome.results][:2] == [[], ["a", "b"]]


def test_a_server_that_runs_for_long_forgets_what_is_past(monkeypatch):
    forget_after(monkeypatch, 500)
    cluster = Cluster(SimConfig(H100))
    replica = cluster.replicas[0]
    sizes = []
    for i in range(40):
        cluster.submit(cluster.next_ns or 0, SimRequest(str(i), 10, 250))
        while cluster.next_ns is not None and str(i) in cluster._there:
            cluster.step(cluster.next_ns)
        sizes.append(len(replica.log.end_ns))
    assert replica.log.count == 40 * 250
    assert max(sizes) <= 2048


@pytest.mark.parametrize("far", [False, True])
def test_a_pause_delays_everything_behind_it(far):
    acts = submissions((0, SimRequest("a", 300, 40)), (100 * MS, SimRequest("b", 50, 2)))
    drive = advanced if far else stepped
    calm, paused = drive(SimConfig(H100), acts), drive(SimConfig(H100), [*acts, Act(90 * MS, pause_ns=500 * MS)])
    at = next(i for i, event in enumerate(calm.streams["a"]) if event.at_ns > 90 * MS)
    assert paused.streams["a"][:at] == calm.streams["a"][:at]
    held = paused.streams["a"][at]
    assert held.at_ns == calm.streams["a"][at].at_ns + 500 * MS
    assert (held.cause, held.delay_ns) == ("injected", 500 * MS)
    first = paused.streams["b"][0]
    assert first.cause == "injected"
    assert first.delay_ns == pytest.approx(490 * MS, abs=1)  # it came when 490 ms of the pause were left


def test_a_pause_of_an_idle_engine_holds_up_what_comes_during_it():
    outcome = stepped(SimConfig(H100), [Act(0, pause_ns=50 * MS), *submissions((20 * MS, SimRequest("a", 100, 2)))])
    assert outcome.results[0].start_ns == 50 * MS
    assert outcome.streams["a"][0].cause == "injected"
    assert outcome.streams["a"][0].delay_ns == 30 * MS
