"""Drives clusters both ways, and makes up whatever may happen to them."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from analysis.roofline import Gpu, Model, Roofline
from loadgen.sim import catalog
from loadgen.sim.core import Answer, Cause, Cluster, ClusterConfig, SimConfig, SimRequest, StepResult, Totals
from loadgen.sim.kv import BLOCK_TOKENS

H100 = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))
TOY = Roofline(Gpu("toy", 1e12, 1e12, 1e9), Model("toy", 1e6, 2, 64, 4, 2, 16, 4096))
MS = 1_000_000
LATER = 1 << 60


class Event(NamedTuple):
    """One event of a stream: when, how many tokens, and why not earlier."""

    at_ns: int
    count: int
    cause: Cause
    culprit: str | None
    delay_ns: int


@dataclass(frozen=True)
class Act:
    """What somebody does to a cluster at an instant: submit a request, cancel one, or pause all for a while."""

    at_ns: int
    submit: SimRequest | None = None
    cancel: str | None = None
    pause_ns: int | None = None

    def on(self, cluster: Cluster) -> Answer | None:
        if self.submit is not None and self.submit.request_id not in cluster._there:
            if cluster.fits(self.submit.prompt_tokens, self.submit.output_tokens):
                cluster.submit(self.at_ns, self.submit)
        elif self.cancel is not None:
            return cluster.cancel(self.at_ns, self.cancel)
        elif self.pause_ns is not None:
            cluster.pause(self.at_ns, self.pause_ns)
        return None


@dataclass
class Outcome:
    """What came of it, by request."""

    streams: dict[str, list[Event]]
    totals: Totals
    cluster: Cluster
    results: list[StepResult]
    answers: dict[str, Answer]

    def gaps(self, name: str) -> list[int]:
        return [later.at_ns - earlier.at_ns for earlier, later in pairwise(self.streams[name])]

    def ttft_ns(self, name: str) -> int:
        return self.streams[name][0].at_ns


def submissions(*arrivals: tuple[int, SimRequest]) -> list[Act]:
    return [Act(at_ns, submit=request) for at_ns, request in arrivals]


def stepped(config: ClusterConfig | SimConfig, acts: Iterable[Act]) -> Outcome:
    """Token by token, as a server in real time does it."""
    cluster, todo = Cluster(config), deque(sorted(acts, key=lambda act: act.at_ns))
    outcome = Outcome({}, cluster.totals, cluster, [], {})
    while todo or cluster.next_ns is not None:
        next_ns = cluster.next_ns
        now_ns = min(todo[0].at_ns if todo else LATER, LATER if next_ns is None else next_ns)
        while todo and todo[0].at_ns == now_ns:
            todo.popleft().on(cluster)
        outcome.results += cluster.step(now_ns)
        assert cluster.under_way() or cluster.next_ns is None or cluster.next_ns > now_ns
    for result in outcome.results:
        for token in result.tokens:
            event = Event(result.end_ns, token.count, token.cause, token.culprit, token.delay_ns)
            outcome.streams.setdefault(token.request_id, []).append(event)
    outcome.totals = cluster.totals
    return outcome


def advanced(config: ClusterConfig | SimConfig, acts: Iterable[Act]) -> Outcome:
    """From one finished request to the next, as a simulation of hours does it."""
    cluster, todo = Cluster(config), deque(sorted(acts, key=lambda act: act.at_ns))
    outcome = Outcome({}, cluster.totals, cluster, [], {})

    def take(answer: Answer) -> None:
        outcome.answers[answer.request_id] = answer
        columns = answer.arrival_ns.tolist(), answer.counts.tolist(), answer.delays()
        events = [Event(at_ns, count, *why) for at_ns, count, why in zip(*columns, strict=True)]
        if events:
            outcome.streams[answer.request_id] = events

    while True:
        answers = cluster.advance(todo[0].at_ns if todo else LATER)
        for answer in answers:
            take(answer)
        if answers:
            continue
        if not todo:
            break
        now_ns = todo[0].at_ns
        while todo and todo[0].at_ns == now_ns:
            cut = todo.popleft().on(cluster)
            if cut is not None:
                take(cut)
    outcome.totals = cluster.totals
    return outcome


def prefix(rng: int, tokens: int) -> tuple[int, ...]:
    """Hashes of the full blocks of a prompt that begins as all of that number do."""
    return tuple(1000 * rng + i for i in range(tokens // BLOCK_TOKENS))


@st.composite
def requests(draw: st.DrawFn, name: str) -> SimRequest:
    prompt, output = draw(st.integers(1, 120)), draw(st.integers(1, 60))
    whose = draw(st.integers(1, 3) | st.just(10 + int(name[1:])))
    covered = prompt + (output if draw(st.booleans()) and whose > 3 else 0)
    return SimRequest(name, prompt, output, prefix(whose, covered))


@st.composite
def configs(draw: st.DrawFn, **fixed: Any) -> SimConfig:
    draft_tokens = draw(st.sampled_from([0, 0, 2, 3]))
    drawn: dict[str, Any] = {
        "chunk_tokens": draw(st.sampled_from([draft_tokens + 1, 7, 32, 200])),
        "max_num_seqs": draw(st.integers(1, 9)),
        "kv_tokens": draw(st.integers(12, 60)) * BLOCK_TOKENS,
        "policy": draw(st.sampled_from(["chunked", "prefill_first", "static"])),
        "long_prefill_tokens": draw(st.sampled_from([0, 7])),
        "prefix_cache": draw(st.booleans()),
        "draft_tokens": draft_tokens,
        "acceptance": draw(st.sampled_from([0.0, 0.5, 0.7, 1.0])),
    }
    return SimConfig(TOY, **(drawn | fixed))


@st.composite
def clusters(draw: st.DrawFn) -> ClusterConfig:
    replicas, prefill = draw(st.sampled_from([(1, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (2, 2)]))
    routers = ["round_robin", "least_loaded", "prefix_affinity", *(["long_apart"] if (prefill or replicas) > 1 else [])]
    return ClusterConfig(draw(configs()), replicas, draw(st.sampled_from(routers)), 60, 1, prefill, 1e9)


@st.composite
def histories(draw: st.DrawFn) -> list[Act]:
    """Requests with some at the same instant, some cancelled, and a pause now and then."""
    acts, now_ns = [], 0
    for i in range(draw(st.integers(1, 16))):
        now_ns += draw(st.just(0) | st.integers(0, 3_000) | st.integers(0, 200_000))
        acts.append(Act(now_ns, submit=draw(requests(f"r{i}"))))
    whens = st.integers(0, 2 * now_ns + 100_000)
    cancelled = draw(st.lists(st.integers(0, len(acts) - 1), max_size=3))
    pauses_ns = draw(st.lists(st.integers(1, 50_000), max_size=2))
    acts += [Act(draw(whens), cancel=f"r{i}") for i in cancelled]
    return acts + [Act(draw(whens), pause_ns=pause_ns) for pause_ns in pauses_ns]
