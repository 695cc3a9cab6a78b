"""Is this machine, as it is set up, fit to measure from? What is looked at, what was found, and what to do about it."""

import asyncio
import os
import platform
import resource
import socket
import statistics
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from loadgen import event_loop, host
from loadgen.stamps import CONTROL_BYTES, stamp_in_kernel, stamp_ns

GOOD, POOR = "ok", "poor"
FEW_FILES = 4_096
LATE_S = 0.005
"""An event loop that is this late in one of a hundred ticks shares its core with something."""
STAMP_ROUNDS = 200
TICKS, TICK_S = 200, 0.005
COARSE_NS = 1_000


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `advice` is empty where nothing need be done."""

    what: str
    state: str
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Everything, in about two seconds. Opens sockets on loopback only."""
    return [
        _system(),
        _cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        _files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        _clock(_resolution_ns(), _clock_source()),
        _stamps(_stamp_errors_ns()),
        _lag(event_loop.run(_lags_s())),
        _priority(_may_raise_priority()),
        _extras({name: find_spec(module) is not None for name, module in EXTRAS.items()}),
    ]


def state_of(findings: list[Finding]) -> str:
    """The worst of them."""
    return POOR if any(finding.state == POOR for finding in findings) else GOOD


def as_data(findings: list[Finding]) -> dict[str, Any]:
    return {"state": state_of(findings), "findings": [asdict(finding) for finding in findings], "host": host.facts()}


def render(findings: list[Finding]) -> str:
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:4}  {finding.what.ljust(width)}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':4}  {'':{width}}  → {finding.advice}")
    return "\n".join(lines) + "\n"


EXTRAS = {"tokenizers": "tokenizers", "png": "PIL"}


def _system() -> Finding:
    known = host.facts()
    found = f"{known['os']} {known['kernel']}, Python {known['python']}, {known['cpu'] or 'unknown CPU'}"
    if platform.system() == "Linux":
        return Finding("system", GOOD, found)
    return Finding("system", POOR, found, "kernel receive stamps exist on Linux only: measure from there if you can")


def _cores(cores: int) -> Finding:
    advice = "give the client a core that the server does not use, or another machine" if cores < 2 else ""
    return Finding("cores", GOOD if cores >= 2 else POOR, f"{cores} that this process may use", advice)


def _files(soft: int, hard: int) -> Finding:
    limit = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    found = f"{soft:,} open at once, {limit} after raising (done by each run)"
    if hard == resource.RLIM_INFINITY or hard >= FEW_FILES:
        return Finding("open files", GOOD, found)
    return Finding(
        "open files", POOR, found, f"each request in flight needs one: `ulimit -Hn {FEW_FILES * 16}` as root"
    )


def _clock(resolution_ns: float, source: str | None) -> Finding:
    found = f"monotonic, steps of {resolution_ns:,.0f} ns" + (f", from {source}" if source else "")
    if resolution_ns <= COARSE_NS:
        return Finding("clock", GOOD, found)
    return Finding("clock", POOR, found, "instants are coarser than a microsecond: prefer a machine with a TSC clock")


def _resolution_ns() -> float:
    """The smallest step that two readings in a row show."""
    readings = [time.monotonic_ns() for _ in range(20_000)]
    return min((b - a for a, b in pairwise(readings) if b > a), default=float("inf"))


def _clock_source() -> str | None:
    try:
        with open("/sys/devices/system/clocksource/clocksource0/current_clocksource", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _stamps(errors_ns: list[int] | None) -> Finding:
    if errors_ns is None:
        advice = "arrivals are stamped in Python: tokens of busy moments get late stamps, and the report says so"
        return Finding("receive stamps", POOR, "none from the kernel", advice)
    median, worst = statistics.median(errors_ns) / 1e3, sorted(errors_ns)[int(len(errors_ns) * 0.99)] / 1e3
    found = f"by the kernel, {median:.1f} µs after the send at the median, {worst:.1f} µs at p99"
    if median < 200:
        return Finding("receive stamps", GOOD, found)
    return Finding("receive stamps", POOR, found, "the loopback path is slow here: is the machine busy?")


def _stamp_errors_ns() -> list[int] | None:
    """How long after a send on loopback the kernel stamps its arrival; None where it stamps nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        with sender, receiver:
            sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not stamp_in_kernel(receiver):
                return None
            found = [_stamp_error_ns(sender, receiver) for _ in range(STAMP_ROUNDS)]
            return [error for error in found if error is not None] or None


def _stamp_error_ns(sender: socket.socket, receiver: socket.socket) -> int | None:
    sent_ns = time.time_ns()
    sender.send(b"x")
    _, control, *_ = receiver.recvmsg(1, CONTROL_BYTES)
    return stamp_ns(control) - sent_ns if control else None


def _lag(lags_s: list[float]) -> Finding:
    p99_ms = sorted(lags_s)[int(len(lags_s) * 0.99)] * 1e3
    found = f"late by {statistics.median(lags_s) * 1e3:.2f} ms at the median, {p99_ms:.2f} ms at p99, at rest"
    if p99_ms < LATE_S * 1e3:
        return Finding("event loop", GOOD, found)
    advice = "something else uses the cores: sends will be late, and reads may gather tokens; free a core, or use chrt"
    return Finding("event loop", POOR, found, advice)


async def _lags_s() -> list[float]:
    loop, lags_s = asyncio.get_running_loop(), []
    for _ in range(TICKS):
        due_s = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        lags_s.append(max(0.0, loop.time() - due_s))
    return lags_s


def _priority(may: bool) -> Finding:
    if may:
        return Finding("priority", GOOD, "may be raised above that of other processes")
    advice = "beside a busy server, let it: run as root, or `setcap cap_sys_nice+ep` on the Python binary"
    return Finding("priority", POOR, "may not be raised", advice)


def _may_raise_priority() -> bool:
    """Tries it on a thread of its own making, and takes it back."""
    if not hasattr(os, "sched_setscheduler"):
        return False
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, before, parameters)
    except OSError:
        return False
    return True


def _extras(installed: dict[str, bool]) -> Finding:
    found = ", ".join(f"{name} {'installed' if here else 'not installed'}" for name, here in installed.items())
    return Finding("extras", GOOD, found)
