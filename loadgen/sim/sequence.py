"""One request inside the engine, and what is left of it when it has ended."""

import zlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from loadgen.sim.config import SimConfig
from loadgen.sim.kv import Node, blocks_for
from loadgen.sim.passes import Ints, PassLog
from loadgen.sim.tokens import Cause, SimRequest


class Lead(NamedTuple):
    """What delayed the first event of a stretch."""

    cause: Cause
    delay_ns: int


@dataclass(slots=True)
class Stretch:
    """Events without a break, on one replica: at the end of pass `first` if `sampled`, and of each pass with decodes
    after it up to `last`. `tokens` are those of each event in the passes after `first`; None: one each."""

    log: PassLog
    first: int
    sampled: bool
    lead: Lead
    last: int = -1
    tokens: Ints | None = None

    def passes(self) -> Ints:
        """The numbers of the passes at whose ends its events left."""
        decodes = np.flatnonzero(self.log.decodes[self.log.span(self.first + 1, self.last)]) + self.first + 1
        return np.concatenate([[self.first], decodes]) if self.sampled else decodes

    def arrival_ns(self) -> Ints:
        """When its events left: a part of the log itself wherever that has nothing else in it."""
        log = self.log
        after = log.span(self.first + 1, self.last)
        decodes = log.decodes[after]
        if not decodes.all():
            return log.end_ns[self.passes() - log.base]
        return log.end_ns[after.start - self.sampled : after.stop]

    def counts(self, n: int) -> Ints:
        """The tokens of each of its `n` events."""
        counts = np.ones(n, np.int64)
        if self.tokens is not None:
            counts[self.sampled :] = self.tokens
        return counts


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on a replica.

    Attributes:
        serial: Order of submission.
        queued_ns: Since when it has waited on the replica it is on.
        computed: Tokens whose keys and values are there. Holds while it is not decoding, as does `produced`.
        kv_ready: Its cache came from another replica: it can decode without a pass of its own.
        hashes: Of its blocks, as far as they have any.
        shared: How many of its first blocks are shared.
        node: Where these end; None while it does not run.
        held: Blocks it holds in all. Holds while it is not decoding.
        paused_before_ns: How long its replica had stood still before it came.
        joined: Tells apart the times it began to decode on a replica.
        first_decode: Number of the first decode pass in which it takes part.
        events: How many decode passes it needs, from that one on.
        gains: Tokens it has gained after each of them; None: one each.
        length: Prompt and answer before the first of them.
    """

    request: SimRequest
    serial: int
    submitted_ns: int
    queued_ns: int
    hashes: list[int]
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    preempted_ns: int | None = None
    preemptions: int = 0
    computed: int = 0
    produced: int = 0
    cached_tokens: int | None = None
    kv_ready: bool = False
    shared: int = 0
    node: Node | None = None
    held: int = 0
    paused_before_ns: int = 0
    joined: int = 0
    first_decode: int = 0
    events: int = 0
    gains: Ints | None = None
    length: int = 0
    stretches: list[Stretch] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Tokens so far, while it is not decoding."""
        return self.request.prompt_tokens + self.produced

    @property
    def todo(self) -> int:
        """Tokens that have no key and value yet, while it is not decoding. One is sampled when none is left."""
        return self.request.prompt_tokens + self.produced - self.computed

    @property
    def left(self) -> int:
        return self.request.output_tokens - self.produced

    def gained(self, events: int) -> int:
        """Tokens gained after so many decode passes."""
        if self.gains is None or events == 0:
            return events
        return int(self.gains[events - 1])

    def blocks_after(self, events: int) -> int:
        """Blocks it holds after so many decode passes: the last token has no place in the cache yet."""
        return blocks_for(self.length + self.gained(events - 1)) if events else blocks_for(self.length - 1)


def draw_gains(sequence: Sequence, config: SimConfig) -> Ints:
    """Tokens after each decode pass, with drafts: of k draft tokens those before the first that is refused are kept,
    and one more is sampled, so that a pass brings (1 - a^(k + 1)) / (1 - a) tokens on average (Leviathan et al., "Fast
    Inference from Transformers via Speculative Decoding", ICML 2023). Chance depends on seed, id and place alone."""
    name = zlib.crc32(sequence.request.request_id.encode())
    rng = np.random.default_rng((config.seed, name, len(sequence.stretches)))
    drafts = rng.random((sequence.left, config.draft_tokens)) < config.acceptance
    gains = np.cumsum(1 + np.cumprod(drafts, axis=1, dtype=np.int64).sum(axis=1))
    events = int(np.searchsorted(gains, sequence.left)) + 1
    enough: Ints = np.minimum(gains[:events], sequence.left)
    return enough


class Answer(NamedTuple):
    """What a request gave. The columns are computed when asked for, one entry per event.

    Attributes:
        end_ns: When it ended: with its last token, or when it was cancelled.
        done: False where it was cancelled.
        queue_ns, prefill_ns: From submission to admission, and from there to the first token; None: it never got there.
        cached_tokens: Prompt tokens found in the cache; None before admission.
    """

    request_id: str
    end_ns: int
    done: bool
    cached_tokens: int | None
    queue_ns: int | None
    prefill_ns: int | None
    preemptions: int
    stretches: tuple[Stretch, ...]

    @property
    def arrival_ns(self) -> Ints:
        return _joined([stretch.arrival_ns() for stretch in self.stretches])

    @property
    def counts(self) -> Ints:
        return _joined([stretch.counts(len(stretch.arrival_ns())) for stretch in self.stretches])

    @property
    def one_each(self) -> bool:
        """Whether every event has one token."""
        return all(stretch.tokens is None for stretch in self.stretches)

    def delays(self) -> list[tuple[Cause, str | None, int]]:
        """Cause, culprit and delay of each event, as in `Token`."""
        return [each for stretch in self.stretches for each in _delays(stretch)]


def answer_of(sequence: Sequence, now_ns: int, done: bool) -> Answer:
    first_ns, admitted_ns = sequence.first_token_ns, sequence.admitted_ns
    queue_ns = None if admitted_ns is None else admitted_ns - sequence.submitted_ns
    prefill_ns = None if first_ns is None or admitted_ns is None else first_ns - admitted_ns
    return Answer(
        sequence.request.request_id,
        now_ns,
        done,
        sequence.cached_tokens,
        queue_ns,
        prefill_ns,
        sequence.preemptions,
        tuple(sequence.stretches),
    )


def delay_between(log: PassLog, earlier: int, later: int) -> tuple[Cause, str | None, int]:
    """What most delayed the event at the end of pass `later` of a stream whose last was at the end of `earlier`."""
    held_ns, paused_ns, culprit = log.between(earlier, later)
    if paused_ns > held_ns:
        return "injected", None, paused_ns
    return ("prefill_interference", culprit, held_ns) if held_ns else ("decode", None, 0)


def _delays(stretch: Stretch) -> list[tuple[Cause, str | None, int]]:
    passes = stretch.passes().tolist()
    if not passes:
        return []
    lead = (stretch.lead.cause, None, stretch.lead.delay_ns)
    return [lead, *(delay_between(stretch.log, earlier, later) for earlier, later in pairwise(passes))]


def _joined(columns: list[Ints]) -> Ints:
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)
