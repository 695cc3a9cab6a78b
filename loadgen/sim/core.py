"""The simulated engine in virtual time: replicas that batch continuously, behind a router.

A state machine that reads no clock: whoever drives it says what time it is. `step` gives every token of every pass,
for a server in real time; `advance` jumps from one finished request to the next, for runs of hours in seconds. Both
give the same times, token by token.
"""

from heapq import heapify, heappop, heappush

from loadgen.sim.config import ClusterConfig, Policy, Router, SimConfig
from loadgen.sim.replica import NEVER, Replica
from loadgen.sim.router import least_loaded, route
from loadgen.sim.sequence import Answer, Sequence, answer_of
from loadgen.sim.tokens import Cause, SimRequest, StepResult, Token, Totals

__all__ = [
    "Answer",
    "Cause",
    "Cluster",
    "ClusterConfig",
    "Policy",
    "Router",
    "SimConfig",
    "SimRequest",
    "StepResult",
    "Token",
    "Totals",
]


class Cluster:
    """The whole engine; a `SimConfig` alone is one replica. Time must not go backwards from call to call."""

    def __init__(self, config: ClusterConfig | SimConfig) -> None:
        self.config = ClusterConfig(config) if isinstance(config, SimConfig) else config
        prefill, decode = self.config.prefill_replicas, self.config.replicas
        self.replicas = [Replica(self.config.replica, i, prefill_only=i < prefill) for i in range(prefill + decode)]
        self._entries = self.replicas[:prefill] or self.replicas
        self._decoders = self.replicas[prefill:]
        self._there: dict[str, tuple[Sequence, Replica | None]] = {}
        self._transfers: list[tuple[int, int, Sequence]] = []
        self._due: list[tuple[int, int]] = []  # (tick, number) of replicas, with what has become untrue since
        self._submitted = 0
        self._far = False
        self._results: list[StepResult] = []
        self._answers: list[Answer] = []

    @property
    def running(self) -> int:
        return sum(len(replica.scheduler.running) for replica in self.replicas)

    @property
    def waiting(self) -> int:
        """Requests in queues, those included whose cache is on its way between replicas."""
        return len(self._there) - self.running

    @property
    def kv_used_share(self) -> float:
        pools = [replica.scheduler.pool for replica in self.replicas]
        return sum(pool.used for pool in pools) / sum(pool.total for pool in pools)

    @property
    def totals(self) -> Totals:
        return sum((replica.totals for replica in self.replicas), Totals())

    @property
    def next_ns(self) -> int | None:
        """When its state next changes by itself; None: not by itself."""
        tick = min(self._next_transfer(), self._next().tick)
        return None if tick == NEVER else tick >> 1

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether such a request could run if it had the cache to itself."""
        return self.replicas[0].fits(prompt_tokens, output_tokens)

    def submit(self, now_ns: int, request: SimRequest) -> None:
        """The request takes part in passes that begin now or later.

        Raises ValueError for an id that is here already, for lengths below 1, and for what can never fit.
        """
        self._check(request)
        self._run(2 * now_ns)
        if self.config.router == "prefix_affinity":
            self.settle(now_ns)
        replica = route(self.config, self._entries, request, self._submitted)
        hashes = list(request.blocks) if self.config.replica.prefix_cache else []
        sequence = Sequence(request, self._submitted, now_ns, now_ns, hashes)
        self._submitted += 1
        self._there[request.request_id] = sequence, replica
        replica.submit(now_ns, sequence)
        self._moved(replica)

    def _check(self, request: SimRequest) -> None:
        if request.request_id in self._there:
            raise ValueError(f"request {request.request_id} is running already")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.request_id} needs at least one prompt and one output token")
        if not self.fits(request.prompt_tokens, request.output_tokens):
            raise ValueError(f"request {request.request_id} needs more than the whole KV cache")

    def cancel(self, now_ns: int, request_id: str) -> Answer | None:
        """Forgets a request. What it has given by now; None where it has ended or is unknown.

        The columns of the answer are whole only where `advance` drives: with `step`, the engine forgets old passes.
        """
        self._run(2 * now_ns)
        sequence, replica = self._there.pop(request_id, (None, None))
        if sequence is None:
            return None
        if replica is None:
            self._transfers = [each for each in self._transfers if each[2] is not sequence]
            heapify(self._transfers)
            self._entries[0].totals.cancelled += 1
        else:
            replica.cancel(now_ns, sequence)
            self._moved(replica)
        return answer_of(sequence, now_ns, done=False)

    def pause(self, now_ns: int, duration_ns: int) -> None:
        """The whole engine stands still from now on: tokens held up by it have the cause `injected`."""
        self._run(2 * now_ns)
        for replica in self.replicas:
            replica.pause(now_ns, duration_ns)
            self._moved(replica)
        self._transfers = [(at_ns + duration_ns, n, sequence) for at_ns, n, sequence in self._transfers]

    def settle(self, now_ns: int) -> None:
        """Brings blocks and counters up to now, where passes are computed ahead of time."""
        for replica in self.replicas:
            replica.catch_up(now_ns)
            self._moved(replica)

    def step(self, now_ns: int) -> list[StepResult]:
        """The passes that have ended by now, in order of time. Those that are due begin: each when the one before it on
        its replica ended, so that a late caller loses nothing."""
        self._far = False
        self._run(2 * now_ns + 1)
        results, self._results = self._results, []
        return results

    def under_way(self) -> list[StepResult]:
        """The passes that have begun. `step` gives the same objects when they end, unless something changed them."""
        return [result for replica in self.replicas if (result := replica.result()) is not None]

    def advance(self, until_ns: int) -> list[Answer]:
        """Goes on until then, or until the first request ends if that is earlier: all that end at that instant. The
        passes that begin at the instant reached are still to come: a request submitted now takes part in them."""
        self._far = True
        self._run(2 * until_ns)
        answers, self._answers = self._answers, []
        return answers

    def _run(self, limit: int) -> None:
        """Does all that is due up to a half-step, or with answers to give, up to the first of these."""
        while True:
            replica = self._next()
            tick = replica.tick
            if self._transfers and 2 * self._transfers[0][0] < tick:
                if 2 * self._transfers[0][0] > limit:
                    return
                self._arrive()
                continue
            if tick > limit:
                return
            if tick & 1:
                replica.begin(self._far)
            else:
                self._end(replica)
                if self._answers:
                    limit = tick
                elif not self._transfers and replica.tick == tick + 1 <= limit:
                    replica.begin(self._far)  # nothing that happens elsewhere at this instant concerns it
            self._moved(replica)

    def _next(self) -> Replica:
        """The replica whose state changes first; any where none does."""
        due = self._due
        while due:
            tick, number = due[0]
            replica = self.replicas[number]
            if replica.tick == tick:
                return replica
            heappop(due)
        return self.replicas[0]

    def _moved(self, replica: Replica) -> None:
        """To be told of each replica whose tick may have changed."""
        if replica.tick != NEVER:
            heappush(self._due, (replica.tick, replica.index))

    def _end(self, replica: Replica) -> None:
        now_ns = replica.tick >> 1
        if not self._far and (result := replica.result()) is not None:
            self._results.append(result)
        ended, handed = replica.end()
        for sequence in ended:
            del self._there[sequence.request.request_id]
            if self._far:
                self._answers.append(answer_of(sequence, now_ns, done=True))
        for sequence in handed:
            self._there[sequence.request.request_id] = sequence, None
            heappush(self._transfers, (now_ns + self._transfer_ns(sequence), sequence.serial, sequence))

    def _transfer_ns(self, sequence: Sequence) -> int:
        kv_bytes = self.config.replica.roofline.model.kv_bytes_per_token * sequence.request.prompt_tokens
        return round(kv_bytes / self.config.link_bytes_per_s / self.config.replica.speed * 1e9)

    def _next_transfer(self) -> int:
        return 2 * self._transfers[0][0] if self._transfers else NEVER

    def _arrive(self) -> None:
        at_ns, _, sequence = heappop(self._transfers)
        replica = least_loaded(self._decoders)
        self._there[sequence.request.request_id] = sequence, replica
        replica.submit(at_ns, sequence)
        self._moved(replica)
