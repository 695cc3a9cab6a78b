"""What must hold of every record, whatever the server did. Pure."""

from itertools import pairwise

from analysis.record import OUTCOMES, RequestRecord
from tests.bench.fuzz.mutate import Expected

OURS = frozenset({"client_error", "not_sent", "skipped"})
"""Outcomes that blame us, or say that nothing was sent: never the fault of an answer."""

MAX_TEXT = 600
COUNTS = (
    "status", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "choices", "events_dropped",
    "tries",
)  # fmt: skip


def faults(record: RequestRecord) -> list[str]:
    """One line for each thing that is wrong with the record."""
    found = []
    if record.outcome not in OUTCOMES or record.outcome in OURS:
        found.append(f"outcome {record.outcome}: {record.error}")
    found += _of_arrays(record) + _of_instants(record) + _of_texts(record)
    for name in COUNTS:
        value = getattr(record, name)
        if value is not None and not 0 <= value < 2**31:
            found.append(f"{name} is {str(value)[:40]}")
    if record.outcome == "ok" and not record.arrival_ns:
        found.append("ok without a token")
    if record.outcome == "ok" and record.error is not None:
        found.append(f"ok with an error: {record.error}")
    if record.outcome not in ("ok", "cancelled") and not record.error:
        found.append(f"{record.outcome} without words")
    return found


def _of_arrays(record: RequestRecord) -> list[str]:
    columns = (record.arrival_ns, record.n_tokens, record.kind, record.chars, record.read_id)
    lengths = {len(column) for column in columns}
    return [] if len(lengths) == 1 else [f"arrays of different lengths: {lengths}"]


def _of_instants(record: RequestRecord) -> list[str]:
    instants = [one for one in (record.sent_ns, record.headers_ns, *record.arrival_ns) if one is not None]
    found = [f"instants go back by {one - then} ns" for one, then in pairwise(instants) if then < one][:1]
    if record.end_ns is None or (instants and record.end_ns < instants[-1]):
        found.append(f"ended at {record.end_ns}, last heard of at {instants[-1:]}")
    if record.outcome == "ok" and record.sent_ns is None:
        found.append("ok, but never sent")
    return found


def _of_texts(record: RequestRecord) -> list[str]:
    found = []
    for name, text in (("error", record.error), ("finish_reason", record.finish_reason)):
        if text is not None and (not text.isprintable() or len(text) > MAX_TEXT):
            found.append(f"{name} is no short printable line: {text[:80]!r}, {len(text)} characters")
    return found


def disturbed(record: RequestRecord, expected: Expected) -> str | None:
    """How a clean answer was not counted as what it was; None if it was."""
    got = (record.outcome, tuple(record.chars), record.prompt_tokens, record.completion_tokens)
    want = ("ok", expected.chars, expected.prompt_tokens, len(expected.chars))
    return None if got == want else f"{got} instead of {want}: {record.error}"
