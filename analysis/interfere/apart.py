"""Where several engines stand behind the target, a prompt stops only the streams of one of them: of these it tells."""

from collections.abc import Sequence
from dataclasses import replace

from analysis.interfere.streams import Injection, Window
from analysis.quantiles import Bools

SPLIT = 3.0
"""A stream stood still if its longest gap is more than the longest of all over this."""
ALIKE = 0.2
"""Streams that one pass stops stand still equally long, but for so much."""
MOSTLY = 0.5
"""Prompts of the longest lengths split the streams at least so often where there are several engines."""
LENGTHS, FEWEST = 2, 2


def several_engines(used: Sequence[Injection], step_s: float, noise_s: float) -> bool:
    """Whether the longest prompts mostly stop some streams and leave others alone.

    Args:
        step_s: The usual gap of a stream.
        noise_s: How long a gap may well be without any prompt: a stream that stands still alone needs more.
    """
    longest = sorted({each.tokens for each in used})[-LENGTHS:]
    told = [stopped(each.window, step_s, noise_s) for each in used if each.tokens in longest]
    return len(told) >= FEWEST and sum(each is not None for each in told) >= MOSTLY * len(told)


def stopped(window: Window, step_s: float, noise_s: float) -> Bools | None:
    """The streams that stood still; None where none did, or all."""
    freeze_s = window.freeze_s
    longest_s = float(freeze_s.max())
    still: Bools = freeze_s > longest_s / SPLIT
    if still.all() or not longest_s > SPLIT * max(float(freeze_s.min()), step_s):
        return None
    together = still.sum() > 1 and freeze_s[still].min() > (1 - ALIKE) * longest_s
    return still if together or longest_s > noise_s else None


def on_one_engine(used: Sequence[Injection], step_s: float, noise_s: float) -> tuple[list[Injection], int]:
    """The injections with those streams alone that each stopped; and how many had none of them on their engine: nobody
    stood still for half as long as others did of the same length."""
    still = [stopped(each.window, step_s, noise_s) for each in used]
    found, elsewhere = [], 0
    for each, mine in zip(used, still, strict=True):
        alike = [float(other.window.freeze_s.max()) for other, its in zip(used, still, strict=True)
                 if its is not None and other.tokens == each.tokens]  # fmt: skip
        if mine is not None:
            found.append(replace(each, window=_only(each.window, mine)))
        elif alike and each.window.freeze_s.max() < min(alike) / 2:
            elsewhere += 1
        else:
            found.append(each)
    return found, elsewhere


def _only(window: Window, chosen: Bools) -> Window:
    return replace(window, freeze_s=window.freeze_s[chosen], tokens=window.tokens[chosen], chunks=window.chunks[chosen])
