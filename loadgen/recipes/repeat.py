"""`loadgen run --repeat N`: several runs of one workload, judged together."""

import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.arguments import run_options, workload_of
from loadgen.errors import StoppedError, UsageError
from loadgen.recipes.output import as_json, put
from loadgen.recipes.report import page_of, rendered, summary_by, summary_of
from loadgen.recipes.run import status_of, target_of

if TYPE_CHECKING:
    from analysis.roofline import Roofline
    from analysis.run import Run

STOPPED = ("SIGINT", "SIGTERM")


def repeat(arguments: dict[str, Any], roofline: "Roofline | None") -> int:
    """The exit status of the verdict on all runs; the document of which goes beside them, to OUT.json."""
    if arguments["until_verdict"]:
        raise UsageError("--repeat does not go together with --until-verdict: each run would have a length of its own")
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{workload_of(arguments).name}"
    out = Path(arguments["out"] or Path("runs") / name)
    places = [out.with_name(f"{out.name}-{number + 1}") for number in range(arguments["repeat"])]
    for place in places:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise UsageError(f"{place}: not empty: name another --out, or remove it")
    done = _measured(places, arguments)
    pooled, summary = together(done, arguments)
    put(rendered(summary, arguments["format_"]))
    put(as_json(summary), out.with_name(f"{out.name}.json"))
    if arguments["html"] is not None:
        put(page_of(pooled, summary, roofline), arguments["html"])
    if not arguments["quiet"]:
        print(f"loadgen: results in {', '.join(map(str, done))}, judged together in {out}.json", file=sys.stderr)
    return status_of(summary)


def together(paths: Sequence[Path], arguments: Mapping[str, Any]) -> "tuple[Run, dict[str, Any]]":
    """Run directories as one run, and its summary, in which `runs` lists them.

    Raises UsageError where they are runs of different workloads or targets.
    """
    from analysis.pooled import pool
    from analysis.rundir import read_run

    runs = [read_run(path) for path in paths]
    try:
        pooled = pool(runs)
        summaries = [summary_by(run, arguments) for run in runs]
        return pooled, summary_by(pooled, arguments) | {"runs": list(map(_listed, paths, summaries))}
    except ValueError as problem:
        raise UsageError(str(problem)) from None


def _listed(path: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    counts = {key: summary["requests"][key] for key in ("planned", "ok", "failed", "error_rate")}
    return {"path": str(path), **summary["run"], "requests": counts, "slo": summary["slo"]}


def _measured(places: Sequence[Path], arguments: Mapping[str, Any]) -> list[Path]:
    """One run after the other, each with the next seed, as the same texts would come from the server's cache.

    Returns the directories that can be read: fewer where a run was stopped, or could not go on.
    """
    from analysis.rundir import write_summary
    from loadgen.measure import measure
    from workloads.schedule import build

    first = workload_of(arguments)
    seed = random.getrandbits(31) if first.seed is None else first.seed
    with ExitStack() as stack:
        served = target_of(arguments, stack)
        for number, place in enumerate(places):
            if number:
                time.sleep(arguments["rest"])
            if not arguments["quiet"]:
                print(f"loadgen: run {number + 1} of {len(places)}, seed {seed + number}", file=sys.stderr)
            workload = first.model_copy(update={"seed": seed + number})
            stopped = measure(workload, build(workload, seed + number), run_options(arguments, served, place))
            if stopped is not None:
                read = f"`loadgen report {place}` reads what was measured"
                raise StoppedError(f"ended at once in run {number + 1}; {read}", 128 + stopped)
            summary = summary_of(place, arguments)
            write_summary(place, summary)
            if summary["run"]["interrupted_by"]:
                return list(places[: number + 1])
    return list(places)
