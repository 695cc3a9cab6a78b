"""What can be set about the simulated engine, under the names and defaults of the command line."""

import argparse
from dataclasses import dataclass, field, fields

from analysis.roofline import Roofline
from loadgen.sim import catalog
from loadgen.sim.core import SimConfig


@dataclass(frozen=True, slots=True)
class Options:
    """Every field is a flag of `python -m loadgen.sim.server` (chunk_tokens: --chunk-tokens)."""

    gpu: str = field(default="h100", metadata={"help": "name in the catalog"})
    model: str = field(default="llama-3.1-8b", metadata={"help": "name in the catalog"})
    chunk_tokens: int = field(default=2048, metadata={"help": "tokens in a pass, prefill chunked; 0: whole prompts"})
    max_num_seqs: int = field(default=256, metadata={"help": "most sequences that run at once"})
    kv_tokens: int = field(default=0, metadata={"help": "size of the KV cache; 0: what the weights leave"})
    speed: float = field(default=1.0, metadata={"help": "2 makes every pass take half its time"})
    stop_early_tokens: int = field(
        default=0, metadata={"help": "length at which answers end by themselves, unless ignore_eos; 0: at max_tokens"}
    )

    def config(self) -> SimConfig:
        """Raises ValueError with a one-line message for unknown names, bad values, and weights that do not fit."""
        roofline = Roofline(catalog.gpu(self.gpu), catalog.model(self.model))
        roofline.kv_capacity_tokens()
        return SimConfig(roofline, self.chunk_tokens, self.max_num_seqs, self.kv_tokens or None, self.speed)

    def argv(self) -> list[str]:
        """The flags that `parser` reads back as the same options."""
        return [f"{_flag(f.name)}={getattr(self, f.name)}" for f in fields(self)]

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser) -> None:
        for f in fields(cls):
            kind = type(f.default)
            parser.add_argument(_flag(f.name), type=kind, default=f.default, help=f.metadata["help"])

    @classmethod
    def from_flags(cls, namespace: argparse.Namespace) -> "Options":
        return cls(**{f.name: getattr(namespace, f.name) for f in fields(cls)})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
