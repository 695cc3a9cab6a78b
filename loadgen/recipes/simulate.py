"""`loadgen simulate`: a workload on simulated GPUs in virtual time, reported and judged like a measured one."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadgen.arguments import gate_rules, workload_of
from loadgen.recipes.output import RUNS, as_json, check_writable, put, run_dir
from loadgen.recipes.report import page_of, rendered, summary_by
from loadgen.recipes.run import schedule_of

if TYPE_CHECKING:
    from analysis.run import Run
    from loadgen.simulation import Simulation
    from workloads.schedule import Schedule
    from workloads.spec import Workload


def simulate(arguments: dict[str, Any]) -> int:
    """Exit status as for a run; with --compare always 0."""
    from analysis.slo import exit_status

    workload = workload_of(arguments)
    if arguments["out"] is not None:
        run_dir(arguments["out"], workload.name)
    check_writable("--html", arguments["html"], arguments["out"] or RUNS)
    schedule = schedule_of(workload)
    simulation = simulation_of(arguments)
    if arguments["compare"]:
        return _compare(arguments, workload, schedule, simulation)
    _tell(arguments, f"simulating {workload.name} on {simulation.options.hardware()}")
    run = simulation.run(workload, schedule, workload.name)
    summary = summary_by(run, arguments)
    if arguments["out"] is not None:
        _write(run, summary, arguments)
    put(rendered(summary, arguments["format_"]))
    if arguments["html"] is not None:
        put(page_of(run, summary), arguments["html"], "--html")
    return exit_status(summary)


def simulation_of(arguments: Mapping[str, Any]) -> "Simulation":
    from loadgen.sim.options import Options
    from loadgen.simulation import Simulation

    return Simulation(Options.of(arguments), arguments["max_in_flight"], gate_rules(arguments))


def _write(run: "Run", summary: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    from analysis.rundir import write_summary
    from loadgen.simulation import write

    write(run, arguments["out"])
    write_summary(arguments["out"], summary)
    _tell(arguments, f"results in {arguments['out']}")


def _compare(arguments: Mapping[str, Any], workload: "Workload", schedule: "Schedule", simulation: "Simulation") -> int:
    """The same schedule under each policy, side by side."""
    from dataclasses import replace

    from analysis.report.policies import render, row
    from loadgen.simulation import variant

    rows = []
    for name in arguments["compare"].split(","):
        options = variant(simulation.options, name)
        _tell(arguments, f"simulating {workload.name} with {name.strip()} on {options.hardware()}")
        run = replace(simulation, options=options).run(workload, schedule, workload.name)
        summary = summary_by(run, arguments)
        rows.append(row(name.strip(), options.hardware(), summary))
        if arguments["out"] is not None:
            _write(run, summary, {**arguments, "out": arguments["out"] / name.strip()})
    document = {"workload": workload.name, "seed": schedule.seed, "policies": rows}
    put(as_json(document) if arguments["format_"] == "json" else render(document))
    if arguments["html"] is not None:
        put(_page(document), arguments["html"], "--html")
    return 0


def _page(document: Mapping[str, Any]) -> str:
    from analysis.page.policies import render

    return render(document)


def _tell(arguments: Mapping[str, Any], text: str) -> None:
    if not arguments["quiet"]:
        print(f"loadgen: {text}", file=sys.stderr)
