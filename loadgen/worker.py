"""One of the workers of a run: `python -m loadgen.worker FD` carries the share that comes over the socket FD.

To the worker:    ("carry", share, folder of the run)   ("start", origin_ns)   ("stop", reason, at_once)
From the worker:  ("ready",)   ("tick", tally, sent, in_flight, stalled) once a second
                  ("stop", reason, at_once)   ("done", carried)

When the other end is gone, the worker ends at once, and what it had measured is in its journal.
"""

import asyncio
import contextlib
import os
import pickle
import socket
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


class Wire:
    """One end of a socket pair over which two processes of ours send each other tuples."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Wire":
        return cls(*await asyncio.open_unix_connection(sock=end))

    @property
    def idle(self) -> bool:
        """Whether all that was sent has left this process."""
        transport: asyncio.WriteTransport = self._writer.transport
        return not transport.get_write_buffer_size()

    def send(self, *message: Any) -> None:
        """Never waits, and drops the message if the other end is gone."""
        packed = pickle.dumps(message)
        self._writer.write(_LENGTH.pack(len(packed)) + packed)

    async def receive(self) -> tuple[Any, ...] | None:
        """The next message; None once the other end is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            message: tuple[Any, ...] = pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - from ourselves
            return message
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        """After all that was sent has gone out."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


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


async def work(end: socket.socket) -> None:
    """Carry the share that comes over this socket. Raises LoadgenError, RunDirError before anything was sent."""
    wire = await Wire.over(end)
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


def main() -> int:
    try:
        event_loop.run(work(socket.socket(fileno=int(sys.argv[1]))))
    except (LoadgenError, RunDirError) as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
