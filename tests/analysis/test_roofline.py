from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.roofline import ALL_REDUCE_S, Gpu, Model, Roofline
from loadgen.sim import catalog

H100 = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))

# 10 weights of 1 byte, 2 KV bytes a token (1 layer, 1 head of 0.5 dimensions has no meaning; 1 and 1-byte keys do),
# 4 FLOPs a query and key. Peaks of 100 FLOP/s and 10 byte/s, reached in full.
TOY_MODEL = Model("toy", 10, 1, 1, 1, 1, 1, 100, dtype_bytes=1, kv_dtype_bytes=1)
TOY = Roofline(Gpu("toy", 100, 10, 100), TOY_MODEL, compute_efficiency=1, bandwidth_efficiency=1)

# 4 heads over 2 KV heads of 1 dimension, 3 layers, hidden size 8; a link of 40 byte/s.
WIDE_MODEL = Model("wide", 100, 3, 8, 4, 2, 1, 100)
LINKED = Gpu("linked", 100, 10, 1000, fp8_flops=200, link_bandwidth=40)


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
    assert work.tokens == sum(n for n, _ in prefills) + decodes
    assert TOY.seconds(work) == pytest.approx(seconds)


def test_the_ridge_of_an_h100():
    assert H100.ridge_flops_per_byte == pytest.approx(295, abs=0.5)


def test_a_matrix_does_one_flop_a_byte_for_each_token():
    # 4096 x 4096 weights of 2 bytes and nothing else: no layers, so no attention and no cache.
    matrix = Model("matrix", 4096 * 4096, 0, 4096, 1, 1, 1, 1)
    assert matrix.weight_bytes == 32 * 2**20
    for tokens in (1, 50, 4000):
        assert Roofline(H100.gpu, matrix).work([(tokens, 0)]).flops_per_byte == tokens


def test_four_thousand_prompt_tokens_take_about_120_ms_and_are_bound_by_arithmetic():
    work = H100.work([(4000, 0)])
    assert 2 * H100.model.params * 4000 == pytest.approx(6.4e13, rel=0.005)
    assert work.flops == pytest.approx(6.4242e13 + 4 * 32 * 4096 * 4000 * 4001 / 2, rel=1e-4)
    assert H100.seconds(work) == pytest.approx(0.120, rel=0.05)
    assert H100.model.weight_bytes / H100.gpu.bandwidth == pytest.approx(0.005, rel=0.05)
    assert H100.bound(work) == "compute"


def test_one_decode_step_is_the_reading_of_the_weights():
    work = H100.work([], 1, 100)
    assert H100.gpu.bandwidth * 0.005 == pytest.approx(work.bytes, rel=0.05)  # about 5 ms at full bandwidth
    assert H100.seconds(work) == pytest.approx(16.06e9 / (3.35e12 * 0.8), rel=0.001)
    assert H100.bound(work) == "memory"


def test_eight_short_decodes_cost_hardly_more_than_one():
    one, eight = H100.seconds(H100.work([], 1, 200)), H100.seconds(H100.work([], 8, 1600))
    assert one < eight < 1.05 * one


def test_long_contexts_add_their_cache():
    short, long = H100.work([], 8, 1600), H100.work([], 8, 8 * 16_000)
    assert long.bytes - short.bytes == (8 * 16_000 - 1600) * 131_072
    assert H100.seconds(long) > 1.9 * H100.seconds(short)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_prompt_in_two_chunks_needs_the_same_arithmetic_as_in_one(first, second):
    whole = TOY.work([(first + second, 0)]).flops
    assert TOY.work([(first, 0)]).flops + TOY.work([(second, first)]).flops == whole


# --- experts ----------------------------------------------------------------------------------------------------------

# 2 weights that all tokens share and 4 experts of 2 weights, one of which a token goes through.
MOE = Model("moe", 10, 1, 1, 1, 1, 1, 100, dtype_bytes=1, experts=4, experts_per_token=1, expert_params=8)


@pytest.mark.parametrize(
    ("tokens", "read"),
    # An expert is left out by one token with 3/4, by two with 9/16; so 1/4 and 7/16 of the 8 bytes are read.
    [(1, 2 + 2), (2, 2 + 3.5), (1000, 10)],
)
def test_a_pass_reads_the_experts_that_its_tokens_go_through(tokens, read):
    assert MOE.read_bytes(tokens) == pytest.approx(read)
    assert MOE.active_params == 4
    assert Roofline(TOY.gpu, MOE).work([], tokens, 0).flops == 2 * 4 * tokens


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek-v3", 37), ("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.3), ("qwen3-235b-a22b", 22)]
)
def test_active_parameters_are_those_that_are_published(name, billions):
    assert catalog.model(name).active_params / 1e9 == pytest.approx(billions, rel=0.02)


def test_more_experts_a_token_than_there_are_is_one_line():
    with pytest.raises(ValueError, match=r"^moe: experts_per_token 5: there are 4 experts$"):
        replace(MOE, experts_per_token=5)


# --- caches and formats -----------------------------------------------------------------------------------------------


def test_latent_attention_caches_one_vector_and_works_on_it_in_decode():
    model = catalog.model("deepseek-v3")
    assert (
        model.kv_bytes_per_token == 61 * (512 + 64) * 2
    )  # 70 KB, as the paper has it, where 128 heads would take 4 MB
    assert model.flops_per_attended == 2 * 61 * 128 * (192 + 128)
    assert model.decode_flops_per_attended == 2 * 61 * 128 * (576 + 512)


