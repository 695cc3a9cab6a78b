"""Whole runs in virtual time: the same driver and the same engine, on an event loop that jumps from timer to timer.

with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    loop = runner.get_loop()
    clock = RunClock(monotonic_ns=loop.now_ns)
    engine = VirtualEngine(config, clock, loop.now_ns)
"""

import asyncio
import selectors
from collections.abc import Callable

from analysis.record import ANSWER, THINKING, RequestRecord
from loadgen.clock import Clock
from loadgen.sim.core import SimConfig, SimRequest, Token
from loadgen.sim.realtime import Engine, Stream
from loadgen.sim.wire import word
from workloads.request import Request


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything is left to do, and then is the time of the next timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def now_ns(self) -> int:
        return round(self._jumping.now_s * 1e9)


class _JumpingSelector(selectors.DefaultSelector):
    """Skips what it should wait for. Without any timer it really waits: only another thread can wake the loop then."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now_s += max(0.0, timeout)
        return ready


class VirtualEngine:
    """The simulated server as a driver's engine. What lies between client and server takes no time.

    Prompts have exactly the planned length. A request that the server would refuse is an `http_error` with status 400.
    """

    def __init__(self, config: SimConfig, clock: Clock, now_ns: Callable[[], int]) -> None:
        self.engine = Engine(config, now_ns, spin_ns=0)
        self._context_tokens = config.roofline.model.context_tokens
        self._clock = clock

    async def send(self, request: Request) -> RequestRecord:
        now_ns = self._clock.now_ns()
        record = RequestRecord(request.request_id, sent_ns=now_ns, headers_ns=now_ns, tries=1, status=200)
        refusal = self._refusal(request)
        if refusal is not None:
            record.status, record.outcome, record.error = 400, "http_error", refusal
        else:
            await self._answer(request, record)
        record.end_ns = self._clock.now_ns()
        return record

    def _refusal(self, request: Request) -> str | None:
        if request.input_tokens + request.output_tokens > self._context_tokens:
            return f"prompt and answer need more than the context of {self._context_tokens} tokens"
        if not self.engine.core.fits(request.input_tokens, request.output_tokens):
            return "prompt and answer need more than the whole KV cache"
        return None

    async def _answer(self, request: Request, record: RequestRecord) -> None:
        name = self.engine.free_id(request.request_id)

        def encode(token: Token) -> list[bytes]:
            return [word(name, token.number)]

        stream = self.engine.open(SimRequest(name, max(1, request.input_tokens), max(1, request.output_tokens)), encode)
        try:
            words = await self._read(stream, request, record)
        except asyncio.CancelledError:
            self.engine.close(stream)
            record.outcome = "cancelled"
            return
        record.outcome, record.finish_reason = "ok", "length"
        record.prompt_tokens, record.completion_tokens = request.input_tokens, len(words)
        record.reasoning_tokens = request.thinking_tokens or None
        record.text = b"".join(words).decode() if request.keep_text else None

    async def _read(self, stream: Stream, request: Request, record: RequestRecord) -> list[bytes]:
        words: list[bytes] = []
        while tokens := await stream.take():
            now_ns = self._clock.now_ns()
            for token in tokens:
                record.arrival_ns.append(now_ns)
                record.read_id.append(len(words))
                record.kind.append(THINKING if len(words) < request.thinking_tokens else ANSWER)
                record.n_tokens.append(1)
                record.chars.append(len(token))
                words.append(token)
        return words
