"""The machine that a run is sent from: what it is, what it grants a process, and whether it keeps up."""

import asyncio
import contextlib
import ctypes
import gc
import os
import platform
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from loadgen.clock import Clock
from loadgen.drive import Live
from loadgen.errors import LoadgenError

AMPLE_FILES = 65_536
"""An open loop cannot know how many requests will be in flight at once."""

REALTIME_PRIORITY = 10
NICENESS = -10

TICK_S = 0.05
TICKS_PER_SAMPLE = 20


class HostError(LoadgenError):
    """This machine, as it is set up, cannot carry the run."""


def facts() -> dict[str, Any]:
    """Facts for run.json; no name or address of the machine."""
    return {
        "os": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cpu": _cpu_model(Path("/proc/cpuinfo")),
        "cores": cores(),
        "ram_bytes": _ram_bytes(),
    }


def _cpu_model(cpuinfo: Path) -> str | None:
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ram_bytes() -> int | None:
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def raise_fd_limit(need: int) -> None:
    """Lets this process open at least `need` files at once, and many more where the hard limit allows it.

    Raises:
        HostError: The hard limit is lower than `need`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _allows(hard, need):
        raise HostError(
            f"this run needs about {need} open files, and the hard limit is {hard}: raise it with `ulimit -Hn {need}` "
            "(as root), or keep fewer requests in flight (--concurrency, --max-in-flight)"
        )
    ample = max(need, AMPLE_FILES if hard == resource.RLIM_INFINITY else min(hard, AMPLE_FILES))
    # Some systems have a ceiling below the limit that they report.
    for wanted in (ample, need):
        if _allows(soft, wanted):
            return
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def _allows(limit: int, need: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= need


@contextlib.contextmanager
def priority(wanted: bool = True) -> Iterator[str]:
    """Puts this process ahead of others while inside, as `raise_priority` does; yields how it is scheduled then."""
    before = scheduling()
    if wanted:
        raise_priority(os.getpid())
    try:
        yield scheduling()
    finally:
        if before == "normal":
            _lower_priority(os.getpid())


def raise_priority(process: int) -> None:
    """Gives all threads of a process of ours, and those that they start, real-time priority; where that is not
    permitted, more than an even share of the cores; else nothing.

    A reader that waits for a core finds several tokens in one read. What the user has set (`nice`, `chrt`) stays.
    """
    if scheduling() != "normal":
        return
    for thread in _threads(process):
        with contextlib.suppress(OSError):
            try:
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(REALTIME_PRIORITY))
            except (OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def _lower_priority(process: int) -> None:
    for thread in _threads(process):
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, thread, 0)
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def scheduling() -> str:
    """How this thread is scheduled, as in "SCHED_FIFO 10" or "nice -10"; "normal" for what a thread is born with."""
    if hasattr(os, "sched_getscheduler"):
        realtime = {os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR"}
        other = {os.SCHED_BATCH: "SCHED_BATCH", os.SCHED_IDLE: "SCHED_IDLE"}
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        if policy in realtime:
            return f"{realtime[policy]} {os.sched_getparam(0).sched_priority}"
        if policy in other:
            return other[policy]
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    return f"nice {niceness}" if niceness else "normal"


def _threads(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    return [process]


def keep_memory() -> None:
    """Has the allocator keep what is freed for what comes next, where that can be asked of it (glibc).

    Large columns come and go by the dozen in a report; fetched from the kernel each time, page by page and wiped, they
    take up to a third of its time.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOC.items():
            mallopt(parameter, value)


_MALLOC = {-1: 2**31 - 1, -2: 1 << 26, -4: 0}
"""Of mallopt(3): trim the heap never (M_TRIM_THRESHOLD), grow it 64 MiB at a time (M_TOP_PAD), and put everything there
(M_MMAP_MAX)."""


@contextlib.contextmanager
def quiet_gc() -> Iterator[None]:
    """No garbage collection inside: what exists is set aside, and reference counts do the rest."""
    was_enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class ClientSampler:
    """Watches over ourselves in an `async with` block: how late the event loop is, how much CPU the process takes.

    Calls `on_sample` once a second with `{t_ns, worker, loop_lag_max_s, loop_lag_mean_s, cpu_share, in_flight,
    oldest_ns}`; `cpu_share` is CPU time of all threads over wall time, 1.0 for one core, `oldest_ns` when the oldest
    open request was due, None where none is open.
    """

    def __init__(
        self,
        clock: Clock,
        live: Live,
        on_sample: Callable[[dict[str, Any]], None],
        cpu_s: Callable[[], float] = lambda: sum(os.times()[:2]),
        worker: int = 0,
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._live = live
        self._on_sample = on_sample
        self._cpu_s = cpu_s

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _sample(self) -> None:
        await self._clock.sleep_until(0)
        while True:
            since_s, cpu_s = self._now_s(), self._cpu_s()
            lags_s = [await self._tick() for _ in range(TICKS_PER_SAMPLE)]
            self._on_sample(
                {
                    "t_ns": self._clock.now_ns(),
                    "worker": self._worker,
                    "loop_lag_max_s": max(lags_s),
                    "loop_lag_mean_s": sum(lags_s) / len(lags_s),
                    "cpu_share": (self._cpu_s() - cpu_s) / (self._now_s() - since_s),
                    "in_flight": self._live.in_flight,
                    "oldest_ns": self._live.oldest_ns,
                }
            )

    async def _tick(self) -> float:
        """How late the loop is for a timer, in seconds."""
        due_s = self._now_s() + TICK_S
        await asyncio.sleep(TICK_S)
        return max(0.0, self._now_s() - due_s)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
