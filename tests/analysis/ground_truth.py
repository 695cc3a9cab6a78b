"""Runs of the simulated engine in virtual time of which it is known, token by token, what delayed them."""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from analysis.record import RequestRecord
from analysis.roofline import Roofline
from analysis.run import Run
from analysis.stalls.causes import Episodes, diagnose
from analysis.stalls.frozen import find
from loadgen.sim import catalog
from loadgen.sim.core import Cluster, ClusterConfig, SimConfig, SimRequest, StepResult

S = 1_000_000_000
NOISE_NS = 2_000_000
Why = dict[tuple[str, str | None], float]
"""By how many nanoseconds each cause (and culprit) delayed one token."""


@dataclass(frozen=True)
class Plan:
    """What is simulated, and what goes wrong by design.

    Attributes:
        classes: Name, requests per second, and the ranges of prompt and output tokens.
        pauses_rps: How often the whole engine stops, for a time in the range `pause_s`.
        holds: Share of the streams that stop once, for a time in that range, while the engine goes on.
        buffered: Share of the streams whose bytes come 40 events at a time.
        late_rps: How often our own event loop is late by a time in that range (then arrivals are stamped by it).
        metrics: Whether the server is scraped.
        replicas: Engines behind the target, in turn.
    """

    seconds: float = 120.0
    seed: int = 1
    chunk_tokens: int = 0
    speed: float = 1.0
    kv_tokens: int | None = None
    max_num_seqs: int = 256
    classes: tuple[tuple[str, float, tuple[int, int], tuple[int, int]], ...] = (
        ("chat", 4.0, (60, 500), (100, 400)),
        ("rag", 0.4, (7000, 24000), (50, 150)),
    )
    pauses_rps: float = 0.0
    pause_s: tuple[float, float] = (0.3, 1.5)
    holds: float = 0.0
    buffered: float = 0.0
    late_rps: float = 0.0
    metrics: bool = False
    stall: dict[str, str] = field(default_factory=dict)
    replicas: int = 1

    def config(self) -> ClusterConfig:
        roofline = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))
        replica = SimConfig(roofline, self.chunk_tokens, self.max_num_seqs, self.kv_tokens, self.speed)
        return ClusterConfig(replica, self.replicas)


@dataclass
class Known:
    """A run, and why each token of it came late: `why[request_id][number]`, the first token being number 0."""

    run: Run
    why: dict[str, list[Why]]


def simulate(plan: Plan) -> Known:
    random = np.random.default_rng(plan.seed)
    arrivals = list(_arrivals(plan, random))
    samples: list[dict[str, float]] = []
    pauses = _intervals(plan.pauses_rps, plan.pause_s, plan.seconds, random)
    tokens, steps = _tokens(passes(plan.config(), arrivals, pauses, samples), pauses)
    late = _intervals(plan.late_rps, (0.3, 1.0), plan.seconds, random)
    records, why = [], {}
    for at_ns, request in arrivals:
        mine = _late(_disturbed(tokens[request.request_id], steps, plan, random), late)
        noise_ns = random.integers(0, 1 if late else NOISE_NS, len(mine))
        times = np.maximum.accumulate(np.array([t for t, _ in mine]) + noise_ns)
        records.append(_record(at_ns, request, times.tolist()))
        why[request.request_id] = [delays for _, delays in mine]
    described = {
        "format_version": 1, "id": "truth", "workload": {"name": "truth", "stall": plan.stall}, "loop": "open",
        "stages": [{"name": "main", "start_ns": 0, "end_ns": round(plan.seconds * S), "measured": True}],
        "complete": True, "timestamp_source": "user" if late else "kernel",
    }  # fmt: skip
    server = pd.DataFrame(samples) if plan.metrics else None
    return Known(Run.from_records(described, records, server, _client(late)), why)


Timed = list[tuple[int, Why]]
Span = tuple[int, int]


