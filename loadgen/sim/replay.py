"""A whole run in virtual time: what `loadgen.drive` does with a schedule, without sockets, tasks or text.

The same requests leave at the same instants, wait for the same others, and end in the same ways; what lies between
client and server takes no time. An hour of traffic takes seconds.
"""

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from analysis.record import ANSWER, THINKING, RequestRecord
from loadgen.drive import Driven, ended, stage_at
from loadgen.sim.core import Answer, Cluster, ClusterConfig, SimConfig, SimRequest
from loadgen.sim.prefixes import request_hashes, said_after
from workloads.request import Passage, Round, Session, Turn, cut, turn_count
from workloads.schedule import Schedule, measured_from_ns

CHARS_PER_TOKEN = 5
"""No text is written; this is what the usual vocabularies come to in English, with the space."""

REFUSAL_NS = 1_000_000
"""What a server takes to refuse a request. Were it nothing, users who are always refused would stop the clock."""

PRIME_AHEAD_NS = 10**15
"""More than any number of primers will take."""

NEVER_NS = 1 << 61


def simulate(
    schedule: Schedule,
    config: ClusterConfig | SimConfig,
    on_record: Callable[[RequestRecord], object],
    *,
    primers: Iterable[Turn] = (),
    max_in_flight: int | None = None,
    on_answer: Callable[[Answer], object] | None = None,
    on_sample: Callable[[int, Cluster], object] | None = None,
    sample_every_ns: int = 1_000_000_000,
) -> Driven:
    """Plays a schedule against a cluster and returns when every request is over.

    Args:
        on_record: Called with the record of each planned request when it is over. Prompts have the planned length.
        primers: Requests that go through the cluster, one after the other, before the run starts; no records of them.
        max_in_flight: At least 1. Requests beyond it wait, first come first served; their due times stay.
        on_answer: Called with what the cluster gave, before the record: it knows why each token came when it did.
        on_sample: Called with the time and the cluster every `sample_every_ns`, as if its metrics were scraped.
    """
    slots = sys.maxsize if max_in_flight is None else max_in_flight
    replay = _Replay(schedule, Cluster(config), on_record, on_answer, on_sample, sample_every_ns, slots)
    replay.prime(primers)
    replay.run()
    return Driven(tuple(ended(stage, replay.last_end_ns) for stage in schedule.stages), replay.now_ns, None)


@dataclass(slots=True, eq=False)
class _Talk:
    """A session under way: the round it is in, what was said before, and the records of that round so far."""

    session: Session
    index: int = 0
    start_ns: int = 0
    said: tuple[Passage, ...] = ()
    replies: dict[str, RequestRecord] = field(default_factory=dict)

    @property
    def round(self) -> Round:
        return self.session.rounds[self.index]


@dataclass(slots=True, eq=False)
class _Call:
    """One request of a session, waiting to leave or in flight."""

    talk: _Talk
    turn: Turn
    due_ns: int | None
    record: RequestRecord


