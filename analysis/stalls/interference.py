"""Prefill interference over a whole run: how strong, how likely by chance, and who hurts whom."""

from typing import Any

import numpy as np

from analysis.quantiles import Floats, Ints
from analysis.run import Run
from analysis.stalls.causes import Episodes
from analysis.stalls.level import Level

SPREAD = 1.5
"""Lengths of prompts tell of a slope where the longest is so many times the shortest."""
FEW = 5
MOST_PAIRS = 500
MOST_CULPRITS = 20


def interference(run: Run, known: Episodes) -> dict[str, Any]:
    """What the episodes of a run say together, as plain JSON values; None where it cannot be told.

    `aligned_share` of the freezes of the whole engine end with a prefill that explains them, `chance_share` would if
    the same requests had come at other times, and `p_value` is how often those trials found as many. `effect` compares
    the stalls per 1,000 seconds of decoding with and without a long prompt waiting or being read.
    """
    mine = known.interference
    shared = mine | (known.cause == "engine_pause")
    aligned = float(mine[shared].mean()) if shared.any() else None
    trials = known.chance
    return {
        "episodes": int(mine.sum()),
        "frozen_s": float(known.frozen_s[mine].sum()),
        "aligned_share": aligned,
        "chance_share": float(trials.mean()) if shared.any() else None,
        "p_value": None if aligned is None else float((1 + (trials >= aligned).sum()) / (1 + len(trials))),
        "prefill_s_per_1k_tokens": _plain(known.pace_ns / 1e6),
        "slope": slope(known),
        "effect": _effect(known),
        "culprits": _culprits(run, known),
        "matrix": _matrix(run, known),
    }


def slope(known: Episodes) -> dict[str, Any] | None:
    """Seconds that streams stand still per 1,000 prompt tokens read; None without prefill interference.

    Over culprits: the length of all their freezes on the prompt tokens read in them. By the median of the slopes
    between any two of them (Theil 1950, Sen 1968) where their lengths differ, else the median of length over tokens.
    """
    tokens, length_s = _doses(known)
    if not len(tokens):
        return None
    per_token, by = _theil_sen(tokens, length_s), "theil_sen"
    if np.isnan(per_token):
        per_token, by = float(np.median(length_s / tokens)), "ratio"
    return {"s_per_1k_tokens": 1000 * per_token, "culprits": len(tokens), "by": by,
            "longest_s": float(length_s.max()), "median_s": float(np.median(length_s))}  # fmt: skip


def _doses(known: Episodes) -> tuple[Floats, Floats]:
    """Prompt tokens and seconds of freeze of each culprit whose prompt length is known."""
    mine = known.interference & (known.match.tokens > 0)
    culprit, at = np.unique(known.culprit[mine], return_inverse=True)
    tokens = np.zeros(len(culprit))
    np.maximum.at(tokens, at, known.match.tokens[mine].astype(np.float64))
    length_s = np.bincount(at, weights=(known.end_ns - known.start_ns)[mine] / 1e9, minlength=len(culprit))
    return tokens, length_s.astype(np.float64)


def _theil_sen(x: Floats, y: Floats) -> float:
    """NaN where there are few points, or all of about the same x."""
    if len(x) < FEW or x.max() < SPREAD * x.min():
        return float("nan")
    x, y = (each[np.linspace(0, len(x) - 1, min(len(x), MOST_PAIRS)).astype(int)] for each in (x, y))
    i, j = np.triu_indices(len(x), 1)
    apart = np.abs(x[i] - x[j]) > 0.1 * x.max()
    if not apart.any():
        return float("nan")
    return float(np.median((y[i] - y[j])[apart] / (x[i] - x[j])[apart]))


