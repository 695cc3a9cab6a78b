"""How long passes take: the roofline, made quick to ask."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadgen.sim.config import SimConfig
from loadgen.sim.passes import Ints


class Line(NamedTuple):
    """Nanoseconds as a straight line over the tokens in context."""

    at_zero: float
    per_token: float


class PassTimes:
    """Times of passes of one replica, in whole nanoseconds, at least 1.

    For so many decoding sequences, both sides of the roofline grow in a straight line with the sum of their contexts;
    so two points of each are enough to know them all.
    """

    def __init__(self, config: SimConfig) -> None:
        self._roofline = config.roofline
        self._verified = config.draft_tokens + 1
        self._ns = 1e9 / config.speed
        self._lines: dict[int, tuple[Line, Line]] = {}

    def mixed_ns(self, prefills: list[tuple[int, int]], decodes: int, context_tokens: int) -> int:
        """A pass over prompts, as pairs (tokens, tokens before them), and decodes with that context in all."""
        if decodes and self._verified > 1:
            prefills = prefills + self._verifications(decodes, context_tokens)
            decodes = context_tokens = 0
        work = self._roofline.work(prefills, decodes, context_tokens)
        return max(1, round(self._roofline.seconds(work) * self._ns))

    def decode_ns(self, decodes: int, context_tokens: int) -> int:
        (c, c_each), (m, m_each) = self._lines_of(decodes)
        return max(1, round(max(c + c_each * context_tokens, m + m_each * context_tokens)))

    def decode_run_ns(self, decodes: int, context_tokens: Ints) -> NDArray[np.float64]:
        """The same for passes whose contexts grow; whole numbers."""
        (c, c_each), (m, m_each) = self._lines_of(decodes)
        low, high = int(context_tokens[0]), int(context_tokens[-1])
        memory_low, memory_high = m + m_each * low >= c + c_each * low, m + m_each * high >= c + c_each * high
        if memory_low and memory_high:
            ns = m + m_each * context_tokens
        elif not (memory_low or memory_high):
            ns = c + c_each * context_tokens
        else:
            ns = np.maximum(c + c_each * context_tokens, m + m_each * context_tokens)
        whole: NDArray[np.float64] = np.rint(ns, out=ns)
        return whole if whole[0] >= 1 else np.maximum(whole, 1.0, out=whole)

    def _lines_of(self, decodes: int) -> tuple[Line, Line]:
        if decodes not in self._lines:
            near, far = decodes, decodes + (1 << 20)
            (c_near, m_near), (c_far, m_far) = self._sides_ns(decodes, near), self._sides_ns(decodes, far)
            self._lines[decodes] = _line(near, c_near, far, c_far), _line(near, m_near, far, m_far)
        return self._lines[decodes]

    def _sides_ns(self, decodes: int, context_tokens: int) -> tuple[float, float]:
        roofline = self._roofline
        if self._verified > 1:
            work = roofline.work(self._verifications(decodes, context_tokens))
        else:
            work = roofline.work((), decodes, context_tokens)
        links_ns = roofline.communication_s(work) * self._ns
        return roofline.compute_s(work) * self._ns + links_ns, roofline.memory_s(work) * self._ns + links_ns

    def _verifications(self, decodes: int, context_tokens: int) -> list[tuple[int, int]]:
        """Sequences that verify their drafts, as prompts. What they attend to counts in sum: any division will do."""
        before, more = divmod(context_tokens - decodes, decodes)
        return [(self._verified, before + 1)] * more + [(self._verified, before)] * (decodes - more)


def _line(x: int, y: float, other_x: int, other_y: float) -> Line:
    per_token = (other_y - y) / (other_x - x)
    return Line(y - per_token * x, per_token)
