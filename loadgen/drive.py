"""Sending a schedule: who leaves when, and who waits for whom. Knows no HTTP.

Open loop: a request leaves when it is due, whatever became of those before. Closed loop: a fixed number of users, each
with one session at a time. In both, the rounds of a session follow one another, and every planned turn gives exactly
one record.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from analysis.record import RequestRecord
from loadgen.clock import Clock
from loadgen.ending import Ending, Stop
from loadgen.turns import Turns
from workloads.prompts import Prompter
from workloads.request import Message, Request, Round, Session, Turn, cut, turn_count
from workloads.schedule import Schedule, Stage, measured_from_ns

__all__ = ["Driven", "Engine", "Live", "Stop", "drive", "stage_at"]

PREPARE_AHEAD_NS = 50_000_000
"""How long before its due time the text of a request is made."""

PREPARE_EARLY_NS = 10_000_000
"""So much earlier it is made where there is something else to wake up for."""

PREPARE_AT_ONCE = 8
"""Sessions made ready before others have their turn."""

PRIME_NS = 100_000_000
"""Requests due this soon after the start are made before the clock starts."""

START_AHEAD_NS = 10_000_000
"""From the starting of the clock to the start of the run: time for the first tasks to get going."""


class Engine(Protocol):
    async def send(self, request: Request) -> RequestRecord:
        """Sends one request and reads its answer to the end.

        Returns the record with its wire part filled in. Never raises; a cancelled task still returns its record, with
        outcome `cancelled`.
        """


@dataclass(slots=True)
class Live:
    """What goes on right now: written by the drive, read by whoever shows or samples it.

    `open_ns` holds for each request that has no record yet, in flight or waiting for a slot, when it was due, or begun
    where it had no due time.
    """

    sent: int = 0
    in_flight: int = 0
    open_ns: dict[str, int] = field(default_factory=dict)

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest open request was due; None where none is open."""
        return min(self.open_ns.values(), default=None)


@dataclass(frozen=True, slots=True)
class Driven:
    """What became of the plan's times.

    Attributes:
        stages: The stages as they were: an open end is where the last request was over, a stop ends the stage it fell
            in, and those never begun are left out.
        ended_ns: When all was over.
        interrupted_by: The reason of the stop, None if there was none.
    """

    stages: tuple[Stage, ...]
    ended_ns: int
    interrupted_by: str | None


async def drive(
    schedule: Schedule,
    engine: Engine,
    clock: Clock,
    prompter: Prompter,
    on_record: Callable[[RequestRecord], None],
    *,
    stop: Stop,
    live: Live | None = None,
    max_in_flight: int | None = None,
    save_text: bool = False,
    worker: int = 0,
) -> Driven:
    """Makes the first requests ready, starts the clock, and returns when every request is over.

    Args:
        on_record: Called on the event loop with each record when it is complete; must be quick.
        max_in_flight: At least 1. Requests beyond it wait, first come first served; their due times stay.
        save_text: Leaves the text of answers in the records.
        worker: Goes into every record.
    """
    last = schedule.stages[-1]
    ending = Ending(clock, stop, last.end_ns, schedule.requests is None, schedule.drain_ns)
    slots = asyncio.Semaphore(sys.maxsize if max_in_flight is None else max_in_flight)
    run = _Drive(schedule, engine, clock, prompter, on_record, ending, live or Live(), slots, save_text, worker)
    try:
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(ending.keep_time())
            await run.work()
            keeper.cancel()
    except BaseExceptionGroup as failure:
        raise _first_cause(failure) from None
    stages = _stages_as_run(schedule.stages, run.last_end_ns, ending.stopped_ns)
    return Driven(stages, max(0, clock.now_ns()), stop.reason)


def ended(stage: Stage, last_end_ns: int) -> Stage:
    """A stage without a planned end lasts until the last request is over."""
    return stage if stage.end_ns is not None else replace(stage, end_ns=max(stage.start_ns, last_end_ns))


