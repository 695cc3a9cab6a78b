"""`loadgen plan`: what a workload would send, and what it takes to carry that, without sending any."""

from collections.abc import Mapping
from typing import Any

from loadgen.arguments import workload_of
from loadgen.errors import UsageError
from loadgen.recipes.output import as_json, put
from loadgen.recipes.run import schedule_of


def plan(arguments: dict[str, Any]) -> int:
    from workloads.plan_text import plan as plan_of
    from workloads.plan_text import render_plan

    outline = plan_of(schedule_of(workload_of(arguments)))
    outline["gpus"] = gpus(outline, arguments)
    text = as_json(outline) if arguments["format_"] == "json" else render_plan(outline, _gpu_lines(outline["gpus"]))
    put(text)
    return 0


def gpus(outline: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The least number of the named GPUs that could carry the plan, with nothing cached and with everything that
    prompts share; None for a closed loop, whose rate is the server's.

    Raises UsageError for unknown names, and where the model or one context does not fit.
    """
    from analysis.estimate.gpus import least_gpus
    from analysis.roofline import Roofline
    from loadgen.sim import catalog

    totals, duration_s = outline["totals"], outline["duration_s"]
    if not totals or not duration_s or not totals["requests"]:
        return None
    try:
        roofline = Roofline(catalog.gpu(arguments["gpu"]), catalog.model(arguments["model"]), tp=arguments["tp"])
        found = {
            name: least_gpus(
                roofline,
                totals["prompt_tokens"] / duration_s,
                totals["output_tokens"] / duration_s,
                totals["prompt_tokens"] / totals["requests"],
                totals["held_token_steps"] / max(1, totals["output_tokens"]),
                share,
            )
            for name, share in (
                ("nothing_cached", 0.0),
                ("all_shared_cached", 1 - totals["fresh_prompt_tokens"] / totals["prompt_tokens"]),
            )
        }
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    bounds = {
        name: {
            "gpus": each.gpus,
            "busy": max(each.prefill_gpus, each.kv_memory_gpus) / each.gpus,
            "decides": each.decides,
        }
        for name, each in found.items()
    }
    shared = 1 - totals["fresh_prompt_tokens"] / totals["prompt_tokens"]
    names = {"gpu": roofline.gpu.name, "model": roofline.model.name, "tp": roofline.tp}
    return names | bounds | {"shared_prompt_share": shared}


def _gpu_lines(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    what = {
        "prefill": "prefill's arithmetic decides",
        "decode": "decode's reads decide",
        "kv_memory": "KV cache memory decides",
    }
    bare, best = found["nothing_cached"], found["all_shared_cached"]
    replicas = f" in replicas of {found['tp']}" if found["tp"] > 1 else ""
    lines = [
        f"at least {bare['gpus']} x {found['gpu']}{replicas} for {found['model']}, {bare['busy']:.0%} busy: "
        f"{what[bare['decides']]} (roofline; load spread evenly, no SLO)",
    ]
    if found["shared_prompt_share"] > 0.01:
        lines.append(
            f"  {best['gpus']}, {best['busy']:.0%} busy, if a prefix cache had all that prompts share "
            f"({found['shared_prompt_share']:.0%}): {what[best['decides']]}"
        )
    return lines
