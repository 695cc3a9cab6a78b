"""One GPU that batches continuously, in virtual time.

A state machine: `submit` and `cancel` change what is there, `step` runs one forward pass over it. It reads no clock;
whoever drives it says what time it is, so one and the same core serves a discrete-event loop and a server in real time.

Two policies. With chunked prefill (Agrawal et al., "Sarathi-Serve", OSDI 2024) every pass has a budget of tokens: each
decoding sequence takes one, prompts share the rest. Without it, waiting prompts run whole and first (Yu et al., "Orca",
OSDI 2022; vLLM before chunking), and every decoding stream stands still meanwhile. The KV cache is paged (Kwon et al.,
"PagedAttention", SOSP 2023): a prompt is admitted when its blocks are free; a sequence that cannot grow takes the
blocks of the one admitted last, which then starts over with all its tokens as a prompt.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from analysis.roofline import Roofline
from loadgen.sim.kv import BLOCK_TOKENS, BlockPool, blocks_for

WHOLE_PROMPTS_TOKENS = 2048
"""Without chunking, prompts that come to no more than this together share a pass; a longer one has a pass to itself."""

Cause = Literal["queue", "prefill", "prefill_interference", "preemption", "decode"]


@dataclass(frozen=True, slots=True)
class SimConfig:
    """What is simulated.

    Attributes:
        chunk_tokens: Budget of one pass, decodes included, and so the largest number of sequences that run at once;
            0 switches chunked prefill off.
        max_num_seqs: Most sequences that run at once.
        kv_tokens: Size of the KV cache; None: what the weights leave.
        speed: 2 makes every pass take half its time.
    """

    roofline: Roofline
    chunk_tokens: int = 2048
    max_num_seqs: int = 256
    kv_tokens: int | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.chunk_tokens < 0 or self.max_num_seqs < 1 or self.speed <= 0:
            raise ValueError("chunk_tokens must be at least 0, max_num_seqs at least 1 and speed above 0")
        if self.kv_tokens is not None and self.kv_tokens < BLOCK_TOKENS:
            raise ValueError(f"the KV cache must hold at least one block of {BLOCK_TOKENS} tokens")


@dataclass(frozen=True, slots=True)
class SimRequest:
    """`output_tokens` is the length that the answer will have."""

    request_id: str
    prompt_tokens: int
    output_tokens: int


class Token(NamedTuple):
    """One output token, and what most delayed it since the one before (for the first: since the request came).

    `cause` and `delay_ns`: `queue`, time before admission, where that is longer than the own prompt took; `prefill`,
    the time from admission to the first token; `prefill_interference`, how much longer passes took, or how long this
    stream had to stand aside, for prompts of others, `culprit` being the one with most tokens; `preemption`, the time
    since the blocks were taken away; `decode`, no delay.
    """

    request_id: str
    number: int
    last: bool
    cause: Cause
    culprit: str | None
    delay_ns: int


class StepResult(NamedTuple):
    """One pass. All its tokens leave at `end_ns`."""

    start_ns: int
    end_ns: int
    tokens: list[Token]
    prefill_tokens: int
    decode_tokens: int
    preempted: list[str]


@dataclass(slots=True)
class Totals:
    """Counters since the start, as an engine exports them."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    cancelled: int = 0
    first_tokens: int = 0
    queue_ns: int = 0
    prefill_ns: int = 0


