"""The server's own words, out of whatever shape it put an error in. Pure."""

import re
from typing import Any

import msgspec

MAX_MESSAGE_CHARS = 500
MAX_READ_CHARS = 20_000  # an error page may begin with this much of styles and scripts
MAX_NESTING = 4
TOO_DEEP = "an error that is nested too deep to show"
_MARKUP = re.compile(r"<(script|style)\b.*?(?:</\1>|\Z)|<[^<>]*>", re.DOTALL | re.IGNORECASE)
"""Either stops at the next "<" or takes what is left: the time grows with the length alone, whatever the text."""


def error_message(error: object) -> str:
    """The server's own words from an error object, a JSON body, an HTML page or plain text; one line."""
    return one_line(words_of(error))


def words_of(error: object) -> str:
    """The same, as it came: for one who looks for something in it before it is cut."""
    return _words(error, MAX_NESTING)


def one_line(text: str) -> str:
    """`text` without what does not print, of at most MAX_MESSAGE_CHARS characters."""
    text = "".join(char if char.isprintable() else " " for char in text[:MAX_READ_CHARS])
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def fault(problem: Exception) -> str:
    """An exception that nobody foresaw, for the record of the request that it ends."""
    return f"{type(problem).__name__}: {problem}"


def _words(error: object, depth: int) -> str:
    if isinstance(error, bytes):
        try:
            return _words(msgspec.json.decode(error), depth)
        except (msgspec.DecodeError, RecursionError):
            return _without_markup(error.decode("utf-8", "replace"))
    if isinstance(error, dict | list) and not depth:
        return _json(error)
    if isinstance(error, dict):
        return _words_of_object(error, depth - 1)
    if isinstance(error, list):
        return "; ".join(_words(part, depth - 1) for part in error[:5])
    return _without_markup(str(error))


def _words_of_object(error: dict[str, Any], depth: int) -> str:
    for name in ("error", "message", "detail", "msg", "errors", "title", "reason"):
        if error.get(name):
            message = _words(error[name], depth)
            code = (error.get("code") or error.get("type")) if name == "message" else None
            return f"{message} ({code})" if isinstance(code, str | int) and str(code) not in message else message
    return _json(error)


def _json(error: object) -> str:
    try:
        return msgspec.json.encode(error).decode()
    except RecursionError:
        return TOO_DEEP


def _without_markup(text: str) -> str:
    return _MARKUP.sub(" ", text[:MAX_READ_CHARS])
