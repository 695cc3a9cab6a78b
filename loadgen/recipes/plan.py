"""`loadgen plan`: what a workload would send, without sending any."""

from typing import Any

from loadgen.arguments import workload_of
from loadgen.recipes.output import as_json, put
from loadgen.recipes.run import schedule_of


def plan(arguments: dict[str, Any]) -> int:
    from workloads.plan_text import plan as plan_of
    from workloads.plan_text import render_plan

    outline = plan_of(schedule_of(workload_of(arguments)))
    put(as_json(outline) if arguments["format_"] == "json" else render_plan(outline))
    return 0
