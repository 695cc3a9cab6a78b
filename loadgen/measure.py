"""One measured run: everything that is alive while the load lasts, up to the closed run directory."""

import asyncio
import contextlib
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

from analysis.record import RequestRecord
from analysis.rundir import RunWriter
from loadgen import host
from loadgen.access import Access, public_url, redactor
from loadgen.calibrate import calibrate, find_model, prime
from loadgen.clock import RunClock
from loadgen.drive import Driven, Engine, Live, Stop, drive
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions
from loadgen.probe import find_options
from loadgen.progress import Progress
from loadgen.recorder import Recorder
from workloads.prompts import Calibration, Prompter
from workloads.schedule import Schedule
from workloads.spec import Agent, Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loadgen.openai_httpx import HttpxEngine
    from loadgen.tokenizer import Tokenizer


@dataclass(frozen=True)
class RunOptions:
    """What `loadgen run` was asked beyond the workload. Secrets are kept out of every repr."""

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


def measure(workload: Workload, schedule: Schedule, options: RunOptions) -> int | None:
    """Run the load and leave the results in `options.out`.

    Returns the signal that ended it early at once, if a second one did: the directory then holds the journal alone.

    Raises:
        UsageError, NoVerdictError, RunDirError, HostError: before anything was sent.
    """
    host.raise_fd_limit(needed_files(schedule, options.max_in_flight))
    return asyncio.run(_Measurement(workload, schedule, options).run())


def needed_files(schedule: Schedule, max_in_flight: int | None) -> int:
    """Descriptors that the plan is sure to need: a socket for each request that may be in flight, and some for us."""
    return (max_in_flight or schedule.concurrency or 0) + 64


def uses_tools(workload: Workload) -> bool:
    """Whether a class of the workload defines tools in the body."""
    agents = (spec for spec in workload.classes.values() if isinstance(spec, Agent))
    return any(agent.tools and agent.tool_calls == "native" for agent in agents)


class _Measurement:
    """The parts of one run and how they are put together and taken down."""

    def __init__(self, workload: Workload, schedule: Schedule, options: RunOptions) -> None:
        self.workload = workload
        self.schedule = schedule
        self.options = options
        self.access = options.access
        self.redact = redactor(self.access.api_key, self.access.headers)
        self.clock = RunClock()
        self.stop = Stop()
        self.live = Live()
        self.signals: list[signal.Signals] = []

    async def run(self) -> int | None:
        model = self.options.model or await find_model(self.access)
        body, calibration = await self._get_to_know(self._body_options(model))
        prompter = Prompter(self.schedule.seed, calibration)
        await self._prime(body, prompter)
        engine = self._engine(body)
        writer = RunWriter.create(self.options.out, self._meta(model), self.options.http.save_text)
        with host.quiet_gc(), self._signals():
            driven = await self._drive(engine, writer, prompter)
        await engine.close()
        if len(self.signals) > 1:
            writer.abandon()
            return self.signals[0]
        writer.close(self._closing(driven, engine))
        return None

    async def _drive(self, engine: Engine, writer: RunWriter, prompter: Prompter) -> Driven:
        tokenizer = self.options.tokenizer
        recorder = Recorder(writer, self.stop.set, None if tokenizer is None else tokenizer.count)
        progress = Progress(self.schedule, self.clock, self.live, enabled=self.options.show_progress)
        sampler = host.ClientSampler(self.clock, self.live, recorder.add_client_sample)

        def on_record(record: RequestRecord) -> None:
            recorder.add(record)
            progress.add(record)

        recorder.start()
        async with sampler, progress, self._refreshed_clock():
            driven = await drive(
                self.schedule,
                engine,
                self.clock,
                prompter,
                on_record,
                stop=self.stop,
                live=self.live,
                max_in_flight=self.options.max_in_flight,
                save_text=self.options.http.save_text or tokenizer is not None,
            )
        await recorder.close()
        return driven

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

    def _engine(self, body: BodyOptions) -> "HttpEngine | HttpxEngine":
        access = self.access
        http = replace(
            self.options.http, headers=access.headers, api_key=access.api_key, tls=access.tls, proxy=access.proxy
        )
        if self.options.transport == "httpx":
            from loadgen.openai_httpx import HttpxEngine

            return HttpxEngine(access.target, body, http, self.clock)
        return HttpEngine(access.target, body, http, self.clock)

    # --- while it lasts --------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _refreshed_clock(self) -> AsyncIterator[None]:
        async def refresh() -> None:
            while True:
                await asyncio.sleep(1.0)
                self.clock.refresh()

        task = asyncio.create_task(refresh())
        try:
            yield
        finally:
            task.cancel()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal stops the sending and waits for open streams; the second ends at once."""
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for one in handled:
            loop.add_signal_handler(one, self._on_signal, one)
        try:
            yield
        finally:
            for one in handled:
                loop.remove_signal_handler(one)

    def _on_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if len(self.signals) > 2:
            os._exit(128 + number)
        again = len(self.signals) > 1
        self.stop.set(number.name, at_once=again)
        if not again and self.live.in_flight:
            drain_s = self.schedule.drain_ns / 1e9
            waiting = f"waiting up to {drain_s:g} s for {self.live.in_flight} open streams"
            self._tell(f"stopping: {waiting}; once more to end at once")

    def _tell(self, text: str) -> None:
        if not self.options.quiet:
            print(f"loadgen: {self.redact(text)}", file=sys.stderr)

    # --- what is written -------------------------------------------------------------------------------------------

    def _meta(self, model: str) -> dict[str, Any]:
        limits = asdict(self.options.http.limits)
        return {
            "format_version": 1,
            "id": self.options.out.name,
            "name": self.workload.name,
            "workload": self.workload.resolved(),
            "target": public_url(self.access.target),
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
            "host": host.facts(),
            "limits": limits | {"max_in_flight": self.options.max_in_flight, "retries": self.options.http.retries},
            "gate": dict(self.options.gate),
            "complete": False,
            "interrupted_by": None,
            "warnings": self.access.warnings(),
        }

    def _closing(self, driven: Driven, engine: "HttpEngine | HttpxEngine") -> dict[str, Any]:
        return {
            "complete": driven.interrupted_by is None,
            "interrupted_by": driven.interrupted_by,
            "timestamp_source": engine.timestamp_source,
            "stages": [asdict(stage) for stage in driven.stages],
            "clock": {"epoch_ns_at_start": self.clock.epoch_ns_at_start, "stepped_ns": self.clock.stepped_ns},
            "duration_s": driven.ended_ns / 1e9,
        }


def versions() -> dict[str, str]:
    return {"loadgen": version("llm-loadgen"), "python": platform.python_version()}
