"""One measured run: everything that is alive while the load lasts, up to the closed run directory."""

import asyncio
import contextlib
import os
import platform
import signal
import ssl
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

from analysis.record import RequestRecord
from analysis.rundir import RunWriter
from loadgen import host
from loadgen.calibrate import Access, calibrate, find_model
from loadgen.clock import RunClock
from loadgen.drive import Driven, Engine, Live, Stop, drive
from loadgen.errors import UsageError
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions
from loadgen.progress import Progress
from loadgen.recorder import Recorder
from loadgen.target import Target, parse_target
from workloads.prompts import Calibration, Prompter
from workloads.schedule import Schedule
from workloads.spec import Workload

if TYPE_CHECKING:
    from loadgen.openai_httpx import HttpxEngine

PUBLIC_QUERY = frozenset({"api-version"})


@dataclass(frozen=True)
class RunOptions:
    """What `loadgen run` was asked beyond the workload. Secrets are kept out of every repr."""

    target: str
    out: Path
    model: str | None = None
    endpoint: str = "chat"
    body: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = True
    per_event_usage: bool = False
    http: HttpOptions = field(default_factory=HttpOptions)
    transport: str = "fast"
    ca_file: str | None = None
    insecure: bool = False
    proxy: str | None = None
    max_in_flight: int | None = None
    calibrate: bool = True
    show_progress: bool = True
    quiet: bool = False
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


class _Measurement:
    """The parts of one run and how they are put together and taken down."""

    def __init__(self, workload: Workload, schedule: Schedule, options: RunOptions) -> None:
        self.workload = workload
        self.schedule = schedule
        self.options = options
        self.target = parse_target(options.target, options.endpoint)
        self.warnings: list[dict[str, str]] = []
        self.clock = RunClock()
        self.stop = Stop()
        self.live = Live()
        self.signals: list[signal.Signals] = []

    async def run(self) -> int | None:
        http = self._http_options()
        access = self._access(http)
        model = self.options.model or await find_model(access)
        body = self._body_options(model)
        calibration = await self._calibrate(access, body)
        engine = self._engine(body, http)
        writer = RunWriter.create(self.options.out, self._meta(model), self.options.http.save_text)
        with host.quiet_gc(), self._signals():
            driven = await self._drive(engine, writer, Prompter(self.schedule.seed, calibration))
        await engine.close()
        if len(self.signals) > 1:
            return self.signals[0]
        writer.close(self._closing(driven, engine))
        return None

    async def _drive(self, engine: Engine, writer: RunWriter, prompter: Prompter) -> Driven:
        recorder = Recorder(writer, self.stop.set)
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
                save_text=self.options.http.save_text,
            )
        await recorder.close()
        return driven

    # --- before the run --------------------------------------------------------------------------------------------

    def _http_options(self) -> HttpOptions:
        options = self.options
        if options.insecure:
            self._warn("insecure", "the server's certificate was not checked (--insecure)")
        proxy = self._proxy()
        return replace(options.http, tls=tls_context(options.ca_file, options.insecure), proxy=proxy)

    def _proxy(self) -> Target | None:
        """The proxy in the way: by flag, or by environment for a target that is not on this machine."""
        url = self.options.proxy
        if url is None and not self.target.is_loopback and not urllib.request.proxy_bypass(self.target.host):
            url = urllib.request.getproxies().get(self.target.scheme)
        if not url:
            return None
        proxy = parse_target(url, "chat")
        self._warn("proxy", f"the load went through the proxy {proxy.origin}: its delays are in every number")
        return proxy

    def _access(self, http: HttpOptions) -> Access:
        headers = dict(http.headers)
        if http.api_key:
            headers.setdefault("authorization", f"Bearer {http.api_key}")
        return Access(self.target, headers, http.tls or False, http.proxy.origin if http.proxy else None)

    def _body_options(self, model: str) -> BodyOptions:
        options = self.options
        return BodyOptions(
            model=model,
            endpoint=options.endpoint,
            per_event_usage=options.per_event_usage,
            ignore_eos=options.ignore_eos,
            extra=options.body,
        )

    async def _calibrate(self, access: Access, body: BodyOptions) -> Calibration | None:
        if not self.options.calibrate:
            return None
        calibration, note = await calibrate(access, body)
        if note:
            self._tell(note)
        return calibration

    def _engine(self, body: BodyOptions, http: HttpOptions) -> "HttpEngine | HttpxEngine":
        if self.options.transport == "httpx":
            from loadgen.openai_httpx import HttpxEngine

            return HttpxEngine(self.target, body, http, self.clock)
        return HttpEngine(self.target, body, http, self.clock)

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
            self._tell(
                f"stopping: waiting up to {drain_s:g} s for {self.live.in_flight} open streams; again to end at once"
            )

    def _tell(self, text: str) -> None:
        if not self.options.quiet:
            print(f"loadgen: {text}", file=sys.stderr)

    def _warn(self, code: str, text: str) -> None:
        self.warnings.append({"code": code, "text": text})

    # --- what is written -------------------------------------------------------------------------------------------

    def _meta(self, model: str) -> dict[str, Any]:
        limits = asdict(self.options.http.limits)
        return {
            "format_version": 1,
            "id": self.options.out.name,
            "name": self.workload.name,
            "workload": self.workload.resolved(),
            "target": public_url(self.target),
            "model": model,
            "endpoint": self.options.endpoint,
            "transport": self.options.transport,
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
            "warnings": list(self.warnings),
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


def tls_context(ca_file: str | None, insecure: bool) -> ssl.SSLContext:
    """Raises UsageError where the file holds no certificates."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as problem:
        raise UsageError(f"--ca-file {ca_file}: {problem.strerror or problem}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def public_url(target: Target) -> str:
    """The target's URL with the values of its query hidden: some gateways take keys there."""
    parts = urlsplit(target.url)
    query = "&".join(
        f"{quote(name)}={quote(value) if name in PUBLIC_QUERY else '…'}" for name, value in parse_qsl(parts.query)
    )
    return urlunsplit(parts._replace(query=query)) if parts.query else target.url


def versions() -> dict[str, str]:
    return {"loadgen": version("llm-loadgen"), "python": platform.python_version()}
