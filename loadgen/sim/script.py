"""What a choice will say, decided before its first token: a pure function of the request and the answer's id."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loadgen.sim.prose import WORDS, find_stop, offset_of, text_of
from loadgen.sim.tools import Call, calls_in
from loadgen.sim.wire import Ask, Finish

Channel = Literal["thinking", "text", "call", "arguments"]


class Piece(NamedTuple):
    """Neighbouring tokens of one channel. `call` tells which one, for a call (its name) and its arguments."""

    channel: Channel
    call: Call | None
    texts: list[str]
    last_token: int

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Script:
    """Thoughts, then either text or calls.

    Attributes:
        offset: Where in the prose it begins.
        tokens: How many tokens are generated.
        shown: The last token whose text is shown whole; `rest` is the text of the one behind it, later ones have none.
    """

    offset: int
    tokens: int
    thinking: int
    finish: Finish
    stop_string: str | None
    shown: int
    rest: str
    calls: tuple[Call, ...]

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        """Tokens `first` to `last`, those of one channel together."""
        while first <= last:
            piece = self._piece(first, last)
            yield piece
            first = piece.last_token + 1

    def thought(self) -> str:
        return text_of(self.offset, 1, self.thinking)

    def text(self) -> str:
        """The answer as far as it is shown."""
        whole = text_of(self.offset, self.thinking + 1, min(self.tokens, self.shown))
        return whole + (self.rest if self.tokens > self.shown else "")

    def arguments(self, call: Call) -> str:
        return "".join(call.arguments(self.offset, number) for number in range(call.first + 1, call.last + 1))

    def _piece(self, first: int, last: int) -> Piece:
        if first <= self.thinking:
            last = min(last, self.thinking)
            return Piece("thinking", None, [self._word(n) for n in range(first, last + 1)], last)
        call = next((call for call in self.calls if call.first <= first <= call.last), None)
        if call is None:
            return Piece("text", None, [self._shown(n) for n in range(first, last + 1)], last)
        if first == call.first:
            return Piece("call", call, [call.function.name], first)
        last = min(last, call.last)
        return Piece("arguments", call, [call.arguments(self.offset, n) for n in range(first, last + 1)], last)

    def _word(self, number: int) -> str:
        return WORDS[(self.offset + number) % len(WORDS)]

    def _shown(self, number: int) -> str:
        """The text of a token of the answer, as far as no stop string hides it."""
        if number > self.shown:
            return self.rest if number == self.shown + 1 else ""
        return self._word(number)


def script_of(ask: Ask, request_id: str, choice: int = 0) -> Script:
    """The same id gives the same answer."""
    offset, last, thinking = offset_of(request_id, choice), ask.output_tokens, ask.thinking_tokens
    if ask.functions and thinking < last:
        calls = calls_in(ask.functions, thinking + 1, last)
        finish: Finish = "tool_calls" if len(calls) == len(ask.functions) and calls[-1].whole else "length"
        return Script(offset, last, thinking, finish, None, last, "", calls)
    stop = find_stop(offset, thinking + 1, last, ask.min_tokens, ask.stop) if ask.stop else None
    if stop is None:
        return Script(offset, last, thinking, ask.finish, None, last, "", ())
    return Script(offset, stop.token, thinking, "stop", stop.string, stop.shown, stop.rest, ())
