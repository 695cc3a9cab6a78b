"""How workers end: before the run has begun, when they are told to, when they cannot, and when nobody is left."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.rundir import read_meta, read_run
from loadgen import fleet
from loadgen.clock import RunClock
from loadgen.drive import Driven, Live, Stop
from loadgen.fleet import Fleet, LocalWorker
from loadgen.host import HostError
from loadgen.share import Carried
from loadgen.streams import Streams
from tests.loadgen.kills import carriers, left_after
from tests.loadgen.scripted import HANG, ScriptedServer
from tests.loadgen.test_end_to_end import WORKLOAD, command, environment
from tests.loadgen.test_fleet import all_hang, hang_later, run_with
from tests.loadgen.test_worker import share
from tests.loadgen.virtual import run_virtual
from workloads.schedule import Stage

S = 1_000_000_000
STAGES = (Stage("steady", 0, S, True, 1.0),)
NOTHING = Carried(Driven(STAGES, 0, "SIGINT"), "kernel", 0)


class Scripted:
    """A worker that says what is on its list, the last of it when it is `released`."""

    def __init__(self, name: str, *says: Any, last_words: str = "", released: asyncio.Event | None = None) -> None:
        self.name = name
        self.told: list[Any] = []
        self.killed = False
        self._says = list(says)
        self._last_words = last_words
        self._released = released

    async def launch(self) -> None: ...

    def start(self, origin_ns: int) -> None:
        self.told.append("start")

    def send(self, *message: Any) -> None:
        self.told.append(message)

    async def receive(self) -> Any:
        if len(self._says) == 1 and self._released is not None:
            await self._released.wait()
        return self._says.pop(0) if self._says else None

    def last_words(self) -> str:
        return self._last_words

    async def fate(self) -> str:
        return "was ended by SIGKILL"

    def kill(self) -> None:
        self.killed = True

    async def end(self) -> None: ...


class Ran:
    """A fleet of these workers; `said` is what the user was told."""

    def __init__(self, workers: Sequence[Any]) -> None:
        self.stop, self.live, self.said = Stop(), Live(), list[str]()
        args = (workers, STAGES, RunClock(), self.stop, self.live, Streams(), lambda _: None, self.said.append)
        self.fleet = Fleet(*args)

    async def carry(self) -> tuple[Carried, list[str]]:
        return await asyncio.wait_for(self.fleet.carry(), 60)


# --- before the run has begun -----------------------------------------------------------------------------------------


def test_a_run_that_is_stopped_before_all_workers_are_ready_is_one_that_was_stopped() -> None:
    """The first has ended, as it was told, when the second is ready."""

    async def main() -> None:
        late = asyncio.Event()
        first = Scripted("worker 1", ("ready",), ("done", NOTHING))
        second = Scripted("worker 2", ("ready",), ("done", NOTHING), released=late)
        ran = Ran([first, second])
        ran.stop.set("SIGINT")
        asyncio.get_running_loop().call_soon(late.set)
        carried, losses = await ran.carry()
        assert (carried.driven.interrupted_by, carried.driven.ended_ns) == ("SIGINT", 0)
        assert (losses, ran.said) == ([], [])
        assert ("stop", "SIGINT", False) in second.told
        assert not first.killed

    asyncio.run(main())


def test_a_worker_without_anything_to_send_may_be_done_before_the_others_are_ready() -> None:
    async def main() -> None:
        late = asyncio.Event()
        idle = Scripted("worker 1", ("ready",), ("done", Carried(Driven(STAGES, 0, None), "kernel", 0)))
        busy = Scripted("worker 2", ("done", Carried(Driven(STAGES, 9, None), "kernel", 0)), ("ready",), released=late)
        asyncio.get_running_loop().call_soon(late.set)
        carried, losses = await Ran([idle, busy]).carry()
        assert (carried.driven.interrupted_by, carried.driven.ended_ns, losses) == (None, 9, [])

    asyncio.run(main())


@pytest.mark.parametrize("says", [[], [("ready",)]])
@pytest.mark.parametrize(
    ("words", "message"),
    [("", "worker 1 was ended by SIGKILL before the start"), ("no room", "worker 1 did not start: no room")],
)
def test_a_worker_that_ends_before_the_start_is_told_once(says: list[Any], words: str, message: str) -> None:
    ran = Ran([Scripted("worker 1", *says, last_words=words), Scripted("worker 2", ("ready",), ("done", NOTHING))])
    with pytest.raises(HostError) as problem:
        asyncio.run(ran.carry())
    assert (str(problem.value), ran.said) == (message, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_workers_start(number: signal.Signals, tmp_path: Path) -> None:
    run, workload = tmp_path / "run", tmp_path / "small.yaml"
    workload.write_text(WORKLOAD)

    async def main() -> tuple[int | None, str, list[int]]:
        async with ScriptedServer([HANG]) as server:
            words = ["run", str(workload), "--target", server.url, "--model", "m", "--no-calibrate", "--no-progress"]
            process = await asyncio.create_subprocess_exec(
                *command(*words, "--workers", "2", "--out", str(run)),
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(),
            )  # fmt: skip
            while not (children := _children(process.pid)) or not (run / "run.json").exists():
                await asyncio.sleep(0.001)
            process.send_signal(number)
            _, said = await asyncio.wait_for(process.communicate(), 60)
            return process.returncode, said.decode(), await left_after(10, children)

    status, said, left = asyncio.run(main())
    assert (status, left) == (128 + number, [])
    stopping, *rest = [line for line in said.splitlines() if "/metrics" not in line]
    assert stopping.startswith("loadgen: stopping: ")
    assert rest == [f"loadgen: results in {run}"]
    assert read_meta(run)["interrupted_by"] == number.name


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- those that cannot end --------------------------------------------------------------------------------------------


def local(drain_s: int, folder: Path, url: str = "http://127.0.0.1:9") -> LocalWorker:
    asked = share(concurrency=1, url=url)
    return LocalWorker(replace(asked, schedule=replace(asked.schedule, drain_ns=drain_s * S)).part(0, 1), 1, folder)


@pytest.mark.parametrize(
    ("told", "killed_s"),
    [([(0, False)], [50]), ([(0, False), (3, True)], [8, 50]), ([(0, False), (33, True)], [38, 50])],
)
def test_a_worker_that_is_told_to_stop_has_the_drain_and_no_more(
    told: list[tuple[int, bool]], killed_s: list[int], tmp_path: Path
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        worker, kills_s = local(30, tmp_path), list[float]()
        worker.kill = lambda: kills_s.append(loop.time() - began_s)  # type: ignore[method-assign]
        began_s = loop.time()
        for at_s, at_once in told:
            await asyncio.sleep(began_s + at_s - loop.time())
            worker.send("stop", "SIGINT", at_once)
        await asyncio.sleep(100)
        assert kills_s == pytest.approx(killed_s)

    run_virtual(main())


@pytest.mark.parametrize(("drain_s", "at_once"), [(0, False), (3600, True)])
def test_a_frozen_worker_is_killed_and_told_as_lost(
    drain_s: int, at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "KILL_S", 0.1)
    monkeypatch.setattr(fleet, "WRITE_S", 0.1)

    async def main() -> tuple[Carried, list[str], Ran]:
        async with ScriptedServer([HANG]) as server:
            worker = local(drain_s, tmp_path, server.url)
            ran = Ran([worker])
            carrying = asyncio.create_task(ran.carry())
            while not server.requests:
                await asyncio.sleep(0.01)
            os.kill(worker._process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
            ran.stop.set("SIGINT", at_once)
            return (*await carrying, ran)

    carried, losses, ran = asyncio.run(main())
    assert carried.driven.interrupted_by == "SIGINT"
    (loss,) = losses
    assert loss.startswith("worker 1 of 1 did not end when it was told to, and was killed after ")
    assert ran.said == losses


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_frozen_worker_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    workers: list[int] = []

    async def freeze(process: asyncio.subprocess.Process, server: ScriptedServer) -> None:
        await all_hang(tmp_path / "run", 12)
        workers.extend(carriers(process.pid, tmp_path / "run").values())
        os.kill(workers[0], signal.SIGSTOP)
        process.kill()

    asyncio.run(run_with(tmp_path, [hang_later(12)], freeze, load="requests: 500", workers=2))
    assert len(workers) == 2
    assert asyncio.run(left_after(30, workers)) == []
    assert read_run(tmp_path / "run").requests["outcome"].tolist().count("ok") == 12, "it wrote down what it had"
