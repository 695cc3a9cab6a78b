"""Who takes part in the next pass: three policies over one state.

Static batching admits when the last batch is through. Continuous batching (Yu et al., "Orca", OSDI 2022) admits before
every pass; prefill-first, as vLLM did at first, runs waiting prompts whole while every stream stands still. Chunked
prefill (Agrawal et al., "Sarathi-Serve", OSDI 2024) gives each decoding stream its token first and prompts the rest of
a budget. A prompt is admitted when its blocks are available; a stream that cannot grow takes the blocks of the one
admitted last, which starts over with all its tokens as a prompt.
"""

import sys
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from loadgen.sim.config import SimConfig
from loadgen.sim.kv import BLOCK_TOKENS, BlockPool, blocks_for
from loadgen.sim.passes import Calendar, Ints, PassLog
from loadgen.sim.sequence import Lead, Sequence, Stretch, draw_gains
from loadgen.sim.tokens import StepResult, Totals

WHOLE_PROMPTS_TOKENS = 2048
"""Prefill-first, prompts that come to no more than this together share a pass; a longer one has a pass to itself."""

NO_BLOCKS = np.zeros(1, np.int64)
RUN_PASSES = 1024
"""Most passes that are looked at together."""
STEPS = np.arange(RUN_PASSES)


@dataclass(slots=True)
class Batch:
    """One pass, or a run of `passes` in which nothing changes but the lengths of the streams.

    Attributes:
        prefills: Prompts, each with the tokens of it that are computed.
        decodes: Streams that take part.
        result: The pass as told outside, once that was asked for.
    """

    start_ns: int
    prefills: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    decodes: int = 0
    passes: int = 1
    end_ns: int = 0
    result: StepResult | None = None


