"""A run in the shape of `vllm bench serve --save-result --save-detailed`, as vLLM 0.32 writes it.

Its summary numbers are vLLM's, by vLLM's formulas: milliseconds; `itl` has an entry a chunk, as our gap; `tpot` is
(latency - TTFT) / (N - 1). What the shape has no place for lies under `loadgen`, so that importing it gives the same
TTFT, ITL and TPOT again: where N came from, and how many tokens and choices stand behind a chunk.
"""

import re
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from analysis.events import Events
from analysis.quantiles import Floats, Ints
from analysis.record import UNKNOWN
from analysis.run import Run
from analysis.throughput import offered_rps
from analysis.tokens import MISMATCH

_PERCENTILES = (90, 95, 99)


def to_vllm(run: Run) -> dict[str, Any]:
    """The requests of measured stages that were sent, in order of sending, as plain JSON values (no NaN).

    ValueError if there is none, or the run did not keep all events.
    """
    if run.cells is not None:
        raise ValueError("vLLM's shape lists every token, and this run did not keep them: run with --keep-events all")
    sent_ns = run.column("sent_ns")
    rows = np.flatnonzero(run.measured & ~np.isnan(sent_ns))
    if not len(rows):
        raise ValueError("no request of a measured stage was sent: there is nothing to write")
    rows = rows[np.argsort(sent_ns[rows], kind="stable")]
    lists = _lists(run, rows)
    return _load(run) | _totals(run, rows, lists) | lists | {"loadgen": _extras(run, rows)} | _statistics(lists)


def _load(run: Run) -> dict[str, Any]:
    workload = run.meta.get("workload")
    rate = offered_rps(run)
    digits = re.sub(r"\D", "", str(run.meta.get("started_at") or ""))
    return {
        "date": f"{digits[:8]}-{digits[8:14]}" if len(digits) >= 14 else None,
        "endpoint_type": run.meta.get("endpoint"),
        "backend": run.meta.get("endpoint"),
        "label": None,
        "model_id": run.meta.get("model"),
        "tokenizer_id": None,
        "num_prompts": int(run.measured.sum()),
        "request_rate": "inf" if rate is None else float(rate),
        "max_concurrency": workload.get("concurrency") if isinstance(workload, dict) else None,
    }


def _totals(run: Run, rows: Ints, lists: dict[str, Any]) -> dict[str, Any]:
    ok = run.ok[rows]
    duration_s = _duration_s(run, rows)
    prompt = int(np.nansum(run.column("prompt_tokens")[rows][ok]))
    output = sum(lists["output_lens"])
    rates = {"request_throughput": ok.sum(), "output_throughput": output, "total_token_throughput": prompt + output}
    return {
        "duration": duration_s,
        "completed": int(ok.sum()),
        "failed": int((~ok).sum()),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_goodput": None,
        **{name: float(amount) / duration_s if duration_s else None for name, amount in rates.items()},
    }


def _duration_s(run: Run, rows: Ints) -> float:
    """From the first send to the last thing that happened."""
    instants = [run.column(name)[rows] for name in ("sent_ns", "last_token_ns", "end_ns")]
    return float(np.nanmax(np.concatenate(instants)) - instants[0].min()) / 1e9


def _lists(run: Run, rows: Ints) -> dict[str, Any]:
    ok, sent_ns = run.ok[rows], run.column("sent_ns")[rows]
    first_ns, last_ns = run.column("first_token_ns")[rows], run.column("last_token_ns")[rows]
    lists: dict[str, Any] = {
        "input_lens": [None if np.isnan(each) else int(each) for each in run.column("prompt_tokens")[rows]],
        "output_lens": np.where(ok, _output_lens(run)[rows], 0).astype(int).tolist(),
        "ttfts": (np.nan_to_num(first_ns - sent_ns) / 1e9).tolist(),
        "itls": [_gaps_s(run.events, int(row)).tolist() for row in rows],
        "latencies": (np.nan_to_num(last_ns - sent_ns) / 1e9).tolist(),
        "start_times": (sent_ns / 1e9).tolist(),
        "generated_texts": _texts(run, rows),
        "errors": [_error(run, int(row)) for row in rows],
    }
    lag_s = run.column("send_lag_s")[rows]
    return lists if np.isnan(lag_s).any() else lists | {"queue_times": lag_s.tolist()}


def _output_lens(run: Run) -> Floats:
    """What the server said even where we do not believe it: the shape has no place for an unknown length."""
    refuted = run.where("tokens_source", MISMATCH)
    return np.nan_to_num(np.where(refuted, run.column("completion_tokens"), run.column("output_tokens")))


def _gaps_s(events: Events, row: int) -> Floats:
    mine = events.arrival_ns[events.starts[row] : events.starts[row + 1]]
    return np.diff(mine) / 1e9


def _texts(run: Run, rows: Ints) -> list[str]:
    if "text" not in run.requests:
        return [""] * len(rows)
    return [str(text) for text in run.requests["text"].iloc[rows].fillna("")]


def _error(run: Run, row: int) -> str:
    """Empty for a request that succeeded, else its outcome, its status and the message."""
    if run.ok[row]:
        return ""
    request = run.requests.iloc[row]
    status = "" if pd.isna(request["status"]) else f" {request['status']}"
    message = "" if pd.isna(request["error"]) else f": {' '.join(request['error'].split())}"
    return f"{request['outcome']}{status}{message}"


def _extras(run: Run, rows: Ints) -> dict[str, Any]:
    sources = run.requests["tokens_source"].iloc[rows]
    tokens = [_event_tokens(run.events, int(row)) for row in rows]
    choices = run.column("choices")[rows].astype(int).tolist()
    return {
        "tokens_sources": [None if pd.isna(each) else str(each) for each in sources],
        "choices": choices if any(each != 1 for each in choices) else None,
        "event_tokens": tokens if any(each is not None for each in tokens) else None,
    }


def _event_tokens(events: Events, row: int) -> list[int] | None:
    """Tokens of each event of a request, None where they are not known or are one each."""
    mine = events.tokens[events.starts[row] : events.starts[row + 1]]
    told = bool(np.all(mine != UNKNOWN)) and bool(np.any(mine != 1))
    return mine.tolist() if told else None


def _statistics(lists: dict[str, Any]) -> dict[str, float | None]:
    """Mean, median, deviation and percentiles by vLLM's formulas, in milliseconds; None without samples."""
    ok = np.array([not error for error in lists["errors"]])
    ttft_s, e2e_s = np.array(lists["ttfts"])[ok], np.array(lists["latencies"])[ok]
    output = np.array(lists["output_lens"])[ok]
    several = output > 1
    gaps_s = [gaps for gaps, fine in zip(lists["itls"], ok, strict=True) if fine]
    samples = {
        "ttft": ttft_s,
        "tpot": (e2e_s - ttft_s)[several] / (output[several] - 1),
        "itl": np.array(list(chain.from_iterable(gaps_s))),
        "e2el": e2e_s,
    }
    return {key: value for name, each in samples.items() for key, value in _of(name, each * 1e3).items()}


def _of(name: str, samples_ms: Floats) -> dict[str, float | None]:
    keys = [f"{what}_{name}_ms" for what in ("mean", "median", "std", *(f"p{each}" for each in _PERCENTILES))]
    if not len(samples_ms):
        return dict.fromkeys(keys)
    found = [np.mean(samples_ms), np.median(samples_ms), np.std(samples_ms), *np.percentile(samples_ms, _PERCENTILES)]
    return {key: float(value) for key, value in zip(keys, found, strict=True)}
