import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.estimate.numbers import Ask, Estimate
from analysis.estimate.numbers import page as page_of
from analysis.roofline import Gpu, Model, Roofline
from loadgen.sim import catalog

H100 = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))


def on_h100(prompt_tokens, output_tokens, **keys):
    return Estimate(H100, Ask(prompt_tokens, output_tokens, **keys))


def test_the_schema_that_others_read():
    page = page_of(on_h100(4000, 500))
    assert json.loads(json.dumps(page, allow_nan=False)) == page
    assert page["ridge_flops_per_byte"] == pytest.approx(295, abs=0.5)
    assert {"seconds", "flops", "bytes", "bound", "attention_share"} <= page["prefill"].keys()
    assert {"itl_s", "bytes_per_step", "flops_per_step", "bound"} <= page["decode"].keys()
    assert (page["prefill"]["bound"], page["decode"]["bound"]) == ("compute", "memory")
    assert (page["model"], page["gpu"]) == ("llama-3.1-8b", "h100")
    assert page["assumptions"]["compute_efficiency"] == 0.55
    assert page["assumptions"]["bandwidth_efficiency"] == 0.8
    assert page["assumptions"]["notes"][0] == "TTFT is a floor: queueing, the scheduler and the network come on top"


def test_four_thousand_in_and_five_hundred_out():
    estimate = on_h100(4000, 500)
    assert estimate.prefill.work.flops == pytest.approx(6.4e13, rel=0.08)
    assert estimate.attention_share_of(estimate.prefill.work) == pytest.approx(0.0613, abs=0.0005)
    assert estimate.ttft_s == pytest.approx(0.120, rel=0.05)
    assert estimate.prefill.compute_utilisation == pytest.approx(0.55)
    # The middle step attends to 4,000 + 250 tokens.
    assert estimate.itl_s == pytest.approx((16.0605e9 + 4250 * 131_072) / (3.35e12 * 0.8), rel=1e-5)
    assert estimate.e2e_s == estimate.ttft_s + 499 * estimate.itl_s


def test_the_answer_takes_as_long_as_its_steps_one_by_one():
    estimate = on_h100(300, 301)
    steps = sum(H100.seconds(H100.work([], 1, 300 + i)) for i in range(1, 301))
    assert estimate.decode_s == pytest.approx(steps, rel=1e-5)


def test_a_short_prompt_takes_about_a_decode_step():
    estimate = on_h100(50, 50)
    assert estimate.prefill.bound == "memory"
    assert estimate.ttft_s == pytest.approx(estimate.itl_s, rel=0.02)


def test_a_few_hundred_tokens_cross_over():
    bounds = [on_h100(tokens, 1).prefill.bound for tokens in (100, 200, 220, 400)]
    assert bounds == ["memory", "memory", "compute", "compute"]


def test_a_long_prompt_shows_the_quadratic_term():
    short, long = on_h100(4000, 1), on_h100(32_000, 1)
    assert long.attention_share_of(long.prefill.work) == pytest.approx(0.34, abs=0.01)
    assert long.ttft_s > 1.3 * 8 * short.ttft_s


def test_two_prompts_together_take_twice_as_long():
    assert on_h100(4000, 1, batch=2).ttft_s == pytest.approx(2 * on_h100(4000, 1).ttft_s)


def test_a_small_batch_hardly_changes_itl_until_contexts_are_long():
    assert on_h100(100, 200, batch=8).itl_s < 1.05 * on_h100(100, 200).itl_s
    long, alone = on_h100(16_000, 200, batch=8), on_h100(16_000, 200)
    assert long.decode.work.bytes - alone.decode.work.bytes == 7 * 16_100 * 131_072
    assert long.itl_s > 1.7 * alone.itl_s


def test_others_that_decode_ride_along_in_both_phases():
    alone, beside = on_h100(1000, 101), on_h100(1000, 101, others_decoding=20, others_context_tokens=3000)
    assert beside.prefill.work.tokens == 1020
    assert beside.prefill.work.bytes - alone.prefill.work.bytes == 60_000 * 131_072
    assert beside.decode.work.tokens == 21
    assert beside.decode.work.bytes - alone.decode.work.bytes == 60_000 * 131_072
    assert on_h100(1000, 100, others_decoding=1).ask.others_context == 1050  # as this one in the middle of its answer