def _effect(known: Episodes) -> dict[str, Any] | None:
    waits, decoding = known.waits, known.streams.decoding
    if not (waits.tokens > 0).any() or not len(decoding.at_ns):
        return None
    long_tokens = _long_tokens(known)
    chosen = waits.tokens >= long_tokens
    long = Level.open(waits.from_ns[chosen], waits.until_ns[chosen])
    beside = Level(long.at_ns, np.minimum(long.value, 1.0))
    ends = decoding.at_ns[:1], decoding.at_ns[-1:]
    all_s = float(decoding.area(*ends)[0]) / 1e9
    with_s = float(decoding.times(beside).area(*ends)[0]) / 1e9
    middle = (known.stalls.start_ns + known.stalls.end_ns) // 2
    hit = int((beside.at(middle) > 0).sum())
    with_rate = _rate(hit, with_s)
    without_rate = _rate(len(middle) - hit, all_s - with_s)
    return {
        "long_prompt_tokens": long_tokens,
        "with_long_prefill": {"decoding_s": with_s, "stalls": hit, "per_1k_s": with_rate},
        "without": {"decoding_s": all_s - with_s, "stalls": len(middle) - hit, "per_1k_s": without_rate},
        "ratio": with_rate / without_rate if with_rate is not None and without_rate else None,
    }


def _long_tokens(known: Episodes) -> int:
    """Half of the median culprit's prompt; where nobody is one, what a tenth of the prompts exceed."""
    tokens = known.match.tokens[known.interference]
    if len(tokens) and np.median(tokens) > 0:
        return max(1, int(np.median(tokens) / 2))
    return int(np.quantile(known.waits.tokens[known.waits.tokens > 0], 0.9))


def _rate(count: int, seconds: float) -> float | None:
    return 1000 * count / seconds if seconds > 0 else None


def _culprits(run: Run, known: Episodes) -> list[dict[str, Any]]:
    """The requests that made others stand still the longest, worst first."""
    mine = known.interference
    rows, at = np.unique(known.culprit[mine], return_inverse=True)
    frozen_s = np.bincount(at, weights=known.frozen_s[mine], minlength=len(rows))
    return [
        {
            "request_id": str(run.requests["request_id"].iloc[rows[i]]),
            "class": _class(run, int(rows[i])),
            "prompt_tokens": prompt_tokens(run, int(rows[i])),
            "episodes": int((at == i).sum()),
            "frozen_s": float(frozen_s[i]),
        }
        for i in np.argsort(-frozen_s, kind="stable")[:MOST_CULPRITS]
    ]


def _matrix(run: Run, known: Episodes) -> list[dict[str, Any]]:
    """Stalls and seconds frozen by class of the culprit and class of the victim."""
    import pandas as pd

    mine = known.interference[known.of]
    names = run.requests["class"].astype("object").fillna("").to_numpy()
    frame = pd.DataFrame({
        "culprit_class": names[known.culprit[known.of[mine]]],
        "victim_class": names[known.stalls.row[mine]],
        "frozen_s": known.stalls.stalled_s[mine],
    })  # fmt: skip
    cells = frame.groupby(["culprit_class", "victim_class"], sort=True)["frozen_s"].agg(["count", "sum"])
    return [
        {"culprit_class": culprit, "victim_class": victim, "stalls": int(count), "frozen_s": float(total)}
        for (culprit, victim), count, total in zip(cells.index, cells["count"], cells["sum"], strict=True)
    ]


def _class(run: Run, row: int) -> str | None:
    codes, names = run.words("class")
    return None if codes[row] < 0 else names[codes[row]]


def prompt_tokens(run: Run, row: int) -> int | None:
    """By the server's count, else as planned."""
    for name in ("prompt_tokens", "asked_input_tokens"):
        if not np.isnan(run.column(name)[row]):
            return int(run.column(name)[row])
    return None


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def duration_s(known: Episodes) -> float:
    """From the first token of the run to the last."""
    at: Floats | Ints = known.streams.decoding.at_ns
    return float(at[-1] - at[0]) / 1e9 if len(at) else 0.0
