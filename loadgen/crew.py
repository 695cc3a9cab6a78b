"""Who carries a run: this process alone, several on this machine, or those on the nodes of a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.fleet import LocalWorker
from loadgen.share import Share

if TYPE_CHECKING:
    from loadgen.cluster.nodes import Cluster
    from loadgen.cluster.remote import RemoteWorker


@dataclass(frozen=True)
class Crew:
    """So many processes, each with so many open files; `cluster` None: on this machine."""

    workers: int
    files: int
    cluster: "Cluster | None"

    @property
    def apart(self) -> bool:
        """Whether this process only directs."""
        return self.workers > 1 or self.cluster is not None

    def carriers(self, share: Share, out: Path) -> "tuple[list[LocalWorker], list[RemoteWorker]]":
        """The workers of a fleet, with a part of the share each; one of the two lists is empty."""
        n = self.workers
        if self.cluster is None:
            return [LocalWorker(share.part(i, n), n, out) for i in range(n)], []
        return [], self.cluster.workers(share, n, self.files, out)


@contextmanager
def cluster_at(address: str | None, workers: int | None) -> "Iterator[Cluster | None]":
    """The Ray cluster at an address, as long as it is needed; None without one. Raises UsageError."""
    if address is None:
        yield None
        return
    from loadgen.cluster.nodes import connected

    with connected(address, workers) as cluster:
        yield cluster
