"""The flags that commands share, as typer reads them, in groups. Imports nothing heavy.

A group is a function of which only the parameters count; `takes` gives them to a command.
"""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar, get_type_hints

import typer

Command = TypeVar("Command", bound=Callable[..., None])


def takes(*groups: Callable[..., None]) -> Callable[[Command], Command]:
    """A command that takes the flags of these groups too: they reach it as keywords."""

    def widened(command: Command) -> Command:
        own = [p for p in signature(command).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        shared = [p for group in groups for p in signature(group).parameters.values()]
        hints: dict[str, Any] = {}
        for each in (*groups, command):
            hints |= get_type_hints(each, include_extras=True)
        command.__signature__ = Signature(  # type: ignore[attr-defined]
            [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*own, *shared)]
        )
        command.__annotations__ = hints
        return command

    return widened


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
Format = Annotated[str, typer.Option("--format", metavar="KIND", help="text, json, markdown, csv or junit")]
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
Tokenizer = Annotated[
    Path | None, typer.Option(metavar="FILE", help="a tokenizer.json, for servers that count nothing")
]
IgnoreEos = Annotated[bool, typer.Option(help="ask for answers of exactly the planned length")]
Retries = Annotated[
    int, typer.Option(metavar="N", min=0, help="try again after 429 (waits 60s at most), 5xx or no connection")
]
Limit = Annotated[str, typer.Option(metavar="TIME", help="0: none")]
Idle = Annotated[str, typer.Option(metavar="TIME", help="silence in mid-stream; 0: none")]
Whole = Annotated[str, typer.Option(metavar="TIME", help="a whole request; 0: none")]
Transport = Annotated[str, typer.Option(metavar="KIND", help="fast, or httpx (portable, less exact)")]
SaveText = Annotated[bool, typer.Option("--save-text", help="keep the answers' text in the run directory")]
KeepEvents = Annotated[
    str, typer.Option(metavar="all|stalls|none", help="token events kept on disk; less keeps long runs small")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="no notes on stderr")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="no live screen")]
NoColor = Annotated[bool, typer.Option("--no-color", help="no colours; so does $NO_COLOR")]
PrometheusPort = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=0, max=65535, help="serve the run's metrics on 127.0.0.1:PORT/metrics meanwhile"),
]
PrometheusFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="or in a .prom file for the node exporter's textfile collector")
]
OtelEndpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="send a span per request there by OTLP/HTTP, when it is over")
]
UntilVerdict = Annotated[
    bool, typer.Option("--until-verdict", help="go on until every limit passes or fails, or --max-duration is over")
]
MaxDuration = Annotated[str, typer.Option(metavar="TIME", help="--until-verdict: the longest measured part")]
Repeat = Annotated[int, typer.Option(metavar="N", min=1, help="so many runs, OUT-1, OUT-2, …, judged together")]
Rest = Annotated[float, typer.Option(metavar="S", min=0, help="seconds between runs, for the server to drain")]
TextOrJson = Annotated[str, typer.Option("--format", metavar="text|json", help="how it is printed")]
TextJsonOrHtml = Annotated[str, typer.Option("--format", metavar="text|json|html", help="how it is printed")]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="write here instead of to stdout")]


def access(
    endpoint: Endpoint = "chat",
    api_key: ApiKey = None,
    header: Header = None,
    ca_file: CaFile = None,
    client_cert: ClientCert = None,
    insecure: Insecure = False,
    proxy: Proxy = None,
) -> None:
    """How the endpoint is reached."""


def load(
    rate: Rate = None,
    concurrency: Concurrency = None,
    requests: Requests = None,
    duration: Duration = None,
    warmup: Warmup = None,
    drain: Drain = None,
    arrival: Arrival = None,
    seed: Seed = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    set_: Set = None,
) -> None:
    """What the workload file leaves to the command line."""


def lasting(
    until_verdict: UntilVerdict = False,
    max_duration: MaxDuration = "30m",
    repeat: Repeat = 1,
    rest: Rest = 2.0,
) -> None:
    """How long it goes on, and how often."""


def request(
    body: Body = None,
    ignore_eos: IgnoreEos = True,
    per_event_usage: PerEventUsage = False,
    max_tokens_field: MaxTokensField = "max_tokens",
    retries: Retries = 0,
    max_in_flight: MaxInFlight = None,
    tokenizer: Tokenizer = None,
    no_calibrate: NoCalibrate = False,
    connect_timeout: Limit = "10s",
    first_token_timeout: FirstToken = "10m",  # noqa: S107 - no password
    idle_timeout: Idle = "5m",
    timeout: Whole = "0",
    transport: Transport = "fast",
    save_text: SaveText = False,
    keep_events: KeepEvents = "all",
) -> None:
    """How requests are sent, and how long they may take."""


