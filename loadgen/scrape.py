"""The server's own metrics while the load lasts: Prometheus endpoints, read once a second, in one vocabulary.

Each endpoint is read by a task of its own and parsed in a thread: the load's event loop does no more for it than for
one small request. Engines name the same thing differently; what the columns mean is said in `analysis.server`.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from loadgen.access import Access
from loadgen.clock import Clock
from loadgen.errors import UsageError

if TYPE_CHECKING:
    import httpx

INTERVAL_S = 1.0
TIMEOUT_S = 2.0
"""Nobody should wait longer for an endpoint, neither before the load nor after it."""
LARGEST_BYTES = 16_000_000

Sample = dict[str, float | int | None]


@dataclass(frozen=True)
class Source:
    """Where a column comes from: series that are added up, all of these names and labels.

    Attributes:
        names: As exposed, with `_total`, `_sum` or `_count`.
        scale: What a value is multiplied by.
        label: A label that a series must have, and its value; any if None.
    """

    names: tuple[str, ...]
    scale: float = 1.0
    label: tuple[str, str] | None = None


def _of(*names: str) -> tuple[Source, ...]:
    return tuple(Source((name,)) for name in names)


SOURCES: dict[str, tuple[Source, ...]] = {
    "running": _of(
        "vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing", "tgi_batch_current_size"
    ),
    "waiting": _of(
        "vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred", "tgi_queue_size"
    ),
    "kv_usage": _of(
        "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio"
    ),
    "preemptions": _of(
        "vllm:num_preemptions_total", "sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total",
        "sglang:num_retracted_reqs",
    ),
    "prefix_query_tokens": (
        *_of("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "sglang:prompt_tokens_total"),
        Source(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")),
    ),
    "prefix_hit_tokens": _of(
        "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total",
        "llamacpp:prompt_tokens_cached_total",
    ),
    "prompt_tokens": (
        *_of("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "tgi_request_input_length_sum"),
        Source(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")),
        Source(("llamacpp:prompt_tokens_total",)),
    ),
    "generation_tokens": _of(
        "vllm:generation_tokens_total", "sglang:generation_tokens_total", "llamacpp:tokens_predicted_total",
        "tgi_request_generated_tokens_sum",
    ),
    "queue_s": _of(
        "vllm:request_queue_time_seconds_sum", "sglang:queue_time_seconds_sum", "tgi_request_queue_duration_sum"
    ),
    "queue_requests": _of(
        "vllm:request_queue_time_seconds_count", "sglang:queue_time_seconds_count", "tgi_request_queue_duration_count"
    ),
    "prefill_s": (
        *_of("vllm:request_prefill_time_seconds_sum", "llamacpp:prompt_seconds_total"),
        Source(("tgi_batch_inference_duration_sum",), label=("method", "prefill")),
    ),
    "prefill_requests": _of("vllm:request_prefill_time_seconds_count"),
    "decode_s": (
        *_of("vllm:request_decode_time_seconds_sum", "llamacpp:tokens_predicted_seconds_total"),
        Source(("tgi_batch_inference_duration_sum",), label=("method", "decode")),
    ),
    "decode_requests": _of("vllm:request_decode_time_seconds_count"),
    "ttft_s": _of("vllm:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_sum"),
    "ttft_requests": _of("vllm:time_to_first_token_seconds_count", "sglang:time_to_first_token_seconds_count"),
    "gpu_utilization": (
        Source(("DCGM_FI_DEV_GPU_UTIL",), scale=0.01),
        Source(("nvidia_smi_utilization_gpu_ratio",)),
    ),
    "gpu_power_w": _of("DCGM_FI_DEV_POWER_USAGE", "nvidia_smi_power_draw_watts"),
}  # fmt: skip
"""For each column, where it may come from: the first source of which all names are exposed is taken."""

JOINED: dict[str, Callable[[list[float]], float]] = {"kv_usage": max, "gpu_utilization": fmean}
"""How the series of several engines or GPUs become one number; the others are added up."""

_NAMES = tuple({name for sources in SOURCES.values() for source in sources for name in source.names})

Series = dict[str, list[tuple[dict[str, str], float]]]


def read_metrics(text: str) -> dict[str, float]:
    """The columns that a Prometheus exposition tells of, by name; none where it is something else."""
    from prometheus_client.parser import text_string_to_metric_families

    # Buckets are most of an exposition, and none of them is wanted.
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    series: Series = defaultdict(list)
    with contextlib.suppress(ValueError):
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.value == sample.value:  # NaN differs from itself
                    series[sample.name].append((sample.labels, float(sample.value)))
    columns = {name: _column(name, sources, series) for name, sources in SOURCES.items()}
    return {name: value for name, value in columns.items() if value is not None}


def _column(name: str, sources: Sequence[Source], series: Series) -> float | None:
    for source in sources:
        if all(each in series for each in source.names):
            found = [
                value * source.scale
                for each in source.names
                for labels, value in series[each]
                if source.label is None or labels.get(source.label[0]) == source.label[1]
            ]
            if found:
                return float(JOINED.get(name, sum)(found))
    return None


@dataclass(frozen=True)
class Endpoint:
    """A Prometheus endpoint and how it is reached. `open` makes the client; secrets go to the target alone."""

    url: str
    open: Callable[[], "httpx.AsyncClient"]


def endpoints(access: Access, extra: Sequence[str] = (), own: bool = True) -> list[Endpoint]:
    """The target's own `/metrics`, unless that is not wanted, and others by URL. UsageError for what is no URL."""
    found = [Endpoint(access.url("/metrics"), access.client)] if own else []
    for url in extra:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--metrics {url}: expected a URL, such as http://127.0.0.1:9400/metrics")
        found.append(Endpoint(url if parts.path.strip("/") else f"{url.rstrip('/')}/metrics", _plain_client))
    return found