@dataclass(eq=False)
class _Replay:
    schedule: Schedule
    cluster: Cluster
    on_record: Callable[[RequestRecord], object]
    on_answer: Callable[[Answer], object] | None
    on_sample: Callable[[int, Cluster], object] | None
    sample_every_ns: int
    slots: int

    def __post_init__(self) -> None:
        last = self.schedule.stages[-1]
        self.open_loop = self.schedule.loop == "open"
        self.sessions = iter(self.schedule.sessions())
        self.end_ns = last.end_ns
        self.cutoff_ns = NEVER_NS if last.end_ns is None or self.schedule.requests is not None else last.end_ns
        self.measured_from_ns = measured_from_ns(self.schedule.stages)
        self.context_tokens = self.cluster.config.replica.roofline.model.context_tokens
        self.now_ns = 0
        self.sample_ns = NEVER_NS if self.on_sample is None else 0
        self.closed_ns: int | None = None
        self.drained_ns = NEVER_NS
        self.measured_turns = self.unstarted_turns = self.last_end_ns = 0
        self.all_begun = False
        self.events: list[tuple[int, int, Callable[[Any], object], Any]] = []
        self.order = count()
        self.waiting: dict[_Talk, None] = {}
        self.queue: deque[_Call] = deque()
        self.in_flight: dict[str, _Call] = {}

    # Time.

    def prime(self, primers: Iterable[Turn]) -> None:
        """Brings the prefixes that prompts share into the cache, in the days before the run."""
        now_ns = -PRIME_AHEAD_NS
        for turn in primers:
            if self._refusal(turn) is None:
                request = SimRequest(turn.request_id, turn.input_tokens, turn.output_tokens, request_hashes(turn, ()))
                self.cluster.submit(now_ns, request)
                (answer,) = self.cluster.advance(0)
                now_ns = answer.end_ns

    def run(self) -> None:
        if self.open_loop:
            self._feed()
        else:
            for _ in range(self.schedule.concurrency or 0):
                self._user(0)
        while self.events or self.in_flight or self.queue:
            self._go_on()

    def _go_on(self) -> None:
        """To the next thing that happens; of those at one instant, answers come first and the end of the run last."""
        close_ns = self.cutoff_ns if self.closed_ns is None else self.drained_ns
        next_ns = min(close_ns, self.sample_ns, self.events[0][0] if self.events else NEVER_NS)
        answers = self.cluster.advance(next_ns)
        self.now_ns = answers[0].end_ns if answers else next_ns
        for answer in answers:
            self._answered(self.in_flight.pop(answer.request_id), answer)
        if answers:
            return
        if next_ns == self.sample_ns:
            self._sample()
        while self.events and self.events[0][0] == next_ns:
            _, _, do, what = heappop(self.events)
            do(what)
        if next_ns == close_ns:
            (self._close if self.closed_ns is None else self._cut)()

    def _at(self, t_ns: int, do: Callable[[Any], object], what: Any) -> None:
        heappush(self.events, (t_ns, next(self.order), do, what))

    def _sample(self) -> None:
        assert self.on_sample is not None
        self.cluster.settle(self.now_ns)
        self.on_sample(self.now_ns, self.cluster)
        self.sample_ns += self.sample_every_ns

    def _close(self) -> None:
        """Nothing starts from now on."""
        self.closed_ns = self.now_ns
        self.drained_ns = max(self.now_ns, self.end_ns or 0) + self.schedule.drain_ns
        calls, self.queue = self.queue, deque()
        for call in calls:
            self._count_started(1)
            self._end(call, self._stage(call.due_ns))
        for talk in list(self.waiting):
            self._not_sent(talk)
        self.waiting.clear()
        self.events = sorted(event for event in self.events if event[2] == self._refused)

    def _cut(self) -> None:
        self.drained_ns = NEVER_NS
        for name, call in list(self.in_flight.items()):
            del self.in_flight[name]
            answer = self.cluster.cancel(self.now_ns, name)
            call.record.outcome = "cancelled"
            self._finish(call, answer)
        self.events.clear()

    # Who begins a session, and when.

    def _feed(self, _: object = None) -> None:
        session = next(self.sessions, None)
        if session is None:
            self.all_begun = True
            self._count_started(0)
            return
        assert session.due_ns is not None, "every session of an open loop has a due time"
        self._at(session.due_ns, self._begin_due, session)

    def _begin_due(self, session: Session) -> None:
        self.unstarted_turns += turn_count(session)
        self._feed()
        self._begin(session)

    def _user(self, now_ns: int) -> None:
        session = self._take(now_ns)
        if session is not None:
            self._begin(session)

    def _take(self, now_ns: int) -> Session | None:
        """The next session of a closed loop. Those begun in warm-up come on top of the number of turns asked for."""
        asked = self.schedule.requests if now_ns >= self.measured_from_ns else None
        left = sys.maxsize if asked is None else asked - self.measured_turns
        if now_ns >= self.cutoff_ns or left <= 0:
            return None
        session = next(self.sessions, None)
        if session is None or asked is None:
            return session
        session = cut(session, left)
        self.measured_turns += turn_count(session)
        return session

    def _leave_user(self, free_ns: int) -> None:
        """A session is over; the user of a closed loop begins another when free."""
        if not self.open_loop and self.closed_ns is None and not self._all_taken():
            self._at(max(self.now_ns, free_ns), self._user_at, None)

    def _all_taken(self) -> bool:
        return self.schedule.requests is not None and self.measured_turns >= self.schedule.requests

    def _user_at(self, _: object) -> None:
        self._user(self.now_ns)

    # One session.

    def _begin(self, session: Session) -> None:
        self._await_round(_Talk(session), self.now_ns)

    def _await_round(self, talk: _Talk, start_ns: int) -> None:
        talk.start_ns = start_ns
        if self.closed_ns is not None or start_ns >= self.cutoff_ns:
            self._not_sent(talk)
        elif start_ns == self.now_ns:
            self._start_round(talk)
        else:
            self.waiting[talk] = None
            self._at(start_ns, self._start_round, talk)

    def _start_round(self, talk: _Talk) -> None:
        self.waiting.pop(talk, None)
        for turn in talk.round.turns:
            record = RequestRecord(turn.request_id)
            self.queue.append(_Call(talk, turn, talk.start_ns if self.open_loop else None, record))
        self._fill_slots()

    def _end_round(self, talk: _Talk) -> None:
        replies = [talk.replies[turn.request_id] for turn in talk.round.turns]
        failed = [record for record in replies if record.outcome not in ("ok", "cancelled", "not_sent")]
        if failed:
            self._leave(talk, talk.index + 1, "skipped", failed[0].stage)
            return
        ended_ns = max(self.now_ns if record.end_ns is None else record.end_ns for record in replies)
        start_ns = ended_ns + talk.round.pause_ns
        if talk.index + 1 == len(talk.session.rounds):
            self._leave_user(start_ns)
            return
        talk.said = said_after(talk.said, talk.round.turns)
        talk.index += 1
        talk.replies = {}
        self._await_round(talk, start_ns)

    def _not_sent(self, talk: _Talk) -> None:
        """Files what is left of a session when the sending is over; nothing if it neither began nor was due by then."""
        included = talk.start_ns < self.cutoff_ns and (self.closed_ns is None or talk.start_ns <= self.closed_ns)
        due_ns = talk.start_ns if self.open_loop and included else None
        if self.open_loop and talk.index == 0 and due_ns is None:
            return
        self._leave(talk, talk.index, "not_sent", self._stage(due_ns), due_ns)

    def _leave(self, talk: _Talk, index: int, outcome: str, stage: str, due_ns: int | None = None) -> None:
        for round_ in talk.session.rounds[index:]:
            self._count_started(len(round_.turns))
            for turn in round_.turns:
                self._file(RequestRecord(turn.request_id, outcome=outcome), talk.session, turn, stage, due_ns)
            due_ns = None
        self._leave_user(self.now_ns)

    def _count_started(self, turns: int) -> None:
        """The drain of an open loop may begin when nothing is left to start."""
        self.unstarted_turns -= turns
        if self.all_begun and not self.unstarted_turns and self.end_ns is not None and self.closed_ns is None:
            self._close()

    # One request.

    def _fill_slots(self) -> None:
        while self.queue and len(self.in_flight) < self.slots:
            call = self.queue.popleft()
            self._count_started(1)
            self._send(call)

    def _send(self, call: _Call) -> None:
        turn, record = call.turn, call.record
        record.sent_ns = record.headers_ns = self.now_ns
        record.tries, record.status = 1, 200
        self.in_flight[turn.request_id] = call
        if self._refusal(turn) is not None:
            self._at(self.now_ns + REFUSAL_NS, self._refused, call)
            return
        hashes = request_hashes(turn, call.talk.said) if self.cluster.config.replica.prefix_cache else ()
        lengths = max(1, turn.input_tokens), max(1, turn.output_tokens)
        self.cluster.submit(self.now_ns, SimRequest(turn.request_id, *lengths, hashes))

    def _refusal(self, turn: Turn) -> str | None:
        if turn.input_tokens + turn.output_tokens > self.context_tokens:
            return f"prompt and answer need more than the context of {self.context_tokens} tokens"
        if not self.cluster.fits(turn.input_tokens, turn.output_tokens):
            return "prompt and answer need more than the whole KV cache"
        return None

    def _answered(self, call: _Call, answer: Answer) -> None:
        record, turn = call.record, call.turn
        record.outcome, record.finish_reason = "ok", "length"
        record.prompt_tokens, record.completion_tokens = turn.input_tokens, max(1, turn.output_tokens)
        record.cached_tokens = answer.cached_tokens
        record.reasoning_tokens = turn.thinking_tokens or None
        self._finish(call, answer)

    def _refused(self, call: _Call) -> None:
        del self.in_flight[call.turn.request_id]
        call.record.outcome, call.record.status = "http_error", 400
        call.record.error = self._refusal(call.turn)
        self._finish(call, None)

    def _finish(self, call: _Call, answer: Answer | None) -> None:
        """What the engine gave goes into the record, and that to whoever waits for it."""
        if answer is not None:
            if self.on_answer is not None:
                self.on_answer(answer)
            fill_events(call.record, answer, call.turn.thinking_tokens)
        call.record.end_ns = self.now_ns
        sent_ns = call.record.sent_ns
        self._end(call, self._stage(sent_ns if call.due_ns is None else call.due_ns))
        self._fill_slots()

    def _end(self, call: _Call, stage: str) -> None:
        talk = call.talk
        self._file(call.record, talk.session, call.turn, stage, call.due_ns)
        talk.replies[call.turn.request_id] = call.record
        if len(talk.replies) == len(talk.round.turns):
            self._end_round(talk)

    def _file(self, record: RequestRecord, session: Session, turn: Turn, stage: str, due_ns: int | None) -> None:
        record.session, record.class_name, record.turn = session.number, session.class_name, turn.number
        record.stage, record.due_ns = stage, due_ns
        record.asked_input_tokens, record.asked_output_tokens = turn.input_tokens, turn.output_tokens
        self.last_end_ns = max(self.last_end_ns, record.end_ns or 0)
        self.on_record(record)

    def _stage(self, t_ns: int | None) -> str:
        """The stage of an instant; for what had none, the last measured stage that has begun, or whichever has."""
        stages = self.schedule.stages
        if t_ns is not None:
            return stage_at(stages, t_ns).name
        begun = [s for s in stages if self.closed_ns is None or s.start_ns <= self.closed_ns] or list(stages[:1])
        return ([stage for stage in begun if stage.measured] or begun)[-1].name


def fill_events(record: RequestRecord, answer: Answer, thinking_tokens: int) -> None:
    """Writes the token events of an answer into a record; each is a read of its own."""
    arrival_ns = answer.arrival_ns
    n = len(arrival_ns)
    record.arrival_ns.frombytes(arrival_ns.data.cast("B"))
    record.read_id = _numbers(n)
    if answer.one_each:
        record.n_tokens, record.chars = _repeated("i", 1, n), _repeated("i", CHARS_PER_TOKEN, n)
        thought = min(n, thinking_tokens)
    else:
        counts = answer.counts
        record.n_tokens, record.chars = array("i", counts.tolist()), array("i", (counts * CHARS_PER_TOKEN).tolist())
        thought = int(np.searchsorted(counts.cumsum() - counts, thinking_tokens))
    record.kind = (
        _repeated("b", THINKING, thought) + _repeated("b", ANSWER, n - thought)
        if thought
        else _repeated("b", ANSWER, n)
    )


# Columns that many records share. Nobody writes to those of a finished record.


@cache
def _repeated(code: str, value: int, n: int) -> "array[int]":
    return array(code, [value]) * n


@cache
def _numbers(n: int) -> "array[int]":
    return array("i", range(n))