class Scheduler:
    """The sequences of one replica.

    Attributes:
        running: Those admitted, in that order; each is in `prefilling` or in `decoding`.
        decoded: Decode passes that have ended.
        context_tokens: Length of all decoding streams together.
    """

    def __init__(self, config: SimConfig, log: PassLog) -> None:
        self.config = config
        self.pool = BlockPool(config.capacity_tokens)
        self.totals = Totals()
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        self.decoding: dict[Sequence, None] = {}
        self.decoded = 0
        self.context_tokens = 0
        self._log = log
        self._calendar = Calendar()
        self._finishes: list[tuple[int, int, Sequence]] = []
        self._joined = 0

    # Before a pass.

    def form(self, now_ns: int) -> Batch:
        """The next batch, with the blocks that it needs."""
        batch = Batch(now_ns)
        self._seat_ready(now_ns)
        if self.config.policy == "chunked":
            self._form_chunked(batch)
        elif self.config.policy == "prefill_first" or not self.running:
            self._admit(batch, WHOLE_PROMPTS_TOKENS if self.config.policy == "prefill_first" else sys.maxsize)
        if not batch.prefills and not batch.decodes:
            self._let_decode(batch)
        return batch

    def _form_chunked(self, batch: Batch) -> None:
        self._let_decode(batch)
        budget = self.config.chunk_tokens - batch.decodes * (self.config.draft_tokens + 1)
        for sequence in self.prefilling:
            if budget <= 0:
                return
            budget -= self._let_prefill(batch, sequence, budget)
        # While some are pushed out for want of blocks, nobody is let in.
        if not batch.preempted:
            self._admit(batch, budget)

    def _let_prefill(self, batch: Batch, sequence: Sequence, budget: int) -> int:
        n = sequence.todo
        if self.config.policy == "chunked":
            n = min(n, budget, self.config.long_prefill_tokens or n)
        batch.prefills.append((sequence, n))
        return n

    def _let_decode(self, batch: Batch) -> None:
        if not self.decoding:
            return
        blocks = self._calendar.blocks_of(self.decoded)
        if blocks <= self.pool.available:
            self.pool.take(blocks)
        else:
            self._grow_or_preempt(batch)
        batch.decodes = len(self.decoding)

    def _grow_or_preempt(self, batch: Batch) -> None:
        for sequence in [s for s in self.running if s in self.decoding]:
            events = self.decoded - sequence.first_decode
            more = sequence.blocks_after(events + 1) - sequence.blocks_after(events)
            while sequence in self.decoding and more > self.pool.available:
                self._preempt(next(reversed(self.running)), batch)
            if sequence in self.decoding:
                self.pool.take(more)

    def _preempt(self, victim: Sequence, batch: Batch) -> None:
        self.leave(victim)
        self.waiting.appendleft(victim)
        victim.kv_ready = False
        victim.computed = 0
        victim.preemptions += 1
        victim.preempted_ns = batch.start_ns if victim.preempted_ns is None else victim.preempted_ns
        batch.preempted.append(victim.request.request_id)
        self.totals.preemptions += 1

    def _admit(self, batch: Batch, budget: int) -> None:
        chunked = self.config.policy == "chunked"
        while self.waiting and budget > 0 and len(self.running) < self.config.max_running:
            sequence = self.waiting[0]
            most_tokens = None if chunked or not batch.prefills else budget
            if sequence.kv_ready or not self._seat(sequence, batch.start_ns, most_tokens):
                return
            self.prefilling[sequence] = None
            budget -= self._let_prefill(batch, sequence, budget)

    def _seat(self, sequence: Sequence, now_ns: int, most_tokens: int | None = None) -> bool:
        """Admits a sequence if the blocks for its tokens so far are available, and it has no more than that to do."""
        hits, unused = (0, 0) if sequence.kv_ready else self._hits(sequence)
        size = sequence.size - sequence.kv_ready
        tokens = size - hits * BLOCK_TOKENS
        length = size + sequence.left if self.config.policy == "static" else size
        wanted = blocks_for(length) - hits
        if wanted + unused > self.pool.available or (most_tokens is not None and tokens > most_tokens):
            return False
        self.waiting.popleft()
        self.running[sequence] = None
        sequence.node = self.pool.use(sequence.hashes, hits)
        self.pool.take(wanted)
        sequence.shared, sequence.held = hits, wanted + hits
        sequence.computed = size if sequence.kv_ready else hits * BLOCK_TOKENS
        if sequence.admitted_ns is None:
            self._count_admission(sequence, now_ns)
        return True

    def _hits(self, sequence: Sequence) -> tuple[int, int]:
        """At least one token is left to compute: the next one is sampled from it."""
        return self.pool.known(sequence.hashes, (sequence.size - 1) // BLOCK_TOKENS)

    def _count_admission(self, sequence: Sequence, now_ns: int) -> None:
        sequence.admitted_ns = now_ns
        sequence.cached_tokens = sequence.computed
        self.totals.prefix_query_tokens += sequence.request.prompt_tokens
        self.totals.prefix_hit_tokens += sequence.computed

    def _seat_ready(self, now_ns: int) -> None:
        """Admits streams whose cache has come from elsewhere. They take part in the next decode pass."""
        while self.waiting and self.waiting[0].kv_ready and len(self.running) < self.config.max_running:
            sequence = self.waiting[0]
            if not self._seat(sequence, now_ns):
                return
            queued_ns, sent_ns = now_ns - sequence.queued_ns, sequence.queued_ns - (sequence.first_token_ns or 0)
            lead = Lead("queue", queued_ns) if queued_ns > sent_ns else Lead("transfer", sent_ns)
            sequence.stretches.append(Stretch(self._log, self._log.count - 1, False, lead))
            self.join(sequence)

    # Streams.

    def join(self, sequence: Sequence) -> None:
        """From the next decode pass on the sequence takes part."""
        sequence.length, sequence.first_decode = sequence.size, self.decoded
        if self.config.draft_tokens:
            sequence.gains = draw_gains(sequence, self.config)
        sequence.events = sequence.left if sequence.gains is None else len(sequence.gains)
        self._book(sequence, 0, 1)
        self.decoding[sequence] = None
        self.context_tokens += sequence.length
        self._joined += 1
        sequence.joined = self._joined
        heappush(self._finishes, (self.decoded + sequence.events, sequence.joined, sequence))

    def _book(self, sequence: Sequence, events: int, sign: int) -> None:
        """Enters what the sequence needs after so many of its events, or strikes it out."""
        first, gains, length = sequence.first_decode + events, sequence.gains, sequence.length + sequence.gained(events)
        reserved = NO_BLOCKS if self.config.policy == "static" else None
        if gains is None:
            self._calendar.book(first, sequence.events - events, reserved, length, sign)
            return
        lengths = sequence.length + np.concatenate([[0], gains[:-1]])
        needed = np.diff(-(-lengths // BLOCK_TOKENS), prepend=blocks_for(sequence.length - 1))
        blocks = needed[events:] if reserved is None else reserved
        self._calendar.book(first, np.diff(gains, prepend=0)[events:], blocks, length, sign)

    def leave(self, sequence: Sequence, in_pass: bool = False) -> None:
        """Takes a sequence out of the running ones; its blocks with a hash stay behind for others.

        `in_pass`: a pass is under way in which it would have decoded.
        """
        if sequence in self.decoding:
            self._stop_decoding(sequence, in_pass)
        self._share(sequence)
        assert sequence.node is not None, "who runs has been seated"
        self.pool.release(sequence.node)
        self.pool.give_back(sequence.held - sequence.shared)
        sequence.shared = sequence.held = 0
        sequence.node = None
        self.prefilling.pop(sequence, None)
        del self.running[sequence]

    def _stop_decoding(self, sequence: Sequence, in_pass: bool) -> None:
        events = self.decoded - sequence.first_decode
        if events < sequence.events:
            self._book(sequence, events, -1)
        del self.decoding[sequence]
        self.context_tokens -= sequence.length + sequence.gained(events)
        if self.config.policy != "static":
            sequence.held = sequence.blocks_after(events + in_pass)
        sequence.produced += sequence.gained(events)
        sequence.computed = sequence.size - 1
        stretch = sequence.stretches[-1]
        stretch.last = self._log.count - 1
        if sequence.gains is not None:
            stretch.tokens = np.diff(sequence.gains[:events], prepend=0)
        sequence.gains = None

    def _share(self, sequence: Sequence) -> None:
        """Offers the full blocks that it has computed to others."""
        full = min(sequence.computed // BLOCK_TOKENS, len(sequence.hashes))
        if full > sequence.shared and sequence.node is not None:
            sequence.node = self.pool.share(sequence.node, sequence.hashes, sequence.shared, full)
            sequence.shared = full

    # After a pass.

    def computed(self, sequence: Sequence, n: int) -> None:
        """So many tokens of its prompt have been computed."""
        sequence.computed += n
        self._share(sequence)
        if not sequence.todo:
            del self.prefilling[sequence]

    def decode(self, passes: int, begun: int) -> None:
        """Streams have gone through so many decode passes in a row, and have begun so many."""
        tokens = passes * len(self.decoding)
        if self.config.draft_tokens:
            tokens = int(np.add.reduce(self._calendar.tokens(self.decoded, passes)))
        if begun > 1:
            self.pool.take(int(np.add.reduce(self._calendar.blocks(self.decoded + 1, begun - 1))))
        self.context_tokens += tokens
        self.totals.generation_tokens += tokens
        self.decoded += passes

    def finished(self) -> list[Sequence]:
        """The streams that ended with the last decode pass, in the order they joined. They still have to leave."""
        ended = []
        while self._finishes and self._finishes[0][0] <= self.decoded:
            _, joined, sequence = heappop(self._finishes)
            if sequence in self.decoding and sequence.joined == joined:
                ended.append(sequence)
        return ended

    def look_ahead(self) -> Ints:
        """Length of all decoding streams together before each of the coming passes, as long as nothing changes: no
        stream ends before the last of them, and there are blocks enough for all."""
        n = self._enough_blocks(min(RUN_PASSES, self._next_finish() - self.decoded))
        if not self.config.draft_tokens:
            return STEPS[:n] * len(self.decoding) + self.context_tokens
        tokens = self._calendar.tokens(self.decoded, n)
        contexts: Ints = tokens.cumsum()
        contexts += self.context_tokens
        contexts -= tokens
        return contexts

    def _enough_blocks(self, passes: int) -> int:
        """For how many of the coming passes there are blocks; those of the first have been taken."""
        gain = passes * (self.config.draft_tokens + 1)
        if len(self.decoding) * (gain // BLOCK_TOKENS + 1) <= self.pool.available:
            return passes
        blocks = self._calendar.blocks(self.decoded + 1, passes - 1).cumsum()
        return 1 + int(np.searchsorted(blocks, self.pool.available, side="right"))

    def _next_finish(self) -> int:
        while True:
            at, joined, sequence = self._finishes[0]
            if sequence in self.decoding and sequence.joined == joined:
                return at
            heappop(self._finishes)

    def drop_before(self, pass_number: int) -> None:
        """Forgets what lies before a pass."""
        self._log.drop_before(pass_number)
        self._calendar.drop_before(self.decoded)
