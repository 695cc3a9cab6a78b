"""How many tokens a request gave (N) and how they spread over its events (k_j)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.events import Events, Small
from analysis.quantiles import Floats, Ints
from analysis.record import UNKNOWN

USAGE, ESTIMATED, MISMATCH = "usage", "estimated", "mismatch"
"""Where N comes from: the server's usage, the events themselves, or nowhere because the two contradict each other."""


@dataclass(frozen=True)
class Resolved:
    """Per request `output_tokens` (NaN = undefined) and its `source` (None = no tokens at all); per event `tokens`."""

    output_tokens: Floats
    source: npt.NDArray[Any]
    tokens: Small


def resolve(
    completion_tokens: Floats, choices: Ints, events: Events, tokenizer_tokens: Floats | None = None
) -> Resolved:
    """Decide N and k_j from the final usage (NaN = never told) and from what each event told (`events.tokens`).

    N is the final usage; without it, what a tokenizer of ours counted in the text (`tokenizer_tokens`, NaN = nothing),
    else what the events told, else their number. Usage of fewer tokens than there were
    token events is not believed. k_j is what was told if all of it adds up to N; 1 if there are N events; N if there is
    one event; else UNKNOWN. With several choices an event's share of N says nothing of the stream it belongs to.
    """
    count = events.per_request
    told = events.tokens
    all_told = (events.sum_by_request(told < 1) == 0) & (count > 0)
    told_sum = events.sum_by_request(np.maximum(told, 0))
    by_events = np.where(count > 0, np.where(all_told, told_sum, count), np.nan)
    if tokenizer_tokens is not None:
        by_events = np.where(np.isnan(tokenizer_tokens) | (count == 0), by_events, tokenizer_tokens)
    mismatch = completion_tokens < count
    output = np.where(np.isnan(completion_tokens), by_events, completion_tokens)
    output[mismatch] = np.nan
    source = np.where(np.isnan(completion_tokens), ESTIMATED, USAGE).astype(object)
    source[mismatch] = MISMATCH
    source[np.isnan(completion_tokens) & (count == 0)] = None
    tokens = _spread(output, choices, events, all_told & (told_sum == output))
    return Resolved(output, source, tokens)


def _spread(output: Floats, choices: Ints, events: Events, adds_up: npt.NDArray[np.bool_]) -> Small:
    count = events.per_request
    single = choices == 1
    implied = np.full(len(count), UNKNOWN, dtype=np.int32)
    implied[single & (count == output)] = 1
    one_event = (count == 1) & (output >= 1) & (output < 2**31)
    implied[one_event] = output[one_event].astype(np.int32)
    believed = single & adds_up
    if bool(np.all(believed | (count == 0))):
        return events.tokens
    return np.where(np.repeat(believed, count), events.tokens, np.repeat(implied, count)).astype(np.int32)
