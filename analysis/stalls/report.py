"""Everything that a run says about why its streams froze, as one document."""

from typing import Any

import numpy as np

from analysis.run import Run
from analysis.server import server_part
from analysis.stalls.causes import CAUSES, Episodes, diagnose
from analysis.stalls.episodes import MOST_EPISODES, listed, totals
from analysis.stalls.frozen import find
from analysis.stalls.interference import interference
from analysis.stalls.lanes import lanes, timeline, worst_window
from analysis.stalls.remedies import remedies

FORMAT_VERSION = 1


def stalls_report(run: Run, request_id: str | None = None) -> dict[str, Any]:
    """The diagnosis of a run over its measured stages, as plain JSON values (no NaN).

    Args:
        run: What was measured.
        request_id: Adds the `timeline` of this request. ValueError (one line) if there is none.

    Returns:
        `{format_version, run, stalls: {…totals, episodes: […]}, causes: [{cause, episodes, stalls, frozen_s}],
        interference, remedies, server, window, timeline}`. Episodes come in order of harm: the seconds that streams
        stood still in them, summed over the streams. `window` is the worst episode as lanes.
    """
    rows = run.measured
    found = find(run)
    known = diagnose(run, found, rows)
    told = interference(run, known)
    by_harm = np.argsort(-known.frozen_s, kind="stable")[:MOST_EPISODES]
    window = worst_window(known)
    return {
        "format_version": FORMAT_VERSION,
        "run": {key: run.meta.get(key) for key in ("id", "target", "model", "timestamp_source")},
        "stalls": totals(run, found, rows) | {"episodes": listed(run, known, by_harm)},
        "causes": _causes(known),
        "interference": told,
        "remedies": remedies(run, known, told),
        "server": server_part(run),
        "window": None if window is None else lanes(run, known, window),
        "timeline": None if request_id is None else timeline(run, known, request_id),
    }


def _causes(known: Episodes) -> list[dict[str, Any]]:
    """The causes found, the most harmful first."""
    stalls = np.diff(known.starts)
    found = [
        {
            "cause": cause,
            "episodes": int(mine.sum()),
            "stalls": int(stalls[mine].sum()),
            "frozen_s": float(known.frozen_s[mine].sum()),
        }
        for cause in CAUSES
        if (mine := known.cause == cause).any()
    ]
    return sorted(found, key=lambda each: -float(each["frozen_s"]))
