"""Why streams froze: the cause of one episode, where the client's own data prove it."""

import numpy as np

from analysis.quantiles import Ints
from analysis.run import Run

BURST_NS = 2_000_000
"""Tokens that arrive within this time came at once."""


def cause_of(run: Run, rows: Ints, ends: Ints, start_ns: int, end_ns: int, bystanders: int) -> str:
    """One of buffering, client, engine_pause, one_stream, unknown.

    Args:
        run: The whole run.
        rows: The request of each stall of the episode.
        ends: The event that ended each stall.
        start_ns: Start of the episode.
        end_ns: Its end.
        bystanders: Streams that went on meanwhile.
    """
    if np.mean([_followed_by_burst(run, int(row), int(end)) for row, end in zip(rows, ends, strict=True)]) > 0.5:
        return "buffering"
    if _client_was_late(run, start_ns, end_ns):
        return "client"
    hit = len(np.unique(rows))
    if hit > bystanders and hit > 1:
        return "unknown" if _first_token_at(run, rows, end_ns) else "engine_pause"
    return "one_stream" if bystanders and run.server is None else "unknown"


def _followed_by_burst(run: Run, row: int, end: int) -> bool:
    """Do the tokens that come at once at the end of a gap make up for at least half of those missed (gap / tpot)?"""
    events = run.events
    arrivals = events.arrival_ns[end : events.starts[row + 1]]
    burst = int(np.searchsorted(arrivals, arrivals[0] + BURST_NS, side="right"))
    output, tpot_s = run.column("output_tokens")[row], run.column("tpot_s")[row]
    told = events.tokens[end : end + burst]
    tokens = float(told.sum()) if told.min() > 0 else burst * float(output) / int(events.per_request[row])
    gap_s = float(arrivals[0] - events.arrival_ns[end - 1]) / 1e9
    return bool(tokens * tpot_s >= gap_s / 2 and tokens > 1)


def _client_was_late(run: Run, start_ns: int, end_ns: int) -> bool:
    """Kernel stamps do not depend on the client; without them its own lateness can look like a stall."""
    if run.client is None or run.meta.get("timestamp_source") == "kernel" or "loop_lag_max_s" not in run.client:
        return False
    at = run.client["t_ns"].to_numpy(dtype=float)
    near = (at >= start_ns) & (at <= end_ns + 1_500_000_000)  # a sample speaks of the second before it
    lag_s = run.client["loop_lag_max_s"].to_numpy(dtype=float)[near]
    return bool(np.any(lag_s >= (end_ns - start_ns) / 2e9))


def _first_token_at(run: Run, rows: Ints, end_ns: int) -> bool:
    """Did a request that had been waiting get its first token within about one step of the episode's end?"""
    step_ns = 1e9 * float(np.nanmedian(run.column("tpot_s")[rows]))
    first, sent = run.column("first_token_ns"), run.column("sent_ns")
    waiting = (sent < end_ns - step_ns) & (np.abs(first - end_ns) <= 1.5 * step_ns)
    return bool(waiting.any())
