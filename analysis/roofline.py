"""What a forward pass costs on one GPU: a roofline.

A pass takes as long as the slower of two things: its arithmetic, or moving its bytes through memory (Williams, Waterman
and Patterson, "Roofline", CACM 52(4), 2009). Prefill is bound by arithmetic, decode by bytes; a pass that mixes the two
adds both sums up before comparing. Launch overheads, communication and sampling are left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

COMPUTE_EFFICIENCY = 0.55
"""Share of the peak arithmetic that large matrix products reach while serving (model FLOPs utilisation)."""

BANDWIDTH_EFFICIENCY = 0.8
"""Share of the peak memory bandwidth that decode kernels reach."""

MEMORY_SHARE = 0.9
"""Share of the GPU's memory that an engine takes for weights and KV cache; the rest is for activations."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of one device: dense bf16 FLOP/s, bytes/s, bytes."""

    name: str
    flops: float
    bandwidth: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Model:
    """Shape of a dense decoder-only transformer with grouped-query attention."""

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

    @property
    def weight_bytes(self) -> float:
        return self.params * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """A key and a value in every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_dtype_bytes

    @property
    def flops_per_attended(self) -> float:
        """One query against one key and its value, all heads and layers: two products, two FLOPs a weight each."""
        return 4 * self.layers * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Work:
    """What one forward pass computes and moves."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model on a GPU, with the shares of the peaks that are reached in practice."""

    gpu: Gpu
    model: Model
    compute_efficiency: float = COMPUTE_EFFICIENCY
    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY

    def work(self, prefills: Iterable[tuple[int, int]], decodes: int = 0, decode_context_tokens: int = 0) -> Work:
        """Cost of one pass over a batch.

        `prefills` are pairs (n, c): n prompt tokens computed behind c that are in the cache already. `decodes`
        sequences get one token each; `decode_context_tokens` is the sum of what they attend to, themselves included.

        FLOPs: 2 per weight and token (Kaplan et al. 2020, table 1, forward pass) plus causal attention, in which the
        i-th of n new tokens attends to c + i. Bytes: the weights once, and the KV cache of every sequence once.
        """
        tokens, attended, cached = decodes, decode_context_tokens, decode_context_tokens
        for n, context in prefills:
            tokens += n
            attended += n * context + n * (n + 1) // 2
            cached += context + n
        flops = 2 * self.model.params * tokens + self.model.flops_per_attended * attended
        return Work(flops, self.model.weight_bytes + self.model.kv_bytes_per_token * cached)

    def compute_s(self, work: Work) -> float:
        return work.flops / (self.gpu.flops * self.compute_efficiency)

    def memory_s(self, work: Work) -> float:
        return work.bytes / (self.gpu.bandwidth * self.bandwidth_efficiency)

    def seconds(self, work: Work) -> float:
        return max(self.compute_s(work), self.memory_s(work))

    def bound(self, work: Work) -> Literal["compute", "memory"]:
        return "compute" if self.compute_s(work) > self.memory_s(work) else "memory"

    def kv_capacity_tokens(self) -> int:
        """Tokens whose keys and values fit beside the weights.

        Raises ValueError with a one-line message where the weights alone do not fit.
        """
        spare = self.gpu.memory_bytes * MEMORY_SHARE - self.model.weight_bytes
        if spare < self.model.kv_bytes_per_token:
            weights_gb, memory_gb = self.model.weight_bytes / 1e9, self.gpu.memory_bytes / 1e9
            raise ValueError(
                f"{self.model.name} does not fit on one {self.gpu.name}: its weights take {weights_gb:.0f} GB of "
                f"{memory_gb:.0f} GB; choose a smaller model or a larger GPU"
            )
        return int(spare // self.model.kv_bytes_per_token)
