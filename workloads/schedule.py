"""The plan of a run: what leaves when. All randomness ends here; nothing in it reads a clock or sends anything."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from workloads.arrivals import ArrivalProcess, Constant, Floats, Gamma, Poisson
from workloads.lengths import Ints
from workloads.request import Session, cut
from workloads.shapes import ARRIVALS, Traffic
from workloads.spec import Arrivals, Workload
from workloads.units import to_ns


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of the run. `end_ns` None: it ends when its requests are done.

    `offered_rps` is the nominal rate of requests (the rate of sessions times their mean number of turns); None in a
    closed loop, where the server sets the pace.
    """

    name: str
    start_ns: int
    end_ns: int | None
    measured: bool
    offered_rps: float | None


@dataclass(frozen=True)
class Schedule:
    """What leaves when.

    Attributes:
        seed: Together with the workload, decides everything else here.
        stages: In order of time, the first from 0. Only measured ones count in the headline.
        drain_ns: How long requests may still run after the last stage.
        concurrency: Users of a closed loop; None in an open one.
        requests: Measured turns to plan, None: until the last stage ends. An open loop's sessions are cut to it.
        due_ns: When each session of an open loop starts, ascending.
        part: (i, n): this schedule has the sessions with number ≡ i mod n.
    """

    loop: Literal["open", "closed"]
    seed: int
    stages: tuple[Stage, ...]
    drain_ns: int
    concurrency: int | None
    requests: int | None
    workload: Workload = field(repr=False)
    due_ns: Ints | None = field(default=None, repr=False, compare=False)
    part: tuple[int, int] = (0, 1)

    def sessions(self) -> Iterator[Session]:
        """The planned sessions: by `due_ns` and bounded in an open loop, without end and without it in a closed one."""
        i, n = self.part
        traffic = Traffic(self.workload, self.seed)
        if self.due_ns is None:
            for number, shape, draws in traffic.drawn():
                if number % n == i:
                    yield shape.session(number, None, draws)
            return
        left = self.requests
        start_ns = measured_from_ns(self.stages)
        for due_ns, (number, shape, draws) in zip(self.due_ns.tolist(), traffic.drawn(), strict=False):
            if number % n == i:
                session = shape.session(number, due_ns, draws)
                yield session if left is None or left >= draws.n_turns or due_ns < start_ns else cut(session, left)
            if left is not None and due_ns >= start_ns:
                left -= draws.n_turns

    def shard(self, i: int, n: int) -> "Schedule":
        """Every n-th session, from the i-th on. The `n` shards are the whole, users and turns of a closed loop too."""
        mine, of = self.part
        closed = self.loop == "closed"
        return replace(
            self,
            concurrency=None if self.concurrency is None else _share(self.concurrency, i, n),
            requests=_share(self.requests, i, n) if closed and self.requests is not None else self.requests,
            part=(mine + i * of, of * n),
        )


def build(workload: Workload, seed: int) -> Schedule:
    """The schedule of a workload under a seed: the same two give the same schedule, to the byte."""
    drain_ns = to_ns(workload.drain)
    if workload.arrivals is None:
        stages = _closed_stages(workload)
        return Schedule("closed", seed, stages, drain_ns, workload.concurrency, workload.requests, workload)
    stages, due_ns = _open_stages(workload, workload.arrivals, seed)
    return Schedule("open", seed, stages, drain_ns, None, workload.requests, workload, due_ns)


def measured_from_ns(stages: tuple[Stage, ...]) -> int:
    """When the first measured stage starts."""
    return next(stage.start_ns for stage in stages if stage.measured)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A stage to be: sessions arrive at `rate` for `length_s`, exactly `count` of them where that is given."""

    name: str
    measured: bool
    rate: float
    length_s: float
    count: int | None = None
    open_ended: bool = False


def _closed_stages(workload: Workload) -> tuple[Stage, ...]:
    warm_ns = to_ns(workload.warmup)
    end_ns = None if workload.duration is None else warm_ns + to_ns(workload.duration)
    main = Stage("main", warm_ns, end_ns, measured=True, offered_rps=None)
    return (Stage("warmup", 0, warm_ns, measured=False, offered_rps=None), main) if warm_ns else (main,)


def _open_stages(workload: Workload, arrivals: Arrivals, seed: int) -> tuple[tuple[Stage, ...], Ints]:
    """The stages, laid end to end, and the due time of every session in them."""
    traffic = Traffic(workload, seed)
    mean_turns = traffic.mean_turns()
    per_session = mean_turns if arrivals.unit == "requests" else 1.0
    process = _process(arrivals)
    start_s, due = 0.0, np.zeros(0, dtype=np.int64)
    stages: list[Stage] = []

    def lay(segment: _Segment) -> None:
        nonlocal start_s, due
        rng = np.random.default_rng((seed, ARRIVALS, len(stages) + 1))
        offsets = process.offsets(rng, segment.rate, segment.length_s, segment.count)
        due = np.concatenate([due, _to_ns(start_s + offsets)])
        end_ns = None if segment.open_ended else to_ns(start_s + segment.length_s)
        stages.append(Stage(segment.name, to_ns(start_s), end_ns, segment.measured, segment.rate * mean_turns))
        start_s += segment.length_s

    rates = [s.rate for s in workload.stages] if workload.stages else [arrivals.rate or math.nan]
    if workload.warmup:
        lay(_Segment("warmup", False, rates[0] / per_session, workload.warmup))
    for segment in _measured(workload, [rate / per_session for rate in rates], traffic, len(due)):
        lay(segment)
    return tuple(stages), due


def _measured(workload: Workload, rates: list[float], traffic: Traffic, first: int) -> Iterator[_Segment]:
    """The measured stages; `first` is the number of the first session in them."""
    if workload.stages:
        for i, (stage, rate) in enumerate(zip(workload.stages, rates, strict=True), 1):
            yield _Segment(f"stage{i}", True, rate, stage.duration)
    elif workload.requests is None:
        yield _Segment("main", True, rates[0], workload.duration or 0.0)
    else:
        count = _sessions_for(workload.requests, traffic, first)
        # Later turns of a session come when its earlier ones have been answered: no clock can tell when all are done.
        yield _Segment("main", True, rates[0], count / rates[0], count, open_ended=traffic.mean_turns() > 1)


def _sessions_for(turns: int, traffic: Traffic, first: int) -> int:
    """How many sessions, from number `first` on, it takes to make `turns` model calls."""
    for count, (_, _, draws) in enumerate(traffic.drawn(first), 1):
        turns -= draws.n_turns
        if turns <= 0:
            return count
    raise AssertionError("traffic never ends")


def _process(arrivals: Arrivals) -> ArrivalProcess:
    if arrivals.process == "gamma":
        return Gamma(arrivals.cv or 1.0)
    return Constant() if arrivals.process == "constant" else Poisson()


def _to_ns(seconds: Floats) -> Ints:
    return np.rint(seconds * 1e9).astype(np.int64)


def _share(whole: int, i: int, n: int) -> int:
    """The i-th of n parts of a whole, as even as whole numbers allow."""
    return (whole - i + n - 1) // n
