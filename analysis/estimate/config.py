"""A model's shape from the `config.json` of a Hugging Face checkpoint: weights counted from the matrices it tells of.

Covers decoders of the Llama family (grouped-query attention, gated MLP), mixtures of experts made of the same parts,
and DeepSeek's latent attention. Norms and biases are counted; multi-token-prediction heads are not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from analysis.roofline import Model

DENSE = ("llama", "mistral", "qwen2", "qwen3")
MIXTURES = ("mixtral", "qwen3_moe")
LATENT = ("deepseek_v2", "deepseek_v3")

MOST = 10**8
"""No count in a config is as large: such a number is a slip, and would only overflow."""

Part = TypeVar("Part", list[Any], dict[str, Any])


@dataclass(frozen=True, slots=True)
class _Config:
    """The values of a config file, with one-line errors for those that are missing or no numbers."""

    name: str
    values: Mapping[str, Any]

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"{self.name}: {key} is missing: is it the config.json of the model itself?")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
            raise ValueError(f"{self.name}: {key}: expected a whole number of at least {least}, got {value!r}")
        return value

    def flag(self, key: str) -> bool:
        return bool(self.values.get(key))

    def part(self, key: str, kind: type[Part]) -> Part:
        """A list or an object; an empty one where there is none."""
        value = self.values.get(key) or kind()
        if not isinstance(value, kind):
            raise ValueError(f"{self.name}: {key}: expected {'a list' if kind is list else 'an object'}, got {value!r}")
        return value


def model_from_config(values: object, model_name: str, where: str = "config.json") -> Model:
    """The model that a config describes; stored in bf16 unless it says that it is quantized.

    `where` begins every error. Raises ValueError with a one-line message that names what is missing or not understood.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: expected a JSON object, the config.json of a Hugging Face model")
    config, kind = _Config(where, values), values.get("model_type")
    if kind not in DENSE + MIXTURES + LATENT:
        known = ", ".join(DENSE + MIXTURES + LATENT)
        raise ValueError(f"{where}: model_type {kind!r} is not one of {known}: put its figures in a catalog file")
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    layers, embedding = config.count("num_hidden_layers"), _embedding_params(config)
    experts, expert_params, mlp_params = _mlp(config, str(kind), hidden, layers)
    attend = _latent(config, hidden, heads) if kind in LATENT else _grouped(config, str(kind), hidden, heads)
    attention_params, attention_shape = attend
    norms = layers * 2 * hidden + hidden
    model = Model(
        name=model_name,
        params=embedding + layers * attention_params + mlp_params + norms,
        layers=layers,
        hidden=hidden,
        heads=heads,
        context_tokens=config.count("max_position_embeddings"),
        embedding_params=embedding,
        experts=experts,
        experts_per_token=config.count("num_experts_per_tok") if experts else 0,
        expert_params=expert_params,
        **attention_shape,
    )
    return model.stored_as(_dtype(config))


def _embedding_params(config: _Config) -> int:
    tables = 1 if config.flag("tie_word_embeddings") else 2
    return tables * config.count("vocab_size") * config.count("hidden_size")


def _grouped(config: _Config, kind: str, hidden: int, heads: int) -> tuple[int, dict[str, Any]]:
    """Weights of one layer's grouped-query attention, and the shape of it."""
    kv_heads = config.count("num_key_value_heads", heads)
    head_dim = config.count("head_dim", hidden // heads)
    queries, keys = heads * head_dim, kv_heads * head_dim
    params = 2 * hidden * queries + 2 * hidden * keys
    if kind == "qwen2" or config.flag("attention_bias"):
        params += queries + 2 * keys
    if kind.startswith("qwen3"):
        params += 2 * head_dim  # norms of the queries and the keys
    return params, {"kv_heads": kv_heads, "head_dim": head_dim}


def _latent(config: _Config, hidden: int, heads: int) -> tuple[int, dict[str, Any]]:
    """Weights of one layer's multi-head latent attention (arXiv 2405.04434, section 2.1), and the shape of it."""
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim")
    value, rank = config.count("v_head_dim"), config.count("kv_lora_rank")
    query_rank = config.count("q_lora_rank", 0, least=0)
    queries = heads * (nope + rope)
    params = query_rank * (hidden + 1 + queries) if query_rank else hidden * queries
    params += hidden * (rank + rope) + rank + rank * heads * (nope + value) + heads * value * hidden
    shape: dict[str, Any] = {"kv_heads": heads, "head_dim": nope + rope, "v_head_dim": value, "kv_lora_rank": rank}
    return params, shape | {"qk_rope_head_dim": rope}


def _mlp(config: _Config, kind: str, hidden: int, layers: int) -> tuple[int, int, int]:
    """Routed experts of a layer, weights in all of them, and weights of all MLPs together, routers included."""
    if kind in DENSE:
        return 0, 0, layers * 3 * hidden * config.count("intermediate_size")
    experts, width, sparse_layers, shared = _experts(config, kind, layers)
    expert_params = sparse_layers * experts * 3 * hidden * width
    other = sparse_layers * (shared * 3 * hidden * width + hidden * experts)
    if kind == "deepseek_v3":
        other += sparse_layers * experts  # the bias that balances the router
    if sparse_layers < layers:
        other += (layers - sparse_layers) * 3 * hidden * config.count("intermediate_size")
    return experts, expert_params, expert_params + other


def _experts(config: _Config, kind: str, layers: int) -> tuple[int, int, int, int]:
    """Routed experts, their width, layers that have them, and experts that every token goes through."""
    if kind == "mixtral":
        return config.count("num_local_experts"), config.count("intermediate_size"), layers, 0
    width = config.count("moe_intermediate_size")
    if kind == "qwen3_moe":
        step, dense = config.count("decoder_sparse_step", 1), config.part("mlp_only_layers", list)
        sparse = sum(1 for layer in range(layers) if (layer + 1) % step == 0 and layer not in dense)
        return config.count("num_experts"), width, sparse, 0
    first, step = config.count("first_k_dense_replace", 0, least=0), config.count("moe_layer_freq", 1)
    sparse = sum(1 for layer in range(first, layers) if layer % step == 0)
    return config.count("n_routed_experts"), width, sparse, config.count("n_shared_experts", 0, least=0)


def _dtype(config: _Config) -> str:
    quantization = config.part("quantization_config", dict)
    if not quantization:
        return "bf16"
    method, bits = quantization.get("quant_method"), quantization.get("bits")
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method in ("awq", "gptq") and bits in (4, 8):
        return f"int{bits}"
    raise ValueError(
        f"{config.name}: quantization_config: {method!r} is not understood; remove the key and give the dtype yourself"
    )
