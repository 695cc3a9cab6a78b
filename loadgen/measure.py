"""One measured run: everything that is alive while the load lasts, up to the closed run directory."""

import contextlib
import math
import os
import platform
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.looks import settled_at
from analysis.rundir import RunDirError, RunWriter
from analysis.thin import ALL, notes, said
from loadgen import event_loop, host
from loadgen.access import Access, public_url, redactor
from loadgen.calibrate import calibrate, find_model, prime
from loadgen.clock import RunClock
from loadgen.cluster.remote import RemoteWorker, facts, placement
from loadgen.crew import Crew, cluster_at
from loadgen.drive import Live, Stop
from loadgen.ending import handled_signals
from loadgen.errors import NoVerdictError, UsageError
from loadgen.fleet import LOCAL_START_NS, REMOTE_START_NS, Fleet, worker_count
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpOptions
from loadgen.outlet import Export, Outlet, exported, opened
from loadgen.probe import find_options
from loadgen.progress import Progress
from loadgen.scrape import Scraper, endpoints
from loadgen.share import Carried, Share, carry
from loadgen.until import SETTLED, Watch, look_ends_ns
from workloads.prompts import Calibration, Prompter
from workloads.schedule import Schedule, measured_from_ns
from workloads.spec import Agent, Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loadgen.tokenizer import Tokenizer


@dataclass(frozen=True)
class RunOptions:
    """What `loadgen run` was asked beyond the workload. Secrets are kept out of every repr.

    Attributes:
        workers: How many processes send and receive; None: as many as the planned rate of tokens needs, or one a node.
        cluster: Address of a Ray cluster whose nodes they run on; None: on this machine.
        priority: Whether they may put themselves ahead of others on this machine.
        ca_file, client_cert: What `access` was made with: each worker reads them again.
        metrics: Prometheus endpoints to scrape beside the target's own.
        own_metrics: Whether to scrape that.
        engine: What the target is, where that is sure; else what it says itself is recorded.
        keep_events: Which token events stay on disk, one of `analysis.thin.KEEPS`.
        until_verdict: Whether the run ends when its limits are settled, its measured stages lasting from look to look.
        export: Where Prometheus finds what goes on.
    """

    access: Access
    out: Path
    model: str | None = None
    endpoint: str = "chat"
    body: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_field: str = "max_tokens"
    ignore_eos: bool = True
    per_event_usage: bool = False
    http: HttpOptions = field(default_factory=HttpOptions)
    transport: str = "fast"
    max_in_flight: int | None = None
    calibrate: bool = True
    show_progress: bool = True
    quiet: bool = False
    tokenizer: "Tokenizer | None" = None
    gate: Mapping[str, Any] = field(default_factory=dict)
    workers: int | None = 1
    cluster: str | None = None
    priority: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    metrics: tuple[str, ...] = ()
    own_metrics: bool = True
    engine: str | None = None
    until_verdict: bool = False
    keep_events: str = ALL
    export: Export = field(default_factory=Export)


def measure(workload: Workload, schedule: Schedule, options: RunOptions) -> int | None:
    """Run the load and leave the results in `options.out`.

    Returns the signal that ended it early at once, if a second one did: the directory then holds the journal alone.

    Raises:
        UsageError, NoVerdictError, RunDirError, HostError: before anything was sent.
        NoVerdictError: the disk did not take the results; the directory holds what could be kept.
    """
    if options.keep_events != ALL and workload.fluidity.at_least is not None:
        raise UsageError("--keep-events: fluidity.at_least needs every token event: leave out one of the two")
    with opened(options.export) as outlet, cluster_at(options.cluster, options.workers) as cluster:
        asked = options.workers or (None if cluster is None else len(cluster.nodes))
        workers = worker_count(schedule, asked, options.max_in_flight, host.cores())
        in_flight = options.max_in_flight and math.ceil(options.max_in_flight / workers)
        files = needed_files(schedule.shard(0, workers), in_flight)
        if cluster is None:
            host.raise_fd_limit(files)
        crew = Crew(workers, files, cluster)
        return event_loop.run(_Measurement(workload, schedule, options, crew, outlet).run())


def needed_files(schedule: Schedule, max_in_flight: int | None) -> int:
    """Descriptors that the plan is sure to need: a socket for each request that may be in flight, and some for us."""
    return (max_in_flight or schedule.concurrency or 0) + 64


def uses_tools(workload: Workload) -> bool:
    """Whether a class of the workload defines tools in the body."""
    agents = (spec for spec in workload.classes.values() if isinstance(spec, Agent))
    return any(agent.tools and agent.tool_calls == "native" for agent in agents)


