"""Runs whose processes are killed (SIGKILL) while they last, and what is left of them; for the suite and the bench."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.rundir import read_run
from tests.loadgen.scripted import DONE, Received, ScriptedServer, Step, answer, content, finish, role, usage
from workloads.schedule import Schedule, build
from workloads.spec import load_workload

WORKLOAD = """
name: killed
arrivals: {process: poisson, rate: 60/s}
duration: %gs
classes: {c: {shape: chat, turns: 1, system_tokens: 0, input_tokens: 8, output_tokens: 3}}
"""
KEPT_S = 1.0
"""What ended longer before a kill must be in the directory."""


@dataclass(frozen=True)
class Kill:
    """Of worker `victim`, or of the process that was started (None), so long after the first request came."""

    at_s: float
    victim: int | None


@dataclass(frozen=True)
class Remains:
    """What a run left. `missing`: answered more than KEPT_S before the end of whoever asked, and not there."""

    status: int
    said: str
    folder: Path
    requests: pd.DataFrame
    answered: int
    missing: set[str]
    alive: list[int]


class _Noted(asyncio.Event):
    """A step of an answer that takes no time and tells when it was reached."""

    def __init__(self, at_s: dict[str, float], name: str) -> None:
        super().__init__()
        self.at_s, self.name = at_s, name

    async def wait(self) -> bool:  # type: ignore[override]
        self.at_s[self.name] = time.monotonic()
        return True


async def killed_run(folder: Path, workers: int, kills: Sequence[Kill], duration_s: float) -> Remains:
    """Runs until it ends, or until the kill of the process that was started."""
    answered_s: dict[str, float] = {}

    def reply(request: Received) -> list[Step]:
        whole = answer(role(), content("a"), content("b"), content("c"), finish("length"), usage(8, 3), DONE)
        return [*whole, _Noted(answered_s, request.headers["x-request-id"])]

    workload = folder / "workload.yaml"
    workload.write_text(WORKLOAD % duration_s)
    async with ScriptedServer(reply) as server:
        asked = {"url": server.url, "out": str(folder / "run"), "workload": str(workload), "workers": workers}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.loadgen.runner",
            json.dumps(asked),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        while not answered_s:
            await asyncio.sleep(0.005)
            assert process.returncode is None, "the run ended before it began"
        pids = carriers(process.pid, folder / "run")
        killed_s = await _kill_in_turn(process.pid, pids, kills)
        _, said = await asyncio.wait_for(process.communicate(), 60)
        alive = await left_after(10, list(pids.values()))
    assert process.returncode is not None
    requests = read_run(folder / "run").requests
    missing = _due_to_be_there(build(load_workload(str(workload), {}), 7), workers, answered_s, killed_s) - set(
        requests["request_id"][requests["outcome"] == "ok"]
    )
    return Remains(process.returncode, said.decode(), folder / "run", requests, len(answered_s), missing, alive)


def carriers(pid: int, out: Path) -> dict[int, int]:
    """The pid of each worker, by the journal that it holds open; of worker 0 that of the run, if it is alone."""
    found = {}
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        for link in Path(f"/proc/{child}/fd").iterdir():
            name = os.readlink(link)
            if name.startswith(f"{out}/journal-"):
                found[int(name.rpartition("-")[2].removesuffix(".bin"))] = child
    return found or {0: pid}


async def _kill_in_turn(pid: int, pids: dict[int, int], kills: Sequence[Kill]) -> dict[int, float]:
    """When each worker was killed; with the parent, all that were left."""
    began_s, killed_s = time.monotonic(), dict[int, float]()
    for kill in sorted(kills, key=lambda kill: kill.at_s):
        await asyncio.sleep(max(0.0, began_s + kill.at_s - time.monotonic()))
        now_s = time.monotonic()
        os.kill(pid if kill.victim is None else pids[kill.victim], signal.SIGKILL)
        for worker in pids if kill.victim is None else [kill.victim]:
            killed_s.setdefault(worker, now_s)
    return killed_s


async def left_after(seconds: float, pids: Sequence[int]) -> list[int]:
    """Which of these processes still run."""
    deadline_s = time.monotonic() + seconds
    while (alive := [pid for pid in pids if _runs(pid)]) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)
    return alive


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _due_to_be_there(
    schedule: Schedule, workers: int, answered_s: dict[str, float], killed_s: dict[int, float]
) -> set[str]:
    carried_by = {
        turn.request_id: i
        for i in range(workers)
        for session in schedule.shard(i, workers).sessions()
        for one in session.rounds
        for turn in one.turns
    }
    never = float("inf")
    return {name for name, at_s in answered_s.items() if at_s < killed_s.get(carried_by[name], never) - KEPT_S}
