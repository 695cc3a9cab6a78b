"""Runs as a busy server would give them, made at once from arrays: neighbours are alike, and what is true is known.

TTFT is a prefill time and the wait in front of one server (M/D/1: Poisson arrivals, equal service). The time per token
is a level of the moment (AR(1) from request to request), times one of the request, times noise of the token.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.columns import DERIVED, REQUESTS
from analysis.record import KINDS
from analysis.run import Run

Floats = npt.NDArray[np.float64]
S = 1_000_000_000


@dataclass(frozen=True)
class Server:
    """How a simulated server behaves.

    Attributes:
        load: Share of its time that prefill is busy; waits grow without bound towards 1.
        service_s, prefill_s: What each prefill holds the server for, and what it takes in all.
        itl_s: Median time per token.
        memory: Correlation of the moment's level from one request to the next.
        moment, request, token: Spread (sigma of the logarithm) of the level of the moment, the request, the token.
        failures: Share of requests that fail.
    """

    load: float = 0.5
    service_s: float = 0.1
    prefill_s: float = 0.2
    itl_s: float = 0.02
    memory: float = 0.9
    moment: float = 0.05
    request: float = 0.1
    token: float = 0.2
    failures: float = 0.0

    @property
    def rate_rps(self) -> float:
        return self.load / self.service_s


def waits(load: float, gaps: Floats) -> Floats:
    """Waits in front of one server that takes 1 for each, by the recursion of Lindley."""
    walk = np.concatenate([[0.0], np.cumsum(1 - gaps[1:] / load)])
    found: Floats = walk - np.minimum.accumulate(walk)
    return found


def ar1(count: int, memory: float, rng: np.random.Generator) -> Floats:
    """A stationary Gaussian series of variance 1 whose neighbours are correlated by `memory`."""
    length = 1 if memory == 0 else min(2000, int(np.log(1e-4) / np.log(memory)) + 1)
    noise = rng.standard_normal(count + length - 1)
    kernel = memory ** np.arange(length)
    found: Floats = np.convolve(noise, kernel / np.sqrt(np.sum(kernel**2)), mode="valid")
    return found


def simulate(server: Server, requests: int, tokens: int, seed: int, **meta: Any) -> Run:
    """An open loop of so many requests and tokens each, in a steady state from the start."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0, requests + 5000)
    wait_s = waits(server.load, gaps)[-requests:] * server.service_s
    due_s = np.cumsum(gaps[-requests:]) / server.rate_rps
    level = server.itl_s * np.exp(server.moment * ar1(requests, server.memory, rng)
                                  + server.request * rng.standard_normal(requests))  # fmt: skip
    noise = np.exp(server.token * rng.standard_normal((requests, tokens)))
    steps = level[:, None] * noise
    steps[:, 0] = server.prefill_s + wait_s
    failed = rng.random(requests) < server.failures
    return assemble(due_s, np.cumsum(steps, axis=1), failed, seed=seed, **meta)


def assemble(due_s: Floats, arrival_s: Floats, failed: npt.NDArray[np.bool_], **meta: Any) -> Run:
    """A run of requests sent when due, whose tokens arrived so long after; a failed one has no token."""
    count, tokens = arrival_s.shape
    ids = [f"r{i}" for i in range(count)]
    due_ns = np.round(due_s * 1e9).astype(np.int64)
    arrivals = (due_ns[:, None] + np.round(arrival_s * 1e9).astype(np.int64))[~failed]
    end_ns = due_ns + np.round(arrival_s[:, -1] * 1e9).astype(np.int64)
    given = {
        "request_id": ids, "session": np.arange(count), "turn": 1, "class": "c", "stage": "main", "worker": 0,
        "due_ns": due_ns, "sent_ns": due_ns, "end_ns": end_ns, "outcome": np.where(failed, "http_error", "ok"),
        "status": np.where(failed, 500, 200), "tries": 1, "prompt_tokens": 1000, "asked_input_tokens": 1000,
        "asked_output_tokens": tokens, "choices": 1, "completion_tokens": pd.array(np.where(failed, pd.NA, tokens)),
        "events_dropped": 0,
    }  # fmt: skip
    columns = {name: kind for name, kind in REQUESTS.items() if name not in DERIVED}
    frame = pd.DataFrame({name: given.get(name) for name in columns}, index=range(count)).astype(columns)
    return Run.from_frames(_meta(due_s) | meta, frame, _chunks(ids, np.flatnonzero(~failed), arrivals))


def _chunks(ids: list[str], rows: npt.NDArray[np.int64], arrivals: npt.NDArray[np.int64]) -> pd.DataFrame:
    tokens = arrivals.shape[1]
    size = arrivals.size
    return pd.DataFrame({
        "request_id": pd.Categorical.from_codes(np.repeat(rows, tokens).astype(np.int32), categories=pd.Index(ids)),
        "seq": np.tile(np.arange(tokens, dtype=np.int32), len(rows)),
        "arrival_ns": arrivals.ravel(),
        "kind": pd.Categorical.from_codes(np.ones(size, dtype=np.int8), categories=pd.Index(KINDS)),
        "n_tokens": pd.array(np.ones(size, dtype=np.int32), dtype="Int32"),
        "chars": np.full(size, 4, dtype=np.int32),
        "read_id": np.arange(size, dtype=np.int32),
    })  # fmt: skip


def _meta(due_s: Floats) -> dict[str, Any]:
    end_ns = int(due_s[-1] * 1e9) + 1
    stage = {"name": "main", "start_ns": 0, "end_ns": end_ns, "measured": True, "offered_rps": len(due_s) / due_s[-1]}
    return {
        "format_version": 1, "id": "r", "name": "synthetic", "workload": {"name": "synthetic"}, "model": "m",
        "target": "http://127.0.0.1:9/v1", "endpoint": "chat", "seed": 1, "loop": "open", "stages": [stage],
        "complete": True, "timestamp_source": "kernel",
    }  # fmt: skip