@dataclass(slots=True, eq=False)
class _Sequence:
    request: SimRequest
    submitted_ns: int
    admitted_ns: int = 0
    computed: int = 0
    produced: int = 0
    preempted_ns: int | None = None
    held_ns: int = 0
    held_by: str | None = None
    held_by_tokens: int = 0

    @property
    def length(self) -> int:
        return self.request.prompt_tokens + self.produced

    @property
    def todo(self) -> int:
        """Tokens that have no key and value yet; a token is sampled when none is left."""
        return self.request.prompt_tokens + self.produced - self.computed

    @property
    def decoding(self) -> bool:
        return self.produced > 0 and self.todo == 1

    def hold(self, delay_ns: int, culprit: str, tokens: int) -> None:
        self.held_ns += delay_ns
        if tokens > self.held_by_tokens:
            self.held_by, self.held_by_tokens = culprit, tokens

    def delay(self, now_ns: int) -> tuple[Cause, str | None, int]:
        if self.preempted_ns is not None:
            return "preemption", None, now_ns - self.preempted_ns
        if self.produced == 0:
            queue_ns, prefill_ns = self.admitted_ns - self.submitted_ns, now_ns - self.admitted_ns
            return ("queue", None, queue_ns) if queue_ns > prefill_ns else ("prefill", None, prefill_ns)
        if self.held_ns:
            return "prefill_interference", self.held_by, self.held_ns
        return "decode", None, 0


@dataclass(slots=True)
class _Batch:
    prefills: list[tuple[_Sequence, int]] = field(default_factory=list)
    decodes: list[_Sequence] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)


