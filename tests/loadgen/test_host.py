import asyncio
import gc
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from loadgen import host
from loadgen.drive import Live
from loadgen.host import AMPLE_FILES, ClientSampler, HostError, facts, priority, quiet_gc, raise_fd_limit, scheduling
from tests.loadgen.virtual import VirtualClock, run_virtual

MS = 1_000_000


def test_facts_are_what_a_result_depends_on() -> None:
    found = facts()
    assert found.keys() == {"os", "kernel", "architecture", "python", "cpu", "cores", "ram_bytes"}
    assert found["cores"] >= 1
    assert found["ram_bytes"] > 1 << 20
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: Xeon: Gold 6430\nmodel name\t: other\n", "Xeon: Gold 6430"),
        ("processor: 0\nBogoMIPS: 50\n", None),
        (None, None),
    ],
)
def test_cpu_model(text: str | None, model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.platform, "processor", lambda: "")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert host._cpu_model(tmp_path / "cpuinfo") == model


INF = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "need", "ceiling", "set_to"),
    [
        ((1024, 4096), 100, INF, (4096, 4096)),  # the need of an open loop is a guess: take what there is
        ((4096, 4096), 4096, INF, None),
        ((1024, 1_000_000), 100, INF, (AMPLE_FILES, 1_000_000)),
        ((1024, 1_000_000), 80_000, INF, (80_000, 1_000_000)),
        ((1024, INF), 100, INF, (AMPLE_FILES, INF)),
        ((1024, INF), 9000, 10_240, (9000, INF)),  # a system whose ceiling is lower than its limit
        ((1024, INF), 1000, 10_240, None),
        ((AMPLE_FILES, INF), 1000, INF, None),
        ((INF, INF), 80_000, INF, None),
    ],
)
def test_the_soft_limit_is_raised(
    limits: tuple[int, int], need: int, ceiling: int, set_to: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[int, int]] = []

    def setrlimit(_: int, new: tuple[int, int]) -> None:
        if ceiling != INF and new[0] > ceiling:
            raise ValueError("not allowed to raise maximum limit")
        done.append(new)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    raise_fd_limit(need)
    assert done == ([] if set_to is None else [set_to])


def test_a_hard_limit_that_is_too_low_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    with pytest.raises(HostError) as error:
        raise_fd_limit(4100)
    text = str(error.value)
    assert "4100 open files" in text
    assert "4096" in text
    assert "ulimit -Hn 4100" in text
    assert "\n" not in text


@pytest.mark.parametrize("enabled", [True, False])
def test_quiet_gc_leaves_the_collector_as_it_was(enabled: bool) -> None:
    def fail_inside() -> None:
        with quiet_gc():
            assert not gc.isenabled()
            assert gc.get_freeze_count() > 0
            raise KeyError

    try:
        if not enabled:
            gc.disable()
        with pytest.raises(KeyError):
            fail_inside()
        assert (gc.isenabled(), gc.get_freeze_count()) == (enabled, 0)
    finally:
        gc.enable()


class Kernel:
    """What it thinks of one thread, and what it permits; stands in for the calls of `os`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, realtime: bool, nice: bool, policy: int = 0, niceness: int = 0):
        self.realtime, self.nice, self.policy, self.niceness = realtime, nice, policy, niceness
        self.set: set[int] = set()
        for name in ("sched_getscheduler", "sched_setscheduler", "sched_getparam", "getpriority", "setpriority"):
            monkeypatch.setattr(os, name, getattr(self, name))

    def sched_getscheduler(self, thread: int) -> int:
        return self.policy

    def sched_getparam(self, thread: int) -> "os.sched_param":
        return os.sched_param(10)

    def getpriority(self, which: int, thread: int) -> int:
        return self.niceness

    def sched_setscheduler(self, thread: int, policy: int, param: "os.sched_param") -> None:
        if policy == os.SCHED_FIFO and not self.realtime:
            raise PermissionError
        self.set.add(thread)
        self.policy = policy

    def setpriority(self, which: int, thread: int, niceness: int) -> None:
        if niceness < self.niceness and not self.nice:
            raise PermissionError
        self.set.add(thread)
        self.niceness = niceness


@pytest.mark.parametrize(
    ("permitted", "had", "wanted", "inside"),
    [
        ((True, True), (os.SCHED_OTHER, 0), True, "SCHED_FIFO 10"),
        ((False, True), (os.SCHED_OTHER, 0), True, "nice -10"),
        ((False, False), (os.SCHED_OTHER, 0), True, "normal"),
        ((True, True), (os.SCHED_OTHER, 0), False, "normal"),
        ((True, True), (os.SCHED_OTHER, 5), True, "nice 5"),  # the user's own choices stay
        ((True, True), (os.SCHED_RR, 0), True, "SCHED_RR 10"),
        ((True, True), (os.SCHED_IDLE, 0), True, "SCHED_IDLE"),
    ],
)
def test_priority_is_raised_as_far_as_permitted_and_given_back(
    permitted: tuple[bool, bool], had: tuple[int, int], wanted: bool, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch, *permitted, *had)
    with priority(wanted) as told:
        assert told == scheduling() == inside
    assert (kernel.policy, kernel.niceness) == had
    assert kernel.set <= {int(name) for name in os.listdir("/proc/self/task")}, "nobody else's thread was touched"


def sample(seconds: float, blocks: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Samples of a loop that something holds up: at an instant, for so long (both in ms)."""

    async def main() -> list[dict[str, Any]]:
        clock, samples = VirtualClock(), list[dict[str, Any]]()
        cpu_s = lambda: 0.25 * clock.now_ns() / 1e9  # noqa: E731
        async with ClientSampler(clock, Live(in_flight=7), samples.append, cpu_s):
            await asyncio.sleep(5)  # preparation is no part of the run
            clock.block(400 * MS)
            clock.start(0)
            for at_ms, for_ms in blocks:
                await clock.sleep_until(at_ms * MS)
                clock.block(for_ms * MS)
            await clock.sleep_until(round(seconds * 1e9) + 1)
        return samples

    return run_virtual(main())


def test_a_free_loop_has_no_lag() -> None:
    first, second = sample(2, [])
    assert [first["t_ns"], second["t_ns"]] == pytest.approx([1000 * MS, 2000 * MS])
    assert first["loop_lag_max_s"] < 1e-9
    assert first["loop_lag_mean_s"] < 1e-9
    assert (first["cpu_share"], first["in_flight"], first["worker"]) == (pytest.approx(0.25), 7, 0)


def test_a_loop_that_is_held_up_is_late_for_its_timer() -> None:
    first, second = sample(2.5, [(110, 300), (730, 30)])
    # The timer due at 150 ms fires at 410, the later ones at 460 … 710 and 760: due then, and the loop is free again.
    assert first["loop_lag_max_s"] == pytest.approx(0.260)
    assert first["loop_lag_mean_s"] == pytest.approx(0.260 / 20)
    assert first["t_ns"] == pytest.approx(1260 * MS)
    assert second["loop_lag_max_s"] < 1e-9
