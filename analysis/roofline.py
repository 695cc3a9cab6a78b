"""What a forward pass costs on one replica: a roofline.

A pass takes as long as the slower of two things: its arithmetic, or moving its bytes through memory (Williams, Waterman
and Patterson, "Roofline", CACM 52(4), 2009). Prefill is bound by arithmetic, decode by bytes; a pass that mixes the two
adds both sums up before comparing. Launch overheads and sampling are left out: the result is a floor.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

Bound = Literal["compute", "memory"]
Arithmetic = Literal["bf16", "fp8"]

COMPUTE_EFFICIENCY = 0.55
"""Share of the peak arithmetic that large matrix products reach while serving (model FLOPs utilisation)."""

BANDWIDTH_EFFICIENCY = 0.8
"""Share of the peak memory bandwidth that decode kernels reach; the links between GPUs are taken to reach it too."""

MEMORY_SHARE = 0.9
"""Share of the GPU's memory that an engine takes for weights and KV cache; the rest is for activations."""

ALL_REDUCE_S = 10e-6
"""What an all-reduce takes however little it carries: a launch and a barrier between GPUs of one node."""

ACTIVATION_BYTES = 2
"""Activations travel in 16 bits whatever the weights are stored in."""

WEIGHT_DTYPES: dict[str, tuple[float, Arithmetic]] = {
    "bf16": (2, "bf16"),
    "fp8": (1, "fp8"),
    "int8": (1, "bf16"),
    "int4": (0.5 + 2 / 128, "bf16"),  # 4 bits, and a 16-bit scale for each group of 128
}
"""Bytes a weight, and what the products are computed in: int8 and int4 shrink the bytes only, fp8 both."""

KV_DTYPES: dict[str, float] = {"bf16": 2, "fp8": 1}
"""Bytes a cached value."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of one device: dense FLOP/s in bf16 and fp8, bytes/s of memory and of the link to its neighbours (one way),
    bytes; a price in dollars. None is not there, or not known."""

    name: str
    flops: float
    bandwidth: float
    memory_bytes: float
    fp8_flops: float | None = None
    link_bandwidth: float | None = None
    price_per_hour: float | None = None

    def peak_flops(self, arithmetic: Arithmetic) -> float:
        """A device without fp8 units computes in bf16 whatever the weights are stored in."""
        return self.fp8_flops or self.flops if arithmetic == "fp8" else self.flops


@dataclass(frozen=True)
class Model:
    """Shape of a decoder-only transformer.

    Grouped-query attention caches a key and a value of `head_dim` for each of `kv_heads`. Multi-head latent attention
    (DeepSeek-V2, arXiv 2405.04434) is told by `kv_lora_rank`: it caches one vector of that rank and one rotary key.
    `expert_params` is the part of `params` in routed experts, of which a token goes through `experts_per_token` of
    `experts` in each layer. `embedding_params` (embedding and output head) stay in 16 bits when others are quantized.
    """

    name: str
    params: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    dtype_bytes: float = 2
    kv_dtype_bytes: float = 2
    arithmetic: Arithmetic = "bf16"
    embedding_params: float = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_params: float = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    def __post_init__(self) -> None:
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"{self.name}: experts_per_token {self.experts_per_token}: there are {self.experts} experts"
            )

    def stored_as(self, dtype: str | None = None, kv_dtype: str | None = None) -> "Model":
        """The same model with its weights or its cache in another format; None leaves them as they are."""
        model = self
        if dtype is not None:
            dtype_bytes, arithmetic = WEIGHT_DTYPES[dtype]
            model = replace(model, dtype_bytes=dtype_bytes, arithmetic=arithmetic)
        return model if kv_dtype is None else replace(model, kv_dtype_bytes=KV_DTYPES[kv_dtype])

    @cached_property
    def active_params(self) -> float:
        """Weights that a token is multiplied with: all but the routed experts that it does not go through."""
        return self.params - self.expert_params * self._idle_share(1)

    @cached_property
    def weight_bytes(self) -> float:
        return (self.params - self.embedding_params) * self.dtype_bytes + self.embedding_params * 2

    def read_bytes(self, tokens: float) -> float:
        """Bytes of weights that a pass over `tokens` reads: all, but for the experts that none of them goes through.

        With routing even and independent, an expert is touched with probability 1 - (1 - k/E)^tokens.
        """
        if not self.experts:
            return self.weight_bytes
        return self.weight_bytes - self.expert_params * self.dtype_bytes * self._idle_share(tokens)

    def _idle_share(self, tokens: float) -> float:
        return float((1 - self.experts_per_token / self.experts) ** tokens) if self.experts else 0.0

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """A key and a value in every layer, or the latent vector and the rotary key."""
        values = self.kv_lora_rank + self.qk_rope_head_dim if self.kv_lora_rank else 2 * self.kv_heads * self.head_dim
        return self.layers * values * self.kv_dtype_bytes

    @cached_property
    def flops_per_attended(self) -> float:
        """One query against one key and its value, all heads and layers: two products, two FLOPs a weight each."""
        return 2 * self.layers * self.heads * (self.head_dim + (self.v_head_dim or self.head_dim))

    @cached_property
    def decode_flops_per_attended(self) -> float:
        """The same for a token being decoded: latent attention then works on the cached vectors as they are."""
        if not self.kv_lora_rank:
            return self.flops_per_attended
        return 2 * self.layers * self.heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)