def stage_at(stages: Sequence[Stage], t_ns: int) -> Stage:
    """The stage that `t_ns` falls in; the first before all of them, the last after all."""
    return next((stage for stage in reversed(stages) if stage.start_ns <= t_ns), stages[0])


@dataclass(frozen=True, slots=True)
class _Reply:
    record: RequestRecord
    text: str | None
    tool_calls: list[dict[str, Any]] | None

    @property
    def failed(self) -> bool:
        return self.record.outcome not in ("ok", "cancelled", "not_sent")


@dataclass(eq=False)
class _Drive:
    schedule: Schedule
    engine: Engine
    clock: Clock
    prompter: Prompter
    on_record: Callable[[RequestRecord], None]
    ending: Ending
    live: Live
    slots: asyncio.Semaphore
    save_text: bool
    worker: int

    def __post_init__(self) -> None:
        self.open_loop = self.schedule.loop == "open"
        self.sessions: Iterator[Session] = iter(self.schedule.sessions())
        self.next_session: Session | None = None
        self.ready: deque[tuple[Session, list[Request]]] = deque()
        self.measured_from_ns = measured_from_ns(self.schedule.stages)
        self.turns = Turns()
        self.measured_turns = 0
        self.last_end_ns = 0
        self.unstarted_turns = 0
        self.all_begun = False

    # Who begins a session, and when.

    async def work(self) -> None:
        async with asyncio.TaskGroup() as self.group:
            first = self._prime_open() if self.open_loop else self._prime_users()
            self.clock.start(START_AHEAD_NS)
            for coroutine in first:
                self.group.create_task(coroutine)

    def _prime_open(self) -> list[Coroutine[Any, Any, Any]]:
        self.next_session = next(self.sessions, None)
        self._prepare(PRIME_NS - 1, sys.maxsize)
        return [self._feed()]

    async def _feed(self) -> None:
        """Makes the sessions of an open loop ready shortly before they are due, and begins each when it is."""
        while (wake_ns := self._wake_ns()) is not None and await self.ending.sleep_until(wake_ns):
            now_ns = self.clock.now_ns()
            while self.ready and _due(self.ready[0][0]) <= now_ns:
                self.group.create_task(self._run_session(*self.ready.popleft()))
            self._prepare(now_ns + PREPARE_AHEAD_NS + PREPARE_EARLY_NS, PREPARE_AT_ONCE)
        self._leave_unbegun()
        self.all_begun = True
        self._count_started(0)

    def _wake_ns(self) -> int | None:
        """When the next session is due or to be made ready; None if there is none."""
        begin_ns = [_due(self.ready[0][0])] if self.ready else []
        prepare_ns = [_due(self.next_session) - PREPARE_AHEAD_NS] if self.next_session else []
        return min(begin_ns + prepare_ns, default=None)

    def _prepare(self, until_ns: int, at_most: int) -> None:
        """Makes ready what is due by then."""
        while at_most > 0 and (session := self.next_session) is not None and _due(session) <= until_ns:
            self.unstarted_turns += turn_count(session)
            self.ready.append((session, self._requests(session, 0, ())))
            self.next_session = next(self.sessions, None)
            at_most -= 1

    def _leave_unbegun(self) -> None:
        """Files what was due before the sending was over and has not begun."""
        for ready, _ in self.ready:
            self._not_sent(ready, 0, _due(ready))
        while (session := self.next_session) is not None and self.ending.includes(_due(session)):
            self.unstarted_turns += turn_count(session)
            self._not_sent(session, 0, _due(session))
            self.next_session = next(self.sessions, None)

    def _prime_users(self) -> list[Coroutine[Any, Any, Any]]:
        sessions = [self._take(0) for _ in range(self.schedule.concurrency or 0)]
        return [self._user(session, self._requests(session, 0, ())) for session in sessions if session is not None]

    async def _user(self, session: Session | None, requests: Sequence[Request]) -> None:
        """One user of a closed loop: one session after the other, as long as there is time."""
        while session is not None:
            free_ns = await self._run_session(session, requests)
            requests = ()
            if self._all_taken():  # nobody pauses before nothing
                return
            session = self._take(self.clock.now_ns()) if await self.ending.sleep_until(free_ns) else None

    def _take(self, now_ns: int) -> Session | None:
        """The next session of a closed loop. Those begun in warm-up come on top of the number of turns asked for."""
        asked = self.schedule.requests if now_ns >= self.measured_from_ns else None
        left = sys.maxsize if asked is None else asked - self.measured_turns
        if self.ending.comes_before(now_ns) or left <= 0:
            return None
        session = next(self.sessions, None)
        if session is None or asked is None:
            return session
        session = cut(session, left)
        self.measured_turns += turn_count(session)
        return session

    def _all_taken(self) -> bool:
        return self.schedule.requests is not None and self.measured_turns >= self.schedule.requests

    # One session.

    async def _run_session(self, session: Session, requests: Sequence[Request] = ()) -> int:
        """Sends the rounds of a session one after the other, the first as prepared in `requests` if given.

        Returns the instant at which its user is free again.
        """
        history: tuple[Message, ...] = ()
        start_ns = _due(session) if self.open_loop else max(0, self.clock.now_ns())
        for index, round_ in enumerate(session.rounds):
            if self.ending.comes_before(start_ns) or not await self._comes(start_ns - PREPARE_AHEAD_NS):
                return self._not_sent(session, index, start_ns)
            if not requests:
                await self.turns.take()
                requests = self._requests(session, index, history)
            if not await self._comes(start_ns):
                return self._not_sent(session, index, start_ns)
            replies = await self._send_round(session, round_, requests, start_ns if self.open_loop else None)
            for reply in replies:
                if reply.failed:
                    return self._leave(session, index + 1, "skipped", reply.record.stage)
            if index + 1 < len(session.rounds):
                answers = [(reply.text, reply.tool_calls) for reply in replies]
                history = self.prompter.history(history, round_.turns, requests, answers)
            start_ns = max(self._end_ns(reply.record) for reply in replies) + round_.pause_ns
            requests = ()
        return start_ns

    async def _comes(self, t_ns: int) -> bool:
        """Waits for that instant; whether it came before the end of the sending."""
        if self.clock.now_ns() >= t_ns:
            return self.ending.closed_ns is None
        return await self.ending.sleep_until(t_ns)

    def _requests(self, session: Session, index: int, history: Sequence[Message]) -> list[Request]:
        goes_on = index + 1 < len(session.rounds)
        return [
            self.prompter.request(turn, history, self.save_text or (goes_on and turn.scripted_answer is None))
            for turn in session.rounds[index].turns
        ]

    def _not_sent(self, session: Session, index: int, start_ns: int) -> int:
        """Files what is left of a session when the sending is over; nothing if it neither began nor was due by then."""
        due_ns = start_ns if self.open_loop and self.ending.includes(start_ns) else None
        if self.open_loop and index == 0 and due_ns is None:
            return start_ns
        return self._leave(session, index, "not_sent", self._stage(due_ns), due_ns)

    def _leave(self, session: Session, index: int, outcome: str, stage: str, due_ns: int | None = None) -> int:
        for round_ in session.rounds[index:]:
            self._count_started(len(round_.turns))
            for turn in round_.turns:
                self._file(RequestRecord(turn.request_id, outcome=outcome), session, turn, stage, due_ns)
            due_ns = None
        return self.clock.now_ns()

    def _end_ns(self, record: RequestRecord) -> int:
        return self.clock.now_ns() if record.end_ns is None else record.end_ns

    # One request.

    async def _send_round(
        self, session: Session, round_: Round, requests: Sequence[Request], due_ns: int | None
    ) -> list[_Reply]:
        sends = [self._send_turn(session, *pair, due_ns) for pair in zip(round_.turns, requests, strict=True)]
        if len(sends) == 1:
            return [await sends[0]]
        tasks = [self.group.create_task(send) for send in sends]
        await asyncio.wait(tasks)
        return [task.result() for task in tasks]

    async def _send_turn(self, session: Session, turn: Turn, request: Request, due_ns: int | None) -> _Reply:
        self.live.open_ns[turn.request_id] = self.clock.now_ns() if due_ns is None else due_ns
        has_slot = await self._slot()
        self._count_started(1)
        start_ns = self.clock.now_ns()
        if has_slot and self.ending.comes_before(start_ns):  # freed at the very end, or a little after it
            self.slots.release()
            has_slot = False
        if has_slot:
            record = await self._send(request)
            since_ns = start_ns if record.sent_ns is None else record.sent_ns
            stage = self._stage(since_ns if due_ns is None else due_ns)
        else:
            record, stage = RequestRecord(turn.request_id, outcome="not_sent"), self._stage(due_ns)
        text, tool_calls = record.text, record.tool_calls
        record.tool_calls = None
        if not self.save_text:
            record.text = record.unsaid_text = None
        self._file(record, session, turn, stage, due_ns)
        return _Reply(record, text, tool_calls)

    async def _slot(self) -> bool:
        """Waits for leave to send; whether it came before the end of the sending."""
        if self.slots.locked() or self.ending.closed_ns is not None:
            return await self.ending.unless_closed(self.slots.acquire)
        return await self.slots.acquire()  # at once

    async def _send(self, request: Request) -> RequestRecord:
        self.live.sent += 1
        self.live.in_flight += 1
        try:
            return await self.ending.unless_drained(self.engine.send(request))
        except asyncio.CancelledError:
            if self.ending.closed_ns is None:
                raise
            return RequestRecord(request.request_id, outcome="cancelled", end_ns=self.clock.now_ns())
        except Exception as error:  # a bug of the engine costs one request, not the run
            what = f"{type(error).__name__}: {error}"
            return RequestRecord(request.request_id, outcome="client_error", error=what, end_ns=self.clock.now_ns())
        finally:
            self.live.in_flight -= 1
            self.slots.release()

    def _file(self, record: RequestRecord, session: Session, turn: Turn, stage: str, due_ns: int | None) -> None:
        record.session, record.class_name, record.turn = session.number, session.class_name, turn.number
        record.stage, record.worker, record.due_ns = stage, self.worker, due_ns
        record.asked_input_tokens, record.asked_output_tokens = turn.input_tokens, turn.output_tokens
        self.last_end_ns = max(self.last_end_ns, record.end_ns or 0)
        self.on_record(record)
        self.live.open_ns.pop(turn.request_id, None)

    def _stage(self, t_ns: int | None) -> str:
        """The stage of an instant; for what had none, the last measured stage that has begun, or whichever has."""
        stages, closed_ns = self.schedule.stages, self.ending.closed_ns
        if t_ns is not None:
            return stage_at(stages, t_ns).name
        begun = [stage for stage in stages if closed_ns is None or stage.start_ns <= closed_ns] or list(stages[:1])
        return ([stage for stage in begun if stage.measured] or begun)[-1].name

    def _count_started(self, turns: int) -> None:
        """The drain of an open loop may begin when nothing is left to start."""
        self.unstarted_turns -= turns
        if self.all_begun and not self.unstarted_turns:
            self.ending.all_started.set()


def _stages_as_run(stages: Sequence[Stage], last_end_ns: int, stopped_ns: int | None) -> tuple[Stage, ...]:
    if stopped_ns is None:
        return tuple(ended(stage, last_end_ns) for stage in stages)
    *before, last = [stage for stage in stages if stage.start_ns <= stopped_ns] or stages[:1]
    end_ns = stopped_ns if last.end_ns is None else min(last.end_ns, stopped_ns)
    return (*before, replace(last, end_ns=max(last.start_ns, end_ns)))


def _due(session: Session) -> int:
    assert session.due_ns is not None, "every session of an open loop has a due time"
    return session.due_ns


def _first_cause(failure: BaseExceptionGroup[BaseException]) -> BaseException:
    cause = failure.exceptions[0]
    return _first_cause(cause) if isinstance(cause, BaseExceptionGroup) else cause
