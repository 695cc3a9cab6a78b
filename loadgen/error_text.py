"""The server's own words, out of whatever shape it put an error in. Pure."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_MESSAGE_CHARS = 500


def error_message(error: object) -> str:
    """The server's own words from an error object, a JSON body, an HTML page or plain text; one line."""
    if isinstance(error, bytes):
        try:
            return error_message(msgspec.json.decode(error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _one_line(error.decode("utf-8", "replace"))
    if isinstance(error, dict):
        for name in ("error", "message", "detail", "msg", "errors", "title", "reason"):
            if error.get(name):
                return _with_code(error_message(error[name]), error if name == "message" else {})
        return _one_line(msgspec.json.encode(error).decode())
    if isinstance(error, list):
        return _one_line("; ".join(error_message(part) for part in error[:5]))
    return _one_line(str(error))


def _with_code(message: str, error: Mapping[str, Any]) -> str:
    code = error.get("code") or error.get("type")
    return f"{message} ({code})" if isinstance(code, str | int) and str(code) not in message else message


def _one_line(text: str) -> str:
    text = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", text[:20_000], flags=re.DOTALL | re.IGNORECASE)
    text = "".join(char if char.isprintable() else " " for char in text)
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