class Work(NamedTuple):
    """What one forward pass computes and moves, over all GPUs of a replica, and how many tokens are in it."""

    flops: float
    bytes: float
    tokens: int = 0

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Roofline:
    """A model on one replica of `tp` GPUs, with the shares of the peaks that are reached in practice.

    Tensor parallelism splits weights, heads and arithmetic evenly; see `communication_s` for its price. Raises
    ValueError with a one-line message for a degree that cannot be.
    """

    gpu: Gpu
    model: Model
    compute_efficiency: float = COMPUTE_EFFICIENCY
    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY
    tp: int = 1

    def __post_init__(self) -> None:
        if self.tp < 1 or self.model.heads % self.tp:
            raise ValueError(f"tp {self.tp}: {self.model.name} has {self.model.heads} heads; choose a divisor of that")
        if self.tp > 1 and self.gpu.link_bandwidth is None:
            raise ValueError(f"tp {self.tp}: {self.gpu.name} has no link_bandwidth in the catalog; add it, or use tp 1")
        for name in ("compute_efficiency", "bandwidth_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected a share above 0 and up to 1")

    def work(self, prefills: Iterable[tuple[int, int]], decodes: int = 0, decode_context_tokens: int = 0) -> Work:
        """Cost of one pass over a batch.

        `prefills` are pairs (n, c): n prompt tokens computed behind c that are in the cache already. `decodes`
        sequences get one token each; `decode_context_tokens` is the sum of what they attend to, themselves included.

        FLOPs: 2 per active weight and token (Kaplan et al. 2020, table 1, forward pass) plus causal attention, in which
        the i-th of n new tokens attends to c + i. Bytes: the weights once (of the experts, those touched), and the KV
        cache of every sequence once.
        """
        model = self.model
        tokens, attended, cached = decodes, 0, decode_context_tokens
        for n, context in prefills:
            tokens += n
            attended += n * context + n * (n + 1) // 2
            cached += context + n
        flops = 2 * model.active_params * tokens + model.flops_per_attended * attended
        flops += model.decode_flops_per_attended * decode_context_tokens
        weight_bytes = model.read_bytes(tokens) if model.experts else model.weight_bytes
        return Work(flops, weight_bytes + self.kv_bytes_per_token * cached, tokens)

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """Over all GPUs: beyond one KV head each they hold copies; of a latent vector each holds the whole."""
        copies = self.tp if self.model.kv_lora_rank else max(1.0, self.tp / self.model.kv_heads)
        return self.model.kv_bytes_per_token * copies

    @cached_property
    def peak_flops(self) -> float:
        return self.tp * self.gpu.peak_flops(self.model.arithmetic)

    @cached_property
    def peak_bandwidth(self) -> float:
        return self.tp * self.gpu.bandwidth

    @cached_property
    def reached_flops(self) -> float:
        return self.peak_flops * self.compute_efficiency

    @cached_property
    def reached_bandwidth(self) -> float:
        return self.peak_bandwidth * self.bandwidth_efficiency

    @property
    def ridge_flops_per_byte(self) -> float:
        """Intensity at which arithmetic and memory, both at their peaks, take equally long."""
        return self.peak_flops / self.peak_bandwidth

    def compute_s(self, work: Work) -> float:
        return work.flops / self.reached_flops

    def memory_s(self, work: Work) -> float:
        return work.bytes / self.reached_bandwidth

    def communication_s(self, work: Work) -> float:
        """Two all-reduces of the hidden state a layer (Megatron-LM, arXiv 1909.08053), as rings; nothing overlaps."""
        if self.tp == 1:
            return 0.0
        sent_bytes = 2 * (self.tp - 1) / self.tp * work.tokens * self.model.hidden * ACTIVATION_BYTES
        link = (self.gpu.link_bandwidth or 0) * self.bandwidth_efficiency
        return 2 * self.model.layers * (ALL_REDUCE_S + sent_bytes / link)

    def seconds(self, work: Work) -> float:
        return max(self.compute_s(work), self.memory_s(work)) + self.communication_s(work)

    def bound(self, work: Work) -> Bound:
        return "compute" if self.compute_s(work) > self.memory_s(work) else "memory"

    def kv_capacity_tokens(self) -> int:
        """Tokens whose keys and values fit beside the weights.

        Raises ValueError with a one-line message where the weights alone do not fit.
        """
        memory_bytes = self.gpu.memory_bytes * self.tp
        spare = memory_bytes * MEMORY_SHARE - self.model.weight_bytes
        if spare < self.kv_bytes_per_token:
            gpus = f"one {self.gpu.name}" if self.tp == 1 else f"{self.tp} x {self.gpu.name}"
            raise ValueError(
                f"{self.model.name} does not fit on {gpus}: its weights take {self.model.weight_bytes / 1e9:.0f} GB of "
                f"{memory_bytes / 1e9:.0f} GB; choose a smaller model, a smaller dtype, a larger GPU or more of them"
            )
        return int(spare // self.kv_bytes_per_token)
