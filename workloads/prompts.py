"""Text of a wanted length: words that are nearly always one token each, drawn from a stream that a key names."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import shake_128
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from workloads.request import HEAD, Message, Passage, Request, Turn
from workloads.tools import TOOL, ToolCosts, answering, calls_of, definition, results, scripted_call

Answer: TypeAlias = tuple[str | None, Sequence[Mapping[str, Any]] | None]
"""The text of a model's answer and the calls in it; None where they were not kept."""

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
        tools: What it adds for tools; None: the endpoint takes none, so they are told in words.
    """

    word_tokens: NDArray[np.float64] | None = None
    request_overhead_tokens: float = 0.0
    system_overhead_tokens: float = 0.0
    message_overhead_tokens: float = 0.0
    tools: ToolCosts | None = field(default_factory=ToolCosts)


class Prompter:
    """Writes the text that a plan only names; `seed` sets apart the texts of runs that send the same plan."""

    def __init__(self, seed: int, calibration: Calibration | None = None) -> None:
        self._seed = seed
        self._calibration = calibration or Calibration()
        self._texts: OrderedDict[tuple[tuple[int, ...], float], str] = OrderedDict()
        self._chars = 0
        self._definitions_made: dict[Sequence[Passage], list[dict[str, Any]]] = {}

    def text(self, passage: Passage, tokens: float | None = None) -> str:
        """The passage in words: `tokens` tokens of it where given, else its own number; at least one word.

        What was cut to fit into one prompt is not kept: no other asks for it, and a long run has very many of them.
        """
        known = (passage.key, float(passage.tokens if tokens is None else tokens))
        text = self._texts.get(known)
        if text is None and tokens is not None:
            return self._write(*known)
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
        *first, last = self._spoken(turn, history)
        heads = [p for p in turn.passages if p.role == HEAD]
        roles = [role for role, _ in groupby(p.role for p in (*first, last))] if first else [last.role]
        room = last.tokens - self._overhead(roles, bool(history))
        if last.role == TOOL:
            new = self._results(history, last, room)
        elif not first:
            new = [Message(last.role, self.text(last, room))]
        else:
            parts = [*((p.role, self.text(p)) for p in first), (last.role, self.text(last, room))]
            grouped = groupby(parts, key=lambda part: part[0])
            new = [Message(role, " ".join(text for _, text in group)) for role, group in grouped]
        said = [*history, *new]
        for head in heads:
            said[0] = replace(said[0], content=f"{self.text(head)} {said[0].content}")
        return Request(
            request_id=turn.request_id,
            messages=tuple(said),
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            thinking_tokens=turn.thinking_tokens,
            body={**turn.body, "tools": self._definitions(turn.tools, heads)} if self._native(turn) else turn.body,
            keep_text=keep_text,
        )

    def history(
        self,
        history: Sequence[Message],
        turns: Sequence[Turn],
        requests: Sequence[Request],
        answers: Sequence[Answer],
    ) -> tuple[Message, ...]:
        """What was said before a round of turns, then each of them with its answer.

        Turns that ran side by side all answered the same calls. Put one after the other, each answers a call of the
        one before; the calls that the model made go on from the last.
        """
        said = list(history)
        for i, (turn, request, (text, calls)) in enumerate(zip(turns, requests, answers, strict=True)):
            new = request.messages[len(history) :]
            said.extend([answering(said[-1], new)] if i and self._native(turn) else new)
            said.append(self.answer(turn, text, calls if i + 1 == len(turns) else None))
        return tuple(said)

    def answer(self, turn: Turn, text: str | None, calls: Sequence[Mapping[str, Any]] | None = None) -> Message:
        """What the history takes as the answer to `turn`: the scripted one, else the model's `text` and `calls`, else
        words. A model that was given tools and called none has a scripted call put beside its words."""
        script = turn.scripted_answer
        calls = calls if self._native(turn) and script is None else None
        extra = {"tool_calls": [*calls] if calls else [self._scripted_call(turn)]} if self._native(turn) else {}
        if script is None and (text or calls):
            return Message("assistant", text or "", extra)
        spoken = max(1, turn.output_tokens - turn.thinking_tokens)
        words_ = self.text(script or Passage("assistant", (*turn.passages[-1].key, 1), spoken))
        return Message("assistant", words_, extra)

    def _scripted_call(self, turn: Turn) -> dict[str, Any]:
        return scripted_call(turn.request_id, turn.number % len(turn.tools))

    def _native(self, turn: Turn) -> bool:
        return bool(turn.tools) and self._calibration.tools is not None

    def _spoken(self, turn: Turn, history: Sequence[Message]) -> list[Passage]:
        """The passages that stand in messages. Tools that the endpoint does not take are told in the system prompt, and
        their results by the user."""
        spoken = [p for p in turn.passages if p.role != HEAD]
        if not turn.tools or self._native(turn):
            return spoken
        told = [replace(p, role="system") for p in turn.tools] if not history else []
        after = sum(p.role == "system" for p in spoken)
        talk = [replace(p, role="user") if p.role == TOOL else p for p in spoken]
        return [*talk[:after], *told, *talk[after:]]

    def _definitions(self, tools: Sequence[Passage], heads: Sequence[Passage]) -> list[dict[str, Any]]:
        """The body's `tools`: descriptions give way to what the template adds. Those of a cold prompt begin with its
        head too, as templates put them before all that is said."""
        known = None if heads else self._definitions_made.get(tools)
        if known is not None:
            return known
        costs = self._calibration.tools or ToolCosts()
        added = costs.each_tokens + costs.frame_tokens / len(tools)
        first, *others = tools
        begin = [self.text(head) for head in heads]
        own = self.text(first, first.tokens - added - sum(head.tokens for head in heads))
        texts = [" ".join([*begin, own]), *(self.text(p, p.tokens - added) for p in others)]
        made = [definition(i, text) for i, text in enumerate(texts)]
        if not heads:
            self._definitions_made[tools] = made
        return made

    def _results(self, history: Sequence[Message], passage: Passage, tokens: float) -> list[Message]:
        """What the tools say to the calls of the last answer, `tokens` tokens of words in all."""
        calls = calls_of(history[-1])
        each = [replace(passage, key=(*passage.key, i)) if i else passage for i in range(len(calls))]
        return results(calls, [self.text(p, tokens / len(calls)) for p in each])

    def _write(self, key: tuple[int, ...], tokens: float) -> str:
        """Random words up to the wanted number of tokens, the last one chosen so that the sum comes nearest to it."""
        cost = self._calibration.word_tokens
        picks = self._picks(key, max(1, int(tokens + 0.5))) if cost is None else self._costing(key, tokens, cost)
        return " ".join(words()[picks].tolist())

    def _picks(self, key: tuple[int, ...], n: int) -> NDArray[Any]:
        """Rows of `words()`, evenly spread: two bytes each of a hash without end, which is made in a tenth of the time
        that a generator takes to get going. A longer text begins as a shorter one of the same key."""
        stream = shake_128(repr((self._seed, *key)).encode()).digest(2 * n)
        return np.frombuffer(stream, dtype="<u2") % len(words())

    def _costing(self, key: tuple[int, ...], tokens: float, cost: NDArray[np.float64]) -> NDArray[Any]:
        """Picks that cost `tokens` tokens."""
        picks = self._picks(key, int(max(0.0, tokens) / cost.mean() * 1.25) + 16)
        sums = np.cumsum(cost[picks])
        count = max(1, int(np.searchsorted(sums, tokens + 1e-6, side="right")))
        left = tokens - float(sums[count - 1])
        return picks[:count] if abs(left) <= 1e-6 else _finish(picks, count, left, cost)

    def _overhead(self, roles: Sequence[str], has_history: bool) -> float:
        """Template tokens that a turn adds: its messages, and the answer before them or the prompt's frame."""
        known = self._calibration
        if TOOL in roles:
            return (known.tools or ToolCosts()).exchange_tokens
        system = roles.count("system")
        spoken = len(roles) - system + (1 if has_history else -1)
        frame = 0.0 if has_history else known.request_overhead_tokens
        return frame + system * known.system_overhead_tokens + spoken * known.message_overhead_tokens


def _finish(picks: NDArray[Any], count: int, left: float, cost: NDArray[np.float64]) -> NDArray[Any]:
    """The first `count` picks made up for `left` tokens: by another last word, or by one more where no word is that
    long."""
    wanted = float(cost[picks[count - 1]]) + left
    if wanted > float(cost.max()):
        if left < float(cost.min()) / 2:
            return picks[:count]
        wanted, count = left, count + 1
    off = np.abs(cost - wanted)
    nearest = np.flatnonzero(off <= off.min() + 1e-9)
    chosen = picks[:count].copy()
    chosen[-1] = nearest[chosen[-1] % len(nearest)]
    return chosen
