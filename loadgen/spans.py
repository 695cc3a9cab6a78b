"""The requests of a run as spans, in the words of OpenTelemetry's conventions for generative AI. Pure.

A span has the ids of the `traceparent` that its request carried: what the server traced of it becomes its child.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd

from analysis.record import NEVER_SENT
from analysis.run import Run
from analysis.stalls.frozen import find

OPERATIONS = {"chat": "chat", "completions": "text_completion", "responses": "chat"}
PORTS = {"http": 80, "https": 443}
SLICE = 500
"""Rows that are turned into Python values at a time."""

GEN_AI = {
    "gen_ai.request.max_tokens": "asked_output_tokens",
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.output_tokens": "output_tokens",
    "gen_ai.usage.reasoning.output_tokens": "reasoning_tokens",
    "http.response.status_code": "status",
}
OWN = ("request_id", "class", "stage", "session", "turn", "worker", "outcome", "tries", "tokens_source", "ttft_s",
       "ttfat_s", "tpot_s", "send_lag_s")  # fmt: skip
"""Columns that are exported under loadgen.…, as no convention has a word for them."""

Attributes = dict[str, Any]
Event = tuple[str, int, Attributes]
"""Name, nanoseconds of the epoch, attributes."""


@dataclass(frozen=True)
class Span:
    """One request as its client saw it.

    Attributes:
        start_ns, end_ns: Of the epoch: from the send to the end of the answer. What never reached the wire begins when
            it was due.
        error: What went wrong; None where nothing did, or we cut the request ourselves.
    """

    name: str
    trace_id: int
    span_id: int
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[Event, ...]
    error: str | None


def ids_of(request_id: str) -> tuple[int, int]:
    """Trace and span of the `traceparent` that the request of this id carries."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=24).hexdigest()
    return int(digest[:32], 16), int(digest[32:], 16)


def resource_of(run: Run) -> dict[str, str]:
    """What all spans of a run share."""
    about = {"service.name": "loadgen", "loadgen.run": run.meta.get("id"), "loadgen.workload": run.meta.get("name")}
    return {name: str(value) for name, value in about.items() if value is not None}


def spans_of(run: Run) -> Iterator[Span]:
    """A span for each request that was sent. ValueError (one line) where the run does not say when it was."""
    epoch_ns = (run.meta.get("clock") or {}).get("epoch_ns_at_start")
    if epoch_ns is None:
        raise ValueError("the run does not say when it was: it has no spans")
    shared, stalls = _shared(run.meta), find(run)
    starts = np.searchsorted(stalls.row, np.arange(len(run.requests) + 1))
    for number, row in _rows(run.requests):
        if row["outcome"] in NEVER_SENT:
            continue
        mine = slice(starts[number], starts[number + 1])
        frozen = zip(stalls.start_ns[mine].tolist(), stalls.end_ns[mine].tolist(), strict=True)
        yield _span(row, int(epoch_ns), shared, _events(row, int(epoch_ns), list(frozen)))


def _rows(requests: pd.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row as plain values, None where missing."""
    for start in range(0, len(requests), SLICE):
        some = requests.iloc[start : start + SLICE].astype(object)
        for number, row in enumerate(some.where(some.notna(), None).to_dict("records"), start):
            yield number, {str(name): value for name, value in row.items()}


def _shared(meta: Mapping[str, Any]) -> Attributes:
    target = urlsplit(str(meta.get("target") or ""))
    found = {
        "gen_ai.operation.name": OPERATIONS.get(str(meta.get("endpoint")), "chat"),
        "gen_ai.provider.name": "openai",  # of the protocol: the conventions want the name of the API that is spoken
        "gen_ai.request.model": meta.get("model"),
        "gen_ai.request.stream": True,
        "server.address": target.hostname,
        "server.port": target.port or PORTS.get(target.scheme),
    }
    return {name: value for name, value in found.items() if value is not None}


def _span(row: Mapping[str, Any], epoch_ns: int, shared: Attributes, events: tuple[Event, ...]) -> Span:
    trace_id, span_id = ids_of(row["request_id"])
    start_ns = next((row[name] for name in ("sent_ns", "due_ns", "end_ns") if row[name] is not None), 0)
    end_ns = next((row[name] for name in ("end_ns", "last_token_ns") if row[name] is not None), start_ns)
    failed = row["outcome"] not in ("ok", "cancelled")
    name = f"{shared['gen_ai.operation.name']} {shared.get('gen_ai.request.model', '')}".rstrip()
    attributes = shared | _own(row) | ({"error.type": row["outcome"]} if failed else {})
    error = (row["error"] or row["outcome"]) if failed else None
    return Span(
        name, trace_id, span_id, epoch_ns + start_ns, epoch_ns + max(start_ns, end_ns), attributes, events, error
    )


def _own(row: Mapping[str, Any]) -> Attributes:
    found = {name: row[column] for name, column in GEN_AI.items()} | {f"loadgen.{name}": row[name] for name in OWN}
    if row["finish_reason"] is not None:
        found["gen_ai.response.finish_reasons"] = [row["finish_reason"]]
    return {name: value for name, value in found.items() if value is not None}


def _events(row: Mapping[str, Any], epoch_ns: int, stalls: list[tuple[int, int]]) -> tuple[Event, ...]:
    """The first token, the first of the answer where that is another, and where each stall began; in order of time."""
    first_ns, answer_ns = row["first_token_ns"], row["first_answer_ns"]
    found: list[Event] = []
    if first_ns is not None:
        found.append(("loadgen.first_token", epoch_ns + first_ns, {}))
    if answer_ns is not None and answer_ns != first_ns:
        found.append(("loadgen.first_answer_token", epoch_ns + answer_ns, {}))
    for start_ns, end_ns in stalls:
        found.append(("loadgen.stall", epoch_ns + start_ns, {"loadgen.stall.duration_s": (end_ns - start_ns) / 1e9}))
    return tuple(sorted(found, key=lambda event: event[1]))
