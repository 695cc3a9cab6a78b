"""`loadgen capacity`: the highest load at which every limit passes, each try a run directory of its own."""

import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.capacity.search import Try
from analysis.capacity.text import document, render
from loadgen.access import public_url
from loadgen.arguments import Served, access_of, run_options, workload_of
from loadgen.capacity import Book, Measure, search_of
from loadgen.errors import UsageError
from loadgen.recipes.output import as_json, check_writable, kept_in, put, run_dir
from loadgen.recipes.report import summary_by, summary_of
from loadgen.recipes.run import target_of
from loadgen.recipes.simulate import simulation_of

if TYPE_CHECKING:
    from analysis.capacity.search import Search
    from workloads.spec import Workload

MOST_ATTAINMENT = "attainment>90%"
"""What capacity means where the workload says what a good request is, and sets no limits."""


def capacity(arguments: dict[str, Any]) -> int:
    """0 settled, 1 no load passes or less than --at-least, 3 not settled, or no request succeeded at all."""
    workload = _limited(arguments)
    kind = _kind(workload)
    given = _loads(arguments["rates"], kind == "users")
    search = None if given else _search(arguments, workload, kind)
    path = run_dir(arguments["out"], f"{workload.name}-capacity")
    check_writable("--output", arguments["output"], path)
    if arguments["resume"] and arguments["out"] is None:
        raise UsageError("--resume: name the directory of the search with --out")
    seed = random.getrandbits(31) if workload.seed is None else workload.seed
    book = Book.open(path, _about(workload, arguments), seed, arguments["resume"])
    with ExitStack() as stack:
        measure = _measure(arguments, kind, stack)
        stopped = not _try_all(book, search, given, measure, kind, arguments)
    found = document(book.points(), [each.summary for each in book.tries], search, UNITS[kind])
    book.save({"found": found})
    with kept_in(path):
        put(_rendered(found, book, arguments["format_"]), arguments["output"])
    if not arguments["quiet"]:
        print(f"loadgen: every try is a run directory in {path}", file=sys.stderr)
    if stopped:
        return 130
    succeeded = any(each.summary["requests"]["ok"] for each in book.tries)
    return _status(found, arguments["at_least"]) if succeeded else 3


def _rendered(found: Mapping[str, Any], book: Book, kind: str) -> str:
    if kind == "html":
        from analysis.page.capacity import render as page

        return page(found, book.about, [each.name for each in book.tries])
    return as_json(found) if kind == "json" else render(found)


LOADS = {"rate": "arrivals.rate", "request_rate": "arrivals.rate", "concurrency": "concurrency", "users": "users"}
SESSIONS_LOOKED_AT = 200
UNITS = {"rate": "sessions/s", "request_rate": "requests/s", "concurrency": "users", "users": "users"}


def _status(found: Mapping[str, Any], at_least: float | None) -> int:
    if found["capacity"] is None or (at_least is not None and found["capacity"] < at_least and found["settled"]):
        return 1
    return 0 if found["settled"] in (True, None) else 3


def _try_all(
    book: Book,
    search: "Search | None",
    given: Sequence[float],
    measure: Measure,
    kind: str,
    arguments: Mapping[str, Any],
) -> bool:
    """Try loads until there is nothing left to learn; False if a run was stopped."""
    while True:
        points = book.points()
        asked = search.next_try(points) if search else next(map(Try, given[len(points) :]), None)
        if asked is None:
            return True
        if points and not arguments["simulate"]:
            time.sleep(arguments["rest"])
        if not book.measure(asked, measure):
            return False
        book.save({})
        if not arguments["quiet"]:
            print(f"loadgen: {_told(book, UNITS[kind])}", file=sys.stderr)


def _told(book: Book, unit: str) -> str:
    """The last try in words."""
    point, seconds = book.points()[-1], book.tries[-1].summary["run"]["duration_s"]
    taken = "" if point.margin is None else f", {point.margin:.0%} of the tightest limit"
    return f"{point.load:g} {unit} for {seconds:.0f} s: {point.verdict.replace('_', ' ')}{taken}"


def _limited(arguments: Mapping[str, Any]) -> "Workload":
    """The workload with limits to pass. Raises UsageError where there are none."""
    workload = workload_of(arguments)
    if any(workload.slo.values()):
        return workload
    if not workload.good:
        raise UsageError("capacity needs limits to pass: give --slo 'ttft.p95<800ms' or --good 'ttft<500ms'")
    return workload.model_copy(update={"slo": {"all": [MOST_ATTAINMENT]}})


def _kind(workload: "Workload") -> str:
    """What is varied: the rate, the users of a closed loop, or those who start a session every so often."""
    if workload.stages or workload.trace:
        what = "stages" if workload.stages else "trace"
        raise UsageError(f"capacity varies one rate, and this workload has {what}: drop them with --set {what}=null")
    if workload.arrivals is None:
        return "users" if workload.users else "concurrency"
    return "request_rate" if workload.arrivals.unit == "requests" else "rate"


