from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.estimate.gpus import least_gpus
from analysis.roofline import Gpu, Model, Roofline
from loadgen.sim import catalog

H100 = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))

# 10 weights of 1 byte, 2 KV bytes and 4 FLOPs a token attended to; 100 FLOP/s, 10 byte/s; room for 40 tokens of cache.
TOY = Roofline(Gpu("toy", 100, 10, 100), Model("toy", 10, 1, 1, 1, 1, 1, 100, 1, 1), 1, 1)


def test_decode_by_hand():
    # Contexts of 10 tokens: 4 fit. Their step reads 10 + 80 bytes in 9 s: 4/9 tokens a second; without an end to the
    # batch a token costs 20 bytes, 2 s. 1.8 tokens a second so need 4.05 GPUs, and 3.6 if memory were endless.
    least = least_gpus(TOY, 0, 1.8, 8, 10)
    assert least.batch == 4
    assert least.kv_memory_gpus == pytest.approx(4.05)
    assert least.decode_gpus == pytest.approx(3.6)
    assert (least.gpus, least.decides) == (5, "kv_memory")
    # 1.7 tokens a second: 3.825 and 3.4, four GPUs either way.
    assert least_gpus(TOY, 0, 1.7, 8, 10).decides == "decode"


def test_prefill_by_hand():
    # A prompt of 8 tokens is 2·10·8 + 4·36 = 304 FLOPs, 3.04 s; half of it cached, 2·10·4 + 4·26 = 184, 1.84 s.
    least = least_gpus(TOY, 16, 0.1, 8, 10)
    assert least.prefill_gpus == pytest.approx(2 * 3.04)
    assert (least.gpus, least.decides) == (7, "prefill")
    assert least_gpus(TOY, 16, 0.1, 8, 10, cached_share=0.5).prefill_gpus == pytest.approx(2 * 1.84)


def test_replicas_are_whole():
    two = least_gpus(replace(H100, tp=2), 100_000, 100, 2000, 2100)
    assert (two.gpus, two.gpus_per_replica) == (4, 2)
    assert two.prefill_gpus == pytest.approx(least_gpus(H100, 100_000, 100, 2000, 2100).prefill_gpus)


def test_no_load_still_needs_one():
    assert least_gpus(H100, 0, 0, 100, 100).gpus == 1


def test_a_long_context_that_does_not_fit_is_one_line():
    with pytest.raises(
        ValueError, match=r"^a context of 1,000,000 tokens does not fit into the memory of 1 x h100, .*$"
    ):
        least_gpus(H100, 1, 1, 10, 1_000_000)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(0, 1e5), st.integers(1, 20_000), st.integers(1, 20_000), st.floats(0, 1))
def test_a_lower_bound_grows_with_the_load(input_rate, output_rate, prompt, context, cached):
    some = least_gpus(H100, input_rate, output_rate, prompt, context, cached)
    more = least_gpus(H100, 2 * input_rate, 2 * output_rate, prompt, context, cached)
    assert some.gpus <= more.gpus <= 2 * some.gpus
    assert some.decode_gpus <= some.kv_memory_gpus * (1 + 1e-9)
    assert some.gpus - 1 < max(1, some.prefill_gpus, some.kv_memory_gpus) <= some.gpus
