"""The tools: how each is called, and where its result says what."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

MODEL = "bench"
PROMPT_TOKENS = 16

LOADGEN = """name: peers
concurrency: $streams
requests: $requests
classes:
  peers: {shape: chat, turns: 1, system_tokens: 0, input_tokens: $prompt_tokens, output_tokens: $tokens}
"""

# Its synthetic data know only completions.
INFERENCE_PERF = """api: {type: completion, streaming: true}
data:
  type: random
  input_distribution: {min: $prompt_tokens, max: $prompt_tokens, mean: $prompt_tokens, std_dev: 0,
                       total_count: $requests}
  output_distribution: {min: $tokens, max: $tokens, mean: $tokens, std_dev: 0, total_count: $requests}
load:
  type: concurrent
  worker_max_concurrency: $streams
  stages: [{num_requests: $requests, concurrency_level: $streams}]
server: {type: vllm, model_name: $model, base_url: "$url", ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: "$tokenizer"}
storage: {local_storage: {path: "$folder/out"}}
"""

# Its documented start, `python -m sglang.benchmark.rust_client`, imports all of sglang first: some seconds that the
# client itself does not need. This is the same client alone, at its best.
SGLANG_RUST = """import importlib.machinery, importlib.util, pathlib, sys
package = pathlib.Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
path = str(next((package / "srt/rust_extensions").glob("_bench*.so")))
loader = importlib.machinery.ExtensionFileLoader("_bench", path)
client = importlib.util.module_from_spec(importlib.util.spec_from_loader("_bench", loader))
loader.exec_module(client)
client.run_argv(sys.argv)
"""

SGLANG = (
    "--backend sglang-oai-chat --base-url $url --model $model --tokenizer $tokenizer --dataset-name random-ids"
    " --random-input-len $prompt_tokens --random-output-len $tokens --random-range-ratio 1 --num-prompts $requests"
    " --max-concurrency $streams --output-file $folder/result.jsonl --disable-tqdm"
)


@dataclass(frozen=True)
class Fields:
    """Where a number stands in the result: keys and positions with / between them; None: it is not reported.

    Attributes:
        longest: The longest gap between two tokens; `console:LABEL` where only the console has it, in ms.
        unit_s: Of all of them.
    """

    ttft_p50: str
    ttft_p99: str
    itl_p50: str
    itl_p99: str
    longest: str | None
    unit_s: float = 1e-3


@dataclass(frozen=True)
class Peer:
    """A tool in a virtual environment of its own.

    Attributes:
        program: Path in that environment.
        arguments: Split at white space; $url, $model, $tokenizer, $streams, $requests, $tokens, $prompt_tokens and
            $folder, the working directory, stand for the run's; likewise in `files`.
        files: Texts to put into the working directory, by name.
        result: The file with its numbers, a pattern in the working directory.
        remark: What its numbers are, where the name does not say so.
    """

    name: str
    venv: str
    program: str
    arguments: str
    result: str
    fields: Fields
    files: Mapping[str, str] = field(default_factory=dict)

    def command(self, venv: Path, values: Mapping[str, object]) -> list[str]:
        return [str(venv / self.program), *(Template(word).substitute(values) for word in self.arguments.split())]

    def write_files(self, folder: Path, values: Mapping[str, object]) -> None:
        for name, text in self.files.items():
            (folder / name).write_text(Template(text).substitute(values))


_SGLANG_FIELDS = Fields("median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "console:Max ITL (ms):")

PEERS = (
    Peer(
        "loadgen",
        "loadgen",
        "bin/loadgen",
        "run peers.yaml --target $url --model $model --quiet --no-progress --format json --out run",
        "run/summary.json",
        Fields(
            "metrics/ttft_s/p50",
            "metrics/ttft_s/p99",
            "metrics/itl_s/p50",
            "metrics/itl_s/p99",
            "metrics/itl_s/max",
            unit_s=1,
        ),
        {"peers.yaml": LOADGEN},
    ),
    Peer(
        "SGLang Rust",
        "sglang",
        "bin/python",
        f"client.py {SGLANG}",
        "result.jsonl",
        _SGLANG_FIELDS,
        {"client.py": SGLANG_RUST},
    ),
    Peer(
        "SGLang Python", "sglang", "bin/python", f"-m sglang.benchmark.serving {SGLANG}", "result.jsonl", _SGLANG_FIELDS
    ),
    Peer(
        "vllm bench serve",
        "vllm",
        "bin/vllm",
        "bench serve --backend openai-chat --base-url $url --endpoint /v1/chat/completions --model $model"
        " --tokenizer $tokenizer --dataset-name random --random-input-len $prompt_tokens --random-output-len $tokens"
        " --num-prompts $requests --max-concurrency $streams --ignore-eos --disable-tqdm"
        " --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99 --save-result"
        " --result-dir $folder --result-filename result.json",
        "result.json",
        Fields("p50_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms", None),
    ),
    Peer(
        "inference-perf",
        "inference-perf",
        "bin/inference-perf",
        "-c peers.yml",
        "out/**/summary_lifecycle_metrics.json",
        Fields(
            "successes/latency/time_to_first_token/median",
            "successes/latency/time_to_first_token/p99",
            "successes/latency/inter_token_latency/median",
            "successes/latency/inter_token_latency/p99",
            "successes/latency/inter_token_latency/max",
            unit_s=1,
        ),
        {"peers.yml": INFERENCE_PERF},
    ),
    Peer(
        "aiperf",
        "aiperf",
        "bin/aiperf",
        "profile -m $model --endpoint-type chat --streaming -u $url --tokenizer $tokenizer --concurrency $streams"
        " --request-count $requests --num-dataset-entries $requests --isl $prompt_tokens --isl-stddev 0 --osl $tokens"
        " --osl-stddev 0 --extra-inputs ignore_eos:true --ui none --no-server-metrics --no-gpu-telemetry"
        " --output-artifact-dir $folder/out",
        "out/profile_export_aiperf.json",
        Fields(
            "time_to_first_token/p50",
            "time_to_first_token/p99",
            "inter_token_latency/p50",
            "inter_token_latency/p99",
            "inter_chunk_latency/max",
        ),
    ),
    Peer(
        "guidellm",
        "guidellm",
        "bin/guidellm",
        "run --backend kind=openai_http,target=$url,model=$model --profile kind=concurrent,streams=$streams"
        " --constraint kind=max_requests,count=$requests --tokenizer kind=hf_auto,model=$tokenizer"
        " --data kind=synthetic_text,prompt_tokens=$prompt_tokens,output_tokens=$tokens"
        " --output kind=json,path=$folder/result.json --disable-console-interactive",
        "result.json",
        Fields(
            "benchmarks/0/metrics/time_to_first_token_ms/successful/percentiles/p50",
            "benchmarks/0/metrics/time_to_first_token_ms/successful/percentiles/p99",
            "benchmarks/0/metrics/inter_token_latency_ms/successful/percentiles/p50",
            "benchmarks/0/metrics/inter_token_latency_ms/successful/percentiles/p99",
            "benchmarks/0/metrics/inter_token_latency_ms/successful/max",
        ),
    ),
)


def look_up(document: object, path: str) -> float | None:
    """None where the result has no such field, or null in it."""
    for key in path.split("/"):
        if isinstance(document, list):
            document = document[int(key)] if int(key) < len(document) else None
        else:
            document = document.get(key) if isinstance(document, dict) else None
    return float(document) if isinstance(document, int | float) else None


def printed(console: str, label: str) -> float | None:
    """The number behind a label."""
    found = re.search(re.escape(label) + r"\s*([\d.]+)", console)
    return float(found[1]) if found else None


def reported_ms(document: object, console: str, fields: Fields) -> dict[str, float | None]:
    """What a result says, by the names of Fields."""

    def one(path: str | None) -> float | None:
        if path is None:
            return None
        if path.startswith("console:"):
            return printed(console, path.removeprefix("console:"))
        value = look_up(document, path)
        return None if value is None else value * fields.unit_s * 1e3

    return {name: one(getattr(fields, name)) for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "longest")}


def read(peer: Peer, folder: Path, console: str) -> dict[str, float | None]:
    """FileNotFoundError if the tool has left no result."""
    paths = sorted(folder.glob(peer.result))
    if not paths:
        raise FileNotFoundError(f"{peer.name} left no {peer.result}")
    return reported_ms(json.loads(paths[0].read_text()), console, peer.fields)
