"""The command line: parse, call one recipe, end with its exit status. Imports nothing heavy."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from loadgen import flags
from loadgen.flags import (
    AllowE2e,
    Body,
    Format,
    MaxErrors,
    Model,
    OutDir,
    Output,
    RunDir,
    Slo,
    StrictPoint,
    Target,
    TextOrJson,
    Workload,
    takes,
)
from loadgen.secrets_in_argv import hide_secrets

app = typer.Typer(
    name="loadgen",
    help="Load-test an LLM endpoint and measure each phase on its own: TTFT, ITL, stalls, goodput.",
    epilog="Start with: loadgen run chat   (a library workload against the built-in simulated engine)",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich alone would take half of the time that --help may take
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
@takes(flags.load, flags.gate, flags.access, flags.request, flags.screen)
def run(
    workload: Workload,
    target: Target = None,
    model: Model = None,
    out: OutDir = None,
    format_: Format = "text",
    **given: Any,
) -> None:
    """Run a workload and report each phase on its own.

    Exit status: 0 pass or no SLO asked, 1 a limit missed, 2 usage, 3 no verdict, 130/143 stopped by a signal.

    Example: loadgen run rag --target http://127.0.0.1:8000 --slo 'ttft.p95<800ms' --slo 'itl.p99<60ms'
    """
    _end("run", locals())


@app.command()
@takes(flags.load)
def plan(
    workload: Workload,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="GPU of the catalog, to carry it")] = "h100",
    model: Annotated[str, typer.Option(metavar="NAME", help="model of the catalog, or a config.json")] = "llama-3.1-8b",
    tp: Annotated[int, typer.Option(metavar="N", min=1, help="GPUs in tensor parallel")] = 1,
    format_: TextOrJson = "text",
    **given: Any,
) -> None:
    """Print what a workload would send: sessions, requests and tokens by class, and the least GPUs that could carry it.

    Sends nothing. Example: loadgen plan rag --duration 5m --gpu a100
    """
    _end("plan", locals())


@app.command()
def init(
    shape: Annotated[str, typer.Argument(metavar="SHAPE", help="chat, rag, reasoning, agent or mixed")] = "chat",
    output: Output = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON Schema of workload files, for editors")
    ] = False,
) -> None:
    """Write a commented workload file, with SLOs, to start from.

    Example: loadgen init rag --output rag.yaml
    """
    _end("init", locals())


@app.command()
def report(
    run_dir: RunDir,
    format_: Format = "text",
    output: Output = None,
    slo: Slo = None,
    max_errors: MaxErrors = None,
    strict_point: StrictPoint = False,
    allow_e2e: AllowE2e = False,
) -> None:
    """Report a run again, a killed one too, by its own limits or by others.

    Example: loadgen report runs/20260101-120000-rag --slo 'ttft.p95<800ms'
    """
    _end("report", locals())


@app.command()
@takes(flags.access)
def probe(
    target: Annotated[str, typer.Argument(metavar="URL", help="the endpoint")],
    model: Model = None,
    body: Body = None,
    format_: TextOrJson = "text",
    **given: Any,
) -> None:
    """Find out what an endpoint can do: a handful of small requests, each marked x-loadgen-probe.

    Example: loadgen probe http://127.0.0.1:8000
    """
    _end("probe", locals())


@app.command()
def estimate(
    model: Annotated[
        str, typer.Option(metavar="NAME", help="model of the catalog, or a Hugging Face config.json (or its folder)")
    ] = "llama-3.1-8b",
    gpu: Annotated[str, typer.Option(metavar="NAME", help="GPU of the catalog")] = "h100",
    prompt_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="tokens of the prompt")] = 4000,
    output_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="tokens of the answer")] = 500,
    # the replica
    tp: Annotated[int, typer.Option(metavar="N", min=1, help="GPUs in tensor parallel")] = 1,
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="weights: bf16, fp8, int8 or int4  [the model's own]")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(metavar="TYPE", help="cache: bf16 or fp8  [the model's own]")] = None,
    compute_efficiency: Annotated[float, typer.Option(metavar="SHARE", help="of the peak FLOP/s reached")] = 0.55,
    bandwidth_efficiency: Annotated[float, typer.Option(metavar="SHARE", help="of the peak bytes/s reached")] = 0.8,
    price_per_hour: Annotated[
        float | None, typer.Option(metavar="USD", min=0, help="of one GPU  [an example from the catalog]")
    ] = None,
    catalog: Annotated[
        Path | None, typer.Option(metavar="FILE", help="GPUs and models of your own, laid over the catalog")
    ] = None,
    # the load
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="such requests at the same time")] = 1,
    cached_tokens: Annotated[int, typer.Option(metavar="N", min=0, help="of the prompt, in the prefix cache")] = 0,
    others_decoding: Annotated[int, typer.Option(metavar="N", min=0, help="other streams in every pass")] = 0,
    others_context: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="tokens each of them attends to  [as this one]")
    ] = None,
    # output
    timeline: Annotated[bool, typer.Option("--timeline", help="draw one request to scale")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="say in words what it means, and what would help")] = False,
    format_: Annotated[str, typer.Option("--format", metavar="text|json|html", help="how it is printed")] = "text",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write a page or a picture: .html, .svg or .png")
    ] = None,
) -> None:
    """Estimate one request on paper: what prefill and decode take, what limits each, and what they cost.

    All times are floors of a roofline: queueing, the scheduler and the network come on top.

    Example: loadgen estimate --model llama-3.1-8b --gpu h100 --prompt-tokens 4000 --output-tokens 500 --timeline
    """
    _end("estimate", locals())


@app.command()
@takes(flags.load, flags.gate, flags.access, flags.request, flags.screen)
def capacity(
    workload: Workload,
    target: Target = None,
    model: Model = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="a run directory for each try goes there")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the search in --out")] = False,
    start: Annotated[float | None, typer.Option(metavar="LOAD", help="the first load  [the workload's own]")] = None,
    rates: Annotated[str | None, typer.Option(metavar="A,B,…", help="no search: try exactly these loads")] = None,
    precision: Annotated[float, typer.Option(metavar="SHARE", min=0.005, help="how near to the edge")] = 0.05,
    tries: Annotated[int, typer.Option(metavar="N", min=1, help="runs at most")] = 12,
    lowest: Annotated[float | None, typer.Option(metavar="LOAD", help="try no load below")] = None,
    highest: Annotated[float | None, typer.Option(metavar="LOAD", help="try no load above")] = None,
    at_least: Annotated[float | None, typer.Option(metavar="LOAD", help="exit 1 if the capacity is less")] = None,
    rest: Annotated[
        float, typer.Option(metavar="S", min=0, help="seconds between runs, for the server to drain")
    ] = 2.0,
    format_: TextOrJson = "text",
    **given: Any,
) -> None:
    """Find the highest rate (or number of users) at which every limit passes: by doubling, then halving the bracket.

    Exit status: 0 found, 1 no load passes or less than --at-least, 3 not settled, 130 stopped (--resume goes on).

    Example: loadgen capacity chat --target http://127.0.0.1:8000 --slo 'ttft.p95<800ms' --duration 2m
    """
    _end("capacity", locals())


@app.command()
def doctor(format_: TextOrJson = "text") -> None:
    """Look at this machine as a place to measure from: cores, open files, clock, kernel stamps, event loop, priority.

    Example: loadgen doctor
    """
    _end("doctor", locals())


@app.command()
def serve(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="where to listen")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="0: a free one")] = 8000,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="GPU of the catalog")] = "h100",
    model: Annotated[str, typer.Option(metavar="NAME", help="model of the catalog")] = "llama-3.1-8b",
    chunk_tokens: Annotated[int, typer.Option(metavar="N", help="tokens a prefill chunk; 0: whole prompts")] = 2048,
    max_num_seqs: Annotated[int, typer.Option(metavar="N", help="most sequences in a batch")] = 256,
    kv_tokens: Annotated[int, typer.Option(metavar="N", help="size of the KV cache; 0: what weights leave")] = 0,
    speed: Annotated[float, typer.Option(metavar="X", help="a faster (2) or slower (0.5) clock")] = 1.0,
) -> None:
    """Serve a simulated engine over HTTP: prefill and decode share one GPU, by roofline.

    Example: loadgen serve --port 8000 --chunk-tokens 0
    """
    _end("serve", locals())


def _end(recipe: str, arguments: dict[str, Any]) -> None:
    from loadgen import commands

    raise typer.Exit(commands.call(recipe, arguments | arguments.pop("given", {})))


def main() -> None:
    """The console script."""
    hide_secrets()
    try:
        app()
    except KeyboardInterrupt:  # before or after the load, where no handler of ours is in place
        sys.exit(130)


if __name__ == "__main__":
    main()
