"""The plan of a run: what leaves when. All randomness ends here; nothing in it reads a clock or sends anything."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from workloads.arrivals import ArrivalProcess, Constant, Floats, Gamma, OnOff, Poisson, Ramp, Sine, Varying
from workloads.lengths import Ints
from workloads.load_spec import Arrivals, LoadStage, Trace
from workloads.request import Session, Turn, cut
from workloads.shapes import ARRIVALS, Shape, Traffic
from workloads.spec import Workload
from workloads.trace_formats import TraceReport
from workloads.traces import Conversations, Replay, check_usable
from workloads.units import to_ns
from workloads.yaml_file import WorkloadError

MOST_SESSIONS = 20_000_000
"""More due times than this are a slip, and would fill the memory."""


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
        trace_report: What became of the trace that the sessions come from; None without a trace.
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
    trace_report: TraceReport | None = field(default=None, repr=False, compare=False)

    def sessions(self) -> Iterator[Session]:
        """The planned sessions: by `due_ns` and bounded in an open loop, without end and without it in a closed one."""
        i, n = self.part
        trace = self.workload.trace
        if trace is not None and trace.has_times:
            yield from Replay(self.workload, trace, self.seed).sessions(i, n)
            return
        traffic = _traffic(self.workload, self.seed)
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

    def primers(self) -> Iterator[Turn]:
        """Requests that bring the prefixes which prompts share into the server's cache, to be sent before the clock
        starts; none unless the workload is `warm`. They are no part of the sessions, and the same for every shard."""
        if self.workload.warm:
            for name, spec in self.workload.classes.items():
                yield from Shape(name, spec, self.seed).primers()

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
    """The schedule of a workload under a seed: the same two give the same schedule, to the byte.

    Raises:
        WorkloadError: The trace cannot be read, or nothing in it can be used and measured.
    """
    drain_ns = to_ns(workload.drain)
    if workload.trace is not None and workload.trace.has_times:
        stages, report = _replayed_stages(workload, workload.trace, seed)
        return Schedule("open", seed, stages, drain_ns, None, None, workload, trace_report=report)
    traffic = _traffic(workload, seed)
    found = traffic.report if isinstance(traffic, Conversations) else None
    arrivals = _arrivals(workload)
    if arrivals is None:
        stages = _closed_stages(workload)
        users, turns = workload.concurrency, workload.requests
        return Schedule("closed", seed, stages, drain_ns, users, turns, workload, trace_report=found)
    stages, due_ns = _open_stages(workload, arrivals, seed, traffic)
    return Schedule("open", seed, stages, drain_ns, None, workload.requests, workload, due_ns, trace_report=found)


def _traffic(workload: Workload, seed: int) -> Traffic | Conversations:
    return Traffic(workload, seed) if workload.trace is None else Conversations(workload, workload.trace, seed)


def _arrivals(workload: Workload) -> Arrivals | None:
    """How sessions arrive; None in a closed loop. Staggered users of one period come one every `every` / `users`."""
    if workload.users and workload.every:
        return Arrivals(process="constant", rate=workload.users / workload.every)
    return workload.arrivals


def measured_from_ns(stages: tuple[Stage, ...]) -> int:
    """When the first measured stage starts."""
    return next(stage.start_ns for stage in stages if stage.measured)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A stage to be: arrivals at `rate` (in the workload's unit) for `length_s`, exactly `count` where it is given."""

    name: str
    measured: bool
    rate: float
    length_s: float
    process: ArrivalProcess
    count: int | None = None
    open_ended: bool = False


def _closed_stages(workload: Workload) -> tuple[Stage, ...]:
    warm_ns = to_ns(workload.warmup)
    end_ns = None if workload.duration is None else warm_ns + to_ns(workload.duration)
    main = Stage("main", warm_ns, end_ns, measured=True, offered_rps=None)
    return (Stage("warmup", 0, warm_ns, measured=False, offered_rps=None), main) if warm_ns else (main,)


