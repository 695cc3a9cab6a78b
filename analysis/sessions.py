"""Conversations and agents' tasks as wholes: how long one takes, and how much of that is waiting for the model."""

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.quantiles import Bools, block
from analysis.run import Run

if TYPE_CHECKING:
    import pandas as pd


def sessions(run: Run, rows: Bools) -> dict[str, Any] | None:
    """Figures of the sessions among the requests in the mask `rows`; None where none has more than one turn.

    Only sessions whose requests have all succeeded, and all belong to `rows`, are measured, `n` of `of`: one that was
    cut, or had begun in the warm-up, would look short. A step is one model call; `model_s` is the time in which at
    least one call waits for its last token, as calls sent together wait together, and `pause_s` (think time, tools) the
    rest of `wall_s`. `context_growth_tokens` is the longest prompt of the last turn less that of the first;
    `cached_share` is of prompt tokens, null if the server never says.
    """
    numbered = run.column("turn")[rows & ~np.isnan(run.column("session"))]
    if not (numbered >= 2).any():
        return None
    frame = _frame(run, rows)
    whole = frame[frame.groupby("session")["whole"].transform("all")]
    turns = whole.groupby(["session", "turn"]).agg({"sent": "min", "end": "max", "prompt": "max"}).reset_index()
    each = turns.groupby("session")
    model_s = _covered_s(whole.sort_values("sent", kind="stable"))
    wall_s = each["end"].max() - each["sent"].min()
    prompts = whole["prompt"].sum()
    known = whole["cached"].notna().any() and prompts > 0
    return {
        "n": int(whole["session"].nunique()),
        "of": int(frame["session"][frame["inside"]].nunique()),
        "steps": block(whole.groupby("session").size().to_numpy().astype(np.float64)),
        "wall_s": block(wall_s.to_numpy(dtype=float)),
        "model_s": block(model_s.to_numpy(dtype=float)),
        "pause_s": block((wall_s - model_s).clip(lower=0).to_numpy(dtype=float)),
        "context_growth_tokens": block((each["prompt"].last() - each["prompt"].first()).to_numpy(dtype=float)),
        "cached_share": float(whole["cached"].sum() / prompts) if known else None,
    }


def _covered_s(calls: "pd.DataFrame") -> "pd.Series[Any]":
    """Seconds that the intervals of each session, in order of their start, cover together."""
    reach = calls.groupby("session")["end"].cummax()
    before = reach.groupby(calls["session"]).shift(fill_value=-np.inf)
    covered = (calls["end"] - np.maximum(calls["sent"], before)).clip(lower=0)
    return covered.groupby(calls["session"]).sum()


def _frame(run: Run, rows: Bools) -> "pd.DataFrame":
    """All requests of the sessions that have one in the mask `rows`."""
    import pandas as pd

    columns = {
        "session": run.column("session"),
        "turn": run.column("turn"),
        "sent": run.column("sent_ns") / 1e9,
        "end": run.column("last_token_ns") / 1e9,
        "prompt": run.column("prompt_tokens"),
        "cached": run.column("cached_tokens"),
        "inside": rows,
        "whole": rows & run.ok,
    }
    chosen = np.isin(columns["session"], columns["session"][rows])  # NaN is in nothing
    return pd.DataFrame({name: values[chosen] for name, values in columns.items()})
