"""One request on paper: what its prefill and its decode compute, move, take and cost on a given replica.

All times are floors of the roofline (analysis.roofline): queueing, scheduling, launch overheads, tokenizing and the
network come on top, and real engines share the GPU with others.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis.roofline import ALL_REDUCE_S, MEMORY_SHARE, Bound, Roofline, Work

MOST = 10**9
"""Of tokens and of sequences: beyond it no estimate means anything."""

FLOOR = "TTFT is a floor: queueing, the scheduler and the network come on top"


_LEAST = {
    "prompt_tokens": 1,
    "output_tokens": 1,
    "cached_tokens": 0,
    "batch": 1,
    "others_decoding": 0,
    "others_context_tokens": 0,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, `batch` like it at the same time, and who else is decoding meanwhile.

    `cached_tokens` of the prompt are in the prefix cache. The `others_decoding` attend to `others_context_tokens` each;
    None: to as many as this request in the middle of its answer. Raises ValueError (one line) for what cannot be.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    batch: int = 1
    others_decoding: int = 0
    others_context_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= MOST:
                raise ValueError(f"{name} {value}: expected a number from {least} to {MOST:,}")
        if self.cached_tokens >= self.prompt_tokens:
            raise ValueError(
                f"cached_tokens {self.cached_tokens}: the last prompt token is always computed, so at most "
                f"{self.prompt_tokens - 1} of {self.prompt_tokens} can be cached"
            )

    @property
    def decode_steps(self) -> int:
        """Passes after the prefill, which gives the first token itself."""
        return self.output_tokens - 1

    @property
    def mean_context_tokens(self) -> float:
        """What a decode step attends to, on average: after i steps it is the prompt and i tokens of the answer."""
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def others_context(self) -> int:
        return round(self.mean_context_tokens) if self.others_context_tokens is None else self.others_context_tokens


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass and what it takes; the utilisations are shares of the peaks, over the pass as a whole."""

    work: Work
    seconds: float
    compute_s: float
    memory_s: float
    communication_s: float
    bound: Bound
    compute_utilisation: float
    bandwidth_utilisation: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars at a price per GPU-hour; the output at this batch, and at the largest that fits (None: none does).

    Input and output are two commodities: an input token costs its share of a prefill pass, an output token its share of
    a decode step, which all sequences of the batch divide among themselves.
    """

    price_per_hour: float
    input_usd: float
    output_usd: float
    input_usd_per_million: float
    output_usd_per_million: float | None
    output_usd_per_million_full: float | None


@dataclass(frozen=True)
class Estimate:
    """Every number follows from the replica and the request; None where an answer of one token has no decode."""

    roofline: Roofline
    ask: Ask

    @cached_property
    def prefill(self) -> Pass:
        """All prompts of the batch in one pass, with a token of each of the others."""
        ask = self.ask
        prompts = [(ask.prompt_tokens - ask.cached_tokens, ask.cached_tokens)] * ask.batch
        return self._pass(self.roofline.work(prompts, ask.others_decoding, ask.others_decoding * ask.others_context))

    @cached_property
    def decode(self) -> Pass | None:
        """The step in the middle of the answer: times grow evenly with the context, so it is the mean step as well."""
        return self._step(self.ask.batch, self.ask.others_decoding) if self.ask.decode_steps else None

    def _step(self, batch: int, others: int = 0) -> Pass:
        context = round(batch * self.ask.mean_context_tokens) + others * self.ask.others_context
        return self._pass(self.roofline.work((), batch + others, context))

    def _pass(self, work: Work) -> Pass:
        roofline, seconds = self.roofline, self.roofline.seconds(work)
        return Pass(
            work,
            seconds,
            roofline.compute_s(work),
            roofline.memory_s(work),
            roofline.communication_s(work),
            roofline.bound(work),
            work.flops / roofline.peak_flops / seconds,
            work.bytes / roofline.peak_bandwidth / seconds,
        )

    def attention_share_of(self, work: Work) -> float:
        """Part of a pass's FLOPs in attention; in a prefill it grows with the square of the prompt."""
        return 1 - 2 * self.roofline.model.active_params * work.tokens / work.flops

    @property
    def ttft_s(self) -> float:
        return self.prefill.seconds

    @property
    def itl_s(self) -> float | None:
        return self.decode.seconds if self.decode else None

    @property
    def decode_s(self) -> float:
        return self.ask.decode_steps * (self.itl_s or 0)

    @property
    def e2e_s(self) -> float:
        return self.ttft_s + self.decode_s

    @property
    def decode_share_of_time(self) -> float:
        return self.decode_s / self.e2e_s

    @property
    def request_tokens(self) -> int:
        return self.ask.prompt_tokens + self.ask.output_tokens

    @property
    def kv_bytes(self) -> float:
        """Cache of one whole request at its end."""
        return self.request_tokens * self.roofline.kv_bytes_per_token

    @cached_property
    def fitting(self) -> int:
        """How many such requests the memory beside the weights holds. ValueError where the weights do not fit."""
        return self.roofline.kv_capacity_tokens() // self.request_tokens

    @cached_property
    def cost(self) -> Cost | None:
        """None where the GPU has no price."""
        price, ask = self.roofline.gpu.price_per_hour, self.ask
        if price is None:
            return None
        usd_per_s = price * self.roofline.tp / 3600
        streams = ask.batch + ask.others_decoding
        input_usd, output_usd = usd_per_s * self.ttft_s / ask.batch, usd_per_s * self.decode_s / streams
        full = self._step(self.fitting).seconds / self.fitting if self.decode and self.fitting else None
        return Cost(
            price,
            input_usd,
            output_usd,
            input_usd / ask.prompt_tokens * 1e6,
            None if self.itl_s is None else usd_per_s * self.itl_s / streams * 1e6,
            None if full is None else usd_per_s * full * 1e6,
        )

    @cached_property
    def assumptions(self) -> dict[str, Any]:
        """What the numbers rest on, as numbers; `notes` says the rest in words, one sentence each."""
        roofline, model = self.roofline, self.roofline.model
        return {
            "gpus": roofline.tp,
            "peak_flops_per_gpu": roofline.gpu.peak_flops(model.arithmetic),
            "peak_bandwidth_per_gpu": roofline.gpu.bandwidth,
            "compute_efficiency": roofline.compute_efficiency,
            "bandwidth_efficiency": roofline.bandwidth_efficiency,
            "arithmetic": self._arithmetic,
            "weight_bytes_per_param": model.dtype_bytes,
            "kv_bytes_per_value": model.kv_dtype_bytes,
            "memory_share": MEMORY_SHARE,
            "all_reduce_s": ALL_REDUCE_S if roofline.tp > 1 else None,
            "link_bandwidth": roofline.gpu.link_bandwidth if roofline.tp > 1 else None,
            "notes": self._notes(),
        }

    @property
    def _arithmetic(self) -> str:
        return self.roofline.model.arithmetic if self.roofline.gpu.fp8_flops else "bf16"

    def _notes(self) -> list[str]:
        ask, roofline, model = self.ask, self.roofline, self.roofline.model
        notes = [FLOOR]
        if roofline.tp > 1:
            notes.append("two ring all-reduces a layer between the GPUs, which overlap with nothing")
        if model.experts:
            notes.append(f"routing is even: a pass reads {self._expert_share():.0%} of the experts in decode")
        if self._arithmetic == "fp8":
            notes.append("attention is counted at the fp8 peak like all other arithmetic")
        if model.arithmetic != self._arithmetic:
            notes.append(f"{roofline.gpu.name} has no fp8 units: fp8 weights are read as such, arithmetic is in bf16")
        if self.request_tokens > model.context_tokens:
            notes.append(f"longer than the {model.context_tokens:,} tokens of context that {model.name} was made for")
        if ask.batch > self.fitting:
            notes.append(f"the batch of {ask.batch:,} does not fit into the memory: {self.fitting:,} such requests do")
        return notes

    def _expert_share(self) -> float:
        model, tokens = self.roofline.model, self.ask.batch + self.ask.others_decoding
        return 1 - (1 - model.experts_per_token / model.experts) ** tokens


