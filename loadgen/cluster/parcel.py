"""A share of a run on its way to another machine: the plan as workload and seed, and the files that it needs.

It holds the user's secrets. Hence it travels in pieces that are small enough to go straight from process to process:
what is larger, Ray puts into its object store, from where it may be spilled to a disk.
"""

import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadgen.share import Share
from workloads.schedule import Schedule, build
from workloads.spec import Workload

PIECE_BYTES = 64 * 1024
_OPAQUE = ("body",)
"""Under these keys of a workload stands what the endpoint understands: a `file` there is none of ours."""


@dataclass(frozen=True)
class Parcel:
    """The i-th of n parts of a share; shows nothing of what is in it.

    Attributes:
        share: Without what the other end makes anew: the schedule's times, trust in certificates.
        due_sum: By which it knows that it made the same times.
        workload: As resolved; each data file is the name of one in `files`.
        files: Their content. A certificate may come with its key.
    """

    share: Share = field(repr=False)
    workload: dict[str, Any] = field(repr=False)
    files: dict[str, bytes] = field(repr=False)
    due_sum: int
    i: int
    n: int

    @classmethod
    def of(cls, share: Share, i: int, n: int) -> "Parcel":
        """Raises OSError where a file is gone."""
        files: dict[str, bytes] = {}

        def taken(path: str) -> str:
            name = f"{len(files)}-{os.path.basename(path)}"
            files[name] = Path(path).read_bytes()
            return name

        workload = _with_files(share.schedule.workload.resolved(), taken)
        bare = replace(
            share,
            schedule=replace(share.schedule, due_ns=None),
            access=replace(share.access, tls=None),
            ca_file=share.ca_file and taken(share.ca_file),
            client_cert=share.client_cert and taken(share.client_cert),
        )
        return cls(bare, workload, files, _due_sum(share.schedule), i, n)

    def unpacked(self, folder: Path) -> Share:
        """The part, with the plan made anew and its files in a folder that nobody else may look into.

        Raises WorkloadError, OSError, ValueError.
        """
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

        def placed(name: str) -> str:
            return str(folder / name)

        share = self.share
        whole = replace(
            share,
            schedule=self._schedule(_with_files(self.workload, placed)),
            ca_file=share.ca_file and placed(share.ca_file),
            client_cert=share.client_cert and placed(share.client_cert),
        )
        return whole.part(self.i, self.n)

    def _schedule(self, workload: dict[str, Any]) -> Schedule:
        planned = build(Workload.model_validate(workload), self.share.schedule.seed)
        if _due_sum(planned) != self.due_sum:
            raise ValueError("other times follow from the seed there: install the same versions of loadgen and numpy")
        return replace(self.share.schedule, workload=planned.workload, due_ns=planned.due_ns)


def _due_sum(schedule: Schedule) -> int:
    return 0 if schedule.due_ns is None else zlib.crc32(schedule.due_ns.tobytes())


def _with_files(value: Any, change: Callable[[str], str]) -> Any:
    """The plain data of a workload with the name of every data file changed."""
    if isinstance(value, dict):
        return {
            key: inner if key in _OPAQUE
            else change(inner) if key == "file" and isinstance(inner, str)
            else _with_files(inner, change)
            for key, inner in value.items()
        }  # fmt: skip
    return [_with_files(inner, change) for inner in value] if isinstance(value, list) else value


def pieces(parcel: Parcel) -> Iterator[bytes]:
    packed = pickle.dumps(parcel)
    yield from (packed[at : at + PIECE_BYTES] for at in range(0, len(packed), PIECE_BYTES))


def joined(got: dict[int, bytes]) -> Parcel:
    """The parcel of numbered pieces, in whatever order they came."""
    parcel: Parcel = pickle.loads(b"".join(got[at] for at in range(len(got))))  # noqa: S301 - from the driver of the run
    return parcel