def _tokens(results: Iterable[StepResult], pauses: Sequence[Span]) -> tuple[dict[str, Timed], Timed]:
    """Each request's tokens, and the passes of the engine as a stream that was in all of them sees them."""
    tokens: dict[str, Timed] = defaultdict(list)
    steps: Timed = []
    for result in results:
        for token in result.tokens:
            mine = tokens[token.request_id]
            since_ns = mine[-1][0] if mine else result.end_ns
            paused_ns = sum(max(0, min(end, result.end_ns) - max(start, since_ns)) for start, end in pauses)
            why: Why = {("injected", None): float(paused_ns)} if paused_ns else {}
            if token.cause != "injected":
                why[token.cause, token.culprit] = float(token.delay_ns)
            if token.number > 1 and token.cause != "preemption" and (not steps or steps[-1][0] < result.end_ns):
                steps.append((result.end_ns, why))
            mine.append((result.end_ns, why))
    return tokens, steps


def passes(
    config: ClusterConfig,
    arrivals: Iterable[tuple[int, SimRequest]],
    pauses: Iterable[Span],
    samples: list[dict[str, float]],
) -> Iterable[StepResult]:
    """Every pass, in order of time; a sample of the engine's state is taken every second."""
    engine, pending, breaks = Cluster(config), deque(arrivals), deque(pauses)
    sample_ns = 0
    while pending or engine.next_ns is not None:
        nothing = 1 << 62
        at_arrival, at_break = (queue[0][0] if queue else nothing for queue in (pending, breaks))
        now_ns = min(at_arrival, at_break, sample_ns, nothing if engine.next_ns is None else engine.next_ns)
        yield from engine.step(now_ns)
        if now_ns == at_break:
            start_ns, end_ns = breaks.popleft()
            engine.pause(start_ns, end_ns - start_ns)
        elif now_ns == at_arrival:
            engine.submit(*pending.popleft())
        elif now_ns == sample_ns:
            samples.append(_sample(engine, now_ns))
            sample_ns += S


def _sample(engine: Cluster, now_ns: int) -> dict[str, float]:
    return {
        "t_ns": now_ns, "running": engine.running, "waiting": engine.waiting, "kv_usage": engine.kv_used_share,
        "preemptions": engine.totals.preemptions, "prompt_tokens": engine.totals.prompt_tokens,
        "queue_s": engine.totals.queue_ns / S, "queue_requests": engine.totals.first_tokens,
        "prefill_s": engine.totals.prefill_ns / S, "prefill_requests": engine.totals.first_tokens,
    }  # fmt: skip


def _arrivals(plan: Plan, random: np.random.Generator) -> Iterable[tuple[int, SimRequest]]:
    found = []
    for name, rate, prompt, output in plan.classes:
        at_s = np.cumsum(random.exponential(1 / rate, int(rate * plan.seconds * 2) + 20))
        for i, t in enumerate(at_s[at_s < plan.seconds]):
            lengths = int(random.integers(*prompt, endpoint=True)), int(random.integers(*output, endpoint=True))
            found.append((int(t * S), SimRequest(f"{name}-{i}", *lengths)))
    return sorted(found, key=lambda each: each[0])


def _intervals(
    rate: float, length_s: tuple[float, float], seconds: float, random: np.random.Generator
) -> list[tuple[int, int]]:
    if not rate:
        return []
    at_s = np.cumsum(2.0 + random.exponential(1 / rate, int(rate * seconds * 2) + 20))
    return [(int(t * S), int((t + random.uniform(*length_s)) * S)) for t in at_s[at_s < seconds]]


def _record(at_ns: int, request: SimRequest, times: list[int]) -> RequestRecord:
    name = request.request_id
    record = RequestRecord(
        name, class_name=name.partition("-")[0], stage="main", due_ns=at_ns, sent_ns=at_ns, headers_ns=at_ns,
        outcome="ok", status=200, tries=1, prompt_tokens=request.prompt_tokens, completion_tokens=len(times),
    )  # fmt: skip
    for number, t in enumerate(times):
        record.arrival_ns.append(t)
        record.n_tokens.append(1)
        record.kind.append(1)
        record.chars.append(4)
        record.read_id.append(number)
    return record