Workers = Annotated[
    str, typer.Option(metavar="N|auto", help="processes that send; auto: as the tokens need, or one a node")
]
Cluster = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="send from a Ray cluster: ray://HOST:10001, auto or local")
]
NoPriority = Annotated[bool, typer.Option("--no-priority", help="do not ask for real-time priority on this machine")]
Metrics = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--metrics", metavar="URL", help="scrape this Prometheus endpoint too, as of a GPU exporter"),
]
NoMetrics = Annotated[bool, typer.Option("--no-metrics", help="do not scrape the target's /metrics")]


def machine(
    workers: Workers = "auto",
    cluster: Cluster = None,
    no_priority: NoPriority = False,
    metrics: Metrics = None,
    no_metrics: NoMetrics = False,
) -> None:
    """What of this machine a load may use, and what else is watched."""


def gate(
    slo: Slo = None,
    good: Good = None,
    max_errors: MaxErrors = None,
    strict_point: StrictPoint = False,
    allow_e2e: AllowE2e = False,
) -> None:
    """What results are judged by."""


def screen(quiet: Quiet = False, no_progress: NoProgress = False, no_color: NoColor = False) -> None:
    """What is shown while it lasts."""


def floor(
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="html: set times against the roofline of this GPU of the catalog")
    ] = None,
    model_spec: Annotated[
        str | None, typer.Option(metavar="NAME", help="html: its model, or a config.json  [llama-3.1-8b]")
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", min=1, help="html: GPUs in tensor parallel")] = 1,
) -> None:
    """What the server runs on, for the page of a run."""


def monitor(
    prometheus_port: PrometheusPort = None,
    prometheus_file: PrometheusFile = None,
    otel_endpoint: OtelEndpoint = None,
) -> None:
    """Who else is told of it."""


def engine(
    gpu: Annotated[str, typer.Option(metavar="NAME", help="GPU of the catalog")] = "h100",
    model: Annotated[str, typer.Option(metavar="NAME", help="model of the catalog, or a config.json")] = "llama-3.1-8b",
    catalog: Annotated[
        Path | None, typer.Option(metavar="FILE", help="GPUs and models of your own, laid over the catalog")
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", help="GPUs of one replica, by tensor parallelism")] = 1,
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="weights: bf16, fp8, int8 or int4  [the model's own]")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(metavar="TYPE", help="cache: bf16 or fp8  [the model's own]")] = None,
    replicas: Annotated[int, typer.Option(metavar="N", help="replicas of the engine")] = 1,
    router: Annotated[
        str, typer.Option(metavar="KIND", help="round-robin, least-loaded, prefix-affinity or long-apart")
    ] = "round-robin",
    long_tokens: Annotated[int, typer.Option(metavar="N", help="--router long-apart: a longer prompt is long")] = 4096,
    long_replicas: Annotated[int, typer.Option(metavar="N", help="--router long-apart: replicas for long prompts")] = 1,
    policy: Annotated[
        str, typer.Option(metavar="KIND", help="static, prefill-first, chunked or disaggregated")
    ] = "chunked",
    chunk_tokens: Annotated[int, typer.Option(metavar="N", help="tokens of a pass; 0: whole prompts, first")] = 2048,
    long_prefill_threshold: Annotated[
        int, typer.Option(metavar="N", help="most tokens of one prompt in a pass; 0: no limit")
    ] = 0,
    max_num_seqs: Annotated[int, typer.Option(metavar="N", help="most sequences that run at once")] = 256,
    kv_tokens: Annotated[int, typer.Option(metavar="N", help="size of the KV cache; 0: what the weights leave")] = 0,
    prefix_cache: Annotated[bool, typer.Option(help="reuse the KV cache of equal beginnings of prompts")] = True,
    speculative: Annotated[
        str, typer.Option(metavar="DRAFT:ACCEPTANCE", help="speculative decoding, as in 4:0.7")
    ] = "",
    prefill_replicas: Annotated[
        int | None, typer.Option(metavar="N", help="--policy disaggregated: replicas that only prefill  [1]")
    ] = None,
    decode_replicas: Annotated[
        int | None, typer.Option(metavar="N", help="--policy disaggregated: replicas that only decode  [1]")
    ] = None,
) -> None:
    """What is simulated."""
