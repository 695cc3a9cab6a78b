"""A run's metrics as Prometheus reads them: by Prometheus' own parser, and by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from loadgen.clock import RunClock
from loadgen.drive import Live
from loadgen.exporter import ITL_S, LAG_S, TTFT_S, Exporter, Family, Histogram
from loadgen.progress import Progress
from loadgen.sim import metrics
from loadgen.streams import Streams
from loadgen.tally import Tally, Times
from tests.loadgen.plans import warmup
from tests.loadgen.test_streams import streams
from tests.loadgen.test_tally import MS, record
from tests.loadgen.virtual import VirtualClock, run_virtual
from workloads.schedule import Stage


def plan(**changes: Any) -> Any:
    workload = SimpleNamespace(
        name='the "mixed" \\ one\n', stall=SimpleNamespace(floor=0.2, factor=5.0), classes={"chat": None, "rag": None}
    )
    stages = (warmup(1000), Stage("main", 1000 * MS, 60_000 * MS, True, 4.5))
    return SimpleNamespace(**({"stages": stages, "requests": None, "loop": "open", "workload": workload} | changes))


def exported(*records: Any, live: Live | None = None, open_: Any = None, running: bool = True, **changes: Any) -> str:
    """The text at two seconds."""

    async def main() -> str:
        clock = VirtualClock()
        clock.start(0)
        await clock.sleep_until(2000 * MS)
        progress = Progress(plan(**changes), clock, live or Live(), enabled=False)
        exporter = Exporter(progress)
        progress.on_tally = exporter.totals.add
        progress.streams = open_ or progress.streams
        for each in records:
            progress.add(each)
        exporter.running = running
        return exporter.text()

    return run_virtual(main())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and values of the labels, as Prometheus' parser reads them."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


RECORDS = [
    record(100, 120, 140, 160, 460, completion=5, prompt_tokens=50, due_ns=-3 * MS),
    record(60, 75, completion=2, prompt_tokens=50, due_ns=0),
    record(300, completion=1, class_name="rag", prompt_tokens=900, due_ns=0),
    record(outcome="rate_limited", status=429),
    record(outcome="not_sent"),
]


def test_what_has_ended_is_counted_by_class() -> None:
    found = samples(exported(*RECORDS, live=Live(sent=9, in_flight=5, open_ns=dict.fromkeys("abcdefg", 0))))
    assert found["loadgen_requests_total", "chat", "ok"] == 2
    assert found["loadgen_requests_total", "chat", "rate_limited"] == 1
    assert found["loadgen_requests_total", "chat", "not_sent"] == 1
    assert found["loadgen_requests_total", "rag", "ok"] == 1
    assert found["loadgen_requests_sent_total",] == 9
    assert (found["loadgen_prompt_tokens_total", "chat"], found["loadgen_prompt_tokens_total", "rag"]) == (100, 900)
    assert found["loadgen_output_tokens_total", "chat"] == 7
    assert (found["loadgen_stalls_total", "chat"], found["loadgen_stalls_total", "rag"]) == (1, 0)
    assert found["loadgen_requests_in_flight",] == 5
    assert found["loadgen_requests_waiting",] == 2
    assert found["loadgen_offered_requests_per_second",] == 4.5
    assert (found["loadgen_running",], found["loadgen_elapsed_seconds",]) == (1, 2)
    assert found["loadgen_stage_info", 'the "mixed" \\ one\n', "main"] == 1


def test_histograms_are_cumulative_in_seconds() -> None:
    found = samples(exported(*RECORDS))
    ttft, itl, lag = (f"loadgen_{name}_seconds" for name in ("time_to_first_token", "inter_token_latency", "send_lag"))
    assert [found[f"{ttft}_bucket", "chat", le] for le in ("0.06", "0.08", "0.1", "0.15", "+Inf")] == [0, 1, 1, 2, 2]
    assert (found[f"{ttft}_sum", "chat"], found[f"{ttft}_count", "chat"]) == (pytest.approx(0.16), 2)
    assert [found[f"{itl}_bucket", "chat", le] for le in ("0.015", "0.02", "0.025", "0.3", "0.4")] == [0, 1, 4, 4, 5]
    assert found[f"{itl}_sum", "chat"] == pytest.approx(0.375)
    assert found[f"{itl}_count", "rag"] == 0
    assert [found[f"{lag}_bucket", le] for le in ("0.0005", "0.002", "0.005")] == [2, 2, 3]


def test_counters_of_every_class_begin_at_zero() -> None:
    found = samples(exported())
    for name in ("chat", "rag"):
        assert found["loadgen_requests_total", name, "ok"] == 0
        assert found["loadgen_time_to_first_token_seconds_count", name] == 0


def test_what_is_not_known_is_left_out() -> None:
    stages = (Stage("main", 0, None, True, None),)
    text = exported(live=Live(sent=3, in_flight=2), loop="closed", stages=stages)
    for name in ("waiting", "offered", "stalled", "silence", "lag"):
        assert name not in text


def test_streams_in_a_stall_are_seen_while_it_lasts() -> None:
    found = samples(exported(open_=streams(100, 120, 140, heard_ms=500)))
    assert (found["loadgen_stalled_streams",], found["loadgen_longest_silence_seconds",]) == (1, 1.5)
    over = samples(exported(open_=Streams(known=True), running=False))
    assert (over["loadgen_running",], over["loadgen_stalled_streams",]) == (0, 0)


@given(st.lists(st.integers(0, 10**12)), st.sampled_from([TTFT_S, ITL_S, LAG_S]))
def test_no_time_falls_on_the_wrong_side_of_a_bound(values: list[int], bounds_s: tuple[float, ...]) -> None:
    times, histogram = Times(), Histogram(bounds_s)
    for value in values:
        times.add(value)
    histogram.add(times)
    buckets = [count for suffix, _, count in histogram.samples([]) if suffix == "_bucket"]
    assert buckets == [sum(value < round(bound * 1e9) for value in values) for bound in bounds_s] + [len(values)]
    assert list(histogram.samples([]))[-2:] == [("_sum", [], sum(values) / 1e9), ("_count", [], len(values))]


def test_both_sides_can_be_laid_over_one_another() -> None:
    assert {bound for bound in metrics._FIRST_S if bound <= 160} <= set(TTFT_S)
    assert set(metrics._TOKEN_S) <= set(ITL_S)


@given(st.text(), st.floats(allow_nan=False))
def test_any_label_and_value_comes_through(label: str, value: float) -> None:
    text = Family("x", "gauge", "something", [("", [("a", label), ("b", "c")], value)]).text()
    if "\r" not in label:  # the parser splits lines there, Prometheus does not
        (family,) = text_string_to_metric_families(text)
        assert family.samples[0].labels == {"a": label, "b": "c"}
        assert family.samples[0].value == value


def test_tallies_of_workers_add_up() -> None:
    alone = samples(exported(*RECORDS))
    exporter = Exporter(Progress(plan(), RunClock(), Live(), enabled=False))
    for each in RECORDS:
        one = Tally()
        one.add(each, plan())
        exporter.totals.add(one)
    together = samples(exporter.text())
    counted = [name for name in alone if name[0].endswith(("_total", "_bucket", "_count"))]
    assert {name: together[name] for name in counted} == {name: alone[name] for name in counted}
