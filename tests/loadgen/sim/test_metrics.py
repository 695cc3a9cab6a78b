import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.sim.books import Books, Told
from loadgen.sim.core import Cluster
from loadgen.sim.metrics import EngineCollector, Histogram, Histograms, exposition
from loadgen.sim.options import Options
from loadgen.sim.tokens import Token, Totals

MS = 1_000_000

SECONDS = "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0"
VLLM_BOUNDS = {
    "time_to_first_token_seconds": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 "
    "20.0 40.0 80.0 160.0 640.0 2560.0 +Inf",
    "inter_token_latency_seconds": "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 "
    "40.0 80.0 +Inf",
    "request_queue_time_seconds": f"{SECONDS} +Inf",
    "e2e_request_latency_seconds": f"{SECONDS} +Inf",
    "request_prompt_tokens": "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 10000.0 20000.0 "
    "50000.0 100000.0 +Inf",
}
"""As a vLLM that serves a model with a context of 131,072 tokens exports them."""


def token(number, last=False, count=1, cause="decode", culprit=None, delay_ns=0):
    return Token("a", number, last, cause, culprit, delay_ns, count)


def told(finish="length", choice=0):
    sink = Told("a#1" if choice else "a", choice, 40, finish)
    sink.opened_ns = 1000 * MS
    return sink


def samples(books):
    collector = EngineCollector(Cluster(Options().config()), books.histograms, books.ends, "m")
    families = text_string_to_metric_families(exposition(collector).decode())
    return {
        (s.name, s.labels.get("le") or s.labels.get("finished_reason")): s.value for f in families for s in f.samples
    }


@pytest.mark.parametrize(
    ("values", "counts"),
    [([], [0, 0, 0]), ([1], [1, 0, 0]), ([1.1, 2], [0, 2, 0]), ([0, 3, 3], [1, 0, 2])],
)
def test_a_bound_belongs_to_its_bucket(values, counts):
    histogram = Histogram((1, 2))
    for value in values:
        histogram.observe(value)
    assert (histogram.counts, histogram.total, histogram.count) == (counts, sum(values), len(values))


def test_the_bound_of_a_quantile():
    histogram = Histogram((1, 2))
    assert math.isnan(histogram.quantile_bound(0.5))
    histogram.observe(0.5, 98)
    histogram.observe(1.5)
    histogram.observe(5)
    assert [histogram.quantile_bound(q) for q in (0.5, 0.98, 0.99, 1)] == [1, 1, 2, math.inf]


def test_queue_and_prefill_times_come_from_the_totals():
    seen = Histograms()
    seen.observe_totals(Totals(first_tokens=2, queue_ns=1_000 * MS, prefill_ns=4_000 * MS))
    seen.observe_totals(Totals(first_tokens=3, queue_ns=1_000 * MS, prefill_ns=4_100 * MS))
    assert (seen.queue.count, seen.queue.total) == (3, 1.0)
    assert (seen.prefill.count, seen.prefill.total) == (3, pytest.approx(4.1))
    assert seen.prefill.counts[:6] == [1, 0, 0, 0, 0, 2]  # 0.1 s, and twice 2 s


def test_what_left_is_counted_by_when_it_was_due():
    books, sink = Books(), told()
    for number, due_ms, late_us in ((1, 1100, 10), (2, 1120, 20), (4, 1160, 900)):
        due_ns = due_ms * MS
        last = number == 4
        note = (sink, token(number, last, 2 if last else 1), due_ns, due_ns, due_ns + late_us * 1000, "")
        books.notes.append(note)
    books.digest(lambda: Totals(first_tokens=1, queue_ns=30 * MS, prefill_ns=70 * MS))
    found = samples(books)
    assert found["vllm:time_to_first_token_seconds_sum", None] == pytest.approx(0.1)
    assert found["vllm:time_to_first_token_seconds_bucket", "0.08"] == 0
    assert found["vllm:time_to_first_token_seconds_bucket", "0.1"] == 1
    assert found["vllm:inter_token_latency_seconds_count", None] == 3  # 20 ms, and two tokens in 40 ms
    assert found["vllm:inter_token_latency_seconds_sum", None] == pytest.approx(0.06)
    assert found["vllm:request_decode_time_seconds_sum", None] == pytest.approx(0.06)
    assert found["vllm:request_time_per_output_token_seconds_sum", None] == pytest.approx(0.02)
    assert found["vllm:e2e_request_latency_seconds_sum", None] == pytest.approx(0.16)
    assert found["vllm:request_queue_time_seconds_sum", None] == pytest.approx(0.03)
    assert found["vllm:request_prefill_time_seconds_sum", None] == pytest.approx(0.07)
    assert found["vllm:request_success_total", "length"] == 1
    assert found["vllm:request_success_total", "stop"] == 0
    assert found["loadgen:lateness_seconds_count", None] == 3
    assert books.late_max_ns == 900_000
    assert books.lateness_text() == (
        "3 writes of tokens, late by at most 0.02 ms (half of them), 1 ms (99 % of them), 0.900 ms (all)"
    )
    assert books.notes == []


def test_without_tokens_there_is_no_lateness():
    assert Books().lateness_text() == "no token was written"


def test_buckets_are_those_of_vllm():
    found = samples(Books())
    bounds = {name: [le for (metric, le) in found if metric == f"vllm:{name}_bucket"] for name in VLLM_BOUNDS}
    for name, text in VLLM_BOUNDS.items():
        assert bounds[name] == text.split(), name


class Kept:
    """A truth file in memory."""

    def __init__(self):
        self.rows = []

    def add(self, rows):
        self.rows += rows


def test_the_truth_names_requests_and_faults():
    books = Books(Kept())
    sink = told(choice=1)
    books.notes += [
        (sink, token(1, cause="prefill_interference", culprit="b#3", delay_ns=7), 5 * MS, 5 * MS, 6 * MS, ""),
        (sink, token(2, cause="decode"), 8 * MS, 9 * MS, 9 * MS, "buffer"),
    ]
    books.digest(Totals)
    first, second = books._truth.rows
    assert (first.request_id, first.choice, first.culprit) == ("a", 1, "b")
    assert (first.cause, first.delay_ns, first.sent_ns - first.due_ns) == ("prefill_interference", 7, MS)
    assert (second.cause, second.culprit, second.delay_ns) == ("buffer", None, MS)
    assert second.due_ns - first.due_ns == 3 * MS
