"""The command line: parse, call one recipe of `loadgen.commands`, end with its exit status. Imports nothing heavy."""

import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

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

Workload = Annotated[str, typer.Argument(metavar="WORKLOAD", help="a workload file, or a library name: chat, rag, …")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]
Set = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="PATH=VALUE", help="set any key of the workload, as in classes.rag.input_tokens=80"),
]
Slo = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--slo", metavar="LIMIT", help="a limit to judge by, as in 'ttft.p95<800ms' or 'rag:itl.p99<60ms'"),
]
Format = Annotated[str, typer.Option("--format", metavar="text|json|markdown", help="how results are printed")]
Rate = Annotated[str | None, typer.Option(metavar="R", help="open loop: sessions per second, as in 4 or 90/m")]
Concurrency = Annotated[int | None, typer.Option(metavar="N", help="closed loop: users with one request each")]
Requests = Annotated[int | None, typer.Option(metavar="N", help="measure this many requests")]
Duration = Annotated[str | None, typer.Option(metavar="TIME", help="measure for this long, as in 60s")]
Warmup = Annotated[str | None, typer.Option(metavar="TIME", help="load before the measured part")]
Arrival = Annotated[str | None, typer.Option(metavar="PROCESS", help="constant, poisson or gamma:CV")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="same seed, same times and texts; else drawn and recorded")]
OutDir = Annotated[Path | None, typer.Option(metavar="DIR", help="run directory  [runs/<time>-<workload>]")]
Drain = Annotated[str | None, typer.Option(metavar="TIME", help="wait this long for open streams at the end")]
MaxInFlight = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="open loop: further requests wait, and count as late")
]
FirstToken = Annotated[str, typer.Option(metavar="TIME", help="from the send to the first token; 0: none")]
Good = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--good", metavar="LIMIT", help="what a good request is, as in 'ttft<500ms' or 'gap_p99<200ms'"),
]
Body = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--body", metavar="KEY=JSON", help="a field for every body, as in temperature=0; null drops one"),
]
Header = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("-H", "--header", metavar="'NAME: VALUE'", help="a header for every request"),
]
ApiKey = Annotated[str | None, typer.Option(metavar="KEY", help="better in $LOADGEN_API_KEY or $OPENAI_API_KEY")]
Target = Annotated[
    str | None, typer.Option(metavar="URL", help="the endpoint; left out: the built-in simulated engine")
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="model to ask for; left out: the one it lists")]
PerEventUsage = Annotated[bool, typer.Option("--per-event-usage", help="ask for running usage")]
MaxErrors = Annotated[str | None, typer.Option(metavar="SHARE", help="errors above this fail a gate  [1%]")]
StrictPoint = Annotated[bool, typer.Option("--strict-point", help="judge by the values alone, however few the samples")]
AllowE2e = Annotated[bool, typer.Option("--allow-e2e", help="allow a limit on e2e, which mixes both phases")]
Endpoint = Annotated[str, typer.Option(metavar="KIND", help="chat, completions or responses")]
CaFile = Annotated[str | None, typer.Option(metavar="FILE", help="trust the certificates in this file")]
ClientCert = Annotated[
    str | None, typer.Option(metavar="FILE", help="show this client certificate (PEM, with its key)")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="do not check the server's certificate")]
MaxTokensField = Annotated[str, typer.Option(metavar="NAME", help="max_tokens or max_completion_tokens")]
Proxy = Annotated[str | None, typer.Option(metavar="URL", help="HTTP proxy; remote targets also heed $HTTPS_PROXY")]
NoCalibrate = Annotated[bool, typer.Option("--no-calibrate", help="no probe, no calibration: every POST is measured")]
InputTokens = Annotated[str | None, typer.Option(metavar="D", help="prompt length, as in 500 or '{law: uniform, …}'")]
OutputTokens = Annotated[str | None, typer.Option(metavar="D", help="answer length")]