def _replayed_stages(workload: Workload, trace: Trace, seed: int) -> tuple[tuple[Stage, ...], TraceReport]:
    """The stages that a trace with times fills: to the end of the run, of the window, or of the trace."""
    report, warm_ns = TraceReport(), to_ns(workload.warmup)
    warm, first_ns, last_ns, n = 0, 0, 0, 0
    for due_ns, _ in Replay(workload, trace, seed).due(report):
        if due_ns < warm_ns:
            warm += 1
            continue
        first_ns, last_ns, n = (first_ns if n else due_ns), due_ns, n + 1
    check_usable(trace, report)
    if not n:
        raise WorkloadError(f"{trace.file}: all {warm:,} requests of the run fall in the warm-up: shorten it")
    if report.to_the_end or n == workload.requests:  # as long after the last request as they are apart
        end_ns = last_ns + ((last_ns - first_ns) // (n - 1) if n > 1 else 0) + 1
    else:
        end_ns = min(_asked_ends_ns(workload, trace, warm_ns))
    main = Stage("main", warm_ns, end_ns, True, _per_s(n, end_ns - warm_ns))
    return ((Stage("warmup", 0, warm_ns, False, _per_s(warm, warm_ns)), main) if warm_ns else (main,)), report


def _asked_ends_ns(workload: Workload, trace: Trace, warm_ns: int) -> Iterator[int]:
    """Where the run's duration and the trace's window end."""
    if workload.duration is not None:
        yield warm_ns + to_ns(workload.duration)
    if trace.window is not None:
        yield max(warm_ns + 1, round(to_ns(trace.window[1] - trace.window[0]) / trace.speed))


def _per_s(count: int, length_ns: int) -> float | None:
    return count / (length_ns / 1e9) if length_ns else None


def _open_stages(
    workload: Workload, arrivals: Arrivals, seed: int, traffic: Traffic | Conversations
) -> tuple[tuple[Stage, ...], Ints]:
    """The stages, laid end to end, and the due time of every session in them."""
    mean_turns = traffic.mean_turns()
    per_session = mean_turns if arrivals.unit == "requests" else 1.0
    start_s, due = 0.0, np.zeros(0, dtype=np.int64)
    stages: list[Stage] = []

    def lay(segment: _Segment) -> None:
        nonlocal start_s, due
        rng = np.random.default_rng((seed, ARRIVALS, len(stages) + 1))
        rate = segment.rate / per_session
        _check_possible(len(due) + (segment.count or rate * segment.length_s))
        offsets = segment.process.offsets(rng, rate, segment.length_s, segment.count)
        due = np.concatenate([due, _to_ns(start_s + offsets)])
        end_ns = None if segment.open_ended else to_ns(start_s + segment.length_s)
        stages.append(Stage(segment.name, to_ns(start_s), end_ns, segment.measured, rate * mean_turns))
        start_s += segment.length_s

    process = _process(arrivals)
    first = workload.stages[0].ends()[0] if workload.stages else arrivals.rate or 0.0
    if workload.warmup:
        lay(_Segment("warmup", False, first, workload.warmup, process))
    if workload.stages:
        for segment in _staged(workload.stages, process):
            lay(segment)
    elif workload.requests is None:
        lay(_Segment("main", True, first, workload.duration or 0.0, process))
    else:
        _check_possible(workload.requests / mean_turns)
        count = _sessions_for(workload.requests, traffic, len(due))
        # Later turns of a session come when its earlier ones have been answered: no clock can tell when all are done.
        open_ended = mean_turns > 1
        lay(_Segment("main", True, first, count / (first / per_session), process, count, open_ended))
    return tuple(stages), due


def _check_possible(sessions: float) -> None:
    """Raises WorkloadError for more than a plan can hold."""
    if sessions > MOST_SESSIONS:
        raise WorkloadError(f"over {MOST_SESSIONS:,} sessions in one plan: lower its rate, or make it shorter")


def _staged(stages: Sequence[LoadStage], process: ArrivalProcess) -> Iterator[_Segment]:
    for i, stage in enumerate(stages, 1):
        start, end = stage.ends()
        its = process if start == end else Varying(Ramp(start, end, stage.duration), process)
        yield _Segment(f"stage{i}", True, stage.mean_rate(), stage.duration, its)


def _sessions_for(turns: int, traffic: Traffic | Conversations, first: int) -> int:
    """How many sessions, from number `first` on, it takes to make `turns` model calls."""
    for count, (_, _, draws) in enumerate(traffic.drawn(first), 1):
        turns -= draws.n_turns
        if turns <= 0:
            return count
    raise AssertionError("traffic never ends")


def _process(arrivals: Arrivals) -> ArrivalProcess:
    """The process, each stage of the run beginning it anew."""
    match arrivals.process:
        case "constant":
            return Constant()
        case "poisson":
            return Poisson()
        case "gamma":
            return Gamma(arrivals.cv or 1.0)
        case "onoff":
            return Varying(OnOff(arrivals.burst or 1.0, arrivals.pause or 1.0))
        case "sine":
            return Varying(Sine(arrivals.period or 1.0, arrivals.amplitude or 0.0))


def _to_ns(seconds: Floats) -> Ints:
    return np.rint(seconds * 1e9).astype(np.int64)


def _share(whole: int, i: int, n: int) -> int:
    """The i-th of n parts of a whole, as even as whole numbers allow."""
    return (whole - i + n - 1) // n
