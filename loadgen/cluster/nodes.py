"""The nodes of a Ray cluster, and a `Post` on each; the only module that imports Ray."""

import asyncio
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen import host
from loadgen.cluster.parcel import Parcel
from loadgen.cluster.post import Post
from loadgen.cluster.remote import LostError, RemoteWorker
from loadgen.errors import LoadgenError, UsageError
from loadgen.secrets_in_argv import HEADERS_VARIABLE, KEY_VARIABLE

if TYPE_CHECKING:
    from loadgen.share import Share

SECRET_VARIABLES = (KEY_VARIABLE, HEADERS_VARIABLE, "OPENAI_API_KEY")
STORE_BYTES = 100_000_000
"""What a cluster of our own may keep in shared memory: a few pieces of journals."""

AWAY_S = 30.0
"""How long an actor may be out of reach before it counts as lost."""
AGAIN_S = 0.5


class Cluster:
    """A cluster that we are connected to.

    Attributes:
        nodes: Ids of the nodes that have a CPU, in a fixed order.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.nodes: list[str] = sorted(
            node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        )
        if not self.nodes:
            raise UsageError("--cluster: no node of the cluster has a CPU: `ray status` shows what there is")

    def workers(self, share: "Share", n: int, files: int, folder: Path) -> list[RemoteWorker]:
        """One for each of n parts, spread evenly over the nodes."""
        return [
            RemoteWorker(self._post(self.nodes[i % len(self.nodes)]), _parcel(share, i, n), i, n, files, folder)
            for i in range(n)
        ]

    def _post(self, node: str) -> "RayHandle":
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        actor = self._ray.remote(Post).options(num_cpus=1, max_restarts=0, scheduling_strategy=where)
        return RayHandle(self._ray, actor.remote(), node[:8])


def _parcel(share: "Share", i: int, n: int) -> Any:
    return lambda: Parcel.of(share, i, n)


class RayHandle:
    def __init__(self, ray: Any, actor: Any, node: str) -> None:
        self._ray = ray
        self._actor = actor
        self.node = node

    async def call(self, method: str, *arguments: Any) -> Any:
        from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

        tries = int(AWAY_S / AGAIN_S)
        while True:
            try:
                return await getattr(self._actor, method).remote(*arguments)
            except RayTaskError as problem:
                raise _theirs(problem.cause) from None
            except ActorUnavailableError as problem:
                if not (tries := tries - 1):
                    raise LostError(why(problem)) from None
                await asyncio.sleep(AGAIN_S)
            except (RayError, ConnectionError) as problem:
                raise LostError(why(problem)) from None

    def kill(self) -> None:
        from ray.exceptions import RayError

        with suppress(RayError, ConnectionError, ValueError):  # it may be over already
            self._ray.kill(self._actor)


def _theirs(cause: Any) -> LoadgenError:
    return cause if isinstance(cause, LoadgenError) else LoadgenError(f"{type(cause).__name__}: {_line(cause)}")


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300]


def why(problem: BaseException) -> str:
    """In a few words: Ray says it in several lines, among ids and addresses."""
    text = str(problem)
    if "failed to import" in text:
        return "llm-loadgen is not installed there"
    if "node has died" in text or "node was terminated" in text:
        return "its node died"
    if isinstance(problem, ConnectionError):
        return "the cluster is out of reach"
    return "its process died" if "died" in text else _line(problem)


@contextmanager
def connected(address: str, workers: int | None) -> Iterator[Cluster]:
    """The cluster at `ray://host:port`; with "auto" that of this machine, with "local" one made for as long as this.

    Raises UsageError.
    """
    with _own_environment(), _unheard(), warnings.catch_warnings(action="ignore"):
        ray = _joined(address, workers)
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def _joined(address: str, workers: int | None) -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("--cluster needs an extra: pip install 'llm-loadgen[ray]'") from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(address=address, **_init_options(address, workers))
    except Exception as problem:  # each way to connect raises others
        raise UsageError(f"--cluster {address}: no cluster there: {_line(problem)}") from None
    return ray


def _init_options(address: str, workers: int | None) -> dict[str, Any]:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != "local":
        return quiet
    cpus = max(workers or 1, host.cores())
    return quiet | {"include_dashboard": False, "num_cpus": cpus, "object_store_memory": STORE_BYTES}


@contextmanager
def _own_environment() -> Iterator[None]:
    """The processes of a cluster that we start inherit it: they need no keys, and report to nobody."""
    own = dict.fromkeys(SECRET_VARIABLES) | {"RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in own}
    _set(own)
    try:
        yield
    finally:
        _set(before)


@contextmanager
def _unheard() -> Iterator[None]:
    """What Ray's native part has to say goes to the descriptor itself, line upon line; an error of ours is one."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
