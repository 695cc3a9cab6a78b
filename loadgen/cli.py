"""The command line: parse, call one recipe, end with its exit status. Imports nothing heavy."""

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from loadgen import flags
from loadgen.flags import (
    AllowE2e,
    Body,
    Format,
    MaxErrors,
    MaxInFlight,
    Model,
    NoColor,
    OtelEndpoint,
    OutDir,
    Output,
    Quiet,
    RunDir,
    Seed,
    Slo,
    StrictPoint,
    Target,
    TextJsonOrHtml,
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

FAULTS = (
    "pause:every=10s,for=1s freeze:after=20,for=2s buffer:bytes=16384 burst:tokens=0 reset:after=20 error:after=20 "
    "reject:status=429,retry-after=1s slow-headers:for=500ms"
)


@app.command()
@takes(flags.load, flags.lasting, flags.gate, flags.access, flags.request, flags.machine, flags.screen, flags.monitor,
       flags.floor)  # fmt: skip
def run(
    workload: Workload,
    target: Target = None,
    model: Model = None,
    out: OutDir = None,
    format_: Format = "text",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the report as a page")] = None,
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
@takes(flags.floor)
def report(
    run_dir: RunDir,
    more: Annotated[Optional[list[Path]], typer.Argument(help="further runs of it, judged together")] = None,  # noqa: UP045
    format_: Annotated[
        str, typer.Option("--format", metavar="KIND", help="text, json, markdown, csv, junit, html or vllm")
    ] = "text",
    output: Output = None,
    slo: Slo = None,
    max_errors: MaxErrors = None,
    strict_point: StrictPoint = False,
    allow_e2e: AllowE2e = False,
    otel_endpoint: OtelEndpoint = None,
    no_color: NoColor = False,
    **given: Any,
) -> None:
    """Report a run again, a killed one too, by its own limits or by others.

    Example: loadgen report runs/20260101-120000-rag --slo 'ttft.p95<800ms'
    """
    _end("report", locals())


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="the run directory to compare with")],
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="the run directory in question")],
    more_base: Annotated[
        Optional[list[Path]], typer.Option("--base", metavar="DIR", help="a further run of the base")  # noqa: UP045
    ] = None,
    more_candidate: Annotated[
        Optional[list[Path]], typer.Option("--candidate", metavar="DIR", help="a further run of it")  # noqa: UP045
    ] = None,
    tolerance: Annotated[str, typer.Option(metavar="SHARE", help="how much worse is no worse")] = "5%",
    format_: Annotated[str, typer.Option("--format", metavar="KIND", help="text, json, markdown or html")] = "text",
    output: Output = None,
) -> None:
    """Compare two runs of one workload: is the candidate worse than the base?

    Exit status: 0 nothing is worse, 1 something is worse, 3 something may be worse and the runs are too short to tell.

    Example: loadgen compare runs/before runs/after --tolerance 5%
    """
    _end("compare", locals())


@app.command()
def stalls(
    run_dir: RunDir,
    format_: TextOrJson = "text",
    request: Annotated[str | None, typer.Option(metavar="ID", help="one request's timeline instead")] = None,
) -> None:
    """Why streams froze: episodes by harm, each with its cause and evidence, who hurts whom, and what fits.

    Example: loadgen stalls runs/20260101-120000-mixed --request req-000042
    """
    _end("stalls", locals())


