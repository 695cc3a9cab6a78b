"""`loadgen run`: measure, then report what the run directory says, so that both can never differ."""

import random
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.arguments import run_options, workload_of
from loadgen.errors import StoppedError
from loadgen.recipes.output import put
from loadgen.recipes.report import judged, page_of, rendered, summary_of

if TYPE_CHECKING:
    from workloads.schedule import Schedule
    from workloads.spec import Workload


def run(arguments: dict[str, Any]) -> int:
    path, summary, status = measured(arguments)
    put(rendered(summary, arguments["format_"]))
    if arguments["html"] is not None:
        put(page_of(*judged(path, arguments)), arguments["html"])
    if not arguments["quiet"]:
        print(f"loadgen: results in {path}", file=sys.stderr)
    return status


def measured(arguments: dict[str, Any]) -> tuple[Path, dict[str, Any], int]:
    """Directory, summary and exit status of a run. Raises LoadgenError, StoppedError where it ended at once."""
    from analysis.rundir import write_summary
    from loadgen.measure import measure

    workload = workload_of(arguments)
    out = arguments["out"] or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{workload.name}"
    with ExitStack() as stack:
        target, model = target_of(arguments, stack)
        stopped = measure(workload, schedule_of(workload), run_options(arguments, target, model, Path(out)))
    if stopped is not None:
        raise StoppedError(f"ended at once; `loadgen report {out}` reads what was measured", 128 + stopped)
    summary = summary_of(Path(out), arguments)
    write_summary(Path(out), summary)
    return Path(out), summary, _status_of_run(summary, Path(out))


def schedule_of(workload: "Workload") -> "Schedule":
    from workloads.schedule import build

    return build(workload, random.getrandbits(32) if workload.seed is None else workload.seed)


def target_of(arguments: Mapping[str, Any], stack: ExitStack) -> tuple[str, str | None]:
    """The target and model asked for, or a simulated engine that lives as long as the stack."""
    if arguments["target"] is not None:
        return arguments["target"], arguments["model"]
    from loadgen.sim.child import LocalServer

    server = LocalServer().start()
    stack.callback(server.stop)
    if not arguments.get("no_priority", False):
        from loadgen.host import raise_priority

        raise_priority(server.pid)  # or we would starve it
    if not arguments["quiet"]:
        what = f"{server.model} on one simulated H100"
        print(f"loadgen: no --target: driving the built-in engine ({what}) at {server.url}", file=sys.stderr)
    return server.url, arguments["model"] or server.model


def _status_of_run(summary: Mapping[str, Any], out: Path) -> int:
    from analysis.rundir import read_meta
    from analysis.slo import exit_status

    reason = read_meta(out)["interrupted_by"]
    if reason in signal.Signals.__members__:
        return 128 + signal.Signals[reason]
    if reason:
        what = reason if reason.startswith("worker ") else f"stopped early: {reason}"
        print(f"loadgen: {what}", file=sys.stderr)
        return 3
    status = exit_status(summary)
    if status == 3 and not summary["requests"]["ok"]:
        first = next(iter(summary["requests"]["errors"]), None)
        why = f": {first['count']} x {first['message'] or first['outcome']}" if first else ""
        print(f"loadgen: no verdict: no request succeeded{why}", file=sys.stderr)
    return status
