"""The driver that sends over the network, with a cluster on an event loop in virtual time: what a replay must equal."""

import asyncio
from dataclasses import dataclass, field
from itertools import count

from analysis.record import ANSWER, THINKING, RequestRecord
from loadgen.drive import Driven, Stop, drive
from loadgen.sim.core import Answer, Cluster, ClusterConfig, SimConfig, SimRequest
from loadgen.sim.replay import REFUSAL_NS
from tests.loadgen.virtual import VirtualClock, VirtualLoop
from workloads.prompts import Prompter
from workloads.request import Request

SOON_NS = 1
"""Passes that are due begin when all that happens at the instant has happened: a moment later."""


class FairLoop(VirtualLoop):
    """Of timers for the same instant, the first that was set goes first. (asyncio's heap promises nothing of that.)"""

    def __init__(self) -> None:
        super().__init__()
        self.virtual.now_ns = 0
        self._timers = count(1)

    def call_at(self, when, callback, *args, context=None):
        when = round(when * 1e9) / 1e9 + next(self._timers) * 1e-15
        return super().call_at(when, callback, *args, context=context)


@dataclass(eq=False)
class ClusterEngine:
    """A cluster as a driver's engine."""

    cluster: Cluster
    clock: VirtualClock
    waiting: dict[str, "asyncio.Future[Answer]"] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None

    async def send(self, request: Request) -> RequestRecord:
        now_ns = self.clock.now_ns()
        record = RequestRecord(request.request_id, sent_ns=now_ns, headers_ns=now_ns, tries=1, status=200)
        refusal = self.refusal(request)
        if refusal is not None:
            return await self.refuse(record, refusal)
        future = self.waiting[request.request_id] = asyncio.get_running_loop().create_future()
        lengths = max(1, request.input_tokens), max(1, request.output_tokens)
        self.cluster.submit(now_ns, SimRequest(request.request_id, *lengths))
        self.set_timer()
        try:
            answer = await future
            record.outcome, record.finish_reason = "ok", "length"
            record.prompt_tokens, record.completion_tokens = request.input_tokens, lengths[1]
            record.cached_tokens, record.reasoning_tokens = 0, request.thinking_tokens or None
        except asyncio.CancelledError:
            cut = self.cluster.cancel(self.clock.now_ns(), request.request_id)
            assert cut is not None
            answer = cut
            record.outcome = "cancelled"
        fill(record, answer, request.thinking_tokens)
        record.end_ns = answer.end_ns
        return record

    async def refuse(self, record: RequestRecord, refusal: str) -> RequestRecord:
        try:
            await self.clock.sleep_until(self.clock.now_ns() + REFUSAL_NS)
            record.status, record.outcome, record.error = 400, "http_error", refusal
        except asyncio.CancelledError:
            record.outcome = "cancelled"
        record.end_ns = self.clock.now_ns()
        return record

    def refusal(self, request: Request) -> str | None:
        context_tokens = self.cluster.config.replica.roofline.model.context_tokens
        if request.input_tokens + request.output_tokens > context_tokens:
            return f"prompt and answer need more than the context of {context_tokens} tokens"
        fits = self.cluster.fits(request.input_tokens, request.output_tokens)
        return None if fits else "prompt and answer need more than the whole KV cache"

    def set_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.cluster.next_ns is not None:
            in_ns = max(SOON_NS, self.cluster.next_ns - self.clock.now_ns())
            self.timer = asyncio.get_running_loop().call_later(in_ns / 1e9, self.go_on)

    def go_on(self) -> None:
        for answer in self.cluster.advance(self.clock.now_ns()):
            self.waiting.pop(answer.request_id).set_result(answer)
        self.set_timer()


def fill(record: RequestRecord, answer: Answer, thinking_tokens: int) -> None:
    numbers = count()
    before = 0
    for at_ns, tokens in zip(answer.arrival_ns.tolist(), answer.counts.tolist(), strict=True):
        record.arrival_ns.append(at_ns)
        record.n_tokens.append(tokens)
        record.read_id.append(next(numbers))
        record.kind.append(THINKING if before < thinking_tokens else ANSWER)
        before += tokens


def driven(
    schedule, config: ClusterConfig | SimConfig, max_in_flight: int | None
) -> tuple[list[RequestRecord], Driven]:
    """The records of a schedule, and what became of its times."""
    records: list[RequestRecord] = []

    async def main() -> Driven:
        clock = VirtualClock()
        engine = ClusterEngine(Cluster(config), clock)
        options = {"stop": Stop(), "max_in_flight": max_in_flight}
        return await drive(schedule, engine, clock, Prompter(1), records.append, **options)

    with asyncio.Runner(loop_factory=FairLoop) as runner:
        return records, runner.run(main())