def _disturbed(tokens: Timed, steps: Timed, plan: Plan, random: np.random.Generator) -> Timed:
    """What happens to one stream alone, in the engine or on the way."""
    held, buffered = random.random() < plan.holds, random.random() < plan.buffered
    if held and len(tokens) > 20:
        number, held_ns = int(random.integers(5, len(tokens) - 5)), int(random.uniform(0.3, 1.5) * S)
        tokens = tokens[:number] + _after(tokens[number][0] + held_ns, held_ns, steps, len(tokens) - number)
    return _in_blocks(tokens) if buffered else tokens


def _after(at_ns: int, held_ns: int, steps: Timed, count: int) -> Timed:
    """The passes that a stream takes part in again after it was left out for a while."""
    first = bisect_left(steps, at_ns, key=lambda step: step[0])
    later = steps[first : first + count]
    return [(t, why | {("held", None): float(held_ns)} if i == 0 else why) for i, (t, why) in enumerate(later)]


def _in_blocks(tokens: Timed, events: int = 40) -> Timed:
    """A proxy passes events on when there are so many."""
    found: Timed = []
    for first in range(0, len(tokens), events):
        block = tokens[first : first + events]
        since_ns, until_ns = found[-1][0] if found else block[0][0], block[-1][0]
        longest = max((why for _, why in block), key=lambda why: sum(why.values()), default={})
        held_ns = max(0.0, until_ns - since_ns - sum(longest.values()))
        delays = longest | {("buffered", None): held_ns}
        found += [(until_ns, delays if i == 0 else {}) for i in range(len(block))]
    return found


def _late(tokens: Timed, late: list[tuple[int, int]]) -> Timed:
    """What comes while our own event loop is late is stamped when it has caught up."""
    for start_ns, end_ns in late:
        held = [i for i, (t, _) in enumerate(tokens) if start_ns <= t < end_ns]
        for i in held:
            tokens[i] = end_ns, tokens[i][1] | ({("late", None): float(end_ns - tokens[i][0])} if i == held[0] else {})
    return tokens


