"""What one process sends of a run, and how: the same in the only process of a run and in each of several workers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis.record import RequestRecord
from analysis.rundir import RunJournal
from loadgen import host
from loadgen.access import Access, make_access
from loadgen.clock import RunClock, refreshed
from loadgen.drive import Driven, Live, Stop, drive
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions
from loadgen.recorder import GiveUp, Recorder
from loadgen.streams import Streams
from workloads.prompts import Calibration, Prompter
from workloads.schedule import Schedule

if TYPE_CHECKING:
    from loadgen.openai_httpx import HttpxEngine
    from loadgen.tokenizer import Tokenizer


@dataclass(frozen=True)
class Share:
    """A part of a run, or all of it. Holds the user's secrets, and shows none.

    Attributes:
        calibration: What the endpoint makes of our text, as found once for the whole run.
        ca_file, client_cert: What `access.tls` was made from: that itself cannot go to another process.
        worker: Number of the process that carries it, from 0.
        priority: Whether that process may put itself ahead of others.
    """

    schedule: Schedule
    calibration: Calibration
    access: Access
    body: BodyOptions
    http: HttpOptions
    transport: str = "fast"
    max_in_flight: int | None = None
    tokenizer: "Tokenizer | None" = None
    ca_file: str | None = None
    client_cert: str | None = None
    worker: int = 0
    priority: bool = True

    def part(self, i: int, n: int) -> "Share":
        """The i-th of n parts, which together are the whole; to be sent to another process, and made `whole` there."""
        return replace(
            self,
            schedule=self.schedule.shard(i, n),
            access=replace(self.access, tls=None),
            max_in_flight=None if self.max_in_flight is None else (self.max_in_flight - i + n - 1) // n,
            worker=i,
        )

    def whole(self) -> "Share":
        """With what cannot be sent to another process made anew. Raises UsageError where a certificate is gone."""
        access = self.access
        found = make_access(
            access.target,
            headers={},
            api_key=None,
            ca_file=self.ca_file,
            client_cert=self.client_cert,
            insecure=access.insecure,
            proxy=None if access.proxy is None else access.proxy.origin,
        )
        return replace(self, access=replace(access, tls=found.tls))

    def prompter(self) -> Prompter:
        return Prompter(self.schedule.seed, self.calibration)

    def engine(self, clock: RunClock) -> "HttpEngine | HttpxEngine":
        access = self.access
        http = replace(self.http, headers=access.headers, api_key=access.api_key, tls=access.tls, proxy=access.proxy)
        if self.transport == "httpx":
            from loadgen.openai_httpx import HttpxEngine

            return HttpxEngine(access.target, self.body, http, clock)
        return HttpEngine(access.target, self.body, http, clock)


@dataclass(frozen=True, slots=True)
class Carried:
    """What came of a share.

    Attributes:
        timestamp_source: "kernel" or "user".
        stepped_ns: By how much the wall clock was set meanwhile.
        unwritten: Why the journal does not have everything; None: it does.
    """

    driven: Driven
    timestamp_source: str
    stepped_ns: int
    unwritten: str | None = None


async def carry(
    share: Share,
    prompter: Prompter,
    clock: RunClock,
    journal: RunJournal,
    on_record: Callable[[RequestRecord], None],
    *,
    stop: Stop,
    live: Live,
    give_up: GiveUp,
    streams: Streams | None = None,
) -> Carried:
    """Send a share and write down all of it, up to the last record; `give_up` as for a Recorder. `streams` watch it."""
    tokenizer = share.tokenizer
    recorder = Recorder(journal, give_up, None if tokenizer is None else tokenizer.count)
    engine = share.engine(clock)
    if streams is not None:
        streams.watch(engine)

    def file(record: RequestRecord) -> None:
        recorder.add(record)
        on_record(record)

    recorder.start()
    async with host.ClientSampler(clock, live, recorder.add_client_sample, worker=share.worker), refreshed(clock):
        driven = await drive(
            share.schedule,
            engine,
            clock,
            prompter,
            file,
            stop=stop,
            live=live,
            max_in_flight=share.max_in_flight,
            save_text=share.http.save_text or tokenizer is not None,
            worker=share.worker,
        )
    await recorder.close()
    await engine.close()
    return Carried(driven, engine.timestamp_source, clock.stepped_ns, recorder.unwritten)
