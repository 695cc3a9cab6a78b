"""Reading `/metrics`: what engines really expose, and when a running load asks for it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.server import COLUMNS
from loadgen.access import Access
from loadgen.errors import UsageError
from loadgen.scrape import SOURCES, Endpoint, Scraper, endpoints, read_metrics
from loadgen.target import parse_target

CAPTURED = Path(__file__).parent.parent / "data" / "metrics"
S = 1_000_000_000


def test_every_column_of_the_vocabulary_has_a_source() -> None:
    assert set(SOURCES) == set(COLUMNS) - {"t_ns"}


def test_vllm() -> None:
    assert read_metrics((CAPTURED / "vllm.txt").read_text()) == {
        "running": 4, "waiting": 0, "kv_usage": 0.08646800195407911, "preemptions": 0,
        "prefix_query_tokens": 450001, "prefix_hit_tokens": 42240, "prompt_tokens": 443999, "generation_tokens": 3738,
        "queue_s": 635.2410275959992, "queue_requests": 243, "prefill_s": 1259.8404193749793, "prefill_requests": 243,
        "decode_s": 1481.0949891400123, "decode_requests": 243, "ttft_s": 2189.2298941612244, "ttft_requests": 246,
    }  # fmt: skip


def test_llamacpp_counts_cached_prompt_tokens_apart() -> None:
    assert read_metrics((CAPTURED / "llamacpp.txt").read_text()) == {
        "running": 0, "waiting": 0, "prefix_query_tokens": 129160 + 2775, "prefix_hit_tokens": 2775,
        "prompt_tokens": 129160 + 2775, "generation_tokens": 2461, "prefill_s": 562.23, "decode_s": 526.21,
    }  # fmt: skip


CASES = [
    ("engines are added up", 'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n',
     {"running": 5}),
    ("the fullest cache counts", 'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9\n',
     {"kv_usage": 0.9}),
    ("an older name", "vllm:gpu_cache_usage_perc 0.5\n", {"kv_usage": 0.5}),
    ("the newer of two names", "vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.6\n", {"kv_usage": 0.6}),
    ("SGLang", 'sglang:num_running_reqs{m="x"} 7\nsglang:num_queue_reqs 2\nsglang:token_usage 0.4\n'
     "sglang:num_retracted_requests_total 3\nsglang:queue_time_seconds_sum 1.5\nsglang:queue_time_seconds_count 6\n",
     {"running": 7, "waiting": 2, "kv_usage": 0.4, "preemptions": 3, "queue_s": 1.5, "queue_requests": 6}),
    ("TGI", 'tgi_queue_size 4\ntgi_batch_current_size 8\ntgi_batch_inference_duration_sum{method="prefill"} 2.5\n'
     'tgi_batch_inference_duration_sum{method="decode"} 9\n',
     {"running": 8, "waiting": 4, "prefill_s": 2.5, "decode_s": 9}),
    ("GPUs: mean utilisation, summed power", 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 100\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 50\n'
     'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 600.5\nDCGM_FI_DEV_POWER_USAGE{gpu="1"} 300\n',
     {"gpu_utilization": 0.75, "gpu_power_w": 900.5}),
    ("NaN is not told", "vllm:kv_cache_usage_perc NaN\n", {}),
    ("a broken line ends it", "vllm:num_requests_running 1\nvllm:num_requests_waiting {{{\n", {"running": 1}),
    ("something else", "<html>not found</html>", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "columns"), CASES, ids=[case[0] for case in CASES])
def test_what_an_exposition_tells(name: str, text: str, columns: dict[str, float]) -> None:
    assert read_metrics(text) == pytest.approx(columns)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["vllm:num_requests_running", "\n", "{", "}", '"', "=", ",", " ", "1", "e", "\\", "#"]))
)
def test_it_never_fails(parts: list[str]) -> None:
    text = "vllm:num_requests_running" + "".join(parts)
    assert set(read_metrics(text)) <= set(COLUMNS)


class HandClock:
    """Moved by hand; sleepers wake when their time has come."""

    def __init__(self) -> None:
        self.t_ns = -1
        self.moved = asyncio.Condition()

    def start(self, in_ns: int) -> None: ...

    def now_ns(self) -> int:
        return self.t_ns

    async def sleep_until(self, t_ns: int) -> None:
        async with self.moved:
            await self.moved.wait_for(lambda: self.t_ns >= t_ns)

    async def move_to(self, t_ns: int) -> None:
        async with self.moved:
            self.t_ns = t_ns
            self.moved.notify_all()


def endpoint(answer: Callable[[httpx.Request], httpx.Response], url: str = "http://e/metrics?key=secret") -> Endpoint:
    return Endpoint(url, lambda: httpx.AsyncClient(transport=httpx.MockTransport(answer)))


def scrape(*sources: Endpoint, moments: tuple[int, ...] = ()) -> tuple[list[dict[str, Any]], list[str]]:
    """Samples and notes of a run whose clock stands at `moments` (in seconds), one after the other."""

    async def main() -> tuple[list[dict[str, Any]], list[str]]:
        clock, samples, notes = HandClock(), list[dict[str, Any]](), list[str]()
        came = asyncio.Semaphore(0)

        def on_sample(sample: dict[str, Any]) -> None:
            samples.append(sample)
            came.release()

        async with Scraper(sources, clock, on_sample, notes.append):
            for moment in moments:
                await clock.move_to(moment * S)
                await came.acquire()
        return samples, notes

    return asyncio.run(main())


def counting() -> Endpoint:
    count = iter(range(100))
    return endpoint(lambda _: httpx.Response(200, text=f"vllm:num_preemptions_total {next(count)}\n"))


def test_it_reads_at_the_start_once_a_second_and_at_the_end() -> None:
    samples, notes = scrape(counting(), moments=(0, 1, 2, 5))
    # The first reading, number 0, only finds out whether there is anything to read.
    assert [(each["t_ns"], each["preemptions"]) for each in samples] == [
        (0, 1),
        (S, 2),
        (2 * S, 3),
        (5 * S, 4),
        (5 * S, 5),
    ]
    assert notes == []


def test_a_reading_that_fails_in_mid_run_is_left_out() -> None:
    answers = iter([200, 200, 503, 200])
    source = endpoint(lambda _: httpx.Response(next(answers), text="vllm:num_requests_running 1\n"))
    samples, notes = scrape(source, moments=(0,))
    assert (len(samples), notes) == (1, [])  # the closing one failed


def refuse(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


ABSENT = [
    (lambda _: httpx.Response(404), "answered 404"),
    (lambda _: httpx.Response(200, text="python_info 1\n"), "no metric of a known name"),
    (refuse, "cannot be read (refused)"),
]


@pytest.mark.parametrize(("answer", "why"), ABSENT)
def test_an_absent_endpoint_is_one_note_and_keeps_nobody_from_the_others(answer: Any, why: str) -> None:
    samples, notes = scrape(endpoint(answer), counting(), moments=(0, 1))
    [note] = notes
    assert note.startswith(f"http://e/metrics: {why}: ")
    assert "secret" not in note
    assert len(samples) == 3


def test_the_key_goes_to_the_target_alone() -> None:
    access = Access(parse_target("http://127.0.0.1:8000", "chat"), {}, "sk-secret")
    own, extra = endpoints(access, ["http://127.0.0.1:9400"])
    assert (own.url, extra.url) == ("http://127.0.0.1:8000/metrics", "http://127.0.0.1:9400/metrics")
    clients = own.open(), extra.open()
    assert ["authorization" in client.headers for client in clients] == [True, False]
    for client in clients:
        asyncio.run(client.aclose())
    assert [each.url for each in endpoints(access, ["https://gpu/custom"], own=False)] == ["https://gpu/custom"]
    with pytest.raises(UsageError, match="--metrics gpu:9400: expected a URL"):
        endpoints(access, ["gpu:9400"])