def _client(late: list[tuple[int, int]]) -> pd.DataFrame | None:
    if not late:
        return None
    seconds = range(1, int(late[-1][1] // S) + 3)
    lag = {t: max((e - s for s, e in late if t - S < e <= t), default=0) / S for t in (s * S for s in seconds)}
    return pd.DataFrame({"t_ns": list(lag), "loop_lag_max_s": list(lag.values())})


@dataclass
class Verdicts:
    """How a diagnosis did: pairs of truth and finding, and of the right culprits among those of right causes."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    culprits: Counter[bool] = field(default_factory=Counter)
    streams: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: "Verdicts") -> None:
        self.pairs += other.pairs
        self.culprits += other.culprits
        self.streams += other.streams
        self.wrong += other.wrong

    @property
    def right(self) -> float:
        clear = {pair: count for pair, count in self.pairs.items() if pair[0] != "mixed"}
        return sum(count for (truth, found), count in clear.items() if truth == found) / sum(clear.values())

    @property
    def right_culprits(self) -> float:
        return self.culprits[True] / self.culprits.total()

    @property
    def clear(self) -> int:
        return sum(count for (truth, _), count in self.pairs.items() if truth != "mixed")


def judge(known: Known, metrics: bool) -> Verdicts:
    """Every episode held against what delayed its stalls the most."""
    run = known.run
    episodes = diagnose(run, find(run), np.ones(len(run.requests), dtype=bool))
    verdicts = Verdicts(streams=len(run.requests))
    ids = run.requests["request_id"].to_numpy()
    for i in range(len(episodes)):
        truth, culprit = _truth(known, episodes, i, ids, metrics)
        found = str(episodes.cause[i])
        verdicts.pairs[truth, found] += 1
        named = ids[episodes.culprit[i]] if episodes.culprit[i] >= 0 else None
        if truth == found == "prefill_interference":
            verdicts.culprits[named == culprit] += 1
        if truth == "mixed":
            continue
        if truth != found or (truth == "prefill_interference" and named != culprit):
            span = f"{episodes.start_ns[i] / S:.3f}–{episodes.end_ns[i] / S:.3f}"
            verdicts.wrong.append(f"{span} truth {truth} {culprit}, found {found} {named}")
    return verdicts


def _truth(known: Known, episodes: Episodes, i: int, ids: np.ndarray, metrics: bool) -> tuple[str, str | None]:
    """What made up at least 60 % of the delays in an episode, and its first culprit; `mixed` where nothing did."""
    delays: Counter[str] = Counter()
    culprits: Counter[str | None] = Counter()
    for s in range(episodes.starts[i], episodes.starts[i + 1]):
        row, end = episodes.stalls.row[s], episodes.stalls.end[s]
        for (cause, culprit), delay_ns in known.why[ids[row]][end - known.run.events.starts[row]].items():
            delays[_WORDS.get(cause, cause)] += delay_ns
            if cause == "prefill_interference":
                culprits[culprit] += delay_ns
    cause, most_ns = delays.most_common(1)[0] if delays else ("unknown", 0.0)
    if most_ns < 0.6 * delays.total():
        return "mixed", None
    if cause == "preemption" and not metrics:
        cause = "one_stream"
    return cause, culprits.most_common(1)[0][0] if culprits else None


_WORDS = {"injected": "engine_pause", "held": "one_stream", "buffered": "buffering", "late": "client"}

SCENES: dict[str, Plan] = {
    "whole prompts": Plan(),
    "whole prompts, busy": Plan(classes=(("chat", 5.0, (60, 500), (100, 400)), ("rag", 0.9, (4000, 16000), (50, 150)))),
    "chunked, slow": Plan(
        seconds=600, chunk_tokens=2048, speed=0.1,
        classes=(("chat", 0.3, (60, 500), (100, 300)), ("rag", 0.05, (4000, 16000), (20, 60))),
    ),
    "pauses, whole prompts": Plan(pauses_rps=0.1),
    "pauses, chunked": Plan(chunk_tokens=2048, pauses_rps=0.15),
    "held streams": Plan(chunk_tokens=2048, holds=0.3),
    "buffering": Plan(chunk_tokens=2048, buffered=0.1),
    "little cache": Plan(
        seconds=300, chunk_tokens=2048, kv_tokens=12_000, metrics=True,
        classes=(("chat", 3.0, (200, 900), (300, 700)),),
    ),
    "little cache, not scraped": Plan(
        seconds=300, chunk_tokens=2048, kv_tokens=12_000, classes=(("chat", 3.0, (200, 900), (300, 700)),)
    ),
    "late client": Plan(chunk_tokens=2048, late_rps=0.2),
    "2 replicas": Plan(
        replicas=2, classes=(("chat", 8.0, (60, 500), (100, 400)), ("rag", 0.8, (7000, 24000), (50, 150)))
    ),
    "4 replicas, pauses, scraped": Plan(
        replicas=4, metrics=True, pauses_rps=0.1,
        classes=(("chat", 20.0, (60, 500), (100, 400)), ("rag", 1.6, (4000, 16000), (50, 150))),
    ),
    "2 replicas, chunked, slow": Plan(
        seconds=600, chunk_tokens=2048, speed=0.1, replicas=2,
        classes=(("chat", 0.6, (60, 500), (100, 300)), ("rag", 0.1, (4000, 16000), (20, 60))),
    ),
    "everything": Plan(seconds=240, pauses_rps=0.08, holds=0.1, buffered=0.05, metrics=True),
}  # fmt: skip

CALM = Plan(seconds=300, chunk_tokens=2048, classes=(("chat", 8.0, (40, 300), (50, 250)),), holds=0.1, pauses_rps=0.1)
"""No prompt is long enough to stop anyone: nothing here is prefill interference."""


def with_seed(plan: Plan, seed: int) -> Plan:
    return replace(plan, seed=seed)
