"""The core on an event loop: passes take as long as the model says, and their tokens go to open streams."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from loadgen.sim.config import ClusterConfig, SimConfig
from loadgen.sim.core import Cluster
from loadgen.sim.tokens import SimRequest, StepResult, Token

SPIN_NS = 400_000
SPIN_SHARE = 32
"""At most this time, and this part of the wait, is spent in a busy loop, as timers are late: some 3 % of a core."""


SLIP_NS = 100_000_000
"""A process that was held up for longer does not catch up: the simulated engine's time stood still as well."""


class Sink:
    """Where the tokens of one request go.

    `encode` turns a token into what leaves with it, while its pass still lasts, so that nothing but writing is left to
    do at the end. It may be called more than once for a token, if the pass is changed meanwhile. `write` then gets it,
    and when the pass ended.
    """

    __slots__ = ("closed", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.closed = False

    def encode(self, token: Token) -> Any:
        raise NotImplementedError

    def write(self, encoded: Any, token: Token, due_ns: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True


Ready = list[tuple[Sink, Token, Any]]


class Engine:
    """Ends and begins passes by a timer, for as long as there is work.

    Args:
        now_ns: The monotonic clock that the event loop's timers follow.
        spin_ns: At most how much of a wait is spent in a busy loop, as timers are late; 0: none.
    """

    def __init__(
        self,
        config: ClusterConfig | SimConfig,
        now_ns: Callable[[], int] = time.monotonic_ns,
        spin_ns: int = SPIN_NS,
    ) -> None:
        self.core = Cluster(config)
        self.after_pass: Callable[[], None] | None = None
        self._clock_ns = now_ns
        self._spin_ns = spin_ns
        self._slip_ns = self._seen_ns = 0
        self._due_ns: int | None = None
        self._sinks: dict[str, Sink] = {}
        self._prepared: list[tuple[StepResult, Ready]] = []
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, *requests: tuple[SimRequest, Sink]) -> int:
        """Submits requests under ids that are free, all at one instant, and returns it (on the clock)."""
        now_ns = self._caught_up_ns()
        for request, sink in requests:
            self.core.submit(now_ns, request)
            self._sinks[request.request_id] = sink
        self._set_timer()
        return now_ns + self._slip_ns

    def close(self, sink: Sink) -> bool:
        """Ends a stream. Where tokens are still to come, they are cancelled; returns whether there were any."""
        cut = self._sinks.get(sink.request_id) is sink
        if cut:
            del self._sinks[sink.request_id]
            self.core.cancel(self._caught_up_ns(), sink.request_id)
            self._prepare()
            self._set_timer()
        sink.close()
        return cut

    def pause(self, duration_ns: int) -> None:
        """The whole engine stands still from now on."""
        self.core.pause(self._caught_up_ns(), duration_ns)
        self._prepare()
        self._set_timer()

    def _now_ns(self) -> int:
        """The core's time. It does not go back, though timers of a virtual clock may come a nanosecond early."""
        self._seen_ns = max(self._seen_ns, self._clock_ns() - self._slip_ns)
        return self._seen_ns

    def _caught_up_ns(self) -> int:
        """Now, with every pass handed out whose timer is about to fire: the core would go on with the next ones."""
        while self._due_ns is not None and self._due_ns <= self._now_ns():
            self._tick(self._due_ns)
        return self._now_ns()

    def _set_timer(self) -> None:
        due_ns = self.core.next_ns
        if due_ns == self._due_ns:
            return
        self._due_ns = due_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ns is not None:
            at_ns = due_ns + self._slip_ns
            spin_ns = min(self._spin_ns, max(0, at_ns - self._clock_ns()) // SPIN_SHARE)
            self._timer = asyncio.get_running_loop().call_at((at_ns - spin_ns) / 1e9, self._tick, due_ns)

    def _tick(self, due_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_ns = self._timer = None
        slip_ns = self._slip_ns
        while self._spin_ns and self._clock_ns() < due_ns + slip_ns:
            pass
        late_ns = self._clock_ns() - slip_ns - due_ns
        if late_ns > SLIP_NS:
            self._slip_ns += late_ns
        self._seen_ns = max(self._seen_ns, due_ns)
        try:
            self._pass(due_ns, slip_ns)
        except BaseException:
            # Nobody shall wait for what will not come. The exception itself is for the event loop to report.
            for sink in list(self._sinks.values()):
                self.close(sink)
            raise

    def _pass(self, due_ns: int, slip_ns: int) -> None:
        """What is prepared leaves first; only then does the core find out what comes next."""
        due = [each for each in self._prepared if each[0].end_ns <= due_ns]
        for result, ready in due:
            self._deliver(ready, result.end_ns + slip_ns)
        for result in self.core.step(due_ns):
            if not any(result is left for left, _ in due):
                self._deliver(self._encode(result), result.end_ns + slip_ns)
        self._prepare()
        self._set_timer()
        if self.after_pass is not None:
            self.after_pass()

    def _prepare(self) -> None:
        """Encodes what will leave with the passes under way, but for those that are encoded already."""
        known = {id(result): ready for result, ready in self._prepared}
        self._prepared = [
            (result, known[id(result)] if id(result) in known else self._encode(result))
            for result in self.core.under_way()
        ]

    def _encode(self, result: StepResult) -> Ready:
        sinks = self._sinks
        found = ((sinks.get(token.request_id), token) for token in result.tokens)
        return [(sink, token, sink.encode(token)) for sink, token in found if sink is not None]

    def _deliver(self, ready: Ready, due_ns: int) -> None:
        for sink, token, encoded in ready:
            if not sink.closed:
                sink.write(encoded, token, due_ns)
        for sink, token, _ in ready:
            if token.last and self._sinks.get(sink.request_id) is sink:
                del self._sinks[sink.request_id]
