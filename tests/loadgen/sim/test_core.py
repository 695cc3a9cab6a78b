from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.roofline import Gpu, Model, Roofline
from loadgen.sim import catalog
from loadgen.sim.core import SimConfig, SimRequest, Simulator, replay
from loadgen.sim.kv import BLOCK_TOKENS, BlockPool

H100 = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))
TOY = Roofline(Gpu("toy", 1e12, 1e12, 1e9), Model("toy", 1e6, 2, 64, 4, 2, 16, 4096))

DECODE_NS = H100.seconds(H100.work([], 1, 100)) * 1e9


def arrivals_of(config, *arrivals):
    """{request id: [(when, token)]}"""
    out = {}
    for result in replay(config, arrivals):
        for token in result.tokens:
            out.setdefault(token.request_id, []).append((result.end_ns, token))
    return out


def gaps(stream):
    return [later - earlier for (earlier, _), (later, _) in pairwise(stream)]


def test_one_request_alone():
    stream = arrivals_of(SimConfig(H100, chunk_tokens=0), (0, SimRequest("a", 4000, 3)))["a"]
    assert stream[0][0] == pytest.approx(0.120e9, rel=0.05)
    assert gaps(stream) == pytest.approx([DECODE_NS] * 2, rel=0.04)  # 4,000 tokens of KV are 0.5 GB more to read
    assert [(token.number, token.last) for _, token in stream] == [(1, False), (2, False), (3, True)]
    assert [token.cause for _, token in stream] == ["prefill", "decode", "decode"]


@pytest.mark.parametrize("chunk_tokens", [0, 2048])
def test_eight_short_streams_are_as_fast_as_one(chunk_tokens):
    config = SimConfig(H100, chunk_tokens)
    one = gaps(arrivals_of(config, (0, SimRequest("0", 100, 50)))["0"])
    eight = gaps(arrivals_of(config, *((0, SimRequest(str(i), 100, 50)) for i in range(8)))["7"])
    assert max(eight) < 1.05 * max(one)


def test_prompts_that_come_first_stall_the_others_for_the_whole_prefill():
    config = SimConfig(H100, chunk_tokens=0)
    streams = arrivals_of(config, (0, SimRequest("reader", 100, 60)), (50_000_000, SimRequest("long", 8000, 1)))
    prefill_ns = H100.seconds(H100.work([(8000, 0)])) * 1e9
    frozen = max(zip(gaps(streams["reader"]), streams["reader"][1:], strict=True))
    assert frozen[0] == pytest.approx(prefill_ns + DECODE_NS, rel=0.01)
    token = frozen[1][1]
    assert (token.cause, token.culprit) == ("prefill_interference", "long")
    assert token.delay_ns == pytest.approx(prefill_ns, abs=2)
    assert sum(token.cause == "prefill_interference" for _, token in streams["reader"]) == 1


@pytest.mark.parametrize("chunk_tokens", [512, 1024, 2048, 4096])
def test_chunks_bound_the_gap_in_proportion_to_their_size(chunk_tokens):
    config = SimConfig(H100, chunk_tokens)
    streams = arrivals_of(config, (0, SimRequest("reader", 100, 60)), (50_000_000, SimRequest("long", 16_000, 1)))
    # The last of the chunks attends to the whole prompt and so is the dearest.
    last = H100.seconds(H100.work([(chunk_tokens - 1, 16_000 - chunk_tokens)], 1, 160)) * 1e9
    assert 0.8 * last < max(gaps(streams["reader"])) <= last
    held = [token for _, token in streams["reader"] if token.cause == "prefill_interference"]
    assert len(held) == -(-16_000 // (chunk_tokens - 1))
    assert {token.culprit for token in held} == {"long"}


@pytest.mark.parametrize("chunk_tokens", [0, 2048])
def test_the_second_of_two_prompts_takes_twice_as_long(chunk_tokens):
    config = SimConfig(H100, chunk_tokens)
    alone = arrivals_of(config, (0, SimRequest("a", 6000, 1)))["a"][0][0]
    both = arrivals_of(config, (0, SimRequest("a", 6000, 1)), (0, SimRequest("b", 6000, 1)))
    assert both["b"][0][0] == pytest.approx(2 * alone, rel=0.02)
    assert both["a"][0][0] == pytest.approx(alone, rel=0.03)  # with chunks its last pass is filled up from "b"


def test_short_prompts_share_a_pass_without_chunking():
    first = next(replay(SimConfig(H100, chunk_tokens=0), [(0, SimRequest(str(i), 500, 2)) for i in range(6)]))
    assert len(first.tokens) == 4  # 2,048 tokens hold four prompts of 500


def test_waiting_longer_than_the_own_prompt_takes_is_the_queue():
    config = SimConfig(H100, chunk_tokens=0)
    streams = arrivals_of(config, (0, SimRequest("long", 8000, 1)), (1_000, SimRequest("short", 100, 1)))
    token = streams["short"][0][1]
    assert token.cause == "queue"
    assert token.delay_ns == streams["long"][0][0] - 1_000


def test_no_more_sequences_run_than_allowed():
    config = SimConfig(TOY, chunk_tokens=64, max_num_seqs=3)
    results = list(replay(config, [(0, SimRequest(str(i), 4, 5)) for i in range(7)]))
    assert max(len(r.tokens) for r in results) == 3


def test_a_prompt_waits_until_its_blocks_are_free():
    # Two blocks of 16: "a" holds them both until it ends, though "b" would fit into the pass.
    config = SimConfig(TOY, kv_tokens=32)
    streams = arrivals_of(config, (0, SimRequest("a", 17, 4)), (0, SimRequest("b", 10, 2)))
    assert streams["b"][0][0] > streams["a"][-1][0]
    assert streams["b"][0][1].cause == "queue"


def test_a_stream_that_cannot_grow_takes_the_blocks_of_the_last_admitted():
    # Three blocks: both prompts fill one; "a" takes the third at its first decode, then "b" cannot grow, and gives way.
    config = SimConfig(TOY, kv_tokens=48)
    results = list(replay(config, [(0, SimRequest("a", 16, 8)), (0, SimRequest("b", 16, 8))]))
    assert [name for r in results for name in r.preempted] == ["b"]
    streams = arrivals_of(config, (0, SimRequest("a", 16, 8)), (0, SimRequest("b", 16, 8)))
    cause = streams["b"][1][1]
    assert cause.cause == "preemption"
    assert streams["b"][1][0] > streams["a"][-1][0]  # it comes back when "a" has ended
    assert cause.delay_ns == streams["b"][1][0] - streams["b"][0][0]
    assert [token.number for _, token in streams["b"]] == list(range(1, 9))


def test_speed_divides_all_times():
    slow, fast = (list(replay(SimConfig(H100, speed=s), [(0, SimRequest("a", 300, 5))])) for s in (1, 4))
    assert fast[-1].end_ns == pytest.approx(slow[-1].end_ns / 4, rel=1e-6)


def test_idle_is_none_and_time_is_the_drivers():
    simulator = Simulator(SimConfig(H100))
    assert simulator.step(0) is None
    simulator.submit(7, SimRequest("a", 10, 1))
    result = simulator.step(1_000)
    assert result is not None
    assert result.start_ns == 1_000


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (SimRequest("a", 5, 5), "is running already"),
        (SimRequest("b", 0, 5), "at least one"),
        (SimRequest("b", 5, 0), "at least one"),
        (SimRequest("b", 40, 9), "more than the whole KV cache"),
    ],
)
def test_what_can_never_run_is_refused(request_, message):
    simulator = Simulator(SimConfig(TOY, kv_tokens=48))
    simulator.submit(0, SimRequest("a", 5, 5))
    with pytest.raises(ValueError, match=message):
        simulator.submit(0, request_)


