"""The numbers behind the cause of each episode."""

from typing import Any

import numpy as np

from analysis.quantiles import Ints
from analysis.run import Run
from analysis.server import Server
from analysis.stalls.causes import Episodes, burst_tokens, loop_lag_s
from analysis.stalls.engines import UNKNOWN
from analysis.stalls.level import open_at

Columns = dict[str, Any]


def evidence(run: Run, known: Episodes, chosen: Ints) -> list[dict[str, Any]]:
    """What speaks for the cause of each of the chosen episodes, by name; missing where it was not measured.

    Of every episode: `frozen_s` (seconds that streams stood still, summed over those hit), `stopped_share` (of the
    decoding streams, mean over the episode) and `decoding_streams`.
    """
    columns = {
        "": _of_all(known, chosen),
        "prefill_interference": _of_prefill(known, chosen),
        "engine_pause": _of_pause(run, known, chosen),
        "preemption": _of_server(run, known, chosen),
        "one_stream": _of_one(run, known, chosen),
        "buffering": _of_one(run, known, chosen),
        "client": {"loop_lag_s": loop_lag_s(run, known.start_ns[chosen], known.end_ns[chosen])},
    }
    return [
        _told(columns[""], i) | _told(columns.get(str(cause), {}), i) for i, cause in enumerate(known.cause[chosen])
    ]


def _told(columns: Columns, i: int) -> dict[str, Any]:
    values = {name: np.asarray(column)[i].item() for name, column in columns.items()}
    return {name: value for name, value in values.items() if value == value}  # NaN differs from itself


def _of_all(known: Episodes, chosen: Ints) -> Columns:
    """Beside the streams of the same engine, where several are told apart; beside all where it is not known."""
    decoding, still = np.zeros(len(chosen)), np.zeros(len(chosen))
    for engine, streams in (known.beside | {UNKNOWN: known.streams}).items():
        mine = known.engine[chosen] == engine
        ends = known.start_ns[chosen[mine]], known.end_ns[chosen[mine]]
        decoding[mine], still[mine] = streams.decoding.mean(*ends), streams.still.mean(*ends)
    still = np.minimum(still, decoding)
    return {
        "frozen_s": known.frozen_s[chosen],
        "stopped_share": np.divide(still, decoding, out=np.full(len(chosen), np.nan), where=decoding > 0),
        "decoding_streams": decoding,
    }


def _of_prefill(known: Episodes, chosen: Ints) -> Columns:
    """`end_offset_s`: from the culprit's first token to the end; negative where its prefill went on after it."""
    waits, at = known.waits, known.match.at[chosen]
    if not len(waits.row):
        return {}
    start, end = known.start_ns[chosen], known.end_ns[chosen]
    return {
        "end_offset_s": (end - waits.until_ns[at]) / 1e9,
        "culprit_waited_s": (np.minimum(end, waits.until_ns[at]) - waits.from_ns[at]) / 1e9,
        "prefill_tokens": np.where(known.match.tokens > 0, known.match.tokens, np.nan)[chosen],
        "explained_share": known.match.share[chosen],
        "chance_share": np.full(len(chosen), known.chance.mean()),
        "waiting_requests": open_at(waits.from_ns, waits.until_ns, (start + end) // 2),
    }


def _of_pause(run: Run, known: Episodes, chosen: Ints) -> Columns:
    waits, middle = known.waits, (known.start_ns[chosen] + known.end_ns[chosen]) // 2
    told = {
        "waiting_requests": open_at(waits.from_ns, waits.until_ns, middle),
        "explained_share": known.match.share[chosen],
    }
    return told | _of_server(run, known, chosen)


def _of_server(run: Run, known: Episodes, chosen: Ints) -> Columns:
    server = Server.of(run)
    if server is None:
        return {}
    ends = known.start_ns[chosen], known.end_ns[chosen]
    return {
        "preemptions": server.growth("preemptions", *ends),
        "kv_usage_peak": server.peak("kv_usage", *ends),
        "server_waiting_peak": server.peak("waiting", *ends),
    }


def _of_one(run: Run, known: Episodes, chosen: Ints) -> Columns:
    middle = (known.starts[:-1] + known.starts[1:]) // 2
    burst = {"burst_tokens": burst_tokens(run, known.stalls.take(middle[chosen]))}
    return burst | _of_steps(run, known, chosen)


CONSTANT = 0.05
STEPS = 10


def _of_steps(run: Run, known: Episodes, chosen: Ints) -> Columns:
    """`constant_step_s`: where silences of this cause on reused connections are all alike, as delayed ACKs or
    retransmission timers make them, how long they are."""
    reused = run.column("reused_connection")[known.stalls.row]
    length_s = (known.stalls.end_ns - known.stalls.start_ns) / 1e9
    step_s = np.full(len(chosen), np.nan)
    for cause in ("buffering", "one_stream"):
        mine = (known.cause[known.of] == cause) & (reused == 1)
        if mine.sum() < STEPS:
            continue
        low, middle, high = np.quantile(length_s[mine], [0.25, 0.5, 0.75])
        if high - low <= CONSTANT * middle:
            step_s[known.cause[chosen] == cause] = middle
    share = np.bincount(known.of, weights=np.nan_to_num(reused), minlength=len(known)) / np.diff(known.starts)
    return {"constant_step_s": step_s, "reused_connection_share": share[chosen]}
