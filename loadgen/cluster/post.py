"""What stands on each node of a cluster: it runs one worker there, and hands on what is said and what is written.

A `Post` is the actor, though it knows nothing of Ray. The worker is the same process as on one machine: Ray's threads
are not in it. Its journal goes to a folder of the node, from where it is fetched in pieces while the run lasts.
"""

import asyncio
import contextlib
import pickle
import shutil
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loadgen import host
from loadgen.cluster.parcel import joined
from loadgen.errors import LoadgenError
from loadgen.fleet import LocalWorker
from loadgen.share import Share

POLL_S = 0.5
"""The longest that a poll waits for something to be said."""
FETCH_BYTES = 4 * 1024 * 1024
ALONE_S = 30.0
"""A worker whom nobody asks for so long is ended: the driver of the run is gone, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class News:
    """What came since the last poll.

    Attributes:
        messages: Those of a worker (see `loadgen.worker`), and `("ended", fate, last words)`.
        journal: Bytes of the journal from where the caller has it.
        over: Nothing more will come.
    """

    messages: list[tuple[Any, ...]]
    journal: bytes
    over: bool


class Post:
    def __init__(self) -> None:
        self._pieces: dict[int, bytes] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="loadgen-"))
        self._worker: LocalWorker | None = None
        self._journal: Path | None = None
        self._certificate: str | None = None
        self._said: list[tuple[Any, ...]] = []
        self._heard = 0
        self._more = asyncio.Event()
        self._ended = False
        self._asked_s = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    def about(self) -> dict[str, Any]:
        """What must be the same on all nodes, and what the node is."""
        return {"loadgen": version("llm-loadgen"), "host": host.facts()}

    def clock_ns(self) -> int:
        """CLOCK_MONOTONIC, as the worker reads it too."""
        return time.monotonic_ns()

    def take(self, number: int, piece: bytes) -> None:
        self._pieces[number] = piece

    async def begin(self, files: int) -> None:
        """Starts the worker with the share whose pieces have come, and room for so many open files.

        Raises LoadgenError: this node cannot carry it.
        """
        if self._worker is not None:
            return
        host.raise_fd_limit(files)
        share = await asyncio.to_thread(self._unpack)
        self._certificate = share.client_cert
        self._journal = self._folder / f"journal-{share.worker}.bin"
        self._worker = LocalWorker(share, 0, self._folder)
        await self._worker.launch()
        self._tasks = [asyncio.create_task(self._listen(self._worker)), asyncio.create_task(self._watch(self._worker))]

    def _unpack(self) -> Share:
        try:
            parcel = joined(self._pieces)
            self._pieces.clear()
            return parcel.unpacked(self._folder)
        except (OSError, ValueError, pickle.UnpicklingError) as problem:
            raise LoadgenError(f"the share cannot be unpacked: {' '.join(str(problem).split())[:200]}") from None

    def tell(self, *message: Any) -> None:
        if self._worker is not None:
            self._worker.send(*message)

    async def _listen(self, worker: LocalWorker) -> None:
        while (message := await worker.receive()) is not None:
            self._say(message)
            if message == ("ready",):
                self._forget_certificate()
        self._say(("ended", await worker.fate(), worker.last_words()))
        await worker.end()
        self._ended = True

    def _say(self, message: tuple[Any, ...]) -> None:
        self._said.append(message)
        self._more.set()

    def _forget_certificate(self) -> None:
        """It may come with its key, and is read by now; a trace is read to the end of the run."""
        if self._certificate is not None:
            Path(self._certificate).unlink(missing_ok=True)

    async def _watch(self, worker: LocalWorker) -> None:
        while time.monotonic() < self._asked_s + ALONE_S:
            await asyncio.sleep(1.0)
        worker.kill()

    async def poll(self, heard: int, kept_bytes: int) -> News:
        """What comes next to one who has heard so many messages and has so much of the journal.

        A call whose answer was lost may be made again.
        """
        self._asked_s = time.monotonic()
        del self._said[: heard - self._heard]
        self._heard = heard
        ended = self._ended
        if not self._said and not ended:
            self._more.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), POLL_S)
        messages = list(self._said)
        piece = await asyncio.to_thread(self._written, kept_bytes)
        return News(messages, piece, ended and not messages and not piece)

    def _written(self, kept_bytes: int) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            if self._journal is not None:
                with self._journal.open("rb") as file:
                    file.seek(kept_bytes)
                    return file.read(FETCH_BYTES)
        return b""

    def kill(self) -> None:
        """Ends the worker at once; what it has written stays."""
        if self._worker is not None:
            self._worker.kill()

    async def close(self) -> None:
        """Ends the worker, if it still runs, and leaves nothing on the node."""
        self.kill()
        if self._worker is not None:
            await self._worker.end()
        for task in self._tasks:
            task.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)