@pytest.mark.parametrize("bad", [{"chunk_tokens": -1}, {"max_num_seqs": 0}, {"speed": 0.0}, {"kv_tokens": 15}])
def test_impossible_settings_are_refused(bad):
    with pytest.raises(ValueError, match="must"):
        SimConfig(TOY, **bad)


configs = st.builds(
    SimConfig,
    roofline=st.just(TOY),
    chunk_tokens=st.sampled_from([0, 1, 7, 32, 200]),
    max_num_seqs=st.integers(1, 9),
    kv_tokens=st.integers(8, 40).map(lambda blocks: blocks * BLOCK_TOKENS),
)
requests = st.lists(
    st.tuples(st.integers(0, 2_000_000), st.integers(1, 90), st.integers(1, 38)), min_size=1, max_size=14
).map(lambda rows: [(t, SimRequest(f"r{i}", p, o)) for i, (t, p, o) in enumerate(rows)])


@settings(max_examples=150, deadline=None)
@given(configs, requests)
def test_every_token_leaves_exactly_once_and_in_order(config, arrivals):
    left, clock = {}, 0
    for result in replay(config, arrivals):
        assert result.start_ns >= clock
        assert result.end_ns > result.start_ns
        clock = result.end_ns
        assert len(result.tokens) == len({token.request_id for token in result.tokens})
        if config.chunk_tokens:
            assert result.prefill_tokens + result.decode_tokens <= config.chunk_tokens
        else:
            assert not (result.prefill_tokens and result.decode_tokens)
        for token in result.tokens:
            left.setdefault(token.request_id, []).append(token)
            assert 0 <= token.delay_ns <= result.end_ns
            assert token.culprit != token.request_id
    for _, request in arrivals:
        tokens = left.pop(request.request_id)
        assert [token.number for token in tokens] == list(range(1, request.output_tokens + 1))
        assert [token.last for token in tokens] == [False] * (request.output_tokens - 1) + [True]
    assert not left


@settings(max_examples=100, deadline=None)
@given(configs, requests, st.data())
def test_blocks_come_back_whatever_is_cancelled(config, arrivals, data):
    simulator, now, alive = Simulator(config), 0, set()
    for _, request in arrivals:
        simulator.submit(now, request)
        alive.add(request.request_id)
        if data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(sorted(alive)))
            simulator.cancel(victim)
            simulator.cancel(victim)
            alive.discard(victim)
        result = simulator.step(now)
        if result is not None:
            now = result.end_ns
            assert {token.request_id for token in result.tokens} <= alive
            alive -= {token.request_id for token in result.tokens if token.last}
        assert simulator.running + simulator.waiting == len(alive)
    while (result := simulator.step(now)) is not None:
        now = result.end_ns
    assert (simulator.running, simulator.waiting, simulator.pool.used) == (0, 0, 0)
    totals = simulator.totals
    assert totals.finished + totals.cancelled == len(arrivals)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200), st.booleans()), max_size=40))
def test_the_pool_never_gives_what_it_has_not(moves):
    pool, holds = BlockPool(10 * BLOCK_TOKENS + 5), Counter()
    assert pool.total == 10
    for owner, tokens, release in moves:
        if release:
            pool.release(owner)
            holds[owner] = 0
        else:
            wanted = max(holds[owner], -(-tokens // BLOCK_TOKENS))
            granted = pool.grow(owner, tokens)
            assert granted == (sum(holds.values()) - holds[owner] + wanted <= 10)
            holds[owner] = wanted if granted else holds[owner]
        assert pool.used == sum(holds.values())
        assert pool.used_share == pool.used / 10
