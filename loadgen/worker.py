"""One of the workers of a run: `python -m loadgen.worker FROM TO` carries the share that comes over the pipe FROM, and
tells over the pipe TO what becomes of it.

To the worker:    ("carry", share, folder of the run)   ("start", origin_ns)   ("stop", reason, at_once)
From the worker:  ("ready",)   ("tick", tally, sent, in_flight, stalled) once a second
                  ("stop", reason, at_once)   ("done", carried)

When the other end is gone, the worker ends at once, and what it had measured is in its journal.
"""

import asyncio
import ctypes
import os
import pickle
import signal
import struct
import sys
from typing import Any

from analysis.record import RequestRecord
from analysis.rundir import RunDirError, RunJournal
from loadgen import event_loop, host
from loadgen.clock import RunClock
from loadgen.drive import Live, Stop
from loadgen.errors import LoadgenError
from loadgen.progress import Tally
from loadgen.share import Carried, Share, carry
from loadgen.streams import Streams

TICK_S = 1.0
ORPHAN_S = 5.0
"""How long a worker whose parent is gone may take to end."""

_LENGTH = struct.Struct("<I")
_FAR_NS = 1 << 62
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


class _WrittenTo(asyncio.BaseProtocol):
    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whoever reads notices too
        self.closed.set()


class Wire:
    """One end of two pipes over which two processes of ours send each other tuples.

    Not a socket: there, what one end has said and the other not read yet is lost when it closes, or is killed, while
    something for it is on its way. A pipe is read to its end, whatever becomes of the other one.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        reads: asyncio.ReadTransport,
        writes: asyncio.WriteTransport,
        written_to: _WrittenTo,
    ) -> None:
        self._reader = reader
        self._reads = reads
        self._writes = writes
        self._written_to = written_to

    @classmethod
    async def over(cls, read_fd: int, write_fd: int) -> "Wire":
        """Takes both descriptors over."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        reads, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", 0)
        )
        writes, written_to = await loop.connect_write_pipe(_WrittenTo, os.fdopen(write_fd, "wb", 0))
        return cls(reader, reads, writes, written_to)

    @property
    def idle(self) -> bool:
        """Whether all that was sent has left this process."""
        return not self._writes.get_write_buffer_size()

    def send(self, *message: Any) -> None:
        """Never waits, and drops the message if the other end is gone."""
        if not self._writes.is_closing():
            packed = pickle.dumps(message)
            self._writes.write(_LENGTH.pack(len(packed)) + packed)

    async def receive(self) -> tuple[Any, ...] | None:
        """The next message; None once the other end is gone and all that it said has been received."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            message: tuple[Any, ...] = pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - from ourselves
            return message
        except asyncio.IncompleteReadError:
            return None

    async def close(self) -> None:
        """After all that was sent has gone out."""
        self._writes.close()
        await self._written_to.closed.wait()
        self._reads.close()


class SharedClock(RunClock):
    """A clock that others start: our own start only says that we are ready. Until then it is long before the run."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self._set_origin(self.origin_ns + _FAR_NS)

    def start(self, in_ns: int = 0) -> None:  # noqa: ARG002 - not ours to say
        self._wire.send("ready")

    def start_at(self, origin_ns: int) -> None:
        """Sets the start of the run to a reading of CLOCK_MONOTONIC, which all processes of a machine share."""
        self._offset_ns, _ = self._realtime_offset()
        self._set_origin(origin_ns)
        self._started.set()


class _Worker:
    def __init__(self, wire: Wire, share: Share, journal: RunJournal) -> None:
        self.wire = wire
        self.share = share
        self.journal = journal
        self.clock = SharedClock(wire)
        self.stop = Stop()
        self.live = Live()
        self.tally = Tally()
        self.streams = Streams()

    async def run(self) -> Carried:
        prompter = self.share.prompter()
        for turn in self.share.schedule.primers():  # their text is kept: it is not to be made while the load lasts
            prompter.request(turn, (), keep_text=False)
        beside = [asyncio.create_task(self._obey()), asyncio.create_task(self._tell())]
        try:
            return await carry(
                self.share,
                prompter,
                self.clock,
                self.journal,
                self._count,
                stop=self.stop,
                live=self.live,
                give_up=self._give_up,
                streams=self.streams,
            )
        finally:
            for task in beside:
                task.cancel()
            self._tick()

    def _count(self, record: RequestRecord) -> None:
        self.tally.add(record, self.share.schedule)

    def _give_up(self, reason: str, at_once: bool = False) -> None:
        self.stop.set(reason, at_once)
        self.wire.send("stop", reason, at_once)

    async def _obey(self) -> None:
        while (message := await self.wire.receive()) is not None:
            match message:
                case ("start", origin_ns):
                    self.clock.start_at(origin_ns)
                case ("stop", reason, at_once):
                    self.stop.set(reason, at_once)
        self.stop.set("the process that started this worker is gone", at_once=True)
        asyncio.get_running_loop().call_later(ORPHAN_S, os._exit, 1)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.wire.idle:
                self._tick()

    def _tick(self) -> None:
        stalled = self.streams.stalled(self.clock.now_ns(), self.share.schedule.workload.stall)
        self.wire.send("tick", self.tally, self.live.sent, self.live.in_flight, stalled)
        self.tally = Tally()


async def work(read_fd: int, write_fd: int) -> None:
    """Carry the share that comes over this wire. Raises LoadgenError, RunDirError before anything was sent."""
    wire = await Wire.over(read_fd, write_fd)
    message = await wire.receive()
    if message is None:
        return
    _, sent, folder = message
    share: Share = sent.whole()
    journal = RunJournal.of_worker(folder, share.worker, share.http.save_text)
    with host.quiet_gc(), host.priority(share.priority):
        carried = await _Worker(wire, share, journal).run()
    journal.end()
    wire.send("done", carried)
    await wire.close()


def wake_when_orphaned() -> None:
    """Has the kernel continue (SIGCONT) this process when its parent is gone, which costs a running one nothing.

    A stopped one (SIGSTOP) would stay behind for ever; now it ends as others do. Elsewhere than on Linux it stays.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def main() -> int:
    wake_when_orphaned()
    try:
        event_loop.run(work(int(sys.argv[1]), int(sys.argv[2])))
    except (LoadgenError, RunDirError) as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
