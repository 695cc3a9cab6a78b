"""Ends of a cluster without Ray: a node that follows a script, and one whose post is in this process."""

import asyncio
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analysis.journal import Journal
from analysis.record import RequestRecord
from loadgen.cluster.post import News, Post
from loadgen.cluster.remote import LostError
from loadgen.drive import Driven
from loadgen.progress import Tally
from loadgen.share import Carried
from loadgen.streams import Stalled
from workloads.schedule import Stage

STAGES = (Stage("main", 0, 1_000_000_000, measured=True, offered_rps=None),)
PIECE = 100
HOST = {"os": "Linux", "cores": 4}


def journal_bytes(folder: Path, names: list[str], sent_ns: int = 0, at_a_time: int = 1000) -> bytes:
    folder.mkdir(exist_ok=True)
    path = folder / f"{names[0]}.bin"
    journal = Journal(path, keep_text=False)
    records = [RequestRecord(name, sent_ns=sent_ns, end_ns=sent_ns + 9, outcome="ok") for name in names]
    for first in range(0, len(records), at_a_time):
        journal.append_records(records[first : first + at_a_time])
    journal.close()
    return path.read_bytes()


class ScriptedNode:
    """A handle. Its worker says that it is ready, ends when it is started (or when it is stopped), and has written a
    journal.

    Args:
        ahead_ns: How far its clock is ahead of ours.
        lasts: Works on until it is told to stop.
        dies_after: It answers so many polls once it was started.
        falls_silent: It does not die then, but leaves calls unanswered.
        refuses: What `begin` raises.
    """

    def __init__(
        self,
        node: str,
        journal: bytes,
        ahead_ns: int = 0,
        *,
        lasts: bool = False,
        dies_after: int | None = None,
        falls_silent: bool = False,
        refuses: Exception | None = None,
        loadgen: str | None = None,
    ) -> None:
        self.node = node
        self.journal = journal
        self.ahead_ns = ahead_ns
        self.lasts = lasts
        self.dies_after = dies_after
        self.falls_silent = falls_silent
        self.refuses = refuses
        self.loadgen = loadgen or version("llm-loadgen")
        self.told: list[tuple[Any, ...]] = []
        self.taken: dict[int, bytes] = {}
        self.killed = self.closed = False
        self._said: list[tuple[Any, ...]] = []
        self._polls = 0
        self._started = False
        self._news = asyncio.Event()

    async def call(self, method: str, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        self._polls += method == "poll" and self._started
        if self.dies_after is not None and self._polls > self.dies_after:
            if self.falls_silent:
                await asyncio.Event().wait()
            raise LostError("its node died")
        return await getattr(self, f"_{method}")(*arguments)

    def kill(self) -> None:
        self.killed = True

    async def _about(self) -> dict[str, Any]:
        return {"loadgen": self.loadgen, "host": HOST}

    async def _take(self, number: int, piece: bytes) -> None:
        self.taken[number] = piece

    async def _begin(self, files: int) -> None:
        if self.refuses is not None:
            raise self.refuses
        self._say(("ready",))

    async def _clock_ns(self) -> int:
        return time.monotonic_ns() + self.ahead_ns

    async def _tell(self, *message: Any) -> None:
        self.told.append(message)
        if message[0] == "start":
            self._started = True
            self._say(("tick", Tally(measured=3), 3, 1, Stalled(1, 5)))
        if message[0] == "stop" or not self.lasts:
            self._say(("done", Carried(Driven(STAGES, 900_000_000, None), "kernel", 0)), ("ended", "ended", ""))

    async def _kill(self) -> None:
        self._say(("ended", "ended", ""))

    async def _close(self) -> None:
        self.closed = True

    def _say(self, *messages: tuple[Any, ...]) -> None:
        self._said += messages
        self._news.set()

    async def _poll(self, heard: int, kept_bytes: int) -> News:
        piece = self.journal[kept_bytes : kept_bytes + PIECE] if self._started else b""
        if heard == len(self._said) and not piece and ("ended", "ended", "") not in self._said:
            self._news.clear()
            await self._news.wait()
        messages = self._said[heard:]
        return News(messages, piece, not messages and not piece)


class NearNode:
    """A handle to a real post in this process, with a real worker."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.post = Post()

    async def call(self, method: str, *arguments: Any) -> Any:
        result = getattr(self.post, method)(*arguments)
        return await result if asyncio.iscoroutine(result) else result

    def kill(self) -> None:
        self.post.kill()