def page(estimate: Estimate) -> dict[str, Any]:
    """JSON data: seconds, FLOPs, bytes, dollars. A request without decode steps has null in `decode`."""
    roofline, ask = estimate.roofline, estimate.ask
    return {
        "model": roofline.model.name,
        "gpu": roofline.gpu.name,
        "tp": roofline.tp,
        "request": {
            "prompt_tokens": ask.prompt_tokens,
            "cached_tokens": ask.cached_tokens,
            "output_tokens": ask.output_tokens,
            "batch": ask.batch,
            "others_decoding": ask.others_decoding,
            "others_context_tokens": ask.others_context if ask.others_decoding else None,
        },
        "ridge_flops_per_byte": roofline.ridge_flops_per_byte,
        "prefill": _prefill_json(estimate),
        "decode": _decode_json(estimate),
        "ttft_s": estimate.ttft_s,
        "itl_s": estimate.itl_s,
        "e2e_s": estimate.e2e_s,
        "decode_share_of_time": estimate.decode_share_of_time,
        "kv": {
            "bytes_per_token": roofline.kv_bytes_per_token,
            "bytes_per_request": estimate.kv_bytes,
            "capacity_tokens": roofline.kv_capacity_tokens(),
            "requests_that_fit": estimate.fitting,
        },
        "cost": _cost_json(estimate.cost),
        "assumptions": estimate.assumptions,
    }


def _prefill_json(estimate: Estimate) -> dict[str, Any]:
    prefill = estimate.prefill
    return {
        "seconds": prefill.seconds,
        "flops": prefill.work.flops,
        "bytes": prefill.work.bytes,
        "bound": prefill.bound,
        "attention_share": estimate.attention_share_of(prefill.work),
        **_pass_json(prefill),
    }


def _decode_json(estimate: Estimate) -> dict[str, Any]:
    decode = estimate.decode
    if decode is None:
        return dict.fromkeys(("itl_s", "bytes_per_step", "flops_per_step", "bound")) | {"steps": 0}
    return {
        "itl_s": decode.seconds,
        "bytes_per_step": decode.work.bytes,
        "flops_per_step": decode.work.flops,
        "bound": decode.bound,
        "steps": estimate.ask.decode_steps,
        "seconds": estimate.decode_s,
        **_pass_json(decode),
    }


def _pass_json(one: Pass) -> dict[str, Any]:
    return {
        "tokens_per_pass": one.work.tokens,
        "flops_per_byte": one.work.flops_per_byte,
        "compute_s": one.compute_s,
        "memory_s": one.memory_s,
        "communication_s": one.communication_s,
        "compute_utilisation": one.compute_utilisation,
        "bandwidth_utilisation": one.bandwidth_utilisation,
    }


def _cost_json(cost: Cost | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    return {
        "usd_per_gpu_hour": cost.price_per_hour,
        "input_usd": cost.input_usd,
        "output_usd": cost.output_usd,
        "input_usd_per_million": cost.input_usd_per_million,
        "output_usd_per_million": cost.output_usd_per_million,
        "output_usd_per_million_at_full_memory": cost.output_usd_per_million_full,
    }
