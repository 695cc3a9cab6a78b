"""Runs a command and measures its whole process tree: `python -m tests.bench.peers.tree LIMIT_S FOLDER COMMAND…`.

The command runs in FOLDER; what it prints goes to stderr, and one line of JSON to stdout, with the fields of Cost. This
process makes itself the reaper of the tree: its RUSAGE_CHILDREN covers all descendants, also those that lost a parent.
"""

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

EVERY_S = 0.2
LEFTOVER_S = 5.0  # what outlives the command by more than this is killed
PR_SET_CHILD_SUBREAPER = 36
PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Cost:
    """Instants are CLOCK_REALTIME.

    Attributes:
        cpu_s: User and system time of the command and all its descendants.
        peak_mb: The largest sum of resident sets, sampled every 0.2 s; pages that processes share count in each.
        ended_ns: When the command itself ended; descendants may have lived longer.
        status: Exit status of the command, negative if a signal ended it.
    """

    status: int
    started_ns: int
    ended_ns: int
    cpu_s: float
    peak_mb: float


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found.append(child)
            with suppress(OSError):  # it has just ended
                found += descendants(child)
    return found


def resident_mb(pids: list[int]) -> float:
    pages = 0
    for pid in pids:
        with suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * PAGE / 2**20


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def reap() -> dict[int, int]:
    """Wait statuses of the children that have ended, by pid."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended


def run(command: list[str], folder: str, limit_s: float) -> Cost:
    started_ns = time.time_ns()
    child = subprocess.Popen(command, cwd=folder, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    handle = os.pidfd_open(child.pid)
    deadline_ns = started_ns + int(limit_s * 1e9)
    peak_mb, status, ended_ns = 0.0, 0, 0
    while alive := descendants(os.getpid()):
        peak_mb = max(peak_mb, resident_mb(alive))
        if time.time_ns() > deadline_ns:
            kill(alive)
        select.select([] if ended_ns else [handle], [], [], EVERY_S)
        ended = reap()
        if child.pid in ended:
            status, ended_ns = os.waitstatus_to_exitcode(ended[child.pid]), time.time_ns()
            deadline_ns = ended_ns + int(LEFTOVER_S * 1e9)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(status, started_ns, ended_ns, used.ru_utime + used.ru_stime, peak_mb)


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print(json.dumps(asdict(run(sys.argv[3:], sys.argv[2], float(sys.argv[1])))))


if __name__ == "__main__":
    main()
