"""What is simulated: one replica, and the cluster made of such replicas."""

import math
from dataclasses import dataclass
from typing import Literal

from analysis.roofline import Roofline
from loadgen.sim.kv import BLOCK_TOKENS

MOST_REPLICAS = 1000

Policy = Literal["chunked", "prefill_first", "static"]
Router = Literal["round_robin", "least_loaded", "prefix_affinity", "long_apart"]


@dataclass(frozen=True, slots=True)
class SimConfig:
    """One replica.

    Attributes:
        chunk_tokens: Budget of one pass, decodes included, and so a bound on the sequences that run at once. 0 switches
            chunked prefill off: prompts run whole and first.
        max_num_seqs: Most sequences that run at once.
        kv_tokens: Size of the KV cache; None: what the weights leave.
        speed: 2 makes every pass take half its time.
        policy: `static` admits a batch when the last one has finished; `prefill_first` batches continuously, prompts
            whole and before any decode; `chunked` lets prompts share what decodes leave of each pass.
        long_prefill_tokens: With chunks, no prompt gets more than this of one pass; 0: no limit.
        prefix_cache: Whether prompts find the blocks that earlier ones left behind.
        draft_tokens: Tokens that speculative decoding proposes per pass; 0: none. Making them takes no time.
        acceptance: The chance of each that it is accepted, if all before it were.
        seed: Decides which are.
    """

    roofline: Roofline
    chunk_tokens: int = 2048
    max_num_seqs: int = 256
    kv_tokens: int | None = None
    speed: float = 1.0
    policy: Policy = "chunked"
    long_prefill_tokens: int = 0
    prefix_cache: bool = True
    draft_tokens: int = 0
    acceptance: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.chunk_tokens < 0 or self.max_num_seqs < 1 or not 0 < self.speed < math.inf:
            raise ValueError("chunk_tokens must be at least 0, max_num_seqs at least 1 and speed above 0")
        if self.kv_tokens is not None and self.kv_tokens < BLOCK_TOKENS:
            raise ValueError(f"the KV cache must hold at least one block of {BLOCK_TOKENS} tokens")
        if self.long_prefill_tokens < 0 or self.draft_tokens < 0 or not 0 <= self.acceptance <= 1:
            raise ValueError("long_prefill_tokens and draft_tokens must be at least 0, acceptance from 0 to 1")
        if self.chunk_tokens == 0 and self.policy == "chunked":
            object.__setattr__(self, "policy", "prefill_first")
        if self.policy == "chunked" and self.chunk_tokens <= self.draft_tokens:
            raise ValueError("chunk_tokens must be above draft_tokens: one sequence verifies that many and one more")

    @property
    def max_running(self) -> int:
        """Most sequences at once: what each of them takes of a pass, when all decode, must not exceed the budget."""
        if self.policy != "chunked":
            return self.max_num_seqs
        return min(self.max_num_seqs, self.chunk_tokens // (self.draft_tokens + 1))

    @property
    def capacity_tokens(self) -> int:
        """Size of the KV cache. Raises ValueError where the weights alone do not fit."""
        return self.kv_tokens or self.roofline.kv_capacity_tokens()


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Several replicas of one kind.

    Attributes:
        router: `round_robin`; `least_loaded`: fewest unfinished requests; `prefix_affinity`: where most of the prompt
            is cached, unless that replica has far more to do than others; `long_apart`: long prompts to replicas of
            their own, least loaded first in both groups.
        long_tokens: A prompt longer than this is long.
        long_replicas: How many of the replicas `long_apart` keeps for long prompts.
        prefill_replicas: Above 0 disaggregates: these compute the prompts, and `replicas` only decode.
        link_bytes_per_s: At which the KV cache of a prompt goes from the one to the other.
    """

    replica: SimConfig
    replicas: int = 1
    router: Router = "round_robin"
    long_tokens: int = 4096
    long_replicas: int = 1
    prefill_replicas: int = 0
    link_bytes_per_s: float = 50e9

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.prefill_replicas < 0:
            raise ValueError("a cluster must have at least one replica, and no fewer than 0 that prefill")
        if self.replicas + self.prefill_replicas > MOST_REPLICAS:
            raise ValueError(f"a cluster must have at most {MOST_REPLICAS:,} replicas")
        if self.link_bytes_per_s <= 0:
            raise ValueError("link_bytes_per_s must be above 0")
        apart = self.prefill_replicas or self.replicas
        if self.router == "long_apart" and not 0 < self.long_replicas < apart:
            raise ValueError(f"long_replicas must leave some of the {apart} replicas for short prompts, and be above 0")