@app.command("import")
def import_(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="a detailed result of another tool")],
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="vllm, sglang, aiperf or guidellm  [found out from its keys]")
    ] = None,
    out: OutDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no notes on stderr")] = False,
) -> None:
    """Turn another tool's result into a run directory, for report, stalls, gate and compare.

    vLLM: vllm bench serve --save-result --save-detailed; SGLang: bench_serving --output-details; AIPerf:
    profile_export.jsonl; GuideLLM: benchmarks.json. What the tool did not record stays undefined.

    Example: loadgen report $(loadgen import result.json --out imported)
    """
    _end("import_", locals())


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
@takes(flags.load, flags.gate, flags.engine)
def simulate(
    workload: Workload,
    compare: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="policies side by side, as in chunked:512,prefill-first")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="also write a run directory")] = None,
    format_: Format = "text",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the report as a page")] = None,
    max_in_flight: MaxInFlight = None,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Run a workload on simulated GPUs in virtual time: an hour of traffic on many replicas takes seconds.

    Exit status as for `loadgen run`. What lies between client and server takes no time; step times are a roofline's.

    Example: loadgen simulate mixed --gpu h100 --replicas 4 --compare chunked:512,chunked:2048,prefill-first
    """
    _end("simulate", locals())


@app.command()
@takes(flags.load, flags.gate, flags.access, flags.request, flags.machine, flags.screen, flags.engine)
def capacity(
    workload: Workload,
    target: Target = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="in virtual time, on simulated GPUs")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="a run directory for each try goes there")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the search in --out")] = False,
    start: Annotated[float | None, typer.Option(metavar="LOAD", help="the first load  [the workload's own]")] = None,
    rates: Annotated[str | None, typer.Option(metavar="A,B,…", help="no search: try exactly these loads")] = None,
    precision: Annotated[float, typer.Option(metavar="SHARE", min=0.005, help="how near to the edge")] = 0.05,
    tries: Annotated[int, typer.Option(metavar="N", min=1, help="runs at most")] = 12,
    longest: Annotated[
        float | None,
        typer.Option(
            metavar="X", min=1, help="near the edge, runs last up to X times as long  [1; simulated: as needed]"
        ),
    ] = None,
    lowest: Annotated[float | None, typer.Option(metavar="LOAD", help="try no load below")] = None,
    highest: Annotated[float | None, typer.Option(metavar="LOAD", help="try no load above")] = None,
    at_least: Annotated[float | None, typer.Option(metavar="LOAD", help="exit 1 if the capacity is less")] = None,
    rest: Annotated[
        float, typer.Option(metavar="S", min=0, help="seconds between runs, for the server to drain")
    ] = 2.0,
    format_: TextJsonOrHtml = "text",
    output: Output = None,
    **given: Any,
) -> None:
    """Find the highest rate (or number of users) at which every limit passes: by doubling, then halving the bracket.

    Exit status: 0 found, 1 no load passes or less than --at-least, 3 not settled, 130 stopped (--resume goes on).

    Example: loadgen capacity chat --target http://127.0.0.1:8000 --slo 'ttft.p95<800ms' --duration 2m
    """
    _end("capacity", locals())


@app.command()
@takes(flags.access)
def interfere(
    target: Target = None,
    model: Model = None,
    streams: Annotated[int, typer.Option(metavar="N", min=1, help="streams that decode all the time")] = 4,
    lengths: Annotated[
        str, typer.Option(metavar="N,N,…", help="tokens of the injected prompts; those beyond the context are left out")
    ] = "512,1024,2048,4096,8192",
    repeats: Annotated[int, typer.Option(metavar="N", min=2, help="how often each length is injected")] = 3,
    rest: Annotated[str, typer.Option(metavar="TIME", help="between injections")] = "2s",
    max_freeze: Annotated[
        str | None, typer.Option(metavar="TIME", help="fail where a prompt freezes the streams for longer, as in 200ms")
    ] = None,
    seed: Seed = None,
    body: Body = None,
    out: OutDir = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="send nothing: the result of an earlier experiment")
    ] = None,
    format_: TextJsonOrHtml = "text",
    output: Output = None,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Measure what one long prompt does to streams that decode: a controlled experiment on prefill and decode.

    Streams decode without a pause, prompts of growing length come in between, one at a time. It says beforehand what
    it will send, and stops by itself. Exit status: 0 a verdict (and no freeze above --max-freeze), 1 a freeze above
    it, 2 usage, 3 no verdict.

    Example: loadgen interfere --target http://127.0.0.1:8000 --max-freeze 200ms
    """
    _end("interfere", locals())


@app.command()
def doctor(format_: TextOrJson = "text") -> None:
    """Look at this machine as a place to measure from: cores, open files, clock, kernel stamps, event loop, priority.

    Example: loadgen doctor
    """
    _end("doctor", locals())


@app.command()
@takes(flags.engine)
def serve(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="where to listen")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="0: a free one")] = 8000,
    speed: Annotated[float, typer.Option(metavar="X", help="a faster (2) or slower (0.5) clock")] = 1.0,
    stop_early_tokens: Annotated[
        int, typer.Option(metavar="N", help="length at which answers end by themselves; 0: at max_tokens")
    ] = 0,
    auto_tool_calls: Annotated[
        int, typer.Option(metavar="N", help="calls where tool_choice is auto; 0: the answer is text")
    ] = 0,
    thinking_field: Annotated[
        str, typer.Option(metavar="NAME", help="reasoning_content or reasoning")
    ] = "reasoning_content",
    inject: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="FAULT",
            help=f"a fault, may be repeated; with their defaults: {FAULTS}; each takes share=1 and seed=0 too",
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="when each token was due and sent, and what delayed it: .jsonl or .parquet"),
    ] = None,
    **given: Any,
) -> None:
    """Serve a simulated engine over HTTP: prefill and decode share its GPUs, by roofline.

    Example: loadgen serve --port 8000 --chunk-tokens 0 --inject pause:every=10s,for=1s --truth truth.jsonl
    """
    _end("serve", locals())


def _end(recipe: str, arguments: dict[str, Any]) -> None:
    from loadgen import commands

    raise typer.Exit(commands.call(recipe, arguments | arguments.pop("given", {})))


def main() -> None:
    """The console script."""
    from loadgen.say import safe_streams

    hide_secrets()
    with safe_streams():
        app()


if __name__ == "__main__":
    main()
