"""Passes as columns: what each took (the log), and what streams will need of those to come (the calendar).

A stream notes only in which run of passes it took part; its arrival times are a slice of the log.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.sim.kv import BLOCK_TOKENS

Ints = NDArray[np.int64]
TRIM = 1 << 16
"""How many entries may lie unused before the arrays are moved up."""


class PassLog:
    """One entry a pass, by its number from 0.

    Attributes:
        end_ns: When it ended.
        held_ns: How much longer it took streams, or how long they stood aside, for prompts.
        paused_ns: How long it stood still.
        culprit: Serial number of the request with most prompt tokens in it; meaningful where `held_ns` is not 0.
        names: Ids by serial number of all culprits.
        decodes: Whether decoding streams took part.
        count: Passes that have ended.
        last_decode: The last of these with streams, -1 before the first.
        base: Number of the pass at index 0 of the columns.
    """

    def __init__(self) -> None:
        self.end_ns, self.held_ns, self.paused_ns = (np.zeros(1024, np.int64) for _ in range(3))
        self.culprit = np.zeros(1024, np.int32)
        self.decodes = np.zeros(1024, np.bool_)
        self.names: dict[int, str] = {}
        self.count = 0
        self.last_decode = -1
        self.base = 0

    @property
    def at(self) -> int:
        """Where the pass that follows the last is, or will be, in the arrays."""
        return self.count - self.base

    def make_room(self, n: int) -> None:
        """Room for `n` passes from `at` on."""
        short = self.at + n - len(self.end_ns)
        if short > 0:
            more = max(short, len(self.end_ns))
            self.end_ns, self.held_ns, self.paused_ns, self.culprit, self.decodes = (
                _longer(column, more)
                for column in (self.end_ns, self.held_ns, self.paused_ns, self.culprit, self.decodes)
            )

    def drop_before(self, number: int) -> None:
        """Forgets earlier passes, once there are many of them."""
        n = number - self.base
        if n > TRIM:
            for column in (self.end_ns, self.held_ns, self.paused_ns, self.culprit, self.decodes):
                _move_up(column, n)
            self.base = number
            self.names = {serial: self.names[serial] for serial in set(self.culprit[self.held_ns > 0].tolist())}

    def span(self, first: int, last: int) -> slice:
        """Where passes `first` to `last`, both included, are in the arrays."""
        return slice(first - self.base, last + 1 - self.base)

    def between(self, earlier: int, later: int) -> tuple[int, int, str | None]:
        """Sums of held_ns and paused_ns over the passes after `earlier` up to `later`, and who held most."""
        span = self.span(earlier + 1, later)
        held = self.held_ns[span]
        held_ns, paused_ns = int(held.sum()), int(self.paused_ns[span].sum())
        worst = int(self.culprit[span.start + int(held.argmax())])
        return held_ns, paused_ns, self.names[worst] if held_ns else None


class Calendar:
    """By number of the decode pass, from 0: the blocks that streams need for it, and the tokens they gain in it where
    these are not simply one each."""

    def __init__(self) -> None:
        self._tokens, self._blocks = np.zeros(4096, np.int64), np.zeros(4096, np.int64)
        self._base = 0

    def book(self, first: int, tokens: Ints | int, blocks: Ints | None, length: int, sign: int) -> None:
        """Enters a stream of `length` tokens from pass `first` on, or (sign -1) strikes it out.

        `tokens` are those of each pass, or the number of passes where each brings one; `blocks` are the blocks of each
        pass, or None where they follow from one token a pass.
        """
        n = tokens if isinstance(tokens, int) else len(tokens)
        start = self._start(first, n)
        if not isinstance(tokens, int):
            self._tokens[start : start + n] += sign * tokens
        if blocks is not None:
            self._blocks[start : start + n] += sign * blocks
        else:
            self._blocks[start + (1 - length) % BLOCK_TOKENS : start + n : BLOCK_TOKENS] += sign

    def tokens(self, first: int, n: int) -> Ints:
        start = self._start(first, n)
        return self._tokens[start : start + n]

    def blocks_of(self, number: int) -> int:
        return int(self._blocks[number - self._base])

    def blocks(self, first: int, n: int) -> Ints:
        start = self._start(first, n)
        return self._blocks[start : start + n]

    def drop_before(self, number: int) -> None:
        """Forgets earlier passes, once there are many of them."""
        n = number - self._base
        if n > TRIM:
            _move_up(self._tokens, n)
            _move_up(self._blocks, n)
            self._base = number

    def _start(self, first: int, n: int) -> int:
        start = first - self._base
        short = start + n - len(self._tokens)
        if short > 0:
            more = max(short, len(self._tokens))
            self._tokens, self._blocks = _longer(self._tokens, more), _longer(self._blocks, more)
        return start


def _longer(column: NDArray[Any], more: int) -> NDArray[Any]:
    return np.concatenate([column, np.zeros(more, column.dtype)])


def _move_up(column: NDArray[Any], n: int) -> None:
    column[:-n] = column[n:]
    column[-n:] = 0
