"""What the server said of itself: counters, gauges, and evidence for an interval."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.run import Run
from analysis.server import COLUMNS, Server, server_part, was_short_of_cache
from tests.analysis.records import meta, record

S = 1_000_000_000


def scraped(**columns: list[float | None]) -> Run:
    """A run of ten seconds whose server was sampled at 0, 1, 2 … s."""
    count = len(next(iter(columns.values())))
    frame = pd.DataFrame({"t_ns": [i * S for i in range(count)], **columns})
    stages = [{"name": "main", "start_ns": 0, "end_ns": 10 * S, "measured": True}]
    return Run.from_records(meta(stages=stages), [record("a", [10, 20], usage=2)], server=frame)


def server_of(**columns: list[float | None]) -> Server:
    server = Server.of(scraped(**columns))
    assert server is not None
    return server


def at(*seconds: float) -> Any:
    return np.array([round(each * S) for each in seconds], dtype=np.int64)


def test_growth_is_counted_between_the_samples_around_an_interval() -> None:
    server = server_of(preemptions=[0, 0, 3, 3, 5])
    starts, ends = at(0.2, 1.2, 2.1, 3.5, 9, 1), at(0.4, 1.4, 2.9, 3.6, 10, 3)
    assert server.growth("preemptions", starts, ends).tolist() == [0, 3, 0, 2, 0, 3]


def test_a_counter_that_was_reset_loses_nothing_but_its_start() -> None:
    assert server_of(preemptions=[7, 9, 1, 2]).growth("preemptions", at(0), at(3)).tolist() == [2 + 0 + 1]


def test_samples_that_do_not_tell_a_column_are_passed_over() -> None:
    server = server_of(kv_usage=[0.2, None, 0.9, None, 0.1], preemptions=[None, 1, None, None, None])
    assert server.peak("kv_usage", at(0.5, 2.5, 4.5), at(0.6, 3.5, 5)).tolist() == [0.9, 0.9, 0.1]
    assert np.isnan(server.growth("preemptions", at(0), at(4))).all()  # one sample is no growth
    assert np.isnan(server.peak("waiting", at(0), at(4))).all()


def test_a_full_cache_and_grown_preemptions_are_both_evidence() -> None:
    starts, ends = at(0.5, 2.5, 4.5), at(0.6, 2.6, 4.6)
    by_growth = server_of(preemptions=[0, 1, 1, 1, 1, 1])
    by_usage = server_of(kv_usage=[0.5, 0.5, 0.5, 0.995, 0.5, 0.5])
    assert was_short_of_cache(by_growth, starts, ends).tolist() == [True, False, False]
    assert was_short_of_cache(by_usage, starts, ends).tolist() == [False, True, False]
    assert was_short_of_cache(None, starts, ends).tolist() == [False] * 3


def test_the_part_of_the_summary() -> None:
    told = server_part(
        scraped(
            running=[1, 3, 5, 7], waiting=[0, 0, 4, 0], kv_usage=[0.1, 0.2, 0.9, 0.4], preemptions=[4, 4, 6, 6],
            prompt_tokens=[0, 0, 500, 2000], prefix_query_tokens=[0, 100, 1000, 1000], prefix_hit_tokens=[0, 0, 0, 250],
            queue_s=[1, 1, 2, 3], queue_requests=[0, 0, 2, 4], prefill_s=[0, 0, 3, 6], prefill_requests=[0, 0, 2, 4],
        )
    )  # fmt: skip
    assert told is not None
    assert told["samples"] == 4
    assert told["running"] == {"mean": 4, "peak": 7}
    assert told["kv_usage"] == {"mean": pytest.approx(0.4), "peak": 0.9}
    assert (told["gpu_power_w"], told["generation_tokens"], told["decode_s_per_request"]) == (None, None, None)
    assert (told["preemptions"], told["prompt_tokens"], told["prefix_hit_share"]) == (2, 2000, 0.25)
    assert (told["queue_s_per_request"], told["prefill_s_per_request"]) == (0.5, 1.5)
    assert told["queue_share_of_ttft"] == pytest.approx(2 / 8)


def test_only_the_measured_stages_count() -> None:
    stages = [
        {"name": "warmup", "start_ns": 0, "end_ns": 2 * S, "measured": False},
        {"name": "main", "start_ns": 2 * S, "end_ns": 4 * S, "measured": True},
    ]
    frame = pd.DataFrame(
        {"t_ns": [i * S for i in range(5)], "running": [50, 60, 1, 2, 3], "preemptions": [0, 9, 9, 9, 11]}
    )
    told = server_part(Run.from_records(meta(stages=stages), [record("a", [10])], server=frame))
    assert told is not None
    assert (told["running"]["peak"], told["preemptions"]) == (3, 2)


@pytest.mark.parametrize(
    "frame", [None, pd.DataFrame({"t_ns": []}), pd.DataFrame({"other": [1]}), pd.DataFrame({"t_ns": [1]})]
)
def test_nothing_scraped_is_nothing_told(frame: pd.DataFrame | None) -> None:
    assert server_part(Run.from_records(meta(), [record("a", [10])], server=frame)) is None


def test_every_column_is_named_once() -> None:
    assert len(set(COLUMNS)) == len(COLUMNS)
