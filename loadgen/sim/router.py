"""Which replica gets a request."""

from collections.abc import Sequence
from operator import attrgetter

from loadgen.sim.config import ClusterConfig
from loadgen.sim.kv import BLOCK_TOKENS
from loadgen.sim.replica import Replica
from loadgen.sim.tokens import SimRequest

AFFINITY_SHARE = 0.5
"""Affinity decides only where at least this part of the prompt is cached."""

OVERLOAD_FACTOR, OVERLOAD_REQUESTS = 1.5, 8
"""Affinity gives way where a replica has both: so many times, and so many more, unfinished requests than another."""


def least_loaded(replicas: Sequence[Replica]) -> Replica:
    """The one with the fewest unfinished requests, the first of several."""
    return min(replicas, key=attrgetter("load"))


def route(config: ClusterConfig, replicas: Sequence[Replica], request: SimRequest, number: int) -> Replica:
    """The replica of the `number`-th request. The blocks that replicas know must be those of now."""
    match config.router:
        case "round_robin":
            return replicas[number % len(replicas)]
        case "least_loaded":
            return least_loaded(replicas)
        case "long_apart":
            apart = len(replicas) - config.long_replicas
            return least_loaded(replicas[apart:] if request.prompt_tokens > config.long_tokens else replicas[:apart])
        case "prefix_affinity":
            return _nearest(replicas, request)


def _nearest(replicas: Sequence[Replica], request: SimRequest) -> Replica:
    free = least_loaded(replicas)
    most = request.prompt_tokens // BLOCK_TOKENS
    cached = {replica: replica.scheduler.pool.known(request.blocks, most)[0] for replica in replicas}
    best = max(replicas, key=lambda replica: (cached[replica], -replica.load))
    overloaded = best.load > OVERLOAD_FACTOR * free.load and best.load > free.load + OVERLOAD_REQUESTS
    return free if overloaded or cached[best] < AFFINITY_SHARE * max(1, most) else best
