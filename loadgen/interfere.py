"""The experiment on interference: streams decode without a pause, and prompts of a ladder of lengths come in between.

Streams are renewed together, between injections: all have the same length and begin together, so they end together, and
a prompt is sent only if they will outlast it. One that ends all the same is replaced at once. Knows no HTTP.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from analysis.interfere.result import BASELINE, EXPERIMENT
from analysis.interfere.streams import INJECTED, VICTIM
from analysis.record import RequestRecord
from loadgen.clock import Clock
from loadgen.drive import Engine, Live, Stop
from loadgen.interfere_plan import SURE, VICTIM_PROMPT_TOKENS, Design, Known, Trial, forecast, stream_tokens, trials
from workloads.prompts import Prompter
from workloads.request import Passage, Turn
from workloads.schedule import Stage
from workloads.units import to_ns

BASELINE_TOKENS = 128
"""Length of each answer of the decode-only baseline."""
START_AHEAD_NS = 10_000_000
DRAIN_S = 30.0
TOO_LONG = frozenset({400, 413, 422})


@dataclass(frozen=True)
class Ran:
    """What became of the experiment. `design` has the lengths that fitted."""

    design: Design
    stages: tuple[Stage, ...]
    ended_ns: int
    interrupted_by: str | None
    notes: tuple[str, ...]


class Experiment:
    """One run of a design over an engine. `run` is to be called once.

    Args:
        on_record: Called on the event loop with each record when it is complete; must be quick.
        tell: Takes a line for the user.
    """

    def __init__(
        self,
        design: Design,
        engine: Engine,
        clock: Clock,
        prompter: Prompter,
        on_record: Callable[[RequestRecord], None],
        *,
        stop: Stop,
        live: Live | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.design, self.engine, self.clock, self.prompter = design, engine, clock, prompter
        self.on_record, self.stop, self.live, self.tell = on_record, stop, live or Live(), tell
        self.known = Known()
        self.notes: list[str] = []
        self.stages: list[Stage] = []
        self.open: set[asyncio.Task[RequestRecord]] = set()
        self.sent = 0
        self.streams = Streams(self)

    async def run(self) -> Ran:
        """Returns when every request is over: by itself, or soon after a stop, which cuts what is open."""
        self.clock.start(START_AHEAD_NS)
        conductor = asyncio.create_task(self._conduct())
        stopped = asyncio.create_task(self.stop.wait())
        await asyncio.wait({conductor, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        conductor.cancel()
        await asyncio.wait({conductor})
        await self._cut()
        if not conductor.cancelled():
            conductor.result()
        self._end_stage()
        return Ran(self.design, tuple(self.stages), self.clock.now_ns(), self.stop.reason, tuple(self.notes))

    async def _conduct(self) -> None:
        await self.clock.sleep_until(0)
        if await self._pilot() and await self._baseline():
            await self._inject()
            await self.streams.run_out()

    # --- before the experiment -------------------------------------------------------------------------------------

    async def _pilot(self) -> bool:
        """The longest prompt, alone: whether it fits, and how long it takes. Shorter ones where it does not."""
        self._begin_stage("pilot", measured=False)
        for tokens in reversed(self.design.fitting):
            record = await self.send(INJECTED, tokens, 1)
            if record.outcome == "ok":
                self.known.see(record, tokens)
                return True
            if record.status not in TOO_LONG or tokens == self.design.fitting[0]:
                self.stop.set(f"a prompt of {tokens:,} tokens failed: {record.error or record.outcome}")
                return False
            self._note(f"a prompt of {tokens:,} tokens is left out: {record.error or 'the server refuses it'}")
            self.design = replace(self.design, lengths=tuple(each for each in self.design.fitting if each < tokens))
        self.stop.set("no prompt length fits the model's context")
        return False

    async def _baseline(self) -> bool:
        """Streams alone, in growing number."""
        for count in self.design.levels:
            self._begin_stage(f"{BASELINE}{count}", measured=False)
            sends = (self.send(VICTIM, VICTIM_PROMPT_TOKENS, BASELINE_TOKENS) for _ in range(count))
            records = await asyncio.gather(*sends)
            failed = next((each for each in records if each.outcome != "ok" or not _itl_s(each)), None)
            if failed is not None:
                why = failed.error or failed.outcome
                self.stop.set(f"a stream of {BASELINE_TOKENS} tokens failed or was not streamed: {why}")
                return False
            if any((each.completion_tokens or BASELINE_TOKENS) < BASELINE_TOKENS / 2 for each in records):
                self.stop.set("answers end early: the server does not heed ignore_eos, so its streams cannot be held")
                return False
            self.known.itl_s = float(np.median([_itl_s(each) for each in records]))
            self.known.first_s = max(_first_s(each) for each in records)
        return True

    # --- the experiment --------------------------------------------------------------------------------------------

    async def _inject(self) -> None:
        design, known = self.design, self.known
        order = trials(design.fitting, design.repeats, design.seed)
        self.tell(forecast(design, known, order))
        self._begin_stage(EXPERIMENT, measured=True)
        self.streams.begin(known.rest_of(order, design.rest_s))
        rested_ns = 0
        for at, trial in enumerate(order):
            self.streams.left_s = known.rest_of(order[at:], design.rest_s)
            await self.clock.sleep_until(rested_ns)
            await self.streams.outlast(known.window_s(trial))
            await self._try(trial)
            rested_ns = self.clock.now_ns() + to_ns(design.rest_s)
            if (at + 1) % (len(order) // design.repeats) == 0:
                self.tell(f"repeat {(at + 1) * design.repeats // len(order)} of {design.repeats} is done")
        await self.clock.sleep_until(rested_ns)

    async def _try(self, trial: Trial) -> None:
        if trial is None:
            await self.clock.sleep_until(self.clock.now_ns() + to_ns(self.known.expected_s(None)))
        else:
            self.known.see(await self.send(INJECTED, trial, 1), trial)

    # --- requests and stages ---------------------------------------------------------------------------------------

    async def send(self, class_name: str, prompt_tokens: int, output_tokens: int) -> RequestRecord:
        """The filed record of one request with a fresh prompt. Cancelling the caller leaves the request open."""
        self.sent += 1
        passage = Passage("user", (self.sent,), prompt_tokens)
        turn = Turn(f"{class_name}-{self.sent}", 1, (passage,), prompt_tokens, output_tokens)
        task = asyncio.create_task(self._send(turn, class_name, self.stages[-1].name, self.sent - 1))
        self.open.add(task)
        task.add_done_callback(self.open.discard)
        await asyncio.wait({task})
        return task.result()

    async def _send(self, turn: Turn, class_name: str, stage: str, session: int) -> RequestRecord:
        self.live.sent += 1
        self.live.in_flight += 1
        try:
            record = await self.engine.send(self.prompter.request(turn, (), keep_text=False))
        except Exception as error:  # a bug of the engine costs one request, and nobody waits for it for ever
            what = f"{type(error).__name__}: {error}"
            record = RequestRecord(turn.request_id, outcome="client_error", error=what, end_ns=self.clock.now_ns())
        finally:
            self.live.in_flight -= 1
        record.session, record.turn, record.class_name, record.stage = session, turn.number, class_name, stage
        record.asked_input_tokens, record.asked_output_tokens = turn.input_tokens, turn.output_tokens
        self.on_record(record)
        return record

    async def _cut(self) -> None:
        self.streams.close()
        while self.open:
            for task in self.open:
                task.cancel()
            await asyncio.wait(set(self.open))

    def _begin_stage(self, name: str, measured: bool) -> None:
        self._end_stage()
        self.stages.append(Stage(name, max(0, self.clock.now_ns()), None, measured, None))

    def _end_stage(self) -> None:
        if self.stages and self.stages[-1].end_ns is None:
            self.stages[-1] = replace(self.stages[-1], end_ns=max(0, self.clock.now_ns()))

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.tell(text)


class Streams:
    """The victims of an experiment: so many tasks, each of which keeps one stream going.

    Attributes:
        left_s: How long the experiment may still take: new streams are no longer than that.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.left_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._begun_ns: list[int] = []
        self._tokens: list[int] = []
        self._renewed = asyncio.Event()
        self._closing = False

    def begin(self, left_s: float) -> None:
        count = self.experiment.design.streams
        self.left_s = left_s
        self._begun_ns, self._tokens = [self.experiment.clock.now_ns()] * count, [0] * count
        self._tasks = [asyncio.create_task(self._keep(number)) for number in range(count)]

    async def outlast(self, window_s: float) -> None:
        """Returns when all streams decode, and will for so long; at once if new ones would not either."""
        now_ns = self.experiment.clock.now_ns()
        needed_ns = to_ns(window_s + 2 * self.experiment.known.itl_s)
        pairs = zip(self._begun_ns, self._tokens, strict=True)
        if any(tokens and begun + self._lasting_ns(tokens) < now_ns + needed_ns for begun, tokens in pairs):
            while min(self._begun_ns) < now_ns:
                self._renewed.clear()
                await self._renewed.wait()
        await self.experiment.clock.sleep_until(max(self._begun_ns) + to_ns(self.experiment.known.settle_s))

    async def run_out(self) -> None:
        """Waits for the last streams to end by themselves, a while at most."""
        self._closing = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)

    def close(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()

    async def _keep(self, number: int) -> None:
        experiment, in_vain = self.experiment, 0
        while not self._closing:
            tokens = stream_tokens(experiment.design, experiment.known, self.left_s)
            self._begun_ns[number], self._tokens[number] = experiment.clock.now_ns(), tokens
            self._renewed.set()
            record = await experiment.send(VICTIM, VICTIM_PROMPT_TOKENS, tokens)
            in_vain = 0 if record.arrival_ns else in_vain + 1
            if in_vain == 2 and not self._closing:
                experiment.stop.set(f"a stream failed twice: {record.error or record.outcome}")
                return

    def _lasting_ns(self, tokens: int) -> int:
        """How long a stream lasts at the least: freezes make it longer."""
        return to_ns(SURE * tokens * self.experiment.known.itl_s)


def _first_s(record: RequestRecord) -> float:
    return (record.arrival_ns[0] - (record.sent_ns or 0)) / 1e9


def _itl_s(record: RequestRecord) -> float:
    """Mean over the stream; 0 where all came at once."""
    tokens = max(record.completion_tokens or 0, len(record.arrival_ns), 2)
    return (record.arrival_ns[-1] - record.arrival_ns[0]) / 1e9 / (tokens - 1) if record.arrival_ns else 0.0
