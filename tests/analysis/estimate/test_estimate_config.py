import pytest

from analysis.estimate.config import model_from_config
from loadgen.sim import catalog

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_1B = LLAMA_8B | {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
MISTRAL_24B = {
    "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 131072, "max_position_embeddings": 32768,
}  # fmt: skip
QWEN2_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
QWEN3_30B = QWEN3_8B | {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name", "params"),
    # Numbers of weights as the checkpoints' own indexes add up; DeepSeek-V3 without its multi-token-prediction layer.
    [
        (LLAMA_8B, "llama-3.1-8b", 8_030_261_248),
        (LLAMA_1B, "llama-3.2-1b", 1_235_814_400),
        (MISTRAL_24B, "mistral-small-24b", 23_572_403_200),
        (QWEN2_7B, "qwen2.5-7b", 7_615_616_512),
        (QWEN3_8B, "qwen3-8b", 8_190_735_360),
        (QWEN3_30B, "qwen3-30b-a3b", 30_532_122_624),
        (MIXTRAL, "mixtral-8x7b", 46_702_792_704),
        (DEEPSEEK, "deepseek-v3", 671_026_419_200),
    ],
)
def test_weights_are_counted_from_the_shapes(config, name, params):
    counted, listed = model_from_config(config, name), catalog.model(name)
    assert counted.params == params
    for field in counted.__dataclass_fields__:
        ours, theirs = getattr(counted, field), getattr(listed, field)
        assert ours == (pytest.approx(theirs, rel=1e-5) if isinstance(theirs, float) else theirs), field


def test_layers_that_are_dense_have_no_experts():
    sparse = model_from_config(QWEN3_30B, "m")
    half = model_from_config(QWEN3_30B | {"decoder_sparse_step": 2}, "m")
    but_one = model_from_config(QWEN3_30B | {"mlp_only_layers": [0]}, "m")
    assert half.expert_params == sparse.expert_params / 2
    assert but_one.expert_params == sparse.expert_params * 47 / 48
    assert sparse.params - but_one.params == 128 * 3 * 2048 * 768 + 2048 * 128 - 3 * 2048 * 12288


def test_queries_without_a_low_rank():
    full = model_from_config(DEEPSEEK | {"q_lora_rank": None}, "m")
    assert full.params - model_from_config(DEEPSEEK, "m").params == 61 * (
        7168 * 128 * 192 - 1536 * (7168 + 1 + 128 * 192)
    )


@pytest.mark.parametrize(
    ("quantization", "dtype_bytes", "arithmetic"),
    [
        (None, 2, "bf16"),
        ({"quant_method": "fp8"}, 1, "fp8"),
        ({"quant_method": "awq", "bits": 4}, 0.515625, "bf16"),
        ({"quant_method": "gptq", "bits": 8}, 1, "bf16"),
    ],
)
def test_a_quantized_checkpoint_says_so(quantization, dtype_bytes, arithmetic):
    model = model_from_config(LLAMA_8B | {"quantization_config": quantization}, "m")
    assert (model.dtype_bytes, model.arithmetic) == (dtype_bytes, arithmetic)


def without(config, key):
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], r"^c\.json: expected a JSON object"),
        ({}, r"^c\.json: model_type None is not one of llama, mistral, .*: put its figures in a catalog file$"),
        ({"model_type": ["llama"]}, r"^c\.json: model_type \['llama'\] is not one of"),
        (LLAMA_8B | {"model_type": "gpt2"}, r"^c\.json: model_type 'gpt2' is not one of"),
        (
            without(LLAMA_8B, "vocab_size"),
            r"^c\.json: vocab_size is missing: is it the config.json of the model itself\?$",
        ),
        (without(MIXTRAL, "num_local_experts"), r"^c\.json: num_local_experts is missing"),
        (without(DEEPSEEK, "kv_lora_rank"), r"^c\.json: kv_lora_rank is missing"),
        (
            LLAMA_8B | {"hidden_size": "4096"},
            r"^c\.json: hidden_size: expected a whole number of at least 1, got '4096'$",
        ),
        (
            LLAMA_8B | {"num_hidden_layers": 0},
            r"^c\.json: num_hidden_layers: expected a whole number of at least 1, got 0$",
        ),
        (LLAMA_8B | {"hidden_size": True}, r"^c\.json: hidden_size: expected a whole number"),
        (MIXTRAL | {"num_experts_per_tok": 9}, r"experts_per_token 9: there are 8 experts$"),
        (
            LLAMA_8B | {"quantization_config": {"quant_method": "mxfp4"}},
            r"^c\.json: quantization_config: 'mxfp4' is not",
        ),
        (LLAMA_8B | {"quantization_config": "fp8"}, r"^c\.json: quantization_config: "),
        (QWEN3_30B | {"mlp_only_layers": 3}, r"^c\.json: mlp_only_layers: "),
        (LLAMA_8B | {"num_attention_heads": 5000}, r"^c\.json: head_dim: expected"),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(config, message):
    with pytest.raises(ValueError, match=message):
        model_from_config(config, "m", "c.json")
