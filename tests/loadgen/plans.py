"""A plan, a prompter and an engine in memory, for tests of the drive. Times are in milliseconds."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from msgspec.structs import replace

from analysis.record import RequestRecord
from loadgen.drive import Driven, Live, Stop, drive
from tests.loadgen.virtual import VirtualClock, run_virtual
from workloads.request import Message, Passage, Request, Round, Session, Turn
from workloads.schedule import Stage

MS = 1_000_000

STAGE1 = Stage("stage1", 100 * MS, 200 * MS, True, 10.0)
STAGE2 = Stage("stage2", 200 * MS, 300 * MS, True, 20.0)


def main_stage(end_ms: float | None = 10_000, start_ms: float = 0) -> Stage:
    return Stage("main", round(start_ms * MS), None if end_ms is None else round(end_ms * MS), True, None)


def warmup(end_ms: float) -> Stage:
    return Stage("warmup", 0, round(end_ms * MS), False, None)


def turn(request_id: str, number: int, script: str | None = None) -> Turn:
    passages = (Passage("user", (hash(request_id) & 0xFFFF,), 10),)
    scripted = None if script is None else Passage("assistant", (1,), 5)
    return Turn(request_id, number, passages, 10 * number, 20, scripted_answer=scripted)


def session(
    number: int,
    due_ms: float | None,
    *rounds: int,
    pause_ms: float = 0,
    script: str | None = None,
    last_pause_ms: float = 0,
) -> Session:
    """One round per number in `rounds`, of so many turns; the default is one turn. Ids: s<session>.<round><a, b, …>."""
    widths = rounds or (1,)
    made = [
        Round(tuple(turn(f"s{number}.{r}{chr(97 + i)}", r, script) for i in range(width)), round(pause_ms * MS))
        for r, width in enumerate(widths, 1)
    ]
    made[-1] = replace(made[-1], pause_ns=round(last_pause_ms * MS))
    return Session(number, "chat", None if due_ms is None else round(due_ms * MS), tuple(made))


@dataclass
class Plan:
    """What the drive needs of a schedule."""

    made: Sequence[Session] | Callable[[int], Session]
    stages: tuple[Stage, ...] = (main_stage(),)
    loop: str = "open"
    drain_ms: float = 30_000
    concurrency: int | None = None
    requests: int | None = None
    seed: int = 0

    @property
    def drain_ns(self) -> int:
        return round(self.drain_ms * MS)

    def sessions(self) -> Iterator[Session]:
        return map(self.made, count()) if callable(self.made) else iter(self.made)


def closed(*rounds: int, pause_ms: float = 0, last_pause_ms: float = 0, **plan: Any) -> Plan:
    """Users that hold sessions of these rounds without end."""
    made = lambda n: session(n, None, *rounds, pause_ms=pause_ms, last_pause_ms=last_pause_ms)  # noqa: E731
    return Plan(made, loop="closed", **plan)


@dataclass
class WordPrompter:
    """Says of every turn only its name, and notes when it was asked to."""

    clock: VirtualClock
    asked_ns: dict[str, int] = field(default_factory=dict)
    started: dict[str, bool] = field(default_factory=dict)

    def request(self, turn: Turn, history: Sequence[Message], keep_text: bool) -> Request:
        self.asked_ns[turn.request_id] = self.clock.now_ns()
        self.started[turn.request_id] = self.clock.started.is_set()
        messages = (*history, Message("user", f"ask {turn.request_id}"))
        return Request(turn.request_id, messages, turn.input_tokens, turn.output_tokens, keep_text=keep_text)

    def history(
        self, history: Sequence[Message], turns: Sequence[Turn], requests: Sequence[Request], answers: Sequence[Any]
    ) -> tuple[Message, ...]:
        said = list(history)
        for turn, request, (text, calls) in zip(turns, requests, answers, strict=True):
            words = f"script {turn.request_id}" if turn.scripted_answer is not None or text is None else text
            said += [*request.messages[len(history) :], Message("assistant", words, {"calls": calls} if calls else {})]
        return tuple(said)


@dataclass(frozen=True)
class Answer:
    """The first token after `first_ms`, the end after `ms`; nothing else runs for the first `blocks_ms`."""

    ms: float = 500
    first_ms: float | None = None
    outcome: str = "ok"
    raises: BaseException | None = None
    blocks_ms: float = 0
    tool_calls: list[dict[str, Any]] | None = None


@dataclass
class MemoryEngine:
    """Answers each request as told by its id; keeps what was sent, and how many were in flight at most."""

    clock: VirtualClock
    answers: Mapping[str, Answer] | Callable[[str], Answer] = field(default_factory=dict)
    sent: list[Request] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    def answer_to(self, request_id: str) -> Answer:
        return self.answers(request_id) if callable(self.answers) else self.answers.get(request_id, Answer())

    async def send(self, request: Request) -> RequestRecord:
        answer = self.answer_to(request.request_id)
        if answer.raises is not None:
            raise answer.raises
        self.sent.append(request)
        record = RequestRecord(request.request_id, sent_ns=self.clock.now_ns(), outcome="cancelled", tries=1)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        with suppress(asyncio.CancelledError):
            await self._answer(request, record, answer)
        self.in_flight -= 1
        record.end_ns = self.clock.now_ns()
        return record

    async def _answer(self, request: Request, record: RequestRecord, answer: Answer) -> None:
        assert record.sent_ns is not None
        self.clock.block(round(answer.blocks_ms * MS))
        first_ms = answer.ms if answer.first_ms is None else answer.first_ms
        await self.clock.sleep_until(record.sent_ns + round(first_ms * MS))
        record.arrival_ns.append(self.clock.now_ns())
        await self.clock.sleep_until(record.sent_ns + round(answer.ms * MS))
        record.outcome = answer.outcome
        record.text = f"said {request.request_id}" if request.keep_text else None
        record.tool_calls = answer.tool_calls


@dataclass
class Outcome:
    """All that a test may ask about a drive."""

    records: dict[str, RequestRecord]
    filed: list[RequestRecord]
    driven: Driven
    engine: MemoryEngine
    prompter: WordPrompter
    live: Live
    ended_ms: float

    def sent_ms(self) -> dict[str, float]:
        return {key: r.sent_ns / MS for key, r in self.records.items() if r.sent_ns is not None}

    def due_ms(self) -> dict[str, float | None]:
        return {key: None if r.due_ns is None else r.due_ns / MS for key, r in self.records.items()}

    def outcomes(self) -> dict[str, str]:
        return {key: r.outcome for key, r in self.records.items()}

    def stages(self) -> dict[str, str]:
        return {key: r.stage for key, r in self.records.items()}


def play(
    plan: Plan,
    answers: Mapping[str, Answer] | Callable[[str], Answer] | None = None,
    *,
    stop_ms: float | None = None,
    at_once_ms: float | None = None,
    **options: Any,
) -> Outcome:
    """Drives the plan in virtual time; a stop (reason SIGINT) comes at `stop_ms`, one at once at `at_once_ms`."""

    async def main() -> Outcome:
        clock, live, stop = VirtualClock(), Live(), Stop()
        engine, prompter = MemoryEngine(clock, answers or {}), WordPrompter(clock)
        filed: list[RequestRecord] = []

        async def stopper(at_ms: float, at_once: bool) -> None:
            await clock.sleep_until(round(at_ms * MS))
            stop.set("SIGINT", at_once)

        stoppers = [
            asyncio.ensure_future(stopper(ms, at_once))
            for ms, at_once in ((stop_ms, False), (at_once_ms, True))
            if ms is not None
        ]
        driven = await drive(plan, engine, clock, prompter, filed.append, stop=stop, live=live, **options)  # type: ignore[arg-type]
        ended_ms = clock.now_ns() / MS
        for task in stoppers:
            task.cancel()
        records = {record.request_id: record for record in filed}
        return Outcome(records, filed, driven, engine, prompter, live, ended_ms)

    return run_virtual(main())
