"""One replica: what a stream feels of the others, by policy."""

import pytest

from loadgen.sim.core import Cluster, SimConfig, SimRequest
from tests.loadgen.sim.clusters import H100, MS, TOY, advanced, stepped, submissions

DECODE_NS = H100.seconds(H100.work([], 1, 100)) * 1e9


def prefill_ns(tokens):
    return H100.seconds(H100.work([(tokens, 0)])) * 1e9


def run(config, *arrivals):
    return stepped(config, submissions(*arrivals))


def test_one_request_alone():
    outcome = run(SimConfig(H100, chunk_tokens=0), (0, SimRequest("a", 4000, 3)))
    assert outcome.ttft_ns("a") == pytest.approx(0.120e9, rel=0.05)
    assert outcome.gaps("a") == pytest.approx([DECODE_NS] * 2, rel=0.04)  # 4,000 tokens of KV are 0.5 GB more to read
    assert [event.cause for event in outcome.streams["a"]] == ["prefill", "decode", "decode"]
    tokens = [token for result in outcome.results for token in result.tokens]
    assert [(token.number, token.last) for token in tokens] == [(1, False), (2, False), (3, True)]


@pytest.mark.parametrize("chunk_tokens", [0, 2048])
def test_eight_short_streams_are_as_fast_as_one(chunk_tokens):
    config = SimConfig(H100, chunk_tokens)
    one = run(config, (0, SimRequest("0", 100, 50))).gaps("0")
    eight = run(config, *((0, SimRequest(str(i), 100, 50)) for i in range(8))).gaps("7")
    assert max(eight) < 1.05 * max(one)


@pytest.mark.parametrize("chunk_tokens", [0, 2048])
def test_the_second_of_two_prompts_takes_twice_as_long(chunk_tokens):
    config = SimConfig(H100, chunk_tokens)
    alone = run(config, (0, SimRequest("a", 6000, 1))).ttft_ns("a")
    both = run(config, (0, SimRequest("a", 6000, 1)), (0, SimRequest("b", 6000, 1)))
    assert both.ttft_ns("b") == pytest.approx(2 * alone, rel=0.02)
    assert both.ttft_ns("a") == pytest.approx(alone, rel=0.03)  # with chunks its last pass is filled up from "b"


def test_short_prompts_share_a_pass_without_chunking():
    outcome = run(SimConfig(H100, chunk_tokens=0), *((0, SimRequest(str(i), 500, 2)) for i in range(6)))
    assert [len(result.tokens) for result in outcome.results[:2]] == [4, 2]  # 2,048 tokens hold four prompts of 500


def test_waiting_longer_than_the_own_prompt_takes_is_the_queue():
    arrivals = (0, SimRequest("long", 8000, 1)), (1_000, SimRequest("short", 100, 1))
    outcome = run(SimConfig(H100, chunk_tokens=0), *arrivals)
    (event,) = outcome.streams["short"]
    assert (event.cause, event.delay_ns) == ("queue", outcome.ttft_ns("long") - 1_000)
    assert outcome.totals.queue_ns == event.delay_ns


def test_no_more_sequences_run_than_allowed():
    outcome = run(SimConfig(TOY, chunk_tokens=64, max_num_seqs=3), *((0, SimRequest(str(i), 4, 5)) for i in range(7)))
    assert max(len(result.tokens) for result in outcome.results) == 3


# The same mix under each policy: a reader in the middle of an answer, and a long prompt that comes.

READER, LONG = (0, SimRequest("reader", 100, 80)), (50 * MS, SimRequest("long", 16_000, 2))


def test_prefill_first_stalls_a_stream_for_the_whole_prompt_of_another():
    outcome = run(SimConfig(H100, chunk_tokens=0), READER, LONG)
    frozen, event = max(zip(outcome.gaps("reader"), outcome.streams["reader"][1:], strict=True))
    assert frozen == pytest.approx(prefill_ns(16_000) + DECODE_NS, rel=0.01)
    assert (event.cause, event.culprit) == ("prefill_interference", "long")
    assert event.delay_ns == pytest.approx(prefill_ns(16_000), abs=2)
    assert [e.cause for e in outcome.streams["reader"]].count("prefill_interference") == 1


