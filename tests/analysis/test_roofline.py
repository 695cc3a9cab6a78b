import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.roofline import Gpu, Model, Roofline
from loadgen.sim import catalog

H100 = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))

# 10 weights of 1 byte, 2 KV bytes a token (1 layer, 1 head of 0.5 dimensions has no meaning; 1 and 1-byte keys do),
# 4 FLOPs a query and key. Peaks of 100 FLOP/s and 10 byte/s, reached in full.
TOY_MODEL = Model("toy", 10, 1, 1, 1, 1, 1, 100, dtype_bytes=1, kv_dtype_bytes=1)
TOY = Roofline(Gpu("toy", 100, 10, 100), TOY_MODEL, compute_efficiency=1, bandwidth_efficiency=1)


@pytest.mark.parametrize(
    ("prefills", "decodes", "context", "flops", "nbytes", "seconds"),
    [
        # 3 tokens: 2·10·3 = 60; they attend to 1 + 2 + 3 keys: 4·6 = 24. 10 weights, 3 tokens of KV: 16 bytes.
        ([(3, 0)], 0, 0, 84, 16, 1.6),
        # Behind 5 cached tokens they attend to 6 + 7 + 8 = 21 keys: 84; KV of 8 tokens.
        ([(3, 5)], 0, 0, 144, 26, 2.6),
        # Two decodes over 4 and 6 tokens: 2·10·2 + 4·10; weights read once, KV of 10 tokens.
        ([], 2, 10, 80, 30, 3.0),
        # Together: the tokens and the KV add up, the weights do not.
        ([(3, 5)], 2, 10, 224, 46, 4.6),
        # 20 tokens: 400 + 4·210 = 1,240 FLOPs take 12.4 s, 50 bytes 5 s: bound by arithmetic.
        ([(20, 0)], 0, 0, 1240, 50, 12.4),
    ],
)
def test_work_by_hand(prefills, decodes, context, flops, nbytes, seconds):
    work = TOY.work(prefills, decodes, context)
    assert (work.flops, work.bytes) == (flops, nbytes)
    assert TOY.seconds(work) == pytest.approx(seconds)


def test_four_thousand_prompt_tokens_take_about_120_ms_and_are_bound_by_arithmetic():
    work = H100.work([(4000, 0)])
    assert work.flops == pytest.approx(2 * 8.03e9 * 4000 + 4 * 32 * 4096 * 4000 * 4001 / 2)
    assert H100.seconds(work) == pytest.approx(0.120, rel=0.05)
    assert H100.bound(work) == "compute"


def test_one_decode_step_is_the_reading_of_the_weights():
    work = H100.work([], 1, 100)
    assert H100.gpu.bandwidth * 0.005 == pytest.approx(work.bytes, rel=0.05)  # about 5 ms at full bandwidth
    assert H100.seconds(work) == pytest.approx(16.06e9 / (3.35e12 * 0.8), rel=0.001)
    assert H100.bound(work) == "memory"


def test_eight_short_decodes_cost_hardly_more_than_one():
    one, eight = H100.seconds(H100.work([], 1, 200)), H100.seconds(H100.work([], 8, 1600))
    assert one < eight < 1.05 * one


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_prompt_in_two_chunks_needs_the_same_arithmetic_as_in_one(first, second):
    whole = TOY.work([(first + second, 0)]).flops
    assert TOY.work([(first, 0)]).flops + TOY.work([(second, first)]).flops == whole


def test_kv_capacity_is_what_the_weights_leave_of_nine_tenths():
    assert TOY.kv_capacity_tokens() == (90 - 10) // 2
    assert H100.model.kv_bytes_per_token == 131_072


def test_a_model_that_does_not_fit_is_one_line():
    with pytest.raises(ValueError, match=r"^qwen2.5-32b does not fit on one l4: its weights take 66 GB of 24 GB; .*$"):
        Roofline(catalog.gpu("l4"), catalog.model("qwen2.5-32b")).kv_capacity_tokens()


@pytest.mark.parametrize(("read", "kind"), [(catalog.gpu, "gpu"), (catalog.model, "model")])
def test_an_unknown_name_lists_those_there_are(read, kind):
    with pytest.raises(ValueError, match=rf"^unknown {kind} 'nope': choose one of \S+, [^\n]*$"):
        read("nope")


def test_every_catalog_entry_can_be_read_and_names_its_source():
    for name, entry in catalog._catalog()["gpus"].items():
        assert entry["source"]
        assert 1e14 < catalog.gpu(name).flops < 1e16
    for name, entry in catalog._catalog()["models"].items():
        model = catalog.model(name)
        assert entry["source"]
        assert model.heads % model.kv_heads == 0
        # Weights of the layers (attention, gated MLP) lie below all weights: a slip in a digit would show.
        attention = model.hidden * model.head_dim * 2 * (model.heads + model.kv_heads)
        assert model.layers * attention < model.params < model.layers * attention * 12