def test_a_cached_prefix_is_not_computed_but_attended_to_and_read():
    cold, warm = on_h100(4000, 2), on_h100(4000, 2, cached_tokens=3000)
    assert warm.prefill.work.tokens == 1000
    assert warm.prefill.work.bytes == cold.prefill.work.bytes
    pairs = 1000 * 3000 + 1000 * 1001 // 2
    assert warm.prefill.work.flops == pytest.approx(2 * H100.model.params * 1000 + 4 * 32 * 4096 * pairs)
    assert warm.itl_s == cold.itl_s


def test_a_chat_request_decodes_for_over_nine_tenths_of_its_time():
    assert on_h100(300, 300).decode_share_of_time > 0.9


@pytest.mark.parametrize(("gpu", "tp"), [("h200", 2), ("mi300x", 2)])
def test_a_70b_replica_takes_half_a_second_to_read_4000_tokens_and_40_seconds_to_write_them(gpu, tp):
    """The textbook figure asks for 10 TB/s of memory bandwidth and 2 PFLOP/s, 80% and 55% of them reached: two H200 or
    MI300X, with weights in 8 bits and products at the bf16 peak."""
    estimate = Estimate(Roofline(catalog.gpu(gpu), catalog.model("llama-3.1-70b-fp8"), tp=tp), Ask(4000, 4000))
    assert estimate.ttft_s == pytest.approx(0.5, rel=0.15)
    assert estimate.decode_s == pytest.approx(40, rel=0.15)
    facts = page_of(estimate)["assumptions"]
    assert (facts["gpus"], facts["arithmetic"], facts["weight_bytes_per_param"]) == (tp, "bf16", 1)
    # With fp8 products the prompt takes half as long, and the answer as long as before.
    faster = Estimate(replace(estimate.roofline, model=estimate.roofline.model.stored_as("fp8")), estimate.ask)
    assert faster.prefill.compute_s == pytest.approx(estimate.prefill.compute_s / 2, rel=0.01)
    assert faster.decode_s == estimate.decode_s


def test_long_questions_and_long_answers_are_opposites_in_time_and_money():
    asks, answers = on_h100(10_000, 20), on_h100(50, 2000)
    assert asks.decode_share_of_time < 0.3
    assert answers.decode_share_of_time > 0.99
    assert asks.cost.input_usd > 2 * asks.cost.output_usd
    assert answers.cost.output_usd > 100 * answers.cost.input_usd


def test_money_is_time_by_hand():
    # 10 weights of 1 byte on a GPU of 100 FLOP/s, 10 byte/s and 3,600 dollars an hour: a dollar a second.
    toy = Roofline(Gpu("toy", 100, 10, 1000, price_per_hour=3600), Model("toy", 10, 1, 1, 1, 1, 1, 100, 1, 1), 1, 1)
    estimate = Estimate(toy, Ask(4, 3, batch=2))
    # Prefill: 2·10·8 + 4·2·10 FLOPs in 2.4 s (10 + 16 bytes would take 2.6 s); two steps over 5 and 6 tokens each: the
    # middle, 5.5, is 10 + 2·11 bytes, 3.2 s.
    assert estimate.ttft_s == pytest.approx(2.6)
    assert estimate.itl_s == pytest.approx(3.2)
    cost = estimate.cost
    assert cost.input_usd == pytest.approx(2.6 / 2)
    assert cost.output_usd == pytest.approx(2 * 3.2 / 2)
    assert cost.input_usd_per_million == pytest.approx(2.6 / 8 * 1e6)
    assert cost.output_usd_per_million == pytest.approx(3.2 / 2 * 1e6)
    # 890 bytes of cache hold 445 tokens, 63 requests of 7; their step reads 10 + 2·round(63·5.5) bytes.
    assert estimate.fitting == 63
    assert cost.output_usd_per_million_full == pytest.approx((10 + 2 * 346) / 10 / 63 * 1e6)


