"""What can be set about the simulated engine, under the names and defaults of the command line."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from analysis.roofline import KV_DTYPES, WEIGHT_DTYPES, Roofline
from loadgen.sim import catalog
from loadgen.sim.answers import ThinkingField
from loadgen.sim.config import ClusterConfig, SimConfig
from loadgen.sim.inject import Fault, help_text, parse_fault
from loadgen.sim.wire import Limits

POLICIES = {"chunked": "chunked", "prefill-first": "prefill_first", "static": "static", "disaggregated": "chunked"}
"""The policy of each replica. Disaggregated: some replicas only prefill, the others only decode."""

ROUTERS = ("round-robin", "least-loaded", "prefix-affinity", "long-apart")
THINKING_FIELDS = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the server does beside generating; `hardware`: see `Options.hardware`."""

    limits: Limits
    hardware: str
    thinking_field: ThinkingField = "reasoning_content"
    faults: tuple[Fault, ...] = ()


def _flag(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Options:
    """Every field is a flag of `python -m loadgen.sim.server` (chunk_tokens: --chunk-tokens)."""

    gpu: str = _flag("h100", "GPU of the catalog")
    model: str = _flag("llama-3.1-8b", "model of the catalog, or a config.json")
    catalog: str = _flag("", "file with GPUs and models of your own, laid over the catalog")
    tp: int = _flag(1, "GPUs of one replica, by tensor parallelism")
    dtype: str = _flag("", f"format of the weights: {', '.join(WEIGHT_DTYPES)}  [the catalog's]")
    kv_dtype: str = _flag("", f"format of the KV cache: {', '.join(KV_DTYPES)}  [the catalog's]")
    replicas: int = _flag(1, "replicas of the engine")
    router: str = _flag("round-robin", f"how requests find a replica: {', '.join(ROUTERS)}")
    long_tokens: int = _flag(4096, "--router long-apart: a longer prompt is long")
    long_replicas: int = _flag(1, "--router long-apart: replicas for long prompts")
    policy: str = _flag("chunked", f"what a pass is made of: {', '.join(POLICIES)}")
    chunk_tokens: int = _flag(2048, "tokens in a pass, prefill chunked; 0: whole prompts, first")
    long_prefill_threshold: int = _flag(0, "most tokens of one prompt in a pass; 0: no limit")
    max_num_seqs: int = _flag(256, "most sequences that run at once")
    kv_tokens: int = _flag(0, "size of the KV cache; 0: what the weights leave")
    prefix_cache: bool = _flag(True, "reuse the KV cache of equal beginnings of prompts")
    speculative: str = _flag("", "speculative decoding as DRAFT:ACCEPTANCE, as in 4:0.7")
    prefill_replicas: int = _flag(0, "--policy disaggregated: replicas that only prefill  [1]")
    decode_replicas: int = _flag(0, "--policy disaggregated: replicas that only decode  [1]")
    speed: float = _flag(1.0, "a faster (2) or slower (0.5) clock")
    stop_early_tokens: int = _flag(0, "length at which answers end by themselves, unless ignore_eos; 0: at max_tokens")
    auto_tool_calls: int = _flag(0, "calls in an answer whose tool_choice is auto; 0: it is text")
    thinking_field: str = _flag("reasoning_content", f"name of the thoughts: {' or '.join(THINKING_FIELDS)}")
    inject: tuple[str, ...] = _flag((), "a fault, as in pause:every=10s,for=1s; may be repeated")
    truth: str = _flag("", "write when each token was due and sent, and what delayed it (JSON lines, or .parquet)")

    def config(self) -> ClusterConfig:
        """Raises ValueError with a one-line message for unknown names, bad values, and weights that do not fit."""
        _one_of("policy", self.policy, POLICIES)
        _one_of("router", self.router, ROUTERS)
        split = self._disaggregated
        if not split and (self.prefill_replicas or self.decode_replicas):
            raise ValueError("--prefill-replicas and --decode-replicas need --policy disaggregated")
        draft_tokens, acceptance = _speculation(self.speculative)
        roofline = self._roofline()
        roofline.kv_capacity_tokens()
        replica = SimConfig(
            roofline,
            chunk_tokens=self.chunk_tokens,
            max_num_seqs=self.max_num_seqs,
            kv_tokens=self.kv_tokens or None,
            speed=self.speed,
            policy=POLICIES[self.policy],  # type: ignore[arg-type]
            long_prefill_tokens=self.long_prefill_threshold,
            prefix_cache=self.prefix_cache,
            draft_tokens=draft_tokens,
            acceptance=acceptance,
        )
        return ClusterConfig(
            replica,
            replicas=(self.decode_replicas or 1) if split else self.replicas,
            router=self.router.replace("-", "_"),  # type: ignore[arg-type]
            long_tokens=self.long_tokens,
            long_replicas=self.long_replicas,
            prefill_replicas=(self.prefill_replicas or 1) if split else 0,
        )

    def behaviour(self) -> Behaviour:
        """Raises ValueError with a one-line message."""
        _one_of("thinking-field", self.thinking_field, THINKING_FIELDS)
        model = self._roofline().model
        limits = Limits(model.name, model.context_tokens, self.stop_early_tokens, self.auto_tool_calls)
        faults = tuple(parse_fault(text) for text in self.inject)
        return Behaviour(limits, self.hardware(), self.thinking_field, faults)  # type: ignore[arg-type]

    def hardware(self) -> str:
        """What is simulated, in words: "one h100", "3 replicas of 2 h100 each"."""
        n = (self.prefill_replicas or 1) + (self.decode_replicas or 1) if self._disaggregated else self.replicas
        each = f"{'one' if self.tp == 1 else self.tp} simulated {self.gpu}"
        return each if n == 1 else f"{n} replicas of {each} each"

    @property
    def _disaggregated(self) -> bool:
        return self.policy == "disaggregated"

    def argv(self) -> list[str]:
        """The flags that `from_flags` reads back as the same options."""
        flags: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool):
                flags.append(_dashed(f.name) if value else "--no-" + f.name.replace("_", "-"))
            else:
                flags += [f"{_dashed(f.name)}={one}" for one in (value if isinstance(value, tuple) else (value,))]
        return flags

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser) -> None:
        for f in fields(cls):
            how: dict[str, Any] = {"type": type(f.default), "default": f.default}
            if isinstance(f.default, bool):
                how = {"action": argparse.BooleanOptionalAction, "default": f.default}
            elif isinstance(f.default, tuple):
                how = {"action": "append", "default": []}
            parser.add_argument(_dashed(f.name), help=f.metadata["help"].replace("%", "%%"), **how)
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = f"faults, with their defaults; each takes share=1 and seed=0 too:\n{help_text()}"

    @classmethod
    def from_flags(cls, namespace: argparse.Namespace) -> "Options":
        return cls.of(vars(namespace))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """From a mapping that may hold other things too; None is taken as left out."""
        known: dict[str, Any] = {f.name: values[f.name] for f in fields(cls) if values.get(f.name) is not None}
        known["inject"] = tuple(known.get("inject", ()))
        paths = {name: str(value) for name, value in known.items() if isinstance(value, Path)}
        return cls(**known | paths)

    def _roofline(self) -> Roofline:
        for name, value, known in (("dtype", self.dtype, WEIGHT_DTYPES), ("kv-dtype", self.kv_dtype, KV_DTYPES)):
            _one_of(name, value, ("", *known))
        file = Path(self.catalog) if self.catalog else None
        model = catalog.model(self.model, file).stored_as(self.dtype or None, self.kv_dtype or None)
        return Roofline(catalog.gpu(self.gpu, file), model, tp=self.tp)


def _one_of(name: str, value: str, known: Any) -> None:
    if value not in known:
        raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(filter(None, known))}")


def _speculation(text: str) -> tuple[int, float]:
    if not text:
        return 0, 0.0
    draft, colon, acceptance = text.partition(":")
    try:
        found = int(draft), float(acceptance)
    except ValueError:
        found = 0, 0.0
    if not colon or found[0] < 1 or not 0 <= found[1] <= 1:
        raise ValueError(f"--speculative {text!r}: write DRAFT:ACCEPTANCE, as in 4:0.7")
    return found


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")