@pytest.mark.parametrize("chunk_tokens", [512, 1024, 2048, 4096])
def test_chunks_bound_the_gap_in_proportion_to_their_size(chunk_tokens):
    outcome = run(SimConfig(H100, chunk_tokens), READER, LONG)
    # The last of the chunks attends to the whole prompt and so is the dearest.
    last_ns = H100.seconds(H100.work([(chunk_tokens - 1, 16_000 - chunk_tokens)], 1, 160)) * 1e9
    assert 0.8 * last_ns < max(outcome.gaps("reader")) <= last_ns
    held = [event for event in outcome.streams["reader"] if event.cause == "prefill_interference"]
    assert len(held) == -(-16_000 // (chunk_tokens - 1))
    assert {event.culprit for event in held} == {"long"}


def test_smaller_chunks_cost_the_long_prompt_some_of_its_ttft():
    ttft_ns = [run(SimConfig(H100, n), READER, LONG).ttft_ns("long") for n in (0, 4096, 1024, 256)]
    assert ttft_ns == sorted(ttft_ns)
    # Each chunk below the ridge of the roofline reads the weights for less work than they allow.
    chunks = -(-16_000 // 255)
    assert ttft_ns[-1] - ttft_ns[0] < chunks * DECODE_NS


def test_a_threshold_for_long_prompts_leaves_room_for_short_ones():
    short = (51 * MS, SimRequest("short", 200, 1))
    without = run(SimConfig(H100, 2048), READER, LONG, short)
    with_it = run(SimConfig(H100, 2048, long_prefill_tokens=512), READER, LONG, short)
    assert with_it.ttft_ns("short") < without.ttft_ns("short") / 4
    assert with_it.ttft_ns("long") > without.ttft_ns("long")
    assert max(with_it.gaps("reader")) < max(without.gaps("reader")) / 2
    assert {result.prefill_tokens for result in with_it.results} <= {0, 100, 200, 512, 712, 128, 16_000 % 512}


def test_a_static_batch_is_admitted_when_the_last_has_finished():
    config = SimConfig(H100, policy="static", max_num_seqs=2)
    lengths = [("a", 10), ("b", 30), ("c", 5)]
    outcome = run(config, *((0, SimRequest(name, 100, n)) for name, n in lengths), (MS, SimRequest("d", 100, 5)))
    assert outcome.streams["c"][0].at_ns > outcome.streams["b"][-1].at_ns
    assert outcome.ttft_ns("c") == outcome.ttft_ns("d")
    assert (outcome.streams["c"][0].cause, outcome.totals.preemptions) == ("queue", 0)
    assert max(len(result.tokens) for result in outcome.results) == 2


def test_a_static_batch_reserves_what_its_answers_will_need():
    # Four blocks: each request comes to two, though its prompt fills only one.
    outcome = run(SimConfig(TOY, kv_tokens=64, policy="static"), *((0, SimRequest(str(i), 10, 20)) for i in range(3)))
    assert outcome.ttft_ns("0") == outcome.ttft_ns("1") < outcome.streams["1"][-1].at_ns < outcome.ttft_ns("2")


# Memory.


def test_a_prompt_waits_until_its_blocks_are_free():
    # Two blocks of 16: "a" holds them both until it ends, though "b" would fit into the pass.
    outcome = run(SimConfig(TOY, kv_tokens=32), (0, SimRequest("a", 17, 4)), (0, SimRequest("b", 10, 2)))
    assert outcome.ttft_ns("b") > outcome.streams["a"][-1].at_ns
    assert outcome.streams["b"][0].cause == "queue"


def test_a_stream_that_cannot_grow_takes_the_blocks_of_the_last_admitted():
    # Three blocks: both prompts fill one; "a" takes the third at its first decode, then "b" cannot grow, and gives way.
    outcome = run(SimConfig(TOY, kv_tokens=48), (0, SimRequest("a", 16, 8)), (0, SimRequest("b", 16, 8)))
    assert [name for result in outcome.results for name in result.preempted] == ["b"]
    a, b = outcome.streams["a"], outcome.streams["b"]
    assert b[1].at_ns > a[-1].at_ns  # it comes back when "a" has ended
    assert (b[1].cause, b[1].delay_ns) == ("preemption", b[1].at_ns - b[0].at_ns)
    assert len(b) == 8


def test_under_pressure_preemption_shows_as_gaps_of_some_streams_only():
    arrivals = [(i * MS, SimRequest(str(i), 400, 400)) for i in range(12)]
    outcome = run(SimConfig(H100, kv_tokens=6400), *arrivals)
    assert outcome.totals.preemptions > 0
    preempted = {name for name, events in outcome.streams.items() if any(e.cause == "preemption" for e in events)}
    assert 0 < len(preempted) < 12
    for name, events in outcome.streams.items():
        for gap_ns, event in zip(outcome.gaps(name), events[1:], strict=True):
            if event.cause == "preemption":
                assert event.delay_ns == gap_ns > 20 * DECODE_NS
    # The others are only slowed down by what has to be computed again, in chunks.
    slowest_ns = prefill_ns(2048) + 2 * DECODE_NS
    assert max(max(outcome.gaps(name)) for name in outcome.streams.keys() - preempted) < slowest_ns


def test_a_prefix_that_is_cached_is_not_computed_again():
    blocks = tuple(range(250))
    first, second = (0, SimRequest("a", 4000, 1, blocks)), (1000 * MS, SimRequest("b", 4010, 1, (*blocks, 999)))
    outcome = run(SimConfig(H100), first, second)
    cached = {token.request_id: token.cached_tokens for result in outcome.results for token in result.tokens}
    assert cached == {"a": 0, "b": 4000}
    assert outcome.ttft_ns("b") - 1000 * MS < 0.1 * outcome.ttft_ns("a")
    assert (outcome.totals.prefix_hit_tokens, outcome.totals.prefix_query_tokens) == (4000, 8010)
    without = run(SimConfig(H100, prefix_cache=False), first, second)
    assert without.totals.prefix_hit_tokens == 0
    assert without.ttft_ns("b") - 1000 * MS == pytest.approx(without.ttft_ns("a"), rel=0.01)


def test_the_last_token_of_a_prompt_is_computed_even_if_all_is_cached():
    blocks = tuple(range(4))
    outcome = run(SimConfig(H100), (0, SimRequest("a", 64, 1, blocks)), (MS * 1000, SimRequest("b", 64, 1, blocks)))
    assert outcome.results[-1].prefill_tokens == 16


def test_requests_that_run_share_their_blocks():
    # Eleven blocks: both prompts have eight, of which seven are shared; each answer takes one more.
    shared = tuple(range(7))
    requests = [SimRequest(name, 128, 4, (*shared, ord(name))) for name in "ab"]
    outcome = run(SimConfig(TOY, kv_tokens=176), *((i, request) for i, request in enumerate(requests)))
    assert outcome.streams["b"][0].at_ns < outcome.streams["a"][-1].at_ns
    assert outcome.totals.preemptions == 0


def test_the_answer_of_a_request_is_found_by_what_follows():
    blocks = tuple(range(8))
    first = SimRequest("a", 64, 64, blocks)
    outcome = run(SimConfig(H100), (0, first), (2000 * MS, SimRequest("b", 200, 1, (*blocks, 100, 101, 102, 103))))
    # The last token of an answer is never computed, so its block is not full.
    assert outcome.totals.prefix_hit_tokens == 112


# Drafts.


@pytest.mark.parametrize(("draft_tokens", "acceptance"), [(1, 0.7), (3, 0.7), (4, 0.5)])
def test_drafts_bring_the_expected_tokens_per_pass(draft_tokens, acceptance):
    config = SimConfig(H100, draft_tokens=draft_tokens, acceptance=acceptance)
    outcome = advanced(config, submissions(*((i, SimRequest(str(i), 50, 2000)) for i in range(30))))
    counts = [event.count for events in outcome.streams.values() for event in events[1:-1]]
    expected = (1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance)
    # The standard error over 20,000 passes and more is below 0.5 %.
    assert sum(counts) / len(counts) == pytest.approx(expected, rel=0.015)
    assert max(counts) == draft_tokens + 1


def test_a_pass_that_verifies_drafts_costs_their_tokens():
    arrivals = [(0, SimRequest(str(i), 100, 6)) for i in range(100)]  # one pass for all prompts; then all decode
    configs = SimConfig(H100, 16_384), SimConfig(H100, 16_384, draft_tokens=7, acceptance=0.0)
    thirds = [run(config, *arrivals).results[3] for config in configs]
    plain_ns, drafts_ns = (result.end_ns - result.start_ns for result in thirds)
    tokens, contexts = [(8, 102)] * 100, 100 * 103
    assert plain_ns == pytest.approx(H100.seconds(H100.work([], 100, contexts)) * 1e9, abs=1)
    # Its tokens attend to each other as well: a prompt of 8 behind 102 others.
    assert drafts_ns == pytest.approx(H100.seconds(H100.work(tokens)) * 1e9, rel=1e-3)
    assert drafts_ns > 1.5 * plain_ns


def test_accepted_drafts_make_streams_faster():
    one = SimRequest("a", 100, 400)
    plain, drafts = (run(SimConfig(H100, draft_tokens=k, acceptance=0.7), (0, one)).streams["a"] for k in (0, 3))
    assert drafts[-1].at_ns < plain[-1].at_ns / 2


# Settings.


def test_speed_divides_all_times():
    slow, fast = (run(SimConfig(H100, speed=s), (0, SimRequest("a", 300, 5))).results[-1].end_ns for s in (1, 4))
    assert fast == pytest.approx(slow / 4, rel=1e-6)


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
    cluster = Cluster(SimConfig(TOY, kv_tokens=48))
    cluster.submit(0, SimRequest("a", 5, 5))
    with pytest.raises(ValueError, match=message):
        cluster.submit(0, request_)


@pytest.mark.parametrize(
    "bad",
    [
        {"chunk_tokens": -1},
        {"max_num_seqs": 0},
        {"speed": 0.0},
        {"kv_tokens": 15},
        {"long_prefill_tokens": -1},
        {"draft_tokens": -1},
        {"acceptance": 1.1},
        {"chunk_tokens": 4, "draft_tokens": 4},
    ],
)
def test_impossible_settings_are_refused(bad):
    with pytest.raises(ValueError, match="must"):
        SimConfig(TOY, **bad)
