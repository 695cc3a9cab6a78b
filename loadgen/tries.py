"""When a request goes out again, after a failure or a redirect, and what is forgotten before; for all transports."""

import random
import re

from analysis.record import RequestRecord
from loadgen.exchange import Exchange
from loadgen.target import Target

RETRY_OUTCOMES = frozenset({"rate_limited", "connect_failed", "timeout_connect"})
RETRY_STATUS = frozenset({408, 429, 500, 502, 503, 504})
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
MAX_RETRY_AFTER_S = 60.0
"""A server may ask for days: no retry waits longer than this."""
MAX_REDIRECTS = 3
_PATH = re.compile(r"/(?!/)[!-~]*")


def tries_again(record: RequestRecord, outcome: str, retries: int) -> bool:
    if record.tries > retries:
        return False
    return outcome in RETRY_OUTCOMES or (outcome == "http_error" and record.status in RETRY_STATUS)


def backoff_s(record: RequestRecord) -> float:
    """What the server asked for, else doubling with jitter so that the retries of a burst do not come as one."""
    if record.retry_after_s is not None:
        return min(MAX_RETRY_AFTER_S, record.retry_after_s)
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (record.tries - 1)) * random.uniform(0.5, 1.0)


def redirected_to(exchange: Exchange, target: Target) -> str | None:
    """The new path, if the answer redirects within the same host and keeps the method."""
    if not exchange.complete or exchange.record.status not in (307, 308) or not exchange.location:
        return None
    location = exchange.location
    if location.startswith(target.origin + "/"):
        location = location.removeprefix(target.origin)
    return location if _PATH.fullmatch(location) else None


def forget_try(record: RequestRecord) -> None:
    """Back to a request that has not been answered: what the failed try left must not mix with the next."""
    record.outcome, record.error, record.status = "not_sent", None, None
    record.headers_ns = record.end_ns = None
    record.finish_reason = record.prompt_tokens = record.cached_tokens = None
    record.completion_tokens = record.reasoning_tokens = None
    record.choices, record.events_dropped = 1, 0
    for column in (record.arrival_ns, record.n_tokens, record.kind, record.chars, record.read_id):
        del column[:]
