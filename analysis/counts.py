"""How requests ended, and the tokens they carried."""

from typing import Any

import numpy as np

from analysis.quantiles import Bools, Floats
from analysis.record import NEVER_SENT, OUTCOMES
from analysis.run import Run

_MOST_ERRORS = 50


def requests(run: Run, rows: Bools) -> dict[str, Any]:
    """Counts over the requests in the mask `rows`.

    planned = ok + failed + cancelled + skipped + not_sent; sent = the first three of them. `censored` are those sent
    and then cut by us.
    """
    by_outcome = _tally(run, rows, "outcome")
    count = {name: by_outcome.get(name, 0) for name in OUTCOMES}
    sent = int((rows & run.sent).sum())
    failed = sent - count["ok"] - count["cancelled"]
    cut = rows & run.where("outcome", "cancelled") & ~np.isnan(run.column("sent_ns"))
    return {
        "planned": int(rows.sum()),
        "sent": sent,
        "ok": count["ok"],
        "failed": failed,
        "not_sent": count["not_sent"],
        "skipped": count["skipped"],
        "cancelled": count["cancelled"],
        "censored": int(cut.sum()),
        "error_rate": failed / sent if sent else None,
        "by_outcome": by_outcome,
        "by_finish_reason": _tally(run, rows & run.ok, "finish_reason"),
        "errors": _errors(run, rows),
    }


def tokens(run: Run, rows: Bools) -> dict[str, Any]:
    """Tokens of the requests that succeeded (and, apart, of those that failed); None where nobody counted them."""
    ok = rows & run.ok
    events, output = run.events, run.column("output_tokens")
    counted = ok & ~np.isnan(output) & (events.per_request > 0)
    reads = events.reads[ok].sum()
    failed = rows & run.sent & ~run.where("outcome", "ok", "cancelled")
    return {
        "prompt": _sum(run, "prompt_tokens", ok),
        "cached": _sum(run, "cached_tokens", ok),
        "output": _sum(run, "output_tokens", ok),
        "reasoning": _sum(run, "reasoning_tokens", ok),
        "failed_output": int(np.nansum(output[failed])),
        "source": _source(run, ok),
        "per_event": float(output[counted].sum() / events.per_request[counted].sum()) if counted.any() else None,
        "events_per_read": float(events.per_request[ok].sum() / reads) if reads else None,
        "asked": {
            "input": _asked(run.column("asked_input_tokens")[ok], run.column("prompt_tokens")[ok]),
            "output": _asked(asked_output_tokens(run)[ok], run.column("output_tokens")[ok]),
        },
    }


def asked_output_tokens(run: Run) -> Floats:
    """What each request asked for in all, as usage counts it: its length for each of its choices."""
    return run.column("asked_output_tokens") * np.maximum(np.nan_to_num(run.column("choices")), 1)


def _asked(wanted: Floats, found: Floats) -> dict[str, Any] | None:
    """What was planned beside what the server counted, in tokens a request: `mean_off` is got - asked, `exact` the
    share of requests without a difference, `within` that of those off by at most 2 tokens or 1 %. None where one of
    the two is not known."""
    known = ~np.isnan(wanted) & ~np.isnan(found)
    if not known.any():
        return None
    wanted, off = wanted[known], found[known] - wanted[known]
    return {
        "n": int(known.sum()),
        "mean_asked": float(wanted.mean()),
        "mean_off": float(off.mean()),
        "most_off": int(off[np.argmax(np.abs(off))]),
        "exact": float((off == 0).mean()),
        "within": float((np.abs(off) <= np.maximum(2, wanted / 100)).mean()),
    }


def _tally(run: Run, rows: Bools, column: str) -> dict[str, int]:
    """How often each value of a column occurs, most frequent first."""
    codes, names = run.words(column)
    counts = np.bincount(codes[rows & (codes >= 0)], minlength=len(names)).tolist()
    found = sorted(zip(names, counts, strict=True), key=lambda each: -each[1])
    return {name: count for name, count in found if count}


def _errors(run: Run, rows: Bools) -> list[dict[str, Any]]:
    """What went wrong, one entry for each kind of failure, most frequent first."""
    at = rows & ~run.where("outcome", "ok", "cancelled", *NEVER_SENT)
    if not at.any():
        return []
    failed = run.requests[at]
    keys = failed[["outcome", "status", "error"]].astype("object")
    groups = failed.groupby([keys[name] for name in keys], dropna=False, sort=False)["request_id"]
    found = [
        {"outcome": outcome, "status": _known(status), "message": _known(message), "count": len(ids),
         "first_request_id": ids.iloc[0]}
        for (outcome, status, message), ids in groups
    ]  # fmt: skip
    return sorted(found, key=lambda each: -each["count"])[:_MOST_ERRORS]


def _known(value: Any) -> Any:
    if not isinstance(value, str) and np.asarray(value != value, dtype=object).item() is not False:  # NaN or NA
        return None
    return value if isinstance(value, str) else int(value)


def _sum(run: Run, column: str, rows: Bools) -> int | None:
    values = run.column(column)[rows]
    return None if np.isnan(values).all() else int(np.nansum(values))


def _source(run: Run, ok: Bools) -> str | None:
    found = [name for name in ("usage", "estimated") if (ok & run.where("tokens_source", name)).any()]
    return None if not found else found[0] if len(found) == 1 else "mixed"
