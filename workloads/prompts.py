"""Text of a wanted length: words that are nearly always one token each, drawn from a stream that a key names."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.request import HEAD, Message, Passage, Request, Turn

CACHE_CHARS = 32_000_000
"""Texts kept at most: shared prefixes and document pools are made once, whatever else passes through."""


@cache
def words() -> NDArray[Any]:
    """1,024 short lower-case English words, each one token with a leading space in the common BPE vocabularies."""
    return np.array(Path(__file__).with_name("words.txt").read_text(encoding="ascii").split(), dtype=object)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What one endpoint makes of our text.

    Attributes:
        word_tokens: How many tokens each of `words()` comes to behind a space; None: one each.
        request_overhead_tokens: Tokens its template adds to a prompt of one user message.
        system_overhead_tokens: Tokens it adds for a system message before that.
        message_overhead_tokens: Tokens it adds for each further message of a user or the model.
    """

    word_tokens: NDArray[np.float64] | None = None
    request_overhead_tokens: float = 0.0
    system_overhead_tokens: float = 0.0
    message_overhead_tokens: float = 0.0


class Prompter:
    """Writes the text that a plan only names; `seed` sets apart the texts of runs that send the same plan."""

    def __init__(self, seed: int, calibration: Calibration | None = None) -> None:
        self._seed = seed
        self._calibration = calibration or Calibration()
        known = self._calibration.word_tokens
        self._word_tokens = np.ones(len(words())) if known is None else known
        self._texts: OrderedDict[tuple[tuple[int, ...], float], str] = OrderedDict()
        self._chars = 0

    def text(self, passage: Passage, tokens: float | None = None) -> str:
        """The passage in words: `tokens` tokens of it where given, else its own number; at least one word."""
        known = (passage.key, float(passage.tokens if tokens is None else tokens))
        text = self._texts.get(known)
        if text is None:
            text = self._texts[known] = self._write(*known)
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
        *first, last = [p for p in turn.passages if p.role != HEAD]
        roles = [last.role] if not first else [role for role, _ in groupby(p.role for p in (*first, last))]
        parts = [(p.role, self.text(p)) for p in first]
        parts.append((last.role, self.text(last, last.tokens - self._overhead(roles, bool(history)))))
        new = [Message(role, " ".join(t for _, t in group)) for role, group in groupby(parts, key=lambda part: part[0])]
        said = [*history, *new]
        for head in (p for p in turn.passages if p.role == HEAD):
            said[0] = replace(said[0], content=f"{self.text(head)} {said[0].content}")
        return Request(
            request_id=turn.request_id,
            messages=tuple(said),
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

    def _write(self, key: tuple[int, ...], tokens: float) -> str:
        """Random words up to the wanted number of tokens, the last one chosen so that the sum comes nearest to it."""
        cost = self._word_tokens
        rng = np.random.default_rng((self._seed, *key))
        picks = rng.integers(0, len(cost), int(max(0.0, tokens) / cost.mean() * 1.25) + 16)
        sums = np.cumsum(cost[picks])
        count = max(1, int(np.searchsorted(sums, tokens + 1e-6, side="right")))
        left = tokens - float(sums[count - 1])
        if abs(left) > 1e-6:
            picks, count = self._finish(picks, count, left)
        return " ".join(words()[picks[:count]].tolist())

    def _finish(self, picks: NDArray[Any], count: int, left: float) -> tuple[NDArray[Any], int]:
        """Make up for `left` tokens: by another last word, or by one more where no word is that long."""
        cost = self._word_tokens
        wanted = float(cost[picks[count - 1]]) + left
        if wanted > float(cost.max()):
            wanted, count = left, count + 1
            if left < float(cost.min()) / 2:
                return picks, count - 1
        off = np.abs(cost - wanted)
        nearest = np.flatnonzero(off <= off.min() + 1e-9)
        chosen = picks.copy()
        chosen[count - 1] = nearest[picks[count - 1] % len(nearest)]
        return chosen, count

    def _overhead(self, roles: Sequence[str], has_history: bool) -> float:
        """Template tokens that a turn adds: its messages, and the answer before them or the prompt's frame."""
        known = self._calibration
        system = sum(role == "system" for role in roles)
        spoken = len(roles) - system + (1 if has_history else -1)
        frame = 0.0 if has_history else known.request_overhead_tokens
        return frame + system * known.system_overhead_tokens + spoken * known.message_overhead_tokens
