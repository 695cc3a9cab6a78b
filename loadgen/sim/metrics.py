"""What the engine tells of itself: `/metrics` under vLLM's names, with vLLM's buckets, and our own lateness.

Times are those of the simulated engine: from the submission to the ends of passes. What the server adds to them by
being late is `loadgen:lateness_seconds`.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from loadgen.sim.core import Cluster
from loadgen.sim.tokens import Totals

_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_LATE_S = tuple(round(base * 10.0**power, 9) for power in range(-5, 1) for base in (1, 1.5, 2, 3, 5, 7))


class Histogram:
    """Counts by upper bound, as Prometheus has them; the last one is infinite."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile_bound(self, q: float) -> float:
        """The least bound that at least the share `q` of the values do not exceed; NaN where there are none."""
        wanted, so_far = q * self.count, 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            if so_far and so_far >= wanted:
                return bound
        return float("nan")


class Histograms:
    """All that is observed, each under its name."""

    def __init__(self) -> None:
        self.first_token = Histogram(_FIRST_S)
        self.inter_token = Histogram(_TOKEN_S)
        self.per_output_token = Histogram(_TOKEN_S)
        self.e2e = Histogram(_REQUEST_S)
        self.queue = Histogram(_REQUEST_S)
        self.prefill = Histogram(_REQUEST_S)
        self.decode = Histogram(_REQUEST_S)
        self.prompt_tokens = Histogram(_TOKENS)
        self.generation_tokens = Histogram(_TOKENS)
        self.lateness = Histogram(_LATE_S)
        self._seen = Totals()

    def observe_totals(self, totals: Totals) -> None:
        """Queue and prefill time of the requests that had their first token since the last call."""
        first = totals.first_tokens - self._seen.first_tokens
        if first > 0:
            self.queue.observe((totals.queue_ns - self._seen.queue_ns) / first / 1e9, first)
            self.prefill.observe((totals.prefill_ns - self._seen.prefill_ns) / first / 1e9, first)
            self._seen = totals


@dataclass(slots=True)
class Ends:
    """How requests ended."""

    stop: int = 0
    length: int = 0
    abort: int = 0
    error: int = 0

    def finished(self, reason: str) -> None:
        """By itself; calls of tools count as stops, as with vLLM."""
        if reason == "length":
            self.length += 1
        else:
            self.stop += 1

    def cut(self, failed: bool) -> None:
        if failed:
            self.error += 1
        else:
            self.abort += 1


class EngineCollector(Collector):
    """Samples the engine whenever it is asked."""

    def __init__(self, core: Cluster, histograms: Histograms, ends: Ends, model: str) -> None:
        self._core, self._histograms, self._ends, self._model = core, histograms, ends, model

    def collect(self) -> Iterator[Metric]:
        core, totals, seen = self._core, self._core.totals, self._histograms
        yield self._gauge("vllm:num_requests_running", "Requests in the batches.", core.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait to be admitted.", core.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all.", core.kv_used_share)
        yield self._counter("vllm:num_preemptions", "Preemptions.", totals.preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens.", totals.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", totals.generation_tokens)
        yield self._counter("vllm:prefix_cache_queries", "Tokens looked up in the cache.", totals.prefix_query_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Tokens found in the cache.", totals.prefix_hit_tokens)
        yield self._successes()
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "From the submission to the first token.", seen.first_token),
            ("vllm:inter_token_latency_seconds", "From token to token.", seen.inter_token),
            ("vllm:request_time_per_output_token_seconds", "Decode time over tokens.", seen.per_output_token),
            ("vllm:e2e_request_latency_seconds", "From the submission to the last token.", seen.e2e),
            ("vllm:request_queue_time_seconds", "From the submission to the admission.", seen.queue),
            ("vllm:request_prefill_time_seconds", "From the admission to the first token.", seen.prefill),
            ("vllm:request_decode_time_seconds", "From the first token to the last.", seen.decode),
            ("vllm:request_prompt_tokens", "Tokens of a prompt.", seen.prompt_tokens),
            ("vllm:request_generation_tokens", "Tokens of an answer.", seen.generation_tokens),
            ("loadgen:lateness_seconds", "From when a token was due to its write.", seen.lateness),
        ):
            yield self._histogram(name, text, histogram)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric([self._model, "0"], value)
        return family

    def _counter(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric([self._model, "0"], value)
        return family

    def _successes(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:request_success", "Requests that ended.", labels=["model_name", "engine", "finished_reason"]
        )
        for reason in ("stop", "length", "abort", "error"):
            family.add_metric([self._model, "0", reason], getattr(self._ends, reason))
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        so_far, buckets = 0, []
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            so_far += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), so_far))
        family = HistogramMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric([self._model, "0"], buckets=buckets, sum_value=histogram.total)
        return family


def exposition(collector: EngineCollector) -> bytes:
    """The Prometheus text, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
