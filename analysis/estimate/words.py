"""An estimate in plain words: which phase the request stresses, why, and what to buy or tune for it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from analysis.estimate.numbers import Estimate
from analysis.estimate.units import amount, count, duration, number, share

CHUNK_TOKENS = 2048
"""A common token budget of chunked prefill."""

LINKS_SHARE = 0.2
"""From here on the links between GPUs are worth a word."""

NODE_GPUS = 8
"""More are not linked as closely as the catalog says."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change, and what the request would take with it."""

    change: str
    estimate: Estimate


def what_ifs(estimate: Estimate) -> list[WhatIf]:
    """The same request with one thing changed at a time; changes that cannot be made are left out."""
    roofline, ask = estimate.roofline, estimate.ask
    gpu, model = roofline.gpu, roofline.model
    twice_flops = replace(gpu, flops=2 * gpu.flops, fp8_flops=gpu.fp8_flops and 2 * gpu.fp8_flops)
    changed = [
        ("twice the FLOP/s", replace(roofline, gpu=twice_flops), ask),
        ("twice the memory bandwidth", replace(roofline, gpu=replace(gpu, bandwidth=2 * gpu.bandwidth)), ask),
    ]
    if gpu.link_bandwidth and roofline.tp < NODE_GPUS and not model.heads % (2 * roofline.tp):
        changed.append((f"{2 * roofline.tp} GPUs, tensor-parallel", replace(roofline, tp=2 * roofline.tp), ask))
    if model.dtype_bytes > 1:
        changed.append(("weights in fp8", replace(roofline, model=model.stored_as("fp8")), ask))
    if ask.cached_tokens < ask.prompt_tokens // 2:
        half = replace(ask, cached_tokens=ask.prompt_tokens // 2)
        changed.append(("half of the prompt in the prefix cache", roofline, half))
    return [WhatIf(name, Estimate(other, request)) for name, other, request in changed]


def explain(estimate: Estimate) -> list[str]:
    """Paragraphs, without line breaks."""
    return [
        _time(estimate),
        _prefill(estimate),
        *_decode(estimate),
        *_links(estimate),
        _advice(estimate),
        *_money(estimate),
        _others(estimate),
    ]


def stressed(estimate: Estimate) -> str:
    """The phase that takes at least two thirds of the time, or both."""
    decoding = estimate.decode_share_of_time
    return "decode" if decoding >= 2 / 3 else "prefill" if decoding <= 1 / 3 else "both phases"


def crossover_tokens(estimate: Estimate) -> int:
    """Prompt length at which the arithmetic takes as long as reading the weights; shorter prompts take no less time.

    Attention and the cache, both small at that length, are left out.
    """
    roofline = estimate.roofline
    read_s = roofline.model.weight_bytes / roofline.reached_bandwidth
    token_s = 2 * roofline.model.active_params / roofline.reached_flops
    return round(read_s / token_s)


def _time(estimate: Estimate) -> str:
    decoding = estimate.decode_share_of_time
    return (
        f"This request stresses {stressed(estimate)}: of {duration(estimate.e2e_s)}, {share(1 - decoding)} is prefill "
        f"and {share(decoding)} is decode."
    )


def _prefill(estimate: Estimate) -> str:
    prefill, ridge = estimate.prefill, estimate.roofline.ridge_flops_per_byte
    facts = f"{number(prefill.work.flops_per_byte)} FLOP/byte against a ridge of {number(ridge)}"
    if prefill.bound == "memory":
        return (
            f"Prefill is bound by memory ({facts}): the prompt is so short that reading the weights takes longer than "
            f"computing with them. Any prompt of up to about {crossover_tokens(estimate):,} tokens takes as long."
        )
    text = f"Prefill is bound by compute ({facts}): all prompt tokens share one read of the weights."
    attention = estimate.attention_share_of(prefill.work)
    if attention >= 0.1:
        text += f" {share(attention)} of it is attention, which grows with the square of the prompt."
    return text


def _decode(estimate: Estimate) -> Iterator[str]:
    decode, roofline = estimate.decode, estimate.roofline
    if decode is None:
        return
    weights = roofline.model.read_bytes(decode.work.tokens)
    if decode.bound == "memory":
        yield (
            f"Decode is bound by memory: each step reads {amount(weights, 'B')} of weights and "
            f"{amount(decode.work.bytes - weights, 'B')} of KV cache for {count(decode.work.tokens, 'new token')}, and "
            f"the arithmetic units mostly wait ({share(decode.compute_utilisation)} of their peak)."
        )
    else:
        yield "Decode is bound by compute: the batch is so large that the weights, read once, serve enough tokens."


def _links(estimate: Estimate) -> Iterator[str]:
    passes = {"a prefill": estimate.prefill, "a decode step": estimate.decode}
    shares = {name: one.communication_s / one.seconds for name, one in passes.items() if one}
    if max(shares.values()) >= LINKS_SHARE:
        said = " and ".join(f"{share(value)} of {name}" for name, value in shares.items())
        yield f"The links between the GPUs take {said}, unless the engine overlaps them with arithmetic."


def _advice(estimate: Estimate) -> str:
    compute = "FLOP/s (a GPU with a higher peak, fp8 arithmetic, more GPUs in tensor parallel)"
    bandwidth = "memory bandwidth (a GPU with faster memory, more GPUs in tensor parallel)"
    if stressed(estimate) == "prefill" and estimate.prefill.bound == "memory":
        return f"Buy {bandwidth}. Tune: put several such prompts into one pass, they take hardly longer than one."
    return {
        "prefill": f"Buy {compute}. Tune: reuse of common prefixes, shorter prompts, chunked prefill or a pool of its "
        "own for long prompts.",
        "decode": f"Buy {bandwidth}. Tune: fewer bytes a step (weights in fp8 or int4, cache in fp8), speculative "
        "decoding, shorter answers; a larger batch makes tokens cheaper, not faster.",
        "both phases": f"Buy {compute} for the first token and {bandwidth} for the others; two pools, one for each "
        "phase, let you buy them apart.",
    }[stressed(estimate)]


def _money(estimate: Estimate) -> Iterator[str]:
    cost = estimate.cost
    if cost is None or cost.output_usd_per_million is None:
        return
    ratio = cost.output_usd_per_million / cost.input_usd_per_million
    text = f"Of the money, {share(cost.input_usd / (cost.input_usd + cost.output_usd))} goes into the input. "
    text += f"An output token costs {number(ratio)} times as much as an input token at this batch"
    if cost.output_usd_per_million_full is not None and estimate.fitting > estimate.ask.batch:
        full = number(cost.output_usd_per_million_full / cost.input_usd_per_million)
        text += f", and {full} times with the {estimate.fitting:,} requests that fit"
    yield text + "."


def _others(estimate: Estimate) -> str:
    roofline, ask = estimate.roofline, estimate.ask
    computed = ask.prompt_tokens - ask.cached_tokens
    what = "this prompt is" if ask.batch == 1 else "these prompts are"
    text = f"While {what} computed, {duration(estimate.ttft_s)}, other streams on the same GPU get one token at most"
    if computed <= CHUNK_TOKENS:
        return text + "."
    last = roofline.seconds(roofline.work([(CHUNK_TOKENS, ask.prompt_tokens - CHUNK_TOKENS)]))
    return text + f"; chunks of {CHUNK_TOKENS:,} tokens bound that to {duration(last)}."
