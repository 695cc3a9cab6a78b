"""A run that goes on until its limits are settled: its stages, and who looks at them while it lasts.

The rule, and why it is sound, is in `analysis.looks`. A look takes seconds of a core, so a process of its own takes it
(`loadgen.look`), behind all others: nothing that measures waits for it.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from loadgen.clock import Clock
from loadgen.drive import Stop
from loadgen.errors import UsageError
from workloads.schedule import Schedule

SETTLED = "settled"
"""The reason of a stop that is no interruption."""


def in_stretches(schedule: Schedule, lengths_s: Sequence[float]) -> Schedule:
    """The schedule with its measured stage cut where it is looked at: the same requests, due at the same times.

    Raises UsageError where there is no one measured stage to cut.
    """
    *before, main = schedule.stages
    if any(stage.measured for stage in before) or main.end_ns is None:
        raise UsageError("--until-verdict: needs one measured stage of a given rate: drop the stages")
    ends_ns = [main.start_ns + round(each * 1e9) for each in lengths_s]
    ends_ns = [*(each for each in ends_ns if each < main.end_ns), main.end_ns]  # a trace may be shorter
    starts_ns = [main.start_ns, *ends_ns[:-1]]
    stretches = [
        replace(main, name=f"{main.name}-{number}" if number > 1 else main.name, start_ns=start_ns, end_ns=end_ns)
        for number, (start_ns, end_ns) in enumerate(zip(starts_ns, ends_ns, strict=True), 1)
    ]
    return replace(schedule, stages=(*before, *stretches))


def look_ends_ns(schedule: Schedule) -> list[int]:
    return [stage.end_ns for stage in schedule.stages if stage.measured and stage.end_ns is not None]


@dataclass
class Watch:
    """Looks at a run while it lasts, in an `async with` block, and stops it when there is nothing left to settle.

    Two looks in a row that more of the same could not settle (what is limited is undefined, or the client is too slow)
    end it too: the verdict will not come.

    Attributes:
        from_ns: Start of what is measured.
        ends_ns: When it is looked at; at the last of them it is over anyway.
        show: Called with a line that says what is still unsettled.
        taken: The look after which the run was stopped, from 1; None if none was.
    """

    from_ns: int
    ends_ns: Sequence[int]
    folder: Path
    clock: Clock
    stop: Stop
    show: Callable[[str], None]
    tell: Callable[[str], None]
    taken: int | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self) -> None:
        hopeless_before = False
        for number, end_ns in enumerate(self.ends_ns[:-1], 1):
            await self.clock.sleep_until(end_ns)
            found = await look(self.folder, number, end_ns)
            if isinstance(found, str):
                self.tell(f"--until-verdict: the run cannot be looked at ({found}): it goes on to its longest duration")
                return
            hopeless = bool(found["unsettled"]) and not found["can_settle"]
            self._report(found, number)
            if not found["unsettled"] or found["worker_gone"] or (hopeless and hopeless_before):
                self.taken = number
                self.stop.set(SETTLED)
                return
            hopeless_before = hopeless

    def _report(self, found: Mapping[str, Any], number: int) -> None:
        now_s, next_s = ((end_ns - self.from_ns) / 1e9 for end_ns in self.ends_ns[number - 1 : number + 1])
        after = f"after {now_s:g} s"
        self.show(f"unsettled {after}: {', '.join(found['names'])}" if found["names"] else f"settled {after}")
        if found["settled"]:
            self.tell(f"{after}, settled: {'; '.join(found['settled'])}")
        if found["unsettled"]:
            self.tell(f"{after}, unsettled: {'; '.join(found['unsettled'])}; looking again after {next_s:g} s")


async def look(folder: Path, number: int, end_ns: int) -> dict[str, Any] | str:
    """What look `number` says, once every request that was due before `end_ns` has ended; else why there is none."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.look", str(folder), str(number), str(end_ns),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        return next(iter(reversed(err.decode(errors="replace").split("\n")[:-1])), "it said nothing")
    found: dict[str, Any] = json.loads(out)
    return found
