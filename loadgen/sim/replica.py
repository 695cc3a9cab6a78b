"""One replica in virtual time: when its passes begin and end, and what leaves with them.

A pass begins as soon as there is work and the one before has ended; what changes in it, changes at its end. Seen far
ahead, passes in which only the lengths of streams change are computed together, up to the first stream that ends; what
comes in meanwhile cuts such a run at the pass then under way.
"""

from loadgen.sim.config import SimConfig
from loadgen.sim.kv import blocks_for
from loadgen.sim.pass_times import PassTimes
from loadgen.sim.passes import TRIM, PassLog
from loadgen.sim.scheduler import Batch, Scheduler
from loadgen.sim.sequence import Lead, Sequence, Stretch, delay_between
from loadgen.sim.tokens import Cause, StepResult, Token, Totals

NEVER = 1 << 62


class Replica:
    """One engine with its own weights and cache.

    Attributes:
        tick: When its state next changes by itself, in half-steps so that what ends at an instant comes before what
            begins there: twice the nanoseconds for an end, one more for a beginning; NEVER: not by itself.
    """

    def __init__(self, config: SimConfig, index: int, prefill_only: bool = False) -> None:
        self.index = index
        self.log = PassLog()
        self.scheduler = Scheduler(config, self.log)
        self.totals: Totals = self.scheduler.totals
        self.tick = NEVER
        self._prefill_only = prefill_only
        self._times = PassTimes(config)
        self._batch: Batch | None = None
        self._wanted_ns = self._paused_until_ns = -NEVER
        self._paused_ns = 0

    @property
    def load(self) -> int:
        """Unfinished requests."""
        return len(self.scheduler.waiting) + len(self.scheduler.running)

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether such a request could run if it had the cache to itself."""
        return blocks_for(prompt_tokens + output_tokens) <= self.scheduler.pool.total

    # From outside.

    def submit(self, now_ns: int, sequence: Sequence) -> None:
        """Takes part in passes that begin now or later."""
        self._shorten(now_ns)
        sequence.queued_ns = now_ns
        self.scheduler.waiting.append(sequence)
        if self.tick == NEVER:
            self._await_begin(now_ns)
        # A pause is counted at once where it hits a pass, else when the next begins; what is left of it is its own.
        to_count_ns = 0 if self._batch else max(0, self._paused_until_ns - self._wanted_ns)
        sequence.paused_before_ns = self._paused_ns + to_count_ns - max(0, self._paused_until_ns - now_ns)

    def cancel(self, now_ns: int, sequence: Sequence) -> None:
        self.catch_up(now_ns)
        if sequence in self.scheduler.running:
            self.scheduler.leave(sequence, in_pass=self._batch is not None and self._batch.decodes > 0)
        else:
            self.scheduler.waiting.remove(sequence)
        self.totals.cancelled += 1
        self._changed()
        if not self._batch and not self.load:
            self.tick = NEVER

    def pause(self, now_ns: int, duration_ns: int) -> None:
        """Stands still from now on, in the middle of a pass if there is one."""
        self.catch_up(now_ns)
        self._paused_until_ns = max(self._paused_until_ns, now_ns) + duration_ns
        if self._batch:
            self.log.end_ns[self.log.at] += duration_ns
            self.log.paused_ns[self.log.at] += duration_ns
            self._paused_ns += duration_ns
            self._batch.end_ns += duration_ns
            self.tick = 2 * self._batch.end_ns
            self._changed()
        elif self.tick != NEVER:
            self._await_begin(self._wanted_ns)

    def catch_up(self, now_ns: int) -> None:
        """Cuts a run: the passes of it that ended before now are over, the next is under way, the rest is dropped."""
        batch = self._shorten(now_ns)
        if batch is not None and (over := batch.passes - 1):
            batch.start_ns = int(self.log.end_ns[self.log.at + over - 1])
            batch.passes = 1
            self._advance_streams(over, begun=over + 1)

    def _shorten(self, now_ns: int) -> Batch | None:
        """Ends a run, if there is one, with the pass that is under way now: the rest is dropped."""
        batch = self._batch
        if batch is None or batch.passes == 1:
            return None
        at = self.log.at
        over = int(self.log.end_ns[at : at + batch.passes].searchsorted(now_ns))
        batch.passes, batch.end_ns = over + 1, int(self.log.end_ns[at + over])
        self.tick = 2 * batch.end_ns
        return batch

    # Passes.

    def begin(self, far: bool) -> None:
        """Begins the pass that is due, and with `far` as many as can be told in advance."""
        start_ns = self.tick >> 1
        batch = self.scheduler.form(start_ns)
        assert batch.decodes or batch.prefills, "where there is work, there is a batch"
        if not far and self.log.at > 2 * TRIM:
            self._drop_history()
        paused_ns = start_ns - self._wanted_ns
        if far and not (batch.prefills or batch.preempted or paused_ns):
            self._time_run(batch)
        else:
            self._time_pass(batch, paused_ns)
        self._batch, self.tick = batch, 2 * batch.end_ns

    def _drop_history(self) -> None:
        """A server runs for days: passes before the first token of every stream are of no use any more."""
        stretches = (stretch for sequence in self.scheduler.running for stretch in sequence.stretches)
        firsts = (stretch.first for stretch in stretches if stretch.log is self.log)
        self.scheduler.drop_before(min(firsts, default=self.log.count))

    def _time_pass(self, batch: Batch, paused_ns: int) -> None:
        log, scheduler = self.log, self.scheduler
        log.make_room(1)
        at = log.at
        alone_ns = self._times.decode_ns(batch.decodes, scheduler.context_tokens) if batch.decodes else 0
        pass_ns = alone_ns
        if batch.prefills:
            prompts = [(n, sequence.computed) for sequence, n in batch.prefills]
            pass_ns = self._times.mixed_ns(prompts, batch.decodes, scheduler.context_tokens if batch.decodes else 0)
            if scheduler.decoding:
                culprit = max(batch.prefills, key=_tokens)[0]
                log.culprit[at], log.held_ns[at] = culprit.serial, pass_ns - alone_ns
                log.names[culprit.serial] = culprit.request.request_id
        batch.end_ns = batch.start_ns + pass_ns
        log.end_ns[at], log.decodes[at], log.paused_ns[at] = batch.end_ns, batch.decodes > 0, paused_ns
        self._paused_ns += paused_ns

    def _time_run(self, batch: Batch) -> None:
        log = self.log
        contexts = self.scheduler.look_ahead()
        batch.passes = n = len(contexts)
        log.make_room(n)
        at = log.at
        ends = self._times.decode_run_ns(batch.decodes, contexts).cumsum()
        ends += batch.start_ns
        log.end_ns[at : at + n] = ends
        log.decodes[at : at + n] = True
        batch.end_ns = int(ends[-1])

    def end(self) -> tuple[list[Sequence], list[Sequence]]:
        """Ends what is under way: the requests that have ended, and those whose cache goes to another replica."""
        batch = self._batch
        assert batch is not None
        if batch.decodes:
            self._advance_streams(batch.passes, begun=batch.passes)
        else:
            self.log.count += 1
        ended = self.scheduler.finished() if batch.decodes else []
        for sequence in ended:
            self.scheduler.leave(sequence)
        handed: list[Sequence] = []
        for sequence, n in batch.prefills:
            if sequence in self.scheduler.prefilling:
                self.scheduler.computed(sequence, n)
                if not sequence.todo:
                    self._sample(sequence, batch.end_ns, ended, handed)
        self.totals.finished += len(ended)
        self._batch = None
        self.tick = NEVER
        if self.load:
            self._await_begin(batch.end_ns)
        return ended, handed

    def _await_begin(self, wanted_ns: int) -> None:
        self._wanted_ns = wanted_ns
        self.tick = 2 * max(wanted_ns, self._paused_until_ns) + 1

    def _advance_streams(self, passes: int, begun: int) -> None:
        self.log.count += passes
        self.log.last_decode = self.log.count - 1
        self.scheduler.decode(passes, begun)

    def _sample(self, sequence: Sequence, now_ns: int, ended: list[Sequence], handed: list[Sequence]) -> None:
        """The token that follows from a whole prompt."""
        lead = self._lead(sequence, now_ns)
        sequence.stretches.append(Stretch(self.log, self.log.count - 1, True, lead, last=self.log.count - 1))
        sequence.preempted_ns = None
        if sequence.first_token_ns is None:
            sequence.first_token_ns = now_ns
            self._count_first(sequence, now_ns)
        sequence.produced += 1
        self.totals.generation_tokens += 1
        if sequence.left and not self._prefill_only:
            self.scheduler.join(sequence)
            return
        self.scheduler.leave(sequence)
        sequence.kv_ready = True
        (handed if sequence.left else ended).append(sequence)

    def _count_first(self, sequence: Sequence, now_ns: int) -> None:
        admitted_ns = sequence.admitted_ns or 0
        self.totals.first_tokens += 1
        self.totals.prompt_tokens += sequence.request.prompt_tokens
        self.totals.queue_ns += admitted_ns - sequence.submitted_ns
        self.totals.prefill_ns += now_ns - admitted_ns

    def _lead(self, sequence: Sequence, now_ns: int) -> Lead:
        if sequence.preempted_ns is not None:
            return Lead("preemption", now_ns - sequence.preempted_ns)
        admitted_ns = sequence.admitted_ns or 0
        queue_ns, prefill_ns = admitted_ns - sequence.submitted_ns, now_ns - admitted_ns
        injected_ns = self._paused_ns - sequence.paused_before_ns
        if 2 * injected_ns > queue_ns + prefill_ns:
            return Lead("injected", injected_ns)
        return Lead("queue", queue_ns) if queue_ns > prefill_ns else Lead("prefill", prefill_ns)

    # The pass under way, one token at a time.

    def result(self) -> StepResult | None:
        """The pass under way; None between passes. The same object as long as nothing changes it."""
        batch = self._batch
        if batch is None:
            return None
        if batch.result is None:
            tokens = [*self._samples(batch), *(self._decodes() if batch.decodes else ())]
            prefill_tokens = sum(n for _, n in batch.prefills)
            batch.result = StepResult(
                batch.start_ns, batch.end_ns, tokens, prefill_tokens, batch.decodes, batch.preempted, self.index
            )
        return batch.result

    def _changed(self) -> None:
        if self._batch is not None:
            self._batch.result = None

    def _samples(self, batch: Batch) -> list[Token]:
        tokens = []
        for sequence, n in batch.prefills:
            if sequence in self.scheduler.prefilling and sequence.todo == n:
                cause, delay_ns = self._lead(sequence, batch.end_ns)
                cached = 0 if sequence.produced else sequence.cached_tokens or 0
                name, number = sequence.request.request_id, sequence.produced + 1
                tokens.append(Token(name, number, sequence.left == 1, cause, None, delay_ns, 1, cached))
        return tokens

    def _decodes(self) -> list[Token]:
        known: dict[int, tuple[Cause, str | None, int]] = {}
        tokens = []
        for sequence in self.scheduler.decoding:
            events = self.scheduler.decoded - sequence.first_decode
            stretch = sequence.stretches[-1]
            since = max(self.log.last_decode, stretch.first)
            if since not in known:
                known[since] = delay_between(self.log, since, self.log.count)
            lead = (stretch.lead.cause, None, stretch.lead.delay_ns)
            why = known[since] if events or stretch.sampled else lead
            before, after = sequence.gained(events), sequence.gained(events + 1)
            name, last = sequence.request.request_id, events + 1 == sequence.events
            tokens.append(Token(name, sequence.produced + after, last, *why, after - before))
        return tokens


def _tokens(prefill: tuple[Sequence, int]) -> int:
    return prefill[1]
