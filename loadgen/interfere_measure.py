"""The experiment on interference over HTTP: from getting to know the endpoint to the closed run directory."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.rundir import RunWriter
from loadgen import event_loop, host
from loadgen.access import Access, parsed, public_url, redactor
from loadgen.calibrate import calibrate, find_model
from loadgen.clock import RunClock, refreshed
from loadgen.drive import Live, Stop
from loadgen.ending import handled_signals
from loadgen.errors import UsageError
from loadgen.exchange import Limits
from loadgen.interfere import Experiment, Ran
from loadgen.interfere_plan import Design, outline
from loadgen.measure import versions
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions
from loadgen.probe import find_options
from loadgen.recorder import Recorder
from workloads.prompts import Calibration, Prompter

LIMITS = Limits(first_token_s=600.0, idle_s=300.0)
SPARE_FILES = 64


@dataclass(frozen=True)
class Options:
    """What `loadgen interfere` was asked beyond the design; `engine`: what the target is, where that is sure."""

    access: Access
    out: Path
    model: str | None = None
    endpoint: str = "chat"
    body: Mapping[str, Any] = field(default_factory=dict)
    quiet: bool = False
    engine: str | None = None


def measure(design: Design, options: Options) -> Ran:
    """Run the experiment and leave its requests in `options.out`.

    Raises:
        UsageError, NoVerdictError, RunDirError, HostError: before anything but probes was sent.
    """
    host.raise_fd_limit(design.streams + SPARE_FILES)
    return event_loop.run(_Measurement(design, options).run())


class _Measurement:
    """The parts of one experiment and how they are put together and taken down."""

    def __init__(self, design: Design, options: Options) -> None:
        self.design, self.options, self.access = design, options, options.access
        self.redact = redactor(self.access.api_key, self.access.headers)
        self.clock, self.stop, self.live = RunClock(), Stop(), Live()

    async def run(self) -> Ran:
        model = self.options.model or await find_model(self.access)
        design = replace(self.design, context_tokens=await context_tokens(self.access, model))
        notes = self._checked(design)
        self._tell(outline(design))
        body, calibration = await self._get_to_know(model)
        engine = self._engine(body)
        writer = RunWriter.create(self.options.out, self._meta(design, model, notes))
        with host.priority(True), host.quiet_gc(), handled_signals(lambda one: self.stop.set(one.name)):
            ran = await self._drive(design, engine, writer, Prompter(design.seed, calibration))
        await engine.close()
        writer.close(self._closing(ran, notes, engine))
        return ran

    async def _drive(self, design: Design, engine: HttpEngine, writer: RunWriter, prompter: Prompter) -> Ran:
        recorder = Recorder(writer, self.stop.set)
        sampler = host.ClientSampler(self.clock, self.live, recorder.add_client_sample)
        experiment = Experiment(
            design, engine, self.clock, prompter, recorder.add, stop=self.stop, live=self.live, tell=self._tell
        )
        recorder.start()
        async with sampler, refreshed(self.clock):
            ran = await experiment.run()
        await recorder.close()
        return ran

    # --- before it -------------------------------------------------------------------------------------------------

    def _checked(self, design: Design) -> list[str]:
        """Notes on what is left out. UsageError where nothing is left."""
        if not design.fitting:
            raise UsageError(f"--lengths: none fits the model's context of {design.context_tokens:,} tokens")
        too_long = sorted(set(design.lengths) - set(design.fitting))
        if not too_long:
            return []
        note = (
            f"prompts of {', '.join(f'{each:,}' for each in too_long)} tokens are left out: the model's context is "
            f"{design.context_tokens:,} tokens"
        )
        self._tell(note)
        return [note]

    async def _get_to_know(self, model: str) -> tuple[BodyOptions, Calibration]:
        body, notes = await find_options(
            self.access, BodyOptions(model=model, endpoint=self.options.endpoint, extra=self.options.body)
        )
        calibration, more = await calibrate(self.access, body)
        for text in [*notes, *more]:
            self._tell(text)
        return body, calibration

    def _engine(self, body: BodyOptions) -> HttpEngine:
        access = self.access
        http = HttpOptions(access.headers, access.api_key, LIMITS, tls=access.tls, proxy=access.proxy)
        return HttpEngine(access.target, body, http, self.clock)

    # --- while it lasts --------------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        if not self.options.quiet:
            print(f"loadgen: {self.redact(text)}", file=sys.stderr)

    # --- what is written -------------------------------------------------------------------------------------------

    def _meta(self, design: Design, model: str, notes: list[str]) -> dict[str, Any]:
        workload = design.workload(notes)
        return {
            "format_version": 1,
            "id": self.options.out.name,
            "name": workload["name"],
            "workload": workload,
            "target": public_url(self.access.target),
            "engine": self.options.engine or self.access.engine,
            "model": model,
            "endpoint": self.options.endpoint,
            "transport": "fast",
            "ignore_eos": True,
            "seed": design.seed,
            "loop": "closed",
            "stages": [],
            "clock": {"epoch_ns_at_start": self.clock.epoch_ns_at_start, "stepped_ns": 0},
            "timestamp_source": None,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "host": host.facts(),
            "limits": asdict(LIMITS),
            "gate": {},
            "complete": False,
            "interrupted_by": None,
            "warnings": self.access.warnings(),
        }

    def _closing(self, ran: Ran, notes: list[str], engine: HttpEngine) -> dict[str, Any]:
        return {
            "complete": ran.interrupted_by is None,
            "interrupted_by": ran.interrupted_by and self.redact(ran.interrupted_by),
            "workload": ran.design.workload([*notes, *map(self.redact, ran.notes)]),
            "timestamp_source": engine.timestamp_source,
            "stages": [asdict(stage) for stage in ran.stages],
            "clock": {"epoch_ns_at_start": self.clock.epoch_ns_at_start, "stepped_ns": self.clock.stepped_ns},
            "duration_s": ran.ended_ns / 1e9,
        }


async def context_tokens(access: Access, model: str) -> int | None:
    """Length of the model's context by the server's list of models; None where it does not say.

    Raises:
        NoVerdictError: the server cannot be reached.
    """
    async with access.client() as client, access.ask(client, "GET", f"{access.target.base}/models") as reply:
        body = await access.whole(reply)
    try:
        told = next(each for each in parsed(body)["data"] if each["id"] == model)
        return int(told.get("max_model_len") or told.get("context_length") or told.get("context_window")) or None
    except (ValueError, KeyError, TypeError, StopIteration):
        return None
