"""How many GPUs a stream of traffic needs at the very least."""

import math
from dataclasses import dataclass
from typing import Literal

from analysis.roofline import Roofline

Decider = Literal["prefill", "decode", "kv_memory"]


@dataclass(frozen=True, slots=True)
class LeastGpus:
    """A lower bound: `gpus` as whole replicas of `gpus_per_replica`, and what decides it.

    The three parts are GPUs, in fractions, that each would need alone: the arithmetic of prefill; decode steps in
    batches without an end; decode steps in batches of `batch` sequences, the most that the KV memory holds. `decides`
    is `kv_memory` where more memory, and so larger batches, would save a replica.
    """

    gpus: int
    decides: Decider
    gpus_per_replica: int
    batch: int
    prefill_gpus: float
    decode_gpus: float
    kv_memory_gpus: float


def least_gpus(
    roofline: Roofline,
    input_tokens_per_s: float,
    output_tokens_per_s: float,
    mean_prompt_tokens: float,
    mean_context_tokens: float,
    cached_share: float = 0.0,
) -> LeastGpus:
    """The least number of GPUs of such replicas that can carry the traffic.

    `mean_context_tokens` is what a sequence holds in the cache in the middle of its answer, `cached_share` the part of
    the prompt tokens that the prefix cache has. A lower bound, since it takes for granted that load is spread evenly in
    time and over replicas, that prefill's arithmetic and decode's reads of memory hide behind each other, that prompts
    share passes so widely that reading the weights costs them nothing, that links cost nothing, and that no SLO has to
    be met. Raises ValueError (one line) where not one sequence fits into the memory.
    """
    capacity = roofline.kv_capacity_tokens()
    batch = int(capacity // max(1.0, mean_context_tokens))
    if not batch:
        raise ValueError(
            f"a context of {mean_context_tokens:,.0f} tokens does not fit into the memory of {roofline.tp} x "
            f"{roofline.gpu.name}, which holds {capacity:,} tokens beside the weights of {roofline.model.name}"
        )
    prefill = _prefill_share(roofline, input_tokens_per_s, mean_prompt_tokens, cached_share)
    endless, full = (_decode_share(roofline, output_tokens_per_s, n, mean_context_tokens) for n in (10**9, batch))
    replicas = max(1, math.ceil(max(prefill, full)))
    tp = roofline.tp
    return LeastGpus(
        replicas * tp, _decider(prefill, endless, full, replicas), tp, batch, prefill * tp, endless * tp, full * tp
    )


def _decider(prefill: float, endless: float, full: float, replicas: int) -> Decider:
    if prefill >= full:
        return "prefill"
    return "decode" if math.ceil(max(prefill, endless)) >= replicas else "kv_memory"


def _prefill_share(roofline: Roofline, tokens_per_s: float, prompt_tokens: float, cached_share: float) -> float:
    """Replicas kept busy by the arithmetic of prompts."""
    if not tokens_per_s:
        return 0.0
    cached = round(prompt_tokens * cached_share)
    computed = max(1, round(prompt_tokens) - cached)
    work = roofline.work([(computed, cached)])
    return tokens_per_s / prompt_tokens * roofline.compute_s(work)


def _decode_share(roofline: Roofline, tokens_per_s: float, batch: int, context_tokens: float) -> float:
    """Replicas kept busy by decode steps of `batch` sequences."""
    step = roofline.work((), batch, round(batch * context_tokens))
    return tokens_per_s * max(roofline.compute_s(step), roofline.memory_s(step)) / batch