@pytest.mark.parametrize(
    ("dtype", "gigabytes", "peak"),
    [
        ("bf16", 16.06, 989e12),
        ("fp8", 2.10 + 6.98, 1979e12),  # embedding and head, 1.05 billion weights, stay in 16 bits
        ("int8", 2.10 + 6.98, 989e12),
        ("int4", 2.10 + 6.98 * (4 + 16 / 128) / 8, 989e12),
    ],
)
def test_quantized_weights_are_fewer_bytes_and_fp8_computes_faster_too(dtype, gigabytes, peak):
    roofline = Roofline(H100.gpu, H100.model.stored_as(dtype))
    assert roofline.model.weight_bytes / 1e9 == pytest.approx(gigabytes, abs=0.01)
    assert roofline.peak_flops == peak
    assert roofline.work([(9, 0)]).flops == H100.work([(9, 0)]).flops


def test_a_cache_in_fp8_is_half_the_bytes():
    assert H100.model.stored_as(kv_dtype="fp8").kv_bytes_per_token == 65_536


def test_a_gpu_without_fp8_computes_in_bf16():
    assert Roofline(catalog.gpu("a100"), H100.model.stored_as("fp8")).peak_flops == 312e12


# --- several GPUs -----------------------------------------------------------------------------------------------------


def test_tensor_parallelism_shares_the_work_and_pays_for_links():
    one, two = (Roofline(LINKED, WIDE_MODEL, 1, 0.5, tp) for tp in (1, 2))
    work = one.work([(10, 0)])
    assert two.work([(10, 0)]) == work
    assert two.compute_s(work) == one.compute_s(work) / 2
    assert two.memory_s(work) == one.memory_s(work) / 2
    # 6 all-reduces of 10 tokens x 8 values x 2 bytes; a ring of two sends each byte once, at half of 40 byte/s: 8 s.
    assert two.communication_s(work) == pytest.approx(6 * (ALL_REDUCE_S + 160 / 20))
    assert two.seconds(work) == two.memory_s(work) + two.communication_s(work)
    assert one.communication_s(work) == 0


def test_gpus_beyond_the_kv_heads_hold_copies():
    per_token = WIDE_MODEL.kv_bytes_per_token
    assert [Roofline(LINKED, WIDE_MODEL, tp=tp).kv_bytes_per_token / per_token for tp in (1, 2, 4)] == [1, 1, 2]
    latent = replace(WIDE_MODEL, kv_lora_rank=4, qk_rope_head_dim=1)
    assert Roofline(LINKED, latent, tp=2).kv_bytes_per_token == 2 * latent.kv_bytes_per_token


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 3}, r"^tp 3: wide has 4 heads; choose a divisor of that$"),
        ({"tp": 0}, r"^tp 0: "),
        ({"tp": 2, "gpu": TOY.gpu}, r"^tp 2: toy has no link_bandwidth in the catalog; add it, or use tp 1$"),
        ({"compute_efficiency": 1.1}, r"^compute_efficiency 1.1: expected a share above 0 and up to 1$"),
        ({"bandwidth_efficiency": 0}, r"^bandwidth_efficiency 0: expected"),
        ({"compute_efficiency": float("nan")}, r"^compute_efficiency nan: expected"),
    ],
)
def test_what_cannot_be_is_one_line(change, message):
    with pytest.raises(ValueError, match=message):
        replace(Roofline(LINKED, WIDE_MODEL), **change)


def test_kv_capacity_is_what_the_weights_leave_of_nine_tenths():
    assert TOY.kv_capacity_tokens() == (90 - 10) // 2
    assert H100.model.kv_bytes_per_token == 131_072
    # 1,800 bytes of two GPUs less 200 of weights, 24 a token.
    assert Roofline(LINKED, replace(WIDE_MODEL, layers=6), tp=2).kv_capacity_tokens() == 1600 // (2 * 6 * 2 * 2)


@pytest.mark.parametrize(("gpu", "tp", "where"), [("l4", 1, "one l4"), ("l4", 2, "2 x l4")])
def test_a_model_that_does_not_fit_is_one_line(gpu, tp, where):
    roofline = Roofline(catalog.gpu(gpu), catalog.model("qwen2.5-32b"), tp=tp)
    with pytest.raises(
        ValueError, match=rf"^qwen2.5-32b does not fit on {where}: its weights take 66 GB of \d\d GB; .*$"
    ):
        roofline.kv_capacity_tokens()


any_model = st.builds(
    Model,
    name=st.just("any"),
    params=st.integers(10**6, 10**9),
    layers=st.integers(1, 8),
    hidden=st.just(64),
    heads=st.just(8),
    kv_heads=st.sampled_from([1, 2, 8]),
    head_dim=st.just(16),
    context_tokens=st.just(1000),
    experts=st.just(16),
    experts_per_token=st.integers(1, 16),
    expert_params=st.integers(0, 10**6),
    kv_lora_rank=st.sampled_from([0, 32]),
)


@settings(deadline=None)
@given(any_model, st.sampled_from([1, 2, 4]), st.integers(1, 500), st.integers(0, 500))
def test_more_tokens_never_take_less(model, tp, n, context):
    roofline = Roofline(replace(LINKED, memory_bytes=1e12), model, tp=tp)
    work, more = roofline.work([(n, context)], 1, context), roofline.work([(n + 1, context)], 2, 2 * context)
    assert work.flops < more.flops
    assert work.bytes < more.bytes
    assert roofline.seconds(work) < roofline.seconds(more)
    assert work.bytes <= model.weight_bytes + roofline.kv_bytes_per_token * (n + 2 * context)
