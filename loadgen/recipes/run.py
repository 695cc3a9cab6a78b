"""`loadgen run`: measure, then report what the run directory says, so that both can never differ."""

import random
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.arguments import Served, limit_s, run_options, workload_of
from loadgen.errors import StoppedError, UsageError
from loadgen.otel import checked, send, shown
from loadgen.recipes.output import RUNS, check_writable, kept_in, put, run_dir
from loadgen.recipes.report import judged, page_of, rendered, roofline_of

if TYPE_CHECKING:
    from analysis.run import Run
    from workloads.schedule import Schedule
    from workloads.spec import Workload


def run(arguments: dict[str, Any]) -> int:
    roofline = roofline_of(arguments)
    if roofline is not None and arguments["html"] is None:
        raise UsageError("--gpu sets the times of a page against its roofline: give --html FILE too, or leave it out")
    if arguments["repeat"] > 1:
        from loadgen.recipes.repeat import repeat

        if arguments["otel_endpoint"] is not None:
            later = "loadgen report OUT-1 --otel-endpoint URL"
            raise UsageError(f"--otel-endpoint does not go together with --repeat: send each run afterwards: {later}")
        return repeat(arguments, roofline)
    check_writable("--html", arguments["html"], arguments["out"] or RUNS)
    path, summary, status = measured(arguments)
    show(summary, lambda: page_of(*judged(path, arguments), roofline), arguments, str(path))
    return status


def show(summary: Mapping[str, Any], page: Callable[[], str], arguments: Mapping[str, Any], where: str) -> None:
    """Print the report and write its page, each of them whatever becomes of the other. Raises UsageError."""
    with kept_in(where):
        try:
            put(rendered(summary, arguments["format_"]))
        finally:
            if arguments["html"] is not None:
                put(page(), arguments["html"], "--html")
    if not arguments["quiet"]:
        print(f"loadgen: results in {where}", file=sys.stderr)


def measured(arguments: dict[str, Any]) -> tuple[Path, dict[str, Any], int]:
    """Directory, summary and exit status of a run. Raises LoadgenError, StoppedError where it ended at once."""
    from analysis.rundir import write_summary
    from loadgen.measure import measure

    if arguments["repeat"] > 1:
        raise UsageError("repeat: only the command line takes it; run several times, and analysis.pool the runs")
    spans_to = checked(arguments["otel_endpoint"])
    workload, schedule = _planned(arguments)
    out = run_dir(arguments["out"], workload.name)
    with ExitStack() as stack:
        served = target_of(arguments, stack)
        stopped = measure(workload, schedule, run_options(arguments, served, out))
    if stopped is not None:
        raise StoppedError(f"ended at once; `loadgen report {out}` reads what was measured", 128 + stopped)
    measured_run, summary = judged(out, arguments)
    write_summary(out, summary)
    if spans_to is not None:
        _send_spans(measured_run, spans_to, arguments["quiet"])
    return out, summary, status_of(summary)


def _send_spans(run: "Run", url: str, quiet: bool) -> None:
    """What was measured stands, whether a collector takes it or not."""
    try:
        count = send(run, url)
    except UsageError as problem:
        print(f"loadgen: {problem}; `loadgen report` with the same flag tries again", file=sys.stderr)
        return
    if not quiet:
        print(f"loadgen: {count} spans sent to {shown(url)}", file=sys.stderr)


def _planned(arguments: Mapping[str, Any]) -> "tuple[Workload, Schedule]":
    """What is to be sent: for as long as it takes at the most, where the verdict decides how long."""
    workload = workload_of(arguments)
    if not arguments["until_verdict"]:
        return workload, schedule_of(workload)
    from analysis.looks import look_ends_s
    from loadgen.until import in_stretches

    most_s = longest_s(workload, arguments)
    longest = workload.model_copy(update={"duration": most_s, "requests": None})
    lengths_s = look_ends_s(min(workload.duration or FIRST_LOOK_S, most_s), most_s)
    return longest, in_stretches(schedule_of(longest), lengths_s)


FIRST_LOOK_S = 30.0
"""When a run that goes on until its verdict is looked at first, where the workload has no duration."""


def longest_s(workload: "Workload", arguments: Mapping[str, Any]) -> float:
    """--max-duration. Raises UsageError where it makes no sense to go on until a verdict."""
    most_s = limit_s("--max-duration", arguments["max_duration"])
    if not any(workload.slo.values()):
        raise UsageError("--until-verdict: there is no limit to settle: give --slo 'ttft.p95<800ms'")
    if workload.stages:
        raise UsageError("--until-verdict: a workload of stages has its own length: drop them with --set stages=null")
    if arguments["strict_point"] or arguments["cluster"] is not None:
        other = "--strict-point" if arguments["strict_point"] else "--cluster"
        raise UsageError(f"--until-verdict does not go together with {other}")
    if most_s is None or most_s < (workload.duration or 0):
        raise UsageError(f"--max-duration {arguments['max_duration']}: expected no less than the workload's duration")
    return most_s


def schedule_of(workload: "Workload") -> "Schedule":
    from workloads.schedule import build

    return build(workload, random.getrandbits(32) if workload.seed is None else workload.seed)


def target_of(arguments: Mapping[str, Any], stack: ExitStack) -> Served:
    """The target and model asked for, or a simulated engine that lives as long as the stack."""
    if arguments["target"] is not None:
        return Served(arguments["target"], arguments["model"])
    if arguments.get("cluster") not in (None, "local"):
        raise UsageError("--cluster: name a --target that the nodes reach; the built-in engine is on this machine only")
    from loadgen.sim.child import LocalServer

    server = LocalServer().start()
    stack.callback(server.stop)
    if not arguments.get("no_priority", False):
        from loadgen.host import raise_priority

        raise_priority(server.pid)  # or we would starve it
    if not arguments["quiet"]:
        what = f"{server.model} on {server.hardware}"
        print(f"loadgen: no --target: driving the built-in engine ({what}) at {server.url}", file=sys.stderr)
    return Served(server.url, arguments["model"] or server.model, f"built-in, {server.hardware}")


def status_of(summary: Mapping[str, Any]) -> int:
    """The exit status that a run's summary stands for; what else than a limit is at fault is told."""
    from analysis.slo import exit_status

    reason = summary["run"]["interrupted_by"]
    if reason in signal.Signals.__members__:
        return 128 + signal.Signals[reason]
    if reason:
        if not reason.startswith("worker "):  # the loss of one was told when it happened
            print(f"loadgen: stopped early: {reason}", file=sys.stderr)
        return 3
    status = exit_status(summary)
    if status == 3 and not summary["requests"]["ok"]:
        first = next(iter(summary["requests"]["errors"]), None)
        why = f": {first['count']} x {first['message'] or first['outcome']}" if first else ""
        print(f"loadgen: no verdict: no request succeeded{why}", file=sys.stderr)
    return status