def test_others_share_the_price_of_an_output_token():
    alone, beside = on_h100(1000, 101).cost, on_h100(1000, 101, others_decoding=9, others_context_tokens=0).cost
    assert beside.output_usd_per_million == pytest.approx(alone.output_usd_per_million / 10)
    assert beside.output_usd_per_million_full == alone.output_usd_per_million_full


def test_no_price_is_no_cost():
    free = replace(H100, gpu=replace(H100.gpu, price_per_hour=None))
    assert page_of(Estimate(free, Ask(10, 10)))["cost"] is None


def test_an_answer_of_one_token_has_no_decode():
    page = page_of(on_h100(4000, 1))
    assert page["decode"] == {"itl_s": None, "bytes_per_step": None, "flops_per_step": None, "bound": None, "steps": 0}
    assert page["e2e_s"] == page["ttft_s"] == page["prefill"]["seconds"]
    assert page["decode_share_of_time"] == 0
    assert page["cost"]["output_usd_per_million"] is None


@pytest.mark.parametrize(
    ("model", "gpu", "dtype", "ask", "note"),
    [
        ("llama-3.1-8b", "a100", "fp8", Ask(10, 10), "a100 has no fp8 units"),
        ("llama-3.1-8b", "h100", "fp8", Ask(10, 10), "attention is counted at the fp8 peak"),
        ("llama-3.1-8b", "h100", None, Ask(131_000, 100), "longer than the 131,072 tokens of context"),
        ("llama-3.1-8b", "h100", None, Ask(10_000, 100, batch=99), "the batch of 99 does not fit into the memory: 42 "),
        ("mixtral-8x7b", "h200", None, Ask(10, 10), "a pass reads 25% of the experts in decode"),
    ],
)
def test_what_bends_the_numbers_is_noted(model, gpu, dtype, ask, note):
    roofline = Roofline(catalog.gpu(gpu), catalog.model(model).stored_as(dtype))
    notes = Estimate(roofline, ask).assumptions["notes"]
    assert any(note in line for line in notes)
    assert not any("\n" in line for line in notes)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((0, 5), r"^prompt_tokens 0: expected a number from 1 to 1,000,000,000$"),
        ((5, 0), r"^output_tokens 0: "),
        ((10**12, 5), r"^prompt_tokens 1000000000000: "),
        ((5, 5, 5), r"^cached_tokens 5: the last prompt token is always computed, so at most 4 of 5 can be cached$"),
        ((5, 5, 0, 0), r"^batch 0: "),
        ((5, 5, 0, 1, -1), r"^others_decoding -1: "),
        ((5, 5, 0, 1, 1, -1), r"^others_context_tokens -1: "),
    ],
)
def test_what_cannot_be_asked_is_one_line(bad, message):
    with pytest.raises(ValueError, match=message):
        Ask(*bad)


asks = st.builds(
    Ask,
    prompt_tokens=st.integers(100, 20_000),
    output_tokens=st.integers(1, 5000),
    cached_tokens=st.integers(0, 99),
    batch=st.integers(1, 300),
    others_decoding=st.integers(0, 300),
)


@settings(deadline=None)
@given(asks)
def test_numbers_agree_with_one_another(ask):
    page = page_of(Estimate(H100, ask))
    assert page["e2e_s"] == pytest.approx(page["ttft_s"] + page["decode"]["steps"] * (page["itl_s"] or 0))
    assert 0 <= page["decode_share_of_time"] < 1
    assert 0 <= page["prefill"]["attention_share"] < 1
    for phase in (page["prefill"], page["decode"]):
        if phase["bound"]:
            shares = (phase["compute_utilisation"] / 0.55, phase["bandwidth_utilisation"] / 0.8)
            assert max(shares) == pytest.approx(1)
            assert (shares[0] > shares[1]) == (phase["bound"] == "compute")
            assert (phase["flops_per_byte"] * 0.8 > page["ridge_flops_per_byte"] * 0.55) == (
                phase["bound"] == "compute"
            )
