"""A workload on a simulated cluster in virtual time, as a run like any other: the same tables, the same report."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.record import RequestRecord
from loadgen.errors import UsageError
from loadgen.sim.options import POLICIES, Options

if TYPE_CHECKING:
    from analysis.run import Run
    from loadgen.sim.core import Cluster
    from workloads.schedule import Schedule
    from workloads.spec import Workload

SIMULATED = "simulated"
"""Stands as endpoint and source of the timestamps of such a run."""


@dataclass(frozen=True)
class Simulation:
    """What is simulated, and how many requests it takes at a time (None: all).

    Attributes:
        gate: The rules of judging that go into the run (see `loadgen.arguments.gate_rules`).
    """

    options: Options
    max_in_flight: int | None = None
    gate: Mapping[str, Any] = field(default_factory=dict)

    def run(self, workload: "Workload", schedule: "Schedule", name: str) -> "Run":
        """Raises UsageError for options that make no sense."""
        import pandas as pd

        from analysis.run import Run
        from loadgen.host import quiet_gc
        from loadgen.sim.replay import simulate

        records: list[RequestRecord] = []
        samples: list[dict[str, float]] = []
        config = config_of(self.options)
        with quiet_gc():
            driven = simulate(
                schedule,
                config,
                records.append,
                primers=schedule.primers(),
                max_in_flight=self.max_in_flight,
                on_sample=lambda t_ns, cluster: samples.append(_sample(t_ns, cluster)),
            )
        meta = self._meta(workload, schedule, name) | {
            "stages": [asdict(stage) for stage in driven.stages],
            "duration_s": driven.ended_ns / 1e9,
        }
        return Run.from_records(meta, records, pd.DataFrame(samples) if samples else None)

    def _meta(self, workload: "Workload", schedule: "Schedule", name: str) -> dict[str, Any]:
        from loadgen import host
        from loadgen.measure import versions

        return {
            "format_version": 1,
            "id": name,
            "name": workload.name,
            "workload": workload.resolved(),
            "target": self.options.hardware(),
            "model": self.options.model,
            "endpoint": SIMULATED,
            "transport": None,
            "ignore_eos": True,
            "seed": schedule.seed,
            "loop": schedule.loop,
            "clock": {"epoch_ns_at_start": None, "stepped_ns": 0},
            "timestamp_source": SIMULATED,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "host": host.facts(),
            "simulated": asdict(self.options),
            "limits": {"max_in_flight": self.max_in_flight},
            "gate": dict(self.gate),
            "complete": True,
            "interrupted_by": None,
            "warnings": [],
        }


def config_of(options: Options) -> Any:
    """The cluster. Raises UsageError for options that make no sense."""
    try:
        return options.config()
    except ValueError as problem:
        raise UsageError(str(problem)) from None


def variant(options: Options, text: str) -> Options:
    """Options under another policy: `chunked:512`, `prefill-first`, `static` or `disaggregated`.

    Disaggregation splits the replicas that there are in halves, and takes two where there is one. Raises UsageError.
    """
    policy, _, chunk = text.strip().partition(":")
    if policy not in POLICIES or (chunk and (policy != "chunked" or not chunk.isdecimal() or int(chunk) < 1)):
        known = ", ".join(POLICIES)
        raise UsageError(f"--compare {text}: expected policies of {known}, with a budget as in chunked:512")
    changed = replace(options, policy=policy, chunk_tokens=int(chunk) if chunk else options.chunk_tokens)
    if policy != "disaggregated":
        return replace(changed, prefill_replicas=0, decode_replicas=0)
    prefill = options.prefill_replicas or max(1, options.replicas // 2)
    return replace(
        changed, prefill_replicas=prefill, decode_replicas=options.decode_replicas or max(1, options.replicas - prefill)
    )


def write(run: "Run", path: Path) -> None:
    """The run as a directory. Raises RunDirError where it cannot be written."""
    from analysis.rundir import write_run

    write_run(path, run)


def _sample(t_ns: int, cluster: "Cluster") -> dict[str, float]:
    """What the cluster's metrics would say, under the names of `analysis.server`."""
    totals = cluster.totals
    return {
        "t_ns": t_ns,
        "running": cluster.running,
        "waiting": cluster.waiting,
        "kv_usage": cluster.kv_used_share,
        "preemptions": totals.preemptions,
        "prefix_query_tokens": totals.prefix_query_tokens,
        "prefix_hit_tokens": totals.prefix_hit_tokens,
        "prompt_tokens": totals.prompt_tokens,
        "generation_tokens": totals.generation_tokens,
        "queue_s": totals.queue_ns / 1e9,
        "queue_requests": totals.first_tokens,
        "prefill_s": totals.prefill_ns / 1e9,
        "prefill_requests": totals.first_tokens,
    }