def _loads(text: str | None, whole: bool) -> list[float]:
    """The loads of a plain sweep, `1,2,4,8`."""
    try:
        loads = [float(word) for word in text.split(",")] if text else []
    except ValueError:
        loads = [0.0]
    if any(load <= 0 or (whole and load != int(load)) for load in loads):
        raise UsageError(f"--rates {text}: expected loads such as 1,2,4,8")
    return loads


def _search(arguments: Mapping[str, Any], workload: "Workload", kind: str) -> "Search":
    arrivals = workload.arrivals
    own = arrivals.rate if arrivals and arrivals.rate else workload.users or workload.concurrency or 1
    return search_of(
        float(arguments["start"] or own),
        whole=not kind.endswith("rate"),
        precision=arguments["precision"],
        most_points=arguments["tries"],
        lowest=arguments["lowest"],
        highest=arguments["highest"],
        longest=arguments["longest"] or _longest(arguments),
    )


def _longest(arguments: Mapping[str, Any]) -> float:
    """Virtual time costs little; on a server, and where values alone decide, runs last what was asked for."""
    return math.inf if arguments["simulate"] and not arguments["strict_point"] else 1.0


def _about(workload: "Workload", arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a search the same search."""
    plan = workload.resolved()
    for key in ("seed", "concurrency", "users"):
        plan.pop(key, None)
    (plan.get("arrivals") or {}).pop("rate", None)
    if arguments["simulate"]:
        return {"workload": plan, "simulated": asdict(simulation_of(arguments).options)}
    target = arguments["target"]
    shown = public_url(access_of(arguments, target).target) if target else "the built-in engine"
    return {"workload": plan, "target": shown, "model": arguments["model"]}


def _measure(arguments: Mapping[str, Any], kind: str, stack: ExitStack) -> Measure:
    """How a load is tried: a run against the target like any other, or one in virtual time."""
    workload = _limited(arguments)
    build_up_s = _build_up_s(workload)
    if arguments["simulate"]:
        return lambda asked, seed, place: _simulated(_at(arguments, workload, build_up_s, kind, asked, seed), place)
    served = target_of(arguments, stack)

    def measure(asked: Try, seed: int, place: Path) -> Mapping[str, Any] | None:
        return _run(_at(arguments, workload, build_up_s, kind, asked, seed), served, place)

    return measure


def _at(
    arguments: Mapping[str, Any], workload: "Workload", build_up_s: float, kind: str, asked: Try, seed: int
) -> dict[str, Any]:
    """The arguments of a run at this load and of this length; they win over what the user set."""
    changed: dict[str, object] = {LOADS[kind]: f"{asked.load:g}/s" if kind.endswith("rate") else int(asked.load)}
    changed["warmup"] = f"{max(workload.warmup * asked.stretch, build_up_s):g}s"
    if workload.requests:
        changed["requests"] = round(workload.requests * asked.stretch)
    if workload.duration:
        changed["duration"] = f"{workload.duration * asked.stretch:g}s"
    return dict(arguments) | {
        "seed": seed, "set_": [*(arguments["set_"] or ()), *(f"{key}={value}" for key, value in changed.items())],
    }  # fmt: skip


def _build_up_s(workload: "Workload") -> float:
    """How long nine of ten sessions pause in all: before that, not all turns of sessions are under way."""
    from workloads.schedule import build

    sessions = islice(build(workload, 0).sessions(), SESSIONS_LOOKED_AT)
    pauses_ns = [sum(each.pause_ns for each in session.rounds[:-1]) for session in sessions]
    return sorted(pauses_ns)[len(pauses_ns) * 9 // 10] / 1e9 if pauses_ns else 0.0


def _simulated(arguments: Mapping[str, Any], place: Path) -> Mapping[str, Any]:
    from analysis.rundir import write_run, write_summary
    from workloads.schedule import build

    workload = _limited(arguments)
    run = simulation_of(arguments).run(workload, build(workload, arguments["seed"]), place.name)
    summary = summary_by(run, arguments)
    write_run(place, run)
    write_summary(place, summary)
    return summary


def _run(arguments: Mapping[str, Any], served: Served, place: Path) -> Mapping[str, Any] | None:
    from analysis.rundir import read_meta, write_summary
    from loadgen.measure import measure
    from workloads.schedule import build

    workload = _limited(arguments)
    stopped = measure(workload, build(workload, arguments["seed"]), run_options(arguments, served, place))
    if stopped is not None or read_meta(place)["interrupted_by"] in ("SIGINT", "SIGTERM"):
        return None
    summary = summary_of(place, arguments)
    write_summary(place, summary)
    return summary
