"""`loadgen run --repeat N`: several runs of one workload, judged together."""

import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.arguments import run_options, workload_of
from loadgen.errors import StoppedError, UsageError
from loadgen.recipes.output import as_json, check_writable, kept_in, put, run_dir
from loadgen.recipes.report import page_of, summary_by, summary_of
from loadgen.recipes.run import show, status_of, target_of

if TYPE_CHECKING:
    from analysis.roofline import Roofline
    from analysis.run import Run

Part = Mapping[str, Any]


class _Terminated(KeyboardInterrupt):
    """SIGTERM between two runs."""


def repeat(arguments: dict[str, Any], roofline: "Roofline | None") -> int:
    """The exit status of the verdict on all runs; the document of which goes beside them, to OUT.json."""
    if arguments["until_verdict"]:
        raise UsageError("--repeat does not go together with --until-verdict: each run would have a length of its own")
    out = run_dir(arguments["out"], workload_of(arguments).name)
    places = [out.with_name(f"{out.name}-{number + 1}") for number in range(arguments["repeat"])]
    for place in places:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise UsageError(f"{place}: not empty: name another --out, or remove it")
    document = out.with_name(f"{out.name}.json")
    check_writable("--out", document, *places)
    check_writable("--html", arguments["html"], *places)
    done, stopped_by = _measured(places, arguments)
    pooled, summary = together(done, arguments)
    if stopped_by is not None:  # not in a run: each that there is is whole
        summary["run"] = {**summary["run"], "interrupted_by": stopped_by}
    where = ", ".join(map(str, done))
    with kept_in(where):
        put(as_json(summary), document, "--out")
    where += f", judged together in {document}"
    show(summary, lambda: page_of(pooled, summary, roofline), arguments, where)
    return status_of(summary)


def together(paths: Sequence[Path], arguments: Part) -> "tuple[Run, dict[str, Any]]":
    """Run directories as one run, and its summary, in which `runs` lists them.

    Raises UsageError where they are runs of different workloads or targets, or one of them is there twice.
    """
    from analysis.pooled import pool
    from analysis.rundir import read_run

    runs = [read_run(path) for path in paths]
    check_distinct(paths, runs)
    try:
        pooled = pool(runs)
        summaries = [summary_by(run, arguments) for run in runs]
        return pooled, summary_by(pooled, arguments) | {"runs": list(map(_listed, paths, summaries))}
    except ValueError as problem:
        raise UsageError(str(problem)) from None


def check_distinct(paths: Sequence[Path], runs: "Sequence[Run]") -> None:
    """Raises UsageError where a run is there twice, be it as a copy: it would count as more than it is."""
    seen: dict[object, Path] = {}
    for path, run in zip(paths, runs, strict=True):
        for mark in (path.resolve(), _identity(run.meta)):
            if mark is not None and mark in seen:
                raise UsageError(f"{path}: the same run as {seen[mark]}: name each run once")
            seen[mark] = path


def _identity(meta: Part) -> str | None:
    """What no two runs have in common: names may be the same on two machines, and seconds and seeds too."""
    if meta.get("started_at") is None:
        return None
    clock = meta.get("clock") or {}
    return str([meta.get("id"), meta["started_at"], clock.get("epoch_ns_at_start"), meta.get("seed")])


def _listed(path: Path, summary: Part) -> dict[str, Any]:
    counts = {key: summary["requests"][key] for key in ("planned", "ok", "failed", "error_rate")}
    return {"path": str(path), **summary["run"], "requests": counts, "slo": summary["slo"]}


def _measured(places: Sequence[Path], arguments: Part) -> tuple[list[Path], str | None]:
    """One run after the other, each with the next seed, as the same texts would come from the server's cache.

    Returns the directories that can be read, fewer where a run was stopped or could not go on; and the signal that
    came before the next one was under way, if one did.
    """
    from analysis.rundir import write_summary
    from loadgen.measure import measure
    from workloads.schedule import build

    first = workload_of(arguments)
    seed = random.getrandbits(31) if first.seed is None else first.seed
    done: list[Path] = []
    with ExitStack() as stack:
        served = target_of(arguments, stack)
        stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        for number, place in enumerate(places):
            workload = first.model_copy(update={"seed": seed + number})
            schedule = build(workload, seed + number)
            try:
                time.sleep(arguments["rest"] if done else 0)
                if not arguments["quiet"]:
                    print(f"loadgen: run {number + 1} of {len(places)}, seed {seed + number}", file=sys.stderr)
                stopped = measure(workload, schedule, run_options(arguments, served, place))
                if stopped is not None:
                    read = f"`loadgen report {place}` reads what was measured"
                    raise StoppedError(f"ended at once in run {number + 1}; {read}", 128 + stopped)
                done.append(place)
                signal.signal(signal.SIGTERM, _terminate)  # until the next run handles both signals itself
                summary = summary_of(place, arguments)
                write_summary(place, summary)
            except KeyboardInterrupt as stop:
                if not done:
                    raise
                if not arguments["quiet"]:
                    print(f"loadgen: stopped after run {len(done)} of {len(places)}: judging so far", file=sys.stderr)
                return done, "SIGTERM" if isinstance(stop, _Terminated) else "SIGINT"
            if summary["run"]["interrupted_by"]:
                break
    return done, None


def _terminate(*_: object) -> None:
    raise _Terminated
