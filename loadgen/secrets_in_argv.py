"""Keys given on the command line: everybody on the machine can read a process' arguments, so they do not stay there."""

import os
import sys
from collections.abc import MutableMapping, Sequence

KEY_FLAG = "--api-key"
HEADER_FLAGS = ("-H", "--header")
KEY_VARIABLE = "LOADGEN_API_KEY"
HEADERS_VARIABLE = "LOADGEN_HEADERS"
"""Header lines, one a line; made by us, and read together with -H."""


def hide_secrets() -> None:
    """Start again as the same process without keys and headers in its arguments, if there are any."""
    arguments, found = without_secrets(sys.orig_argv)
    if not found:
        return
    os.environ.update(found)
    os.execv(sys.executable, [sys.executable, *arguments[1:]])  # noqa: S606 - ourselves again


def without_secrets(arguments: Sequence[str]) -> tuple[list[str], MutableMapping[str, str]]:
    """The arguments without keys and headers, and the environment variables that take their place."""
    kept: list[str] = []
    headers: list[str] = []
    found: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        flag, sign, value = word.partition("=")
        if word.startswith("-H") and len(word) > 2:
            headers.append(word[2:])
        elif flag == KEY_FLAG or flag in HEADER_FLAGS:
            value = value if sign else next(words, "")
            if flag == KEY_FLAG:
                found[KEY_VARIABLE] = value
            else:
                headers.append(value)
        else:
            kept.append(word)
    if headers:
        found[HEADERS_VARIABLE] = "\n".join(headers)
    return kept, found
