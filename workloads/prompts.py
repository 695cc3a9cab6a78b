"""Text of a wanted length: words that are nearly always one token each, drawn from a stream that a key names."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.request import Message, Passage, Request, Turn

CACHE_CHARS = 32_000_000
"""Texts kept at most: shared prefixes and document pools are made once, whatever else passes through."""


@cache
def words() -> NDArray[Any]:
    """1,024 short lower-case English words, each one token with a leading space in the common BPE vocabularies."""
    return np.array(Path(__file__).with_name("words.txt").read_text(encoding="ascii").split(), dtype=object)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one endpoint makes of our text.

    Attributes:
        tokens_per_word: How many tokens a word comes to.
        request_overhead_tokens: Tokens its template adds to a prompt of one message.
        message_overhead_tokens: Tokens its template adds for each further message.
    """

    tokens_per_word: float = 1.0
    request_overhead_tokens: float = 0.0
    message_overhead_tokens: float = 0.0


class Prompter:
    """Writes the text that a plan only names; `seed` sets apart the texts of runs that send the same plan."""

    def __init__(self, seed: int, calibration: Calibration | None = None) -> None:
        self._seed = seed
        self._calibration = calibration or Calibration()
        self._texts: OrderedDict[tuple[tuple[int, ...], int], str] = OrderedDict()
        self._chars = 0

    def text(self, passage: Passage, tokens: float | None = None) -> str:
        """The passage in words: `tokens` tokens of it where given, else its own number; at least one word."""
        n_words = max(1, round((passage.tokens if tokens is None else tokens) / self._calibration.tokens_per_word))
        known = (passage.key, n_words)
        text = self._texts.get(known)
        if text is None:
            text = self._texts[known] = self._write(passage.key, n_words)
            self._chars += len(text)
            while self._chars > CACHE_CHARS and len(self._texts) > 1:
                self._chars -= len(self._texts.popitem(last=False)[1])
        else:
            self._texts.move_to_end(known)
        return text

    def request(self, turn: Turn, history: Sequence[Message], keep_text: bool) -> Request:
        """The whole prompt of a turn: `history`, then its passages, neighbours of one role as one message.

        The last passage gives way to what the template adds for the new messages, so that the prompt as the server
        counts it comes to `turn.input_tokens` (as long as it can: a passage keeps at least one word).
        """
        *first, last = turn.passages
        messages = 1 + sum(a.role != b.role for a, b in zip(turn.passages, turn.passages[1:], strict=False))
        parts = [(p.role, self.text(p)) for p in first]
        parts.append((last.role, self.text(last, last.tokens - self._overhead(messages, bool(history)))))
        new = [Message(role, " ".join(t for _, t in group)) for role, group in groupby(parts, key=lambda part: part[0])]
        return Request(
            request_id=turn.request_id,
            messages=(*history, *new),
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            thinking_tokens=turn.thinking_tokens,
            body=turn.body,
            keep_text=keep_text,
        )

    def answer(self, turn: Turn, text: str | None) -> Message:
        """What the history takes as the answer to `turn`: the scripted one, else the model's `text`, else words."""
        script = turn.scripted_answer
        if script is None and text:
            return Message("assistant", text)
        spoken = max(1, turn.output_tokens - turn.thinking_tokens)
        return Message("assistant", self.text(script or Passage("assistant", (*turn.passages[-1].key, 1), spoken)))

    def _write(self, key: tuple[int, ...], n_words: int) -> str:
        picks = np.random.default_rng((self._seed, *key)).integers(0, len(words()), n_words)
        return " ".join(words()[picks].tolist())

    def _overhead(self, messages: int, has_history: bool) -> float:
        """Template tokens that a turn adds: its messages, and the answer before them or the prompt's frame."""
        each = self._calibration.message_overhead_tokens
        return messages * each + (each if has_history else self._calibration.request_overhead_tokens - each)
