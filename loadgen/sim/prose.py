"""The words of simulated answers: an endless text, in which the n-th word is the n-th token."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

_PROSE = (
    "The first token comes when the whole prompt has been read, and every later token needs one more pass over all "
    "the weights of the model. A long prompt keeps the arithmetic units busy, while a short answer waits for memory "
    "most of the time. When both share a device, the stream of one reader can stop because the prompt of another has "
    "arrived. Small pieces of the prompt let the others go on, at the price of a later start for the one who asked. "
)
WORDS = [f" {word}" for word in _PROSE.split()]
APART = 7
"""Words from the beginning of one choice to that of the next."""
ENCODED = [word.encode() for word in WORDS]


def offset_of(request_id: str, choice: int = 0) -> int:
    """Where in the text an answer begins: the same each time, and another for each choice."""
    return (zlib.crc32(request_id.encode()) + APART * choice) % len(WORDS)


def text_of(offset: int, first: int, last: int) -> str:
    """Tokens `first` to `last` of an answer, both included."""
    return "".join(WORDS[(offset + number) % len(WORDS)] for number in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a stop string ends an answer.

    Attributes:
        token: The token that completes the string: the last one that is generated.
        shown: The last token whose text is shown whole; `rest` is what is shown of the one behind it.
    """

    string: str
    token: int
    shown: int
    rest: str


def find_stop(offset: int, first: int, last: int, least: int, strings: Sequence[str]) -> Stop | None:
    """The first of `strings` that is completed in tokens `first` to `last`, by token `least` or a later one."""
    longest = max(map(len, strings), default=0)
    first = max(first, least - longest)  # what is completed later than `least` does not begin before
    # The text repeats itself: what is not found within one round and the length of the string is never found.
    horizon = min(last, max(first, least) + len(WORDS) + longest)
    text = ""
    for number in range(first, horizon + 1):
        before = len(text)
        text += WORDS[(offset + number) % len(WORDS)]
        found = [(text.find(string, max(0, before - len(string) + 1)), string) for string in strings]
        complete = min(((at, string) for at, string in found if at >= 0), default=None)
        if complete is not None and number >= least:
            return _cut(offset, first, number, *complete)
    return None


def _cut(offset: int, first: int, last: int, chars: int, string: str) -> Stop:
    for number in range(first, last + 1):
        shown = WORDS[(offset + number) % len(WORDS)]
        if chars < len(shown):
            return Stop(string, last, number - 1, shown[:chars])
        chars -= len(shown)
    raise AssertionError("a stop string ends in the token that completes it")