def _plain_client() -> "httpx.AsyncClient":
    import httpx

    return httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S)


class Scraper:
    """Reads endpoints in an `async with` block, from the start of the run to its end.

    Args:
        sources: Where to read.
        clock: The run's.
        on_sample: Called with `{t_ns, …columns}` for each reading, with what that endpoint tells.
        on_note: Called at most once for each endpoint, with one line, where it cannot be read or tells nothing known.
        interval_s: Between two readings of one endpoint.
    """

    def __init__(
        self,
        sources: Sequence[Endpoint],
        clock: Clock,
        on_sample: Callable[[Sample], None],
        on_note: Callable[[str], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._on_sample = on_sample
        self._on_note = on_note
        self._interval_ns = round(interval_s * 1e9)
        self._clients: list[httpx.AsyncClient] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._live: list[tuple[httpx.AsyncClient, str]] = []

    async def __aenter__(self) -> Self:
        """Tries each endpoint once: what cannot be read now is not tried again."""
        self._clients = [source.open() for source in self._sources]
        urls = [source.url for source in self._sources]
        tried = await asyncio.gather(*(self._read(*pair) for pair in zip(self._clients, urls, strict=True)))
        for client, url, found in zip(self._clients, urls, tried, strict=True):
            if isinstance(found, str):
                self._on_note(f"{_public(url)}: {found}: nothing is known of the server's queue, cache and preemptions")
            else:
                self._live.append((client, url))
        self._tasks = [asyncio.create_task(self._repeat(*pair)) for pair in self._live]
        return self

    async def __aexit__(self, *failure: object) -> None:
        """Reads once more, so that counters cover the whole run."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(self._sample(*pair) for pair in self._live))
        await asyncio.gather(*(client.aclose() for client in self._clients))

    async def _repeat(self, client: "httpx.AsyncClient", url: str) -> None:
        await self._clock.sleep_until(0)
        while True:
            await self._sample(client, url)
            turn = self._clock.now_ns() // self._interval_ns + 1
            await self._clock.sleep_until(turn * self._interval_ns)

    async def _sample(self, client: "httpx.AsyncClient", url: str) -> None:
        before_ns = self._clock.now_ns()
        found = await self._read(client, url)
        if not isinstance(found, str):
            # The server looked at its counters somewhere in between.
            self._on_sample({"t_ns": (before_ns + self._clock.now_ns()) // 2, **found})

    async def _read(self, client: "httpx.AsyncClient", url: str) -> dict[str, float] | str:
        """The columns that the endpoint tells of, or why there are none."""
        import httpx

        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body = await _get(client, url)
        except TimeoutError:
            return f"no answer within {TIMEOUT_S:g} s"
        except httpx.HTTPError as problem:
            return f"cannot be read ({str(problem) or type(problem).__name__})"
        if status != 200:
            return f"answered {status}"
        return await asyncio.to_thread(read_metrics, body.decode("utf-8", "replace")) or "no metric of a known name"


async def _get(client: "httpx.AsyncClient", url: str) -> tuple[int, bytes]:
    body = bytearray()
    async with client.stream("GET", url, headers={"accept": "text/plain"}) as reply:
        async for part in reply.aiter_bytes():
            body += part
            if len(body) > LARGEST_BYTES:
                break
    del reply.stream  # it holds the reply: with garbage collection off, cycles must be cut by hand
    return reply.status_code, bytes(body)


def _public(url: str) -> str:
    """Without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