class _Measurement:
    """The parts of one run and how they are put together and taken down."""

    def __init__(self, workload: Workload, schedule: Schedule, options: RunOptions, crew: Crew, outlet: Outlet) -> None:
        self.workload = workload
        self.schedule = schedule
        self.options = options
        self.crew = crew
        self.outlet = outlet
        self.remote: list[RemoteWorker] = []
        self.access = options.access
        self.redact = redactor(self.access.api_key, self.access.headers)
        self.clock = RunClock()
        self.stop = Stop()
        self.live = Live()
        self.signals: list[signal.Signals] = []
        self.warnings = self.access.warnings() + notes(options.keep_events)
        self.taken: int | None = None

    async def run(self) -> int | None:
        model = self.options.model or await find_model(self.access)
        body, calibration = await self._get_to_know(self._body_options(model))
        prompter = Prompter(self.schedule.seed, calibration)
        await self._prime(body, prompter)
        with self._undisturbed() as scheduling:
            writer = RunWriter.create(self.options.out, self._meta(model, scheduling), self.options.http.save_text)
            with handled_signals(self._on_signal):
                carried = await self._drive(self._share(body, calibration), writer, prompter)
        return self._close(writer, carried)

    async def _drive(self, share: Share, writer: RunWriter, prompter: Prompter) -> Carried:
        progress = Progress(self.schedule, self.clock, self.live, enabled=self.options.show_progress)
        async with contextlib.AsyncExitStack() as alive:
            # Whatever lives as long as the load is entered here.
            await alive.enter_async_context(progress)
            await alive.enter_async_context(exported(progress, self.outlet))
            await alive.enter_async_context(self._scraper(writer))
            await alive.enter_async_context(self._settled(progress))
            if self.crew.apart:
                return await self._drive_fleet(share, progress)
            return await carry(
                share,
                prompter,
                self.clock,
                writer,
                progress.add,
                stop=self.stop,
                live=self.live,
                give_up=self.stop.set,
                streams=progress.streams,
            )

    @contextlib.asynccontextmanager
    async def _settled(self, progress: Progress) -> AsyncIterator[None]:
        """Ends the run when its limits are settled, if that was asked for."""
        if not self.options.until_verdict:
            yield
            return
        from_ns, ends_ns = measured_from_ns(self.schedule.stages), look_ends_ns(self.schedule)
        out = self.options.out
        async with Watch(from_ns, ends_ns, out, self.clock, self.stop, progress.show, self._tell) as watch:
            yield
        self.taken = watch.taken

    def _scraper(self, writer: RunWriter) -> Scraper:
        def keep(sample: dict[str, float | int | None]) -> None:
            with contextlib.suppress(RunDirError):  # whoever writes the requests tells
                writer.append_server([sample])

        sources = endpoints(self.access, self.options.metrics, self.options.own_metrics)
        return Scraper(sources, self.clock, keep, self._tell)

    async def _drive_fleet(self, share: Share, progress: Progress) -> Carried:
        local, self.remote = self.crew.carriers(share, self.options.out)
        fleet = Fleet(
            [*local, *self.remote],
            self.schedule.stages,
            self.clock,
            self.stop,
            self.live,
            progress.streams,
            progress.merge,
            self._tell,
            REMOTE_START_NS if self.remote else LOCAL_START_NS,
        )
        carried, losses = await fleet.carry()
        told = carried.driven.interrupted_by
        if told == SETTLED and losses:
            told = losses[0]
            carried = replace(carried, driven=replace(carried.driven, interrupted_by=told))
        self.warnings += [{"code": "interrupted", "text": loss} for loss in losses if loss != told]
        self.warnings += placement(self.remote)
        return carried

    def _close(self, writer: RunWriter, carried: Carried) -> int | None:
        """The signal that ended the run at once, if one did. Raises NoVerdictError where the disk is at fault."""
        closing = self._closing(carried)
        if len(self.signals) > 1:
            writer.abandon(closing)
            return self.signals[0]
        failure = carried.unwritten
        if failure is None:
            try:
                writer.close(closing)
            except RunDirError as problem:
                failure = str(problem)
        if failure is None:
            return None
        writer.abandon(closing)
        kept = (
            f"`loadgen report {writer.path}` reads what was kept" if writer.path.is_dir() else "nothing could be kept"
        )
        raise NoVerdictError(f"{failure}; {kept}")

    # --- before the run --------------------------------------------------------------------------------------------

    def _body_options(self, model: str) -> BodyOptions:
        options = self.options
        return BodyOptions(
            model=model,
            endpoint=options.endpoint,
            per_event_usage=options.per_event_usage,
            max_tokens_field=options.max_tokens_field,
            ignore_eos=options.ignore_eos,
            min_tokens=options.ignore_eos,
            extra=options.body,
        )

    async def _get_to_know(self, body: BodyOptions) -> tuple[BodyOptions, Calibration]:
        """Probe and calibrate, unless every POST is to be measured."""
        if not self.options.calibrate:
            known = Calibration(self._word_tokens())
            return body, known if body.endpoint == "chat" else replace(known, tools=None)
        body, notes = await find_options(self.access, body)
        calibration, more = await calibrate(
            self.access, body, tools=uses_tools(self.workload), word_tokens=self._word_tokens()
        )
        for text in [*notes, *more]:
            self._tell(text)
        return body, calibration

    def _word_tokens(self) -> "NDArray[np.float64] | None":
        tokenizer = self.options.tokenizer
        return None if tokenizer is None else tokenizer.word_tokens()

    async def _prime(self, body: BodyOptions, prompter: Prompter) -> None:
        """A warm run begins with the shared prefixes in the server's cache."""
        primers = (prompter.request(turn, (), keep_text=False) for turn in self.schedule.primers())
        if count := await prime(self.access, body, primers):
            self._tell(f"primed {count} shared prefixes")

    def _share(self, body: BodyOptions, calibration: Calibration) -> Share:
        options = self.options
        return Share(
            schedule=self.schedule,
            calibration=calibration,
            access=self.access,
            body=body,
            http=options.http,
            transport=options.transport,
            max_in_flight=options.max_in_flight,
            tokenizer=options.tokenizer,
            ca_file=options.ca_file,
            client_cert=options.client_cert,
            priority=options.priority,
        )

    # --- while it lasts --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[str]:
        """Keeps this process measuring, if it is the one that does; yields how those that do are scheduled.

        Workers are permitted what we are, so that it can be told before they run.
        """
        with contextlib.ExitStack() as while_measuring:
            scheduling = while_measuring.enter_context(host.priority(self.options.priority))
            if self.crew.apart:
                while_measuring.close()
            else:
                while_measuring.enter_context(host.quiet_gc())
            yield scheduling

    def _on_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if len(self.signals) > 2:
            os._exit(128 + number)
        again = len(self.signals) > 1
        self.stop.set(number.name, at_once=again)
        count = "the" if self.crew.apart else self.live.in_flight  # what workers have told is up to a second old
        if not again and count:
            drain_s = self.schedule.drain_ns / 1e9
            waiting = f"waiting up to {drain_s:g} s for {count} open streams"
            self._tell(f"stopping: {waiting}; once more to end at once")

    def _tell(self, text: str) -> None:
        if not self.options.quiet:
            print(f"loadgen: {self.redact(text)}", file=sys.stderr)

    # --- what is written -------------------------------------------------------------------------------------------

    def _meta(self, model: str, scheduling: str) -> dict[str, Any]:
        limits = asdict(self.options.http.limits)
        return {
            "format_version": 1,
            "id": self.options.out.name,
            "name": self.workload.name,
            "workload": self.workload.resolved(),
            "target": public_url(self.access.target),
            "engine": self.options.engine or self.access.engine,
            "model": model,
            "endpoint": self.options.endpoint,
            "transport": self.options.transport,
            "ignore_eos": self.options.ignore_eos,
            "seed": self.schedule.seed,
            "loop": self.schedule.loop,
            "stages": [asdict(stage) for stage in self.schedule.stages],
            "clock": {"epoch_ns_at_start": self.clock.epoch_ns_at_start, "stepped_ns": 0},
            "timestamp_source": None,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "host": host.facts() | {"scheduling": scheduling},
            "workers": self.crew.workers,
            "limits": limits | {"max_in_flight": self.options.max_in_flight, "retries": self.options.http.retries},
            "gate": dict(self.options.gate),
            **self._looks(),
            **said(self.options.keep_events),
            "complete": False,
            "interrupted_by": None,
            "warnings": self.warnings,
        }

    def _looks(self) -> dict[str, Any]:
        if not self.options.until_verdict:
            return {}
        return {"looks": {"ends_ns": look_ends_ns(self.schedule), "taken": None}}

    def _closing(self, carried: Carried) -> dict[str, Any]:
        driven = carried.driven
        stepped_ns = max(self.clock.stepped_ns, carried.stepped_ns)
        interrupted_by = None if driven.interrupted_by == SETTLED else driven.interrupted_by
        as_run = {"stages": [asdict(stage) for stage in driven.stages], **self._looks()}
        return {
            "complete": interrupted_by is None,
            "interrupted_by": interrupted_by,
            "timestamp_source": carried.timestamp_source,
            "engine": self.options.engine or self.access.engine,
            **(as_run if self.taken is None else settled_at(as_run, self.taken)),
            "clock": {"epoch_ns_at_start": self.clock.epoch_ns_at_start, "stepped_ns": stepped_ns},
            "duration_s": driven.ended_ns / 1e9,
            **({"nodes": facts(self.remote)} if self.remote else {}),
            "warnings": self.warnings,
        }


def versions() -> dict[str, str]:
    return {"loadgen": version("llm-loadgen"), "python": platform.python_version()}