class Simulator:
    """The engine's whole state."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.kv_tokens or config.roofline.kv_capacity_tokens())
        self.totals = Totals()
        self._max_running = min(config.max_num_seqs, config.chunk_tokens or config.max_num_seqs)
        self._sequences: dict[str, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []  # in order of admission

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether such a request could run if it had the cache to itself."""
        return blocks_for(prompt_tokens + output_tokens) <= self.pool.total

    def submit(self, now_ns: int, request: SimRequest) -> None:
        """Raises ValueError for an id that is here already, for lengths below 1, and for what can never fit."""
        if request.request_id in self._sequences:
            raise ValueError(f"request {request.request_id} is running already")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.request_id} needs at least one prompt and one output token")
        if not self.fits(request.prompt_tokens, request.output_tokens):
            raise ValueError(f"request {request.request_id} needs more than the whole KV cache")
        sequence = _Sequence(request, now_ns)
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """Forgets a request and frees its blocks; nothing happens where it has ended or is unknown."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return
        (self._running if sequence in self._running else self._waiting).remove(sequence)
        self._forget(sequence)
        self.totals.cancelled += 1

    def step(self, now_ns: int) -> StepResult | None:
        """Runs one pass that starts at `now_ns`, not before the last submission; None when there is nothing to do.

        The state moves to the end of the pass at once; what is submitted before that end takes part in the next.
        """
        batch = self._mixed_batch(now_ns) if self.config.chunk_tokens else self._whole_batch(now_ns)
        if not batch.prefills and not batch.decodes:
            return None
        end_ns = now_ns + self._duration_ns(batch.prefills, batch.decodes)
        if batch.prefills:
            self._hold_streams(batch, end_ns - now_ns)
        tokens = self._advance(batch, end_ns)
        prefill_tokens = sum(n for _, n in batch.prefills)
        return StepResult(now_ns, end_ns, tokens, prefill_tokens, len(batch.decodes), batch.preempted)

    def _mixed_batch(self, now_ns: int) -> _Batch:
        batch = _Batch()
        self._schedule_decodes(batch, now_ns)
        budget = self.config.chunk_tokens - len(batch.decodes)
        for sequence in self._running:
            if budget > 0 and not sequence.decoding:
                n = min(sequence.todo, budget)
                batch.prefills.append((sequence, n))
                budget -= n
        self._admit(batch, now_ns, budget)
        return batch

    def _whole_batch(self, now_ns: int) -> _Batch:
        batch = _Batch()
        self._admit(batch, now_ns, WHOLE_PROMPTS_TOKENS, whole=True)
        if not batch.prefills:
            self._schedule_decodes(batch, now_ns)
        return batch

    def _schedule_decodes(self, batch: _Batch, now_ns: int) -> None:
        for sequence in [s for s in self._running if s.decoding]:
            while sequence.computed and not self.pool.grow(sequence.request.request_id, sequence.length):
                self._preempt(self._running[-1], batch, now_ns)
            if sequence.computed:
                batch.decodes.append(sequence)

    def _preempt(self, victim: _Sequence, batch: _Batch, now_ns: int) -> None:
        self._running.remove(victim)
        self.pool.release(victim.request.request_id)
        self._waiting.appendleft(victim)
        victim.computed = 0
        victim.preempted_ns = now_ns if victim.preempted_ns is None else victim.preempted_ns
        batch.preempted.append(victim.request.request_id)
        self.totals.preemptions += 1

    def _admit(self, batch: _Batch, now_ns: int, budget: int, whole: bool = False) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._max_running:
            sequence = self._waiting[0]
            n = sequence.todo if whole else min(sequence.todo, budget)
            if n > budget and batch.prefills:
                return
            if not self.pool.grow(sequence.request.request_id, sequence.length):
                return
            self._running.append(self._waiting.popleft())
            if sequence.preempted_ns is None:
                sequence.admitted_ns = now_ns
            batch.prefills.append((sequence, n))
            budget -= n

    def _duration_ns(self, prefills: list[tuple[_Sequence, int]], decodes: list[_Sequence]) -> int:
        roofline = self.config.roofline
        context_tokens = sum(s.length for s in decodes)
        work = roofline.work(((n, s.computed) for s, n in prefills), len(decodes), context_tokens)
        return max(1, round(roofline.seconds(work) * 1e9 / self.config.speed))

    def _hold_streams(self, batch: _Batch, pass_ns: int) -> None:
        """Books on every stream in the middle of its answer what the prompts in this pass cost it."""
        delay_ns = pass_ns - (self._duration_ns([], batch.decodes) if batch.decodes else 0)
        culprit, tokens = max(batch.prefills, key=lambda item: item[1])
        for sequence in batch.decodes or [s for s in self._running if s.decoding]:
            sequence.hold(delay_ns, culprit.request.request_id, tokens)

    def _advance(self, batch: _Batch, end_ns: int) -> list[Token]:
        tokens = []
        for sequence, n in batch.prefills:
            sequence.computed += n
            if sequence.todo == 0:
                tokens.append(self._sample(sequence, end_ns))
        for sequence in batch.decodes:
            sequence.computed += 1
            tokens.append(self._sample(sequence, end_ns))
        return tokens

    def _sample(self, sequence: _Sequence, now_ns: int) -> Token:
        cause, culprit, delay_ns = sequence.delay(now_ns)
        if sequence.produced == 0:
            self._count_first(sequence, now_ns)
        sequence.produced += 1
        sequence.preempted_ns, sequence.held_ns, sequence.held_by_tokens = None, 0, 0
        self.totals.generation_tokens += 1
        last = sequence.produced == sequence.request.output_tokens
        if last:
            self._running.remove(sequence)
            self._forget(sequence)
            self.totals.finished += 1
        return Token(sequence.request.request_id, sequence.produced, last, cause, culprit, delay_ns)

    def _count_first(self, sequence: _Sequence, now_ns: int) -> None:
        self.totals.first_tokens += 1
        self.totals.prompt_tokens += sequence.request.prompt_tokens
        self.totals.queue_ns += sequence.admitted_ns - sequence.submitted_ns
        self.totals.prefill_ns += now_ns - sequence.admitted_ns

    def _forget(self, sequence: _Sequence) -> None:
        self.pool.release(sequence.request.request_id)
        del self._sequences[sequence.request.request_id]


def replay(config: SimConfig, arrivals: Iterable[tuple[int, SimRequest]]) -> Iterator[StepResult]:
    """Every pass that it takes to serve requests which come at given instants (ns)."""
    simulator, now_ns = Simulator(config), 0
    pending = deque(sorted(arrivals, key=lambda arrival: arrival[0]))
    while True:
        while pending and pending[0][0] <= now_ns:
            simulator.submit(*pending.popleft())
        result = simulator.step(now_ns)
        if result is not None:
            yield result
            now_ns = result.end_ns
        elif pending:
            now_ns = pending[0][0]
        else:
            return