@app.command()
def run(
    workload: Workload,
    target: Target = None,
    model: Model = None,
    out: OutDir = None,
    slo: Slo = None,
    format_: Format = "text",
    # load
    rate: Rate = None,
    concurrency: Concurrency = None,
    requests: Requests = None,
    duration: Duration = None,
    warmup: Warmup = None,
    drain: Drain = None,
    arrival: Arrival = None,
    max_in_flight: MaxInFlight = None,
    seed: Seed = None,
    # request
    endpoint: Endpoint = "chat",
    api_key: ApiKey = None,
    header: Header = None,
    body: Body = None,
    ignore_eos: Annotated[bool, typer.Option(help="ask for answers of exactly the planned length")] = True,
    per_event_usage: PerEventUsage = False,
    max_tokens_field: MaxTokensField = "max_tokens",
    retries: Annotated[int, typer.Option(metavar="N", min=0, help="try again after 429, 5xx or no connection")] = 0,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a tokenizer.json, for servers that count no tokens")
    ] = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    set_: Set = None,
    # limits
    connect_timeout: Annotated[str, typer.Option(metavar="TIME", help="0: none")] = "10s",
    first_token_timeout: FirstToken = "10m",  # noqa: S107 - no password
    idle_timeout: Annotated[str, typer.Option(metavar="TIME", help="silence in mid-stream; 0: none")] = "5m",
    timeout: Annotated[str, typer.Option(metavar="TIME", help="a whole request; 0: none")] = "0",
    max_errors: MaxErrors = None,
    good: Good = None,
    strict_point: StrictPoint = False,
    allow_e2e: AllowE2e = False,
    # wire
    ca_file: CaFile = None,
    client_cert: ClientCert = None,
    insecure: Insecure = False,
    proxy: Proxy = None,
    transport: Annotated[str, typer.Option(metavar="KIND", help="fast, or httpx (portable, less exact)")] = "fast",
    # other
    no_calibrate: NoCalibrate = False,
    save_text: Annotated[bool, typer.Option("--save-text", help="keep the answers' text in the run directory")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no notes on stderr")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="no live screen")] = False,
) -> None:
    """Run a workload and report each phase on its own.

    Exit status: 0 pass or no SLO asked, 1 a limit missed, 2 usage, 3 no verdict, 130/143 stopped by a signal.

    Example: loadgen run rag --target http://127.0.0.1:8000 --slo 'ttft.p95<800ms' --slo 'itl.p99<60ms'
    """
    _end("run", dict(locals()))


@app.command()
def plan(
    workload: Workload,
    format_: Annotated[str, typer.Option("--format", metavar="text|json", help="how the plan is printed")] = "text",
    rate: Rate = None,
    concurrency: Concurrency = None,
    requests: Requests = None,
    duration: Duration = None,
    warmup: Warmup = None,
    arrival: Arrival = None,
    seed: Seed = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    set_: Set = None,
) -> None:
    """Print what a workload would send: sessions, requests and tokens by class, without sending any.

    Example: loadgen plan rag --duration 5m
    """
    _end("plan", dict(locals()))


@app.command()
def init(
    shape: Annotated[str, typer.Argument(metavar="SHAPE", help="chat, rag, reasoning, agent or mixed")] = "chat",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="write here instead of to stdout")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON Schema of workload files, for editors")
    ] = False,
) -> None:
    """Write a commented workload file, with SLOs, to start from.

    Example: loadgen init rag --output rag.yaml
    """
    _end("init", dict(locals()))


@app.command()
def report(
    run_dir: RunDir,
    format_: Format = "text",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="write here instead of to stdout")] = None,
    slo: Slo = None,
    max_errors: MaxErrors = None,
    strict_point: StrictPoint = False,
    allow_e2e: AllowE2e = False,
) -> None:
    """Report a run again, a killed one too, by its own limits or by others.

    Example: loadgen report runs/20260101-120000-rag --slo 'ttft.p95<800ms'
    """
    _end("report", dict(locals()))


@app.command()
def probe(
    target: Annotated[str, typer.Argument(metavar="URL", help="the endpoint")],
    model: Model = None,
    format_: Annotated[str, typer.Option("--format", metavar="text|json", help="how findings are printed")] = "text",
    endpoint: Endpoint = "chat",
    api_key: ApiKey = None,
    header: Header = None,
    body: Body = None,
    ca_file: CaFile = None,
    client_cert: ClientCert = None,
    insecure: Insecure = False,
    proxy: Proxy = None,
) -> None:
    """Find out what an endpoint can do: a handful of small requests, each marked x-loadgen-probe.

    Example: loadgen probe http://127.0.0.1:8000
    """
    _end("probe", dict(locals()))


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
    _end("serve", dict(locals()))


def _end(recipe: str, arguments: dict[str, Any]) -> None:
    from loadgen import commands

    raise typer.Exit(commands.call(recipe, arguments))


def main() -> None:
    """The console script."""
    hide_secrets()
    try:
        app()
    except KeyboardInterrupt:  # before or after the load, where no handler of ours is in place
        sys.exit(130)


if __name__ == "__main__":
    main()
