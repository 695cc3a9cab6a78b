"""What the server said of itself while the run lasted: samples of its `/metrics`, in one vocabulary for every engine.

Gauges: `running` and `waiting` requests, `kv_usage` (share of the KV cache in use, of the fullest engine),
`gpu_utilization` (mean share over GPUs), `gpu_power_w` (sum over GPUs). Counters: `preemptions`, `prefix_query_tokens`
and `prefix_hit_tokens` (looked up and found in the prefix cache), `prompt_tokens`, `generation_tokens`, and for the
queue, prefill, decode and TTFT of requests the seconds (`queue_s`, …) and how many requests they are of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.quantiles import Bools, Floats, Ints
from analysis.run import Run
from analysis.throughput import measured_windows

GAUGES = ("running", "waiting", "kv_usage", "gpu_utilization", "gpu_power_w")
PHASES = ("queue", "prefill", "decode", "ttft")
COUNTERS = (
    "preemptions", "prefix_query_tokens", "prefix_hit_tokens", "prompt_tokens", "generation_tokens",
    *(f"{phase}_{what}" for phase in PHASES for what in ("s", "requests")),
)  # fmt: skip
COLUMNS = ("t_ns", *GAUGES, *COUNTERS)

Instants = npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Server:
    """Samples in order of time. Each series holds only the instants at which it was told."""

    series: Mapping[str, tuple[Ints, Floats]]

    @classmethod
    def of(cls, run: Run) -> "Server | None":
        """None where nothing was scraped."""
        t_ns = run.sampled("server", "t_ns")
        if t_ns is None or not len(t_ns):
            return None
        order = np.argsort(t_ns[~np.isnan(t_ns)], kind="stable")
        found = {name: run.sampled("server", name) for name in COLUMNS[1:]}
        columns = {name: each[~np.isnan(t_ns)][order] for name, each in found.items() if each is not None}
        t_ns = t_ns[~np.isnan(t_ns)][order]
        told = {name: ~np.isnan(values) for name, values in columns.items()}
        return cls({name: (t_ns[told[name]].astype(np.int64), columns[name][told[name]]) for name in columns})

    def growth(self, name: str, start_ns: Instants, end_ns: Instants) -> Floats:
        """How much a counter grew from the last sample before each interval to the first after it; NaN where untold.

        A counter that fell was reset: what it lost does not count.
        """
        t_ns, value = self._told(name)
        if len(t_ns) < 2:
            return np.full(len(start_ns), np.nan)
        total = np.concatenate([[0.0], np.cumsum(np.maximum(np.diff(value), 0))])
        low, high = self._around(t_ns, start_ns, end_ns)
        return np.asarray(total[high] - total[low])

    def peak(self, name: str, start_ns: Instants, end_ns: Instants) -> Floats:
        """The highest sample of each interval and of its two neighbours; NaN where untold."""
        t_ns, value = self._told(name)
        if not len(t_ns):
            return np.full(len(start_ns), np.nan)
        low, high = self._around(t_ns, start_ns, end_ns)
        bounds = np.stack([low, high + 1], axis=1).ravel()
        return np.asarray(np.maximum.reduceat(np.append(value, -np.inf), bounds)[::2])

    def within(self, name: str, start_ns: float, end_ns: float) -> Floats:
        t_ns, value = self._told(name)
        return value[(t_ns >= start_ns) & (t_ns <= end_ns)]

    def _told(self, name: str) -> tuple[Ints, Floats]:
        return self.series.get(name, (np.empty(0, dtype=np.int64), np.empty(0)))

    @staticmethod
    def _around(t_ns: Ints, start_ns: Instants, end_ns: Instants) -> tuple[Ints, Ints]:
        low = np.maximum(np.searchsorted(t_ns, start_ns, side="right") - 1, 0)
        high = np.minimum(np.searchsorted(t_ns, end_ns, side="left"), len(t_ns) - 1)
        return low, np.maximum(low, high)


def server_part(run: Run) -> dict[str, Any] | None:
    """The summary's `server`: what was told over the measured stages; None where nothing was scraped.

    Gauges as mean and peak, counters as growth, phases as mean seconds per request. `queue_share_of_ttft` is the part
    that the queue has in queue and prefill together.
    """
    server = Server.of(run)
    if server is None or not server.series:
        return None
    start_ns, end_ns = _span(run, server)
    gauges = {name: _mean_and_peak(server.within(name, start_ns, end_ns)) for name in GAUGES}
    ends = np.array([start_ns]), np.array([end_ns])
    grown = {name: float(server.growth(name, *ends)[0]) for name in COUNTERS}
    per_request = {f"{name}_s_per_request": ratio(grown[f"{name}_s"], grown[f"{name}_requests"]) for name in PHASES}
    return {
        "samples": max(len(t_ns) for t_ns, _ in server.series.values()),
        **gauges,
        **{name: _plain(grown[name]) for name in COUNTERS[:5]},
        "prefix_hit_share": ratio(grown["prefix_hit_tokens"], grown["prefix_query_tokens"]),
        **per_request,
        "queue_share_of_ttft": ratio(grown["queue_s"], grown["queue_s"] + grown["prefill_s"]),
    }


def ratio(part: float, whole: float) -> float | None:
    """None where either is unknown, or there is nothing to divide by."""
    return float(part / whole) if whole > 0 and not np.isnan(part) else None


def _span(run: Run, server: Server) -> tuple[float, float]:
    windows = measured_windows(run)
    if windows:
        return float(min(start for start, _ in windows)), float(max(end for _, end in windows))
    ends = [(t_ns[0], t_ns[-1]) for t_ns, _ in server.series.values() if len(t_ns)]
    return float(min((first for first, _ in ends), default=0)), float(max((last for _, last in ends), default=0))


def _mean_and_peak(values: Floats) -> dict[str, float] | None:
    return {"mean": float(values.mean()), "peak": float(values.max())} if len(values) else None


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else value


def was_short_of_cache(server: Server | None, start_ns: Ints, end_ns: Ints) -> Bools:
    """Did preemptions grow, or was the KV cache full, during each interval?"""
    if server is None:
        return np.zeros(len(start_ns), dtype=bool)
    grew = server.growth("preemptions", start_ns, end_ns) > 0
    return np.asarray(grew | (server.peak("kv_usage", start_ns, end_ns) >= KV_FULL))


KV_FULL = 0.99
"""From this share on, the cache counts as full: the last blocks fit no sequence."""
