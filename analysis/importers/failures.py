"""What became of a request that another tool calls failed, from the words that the tool has for it."""

import re
from typing import NamedTuple

from analysis.record import OUTCOMES

_LONGEST = 200
_REASONS = {
    "bad request": 400, "unauthorized": 401, "forbidden": 403, "not found": 404, "method not allowed": 405,
    "request timeout": 408, "payload too large": 413, "request entity too large": 413, "unprocessable entity": 422,
    "unprocessable content": 422, "too many requests": 429, "internal server error": 500, "bad gateway": 502,
    "service unavailable": 503, "gateway timeout": 504,
}  # fmt: skip
_OURS = re.compile(rf"({'|'.join(OUTCOMES[1:])})(?: (\d{{3}}))?(?:: (.*))?", re.DOTALL)
_STATUS = re.compile(r"(?<![:.\w])([45]\d\d)\b[ ,:']+(?=[A-Z])")
_WORDS = (
    (r"never received a valid chunk", "empty"),
    (r"certificate|ssl_?error|\[ssl\b|\btls\b", "tls_failed"),  # aiohttp has "ssl:default" in every failure to connect
    (r"connect\w*timeout|connection timeout", "timeout_connect"),
    (r"clientconnector|connecterror|connection ?refused|connect call failed|cannot connect", "connect_failed"),
    (r"time(d )?out", "timeout_total"),
    (r"jsondecode|not json|expecting value", "malformed"),
    (r"disconnected|payloaderror|connection ?reset|incomplete ?read|remoteprotocol|readerror|oserror", "broken"),
)


class Failure(NamedTuple):
    outcome: str
    status: int | None
    message: str | None


def failure(text: str, code: int | None = None) -> Failure:
    """Outcome, HTTP status and one line of text for a tool's message, a traceback's last line or a reason phrase.

    A text that says nothing we know is an `http_error` of unknown status, or `broken` where it is an exception.
    """
    line = _last_line(text)
    if ours := _OURS.fullmatch(line):
        return Failure(ours[1], int(ours[2]) if ours[2] else None, ours[3] or None)
    status = code if code is not None and 400 <= code <= 599 and code != 499 else _status(line)
    if status is not None:
        return Failure("rate_limited" if status == 429 else "http_error", status, line or None)
    for words, outcome in _WORDS:
        if re.search(words, line, re.IGNORECASE):
            return Failure(outcome, None, line)
    raised = "Traceback" in text or re.match(r"[\w.]*(Error|Exception)\b", line)
    return Failure("broken" if raised else "http_error", None, line or None)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:_LONGEST] if lines else ""


def _status(line: str) -> int | None:
    found = _REASONS.get(line.partition(":")[0].strip().lower())
    match = _STATUS.search(line)
    return found or (int(match[1]) if match else None)
