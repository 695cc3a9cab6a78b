"""Looks at a run that goes on until its limits are settled, and what they cost its intervals.

Whoever looks at a verdict again and again, and stops as soon as it is clear, is wrong more often than one who looks
once: each look is one more chance for the noise to cross the limit. So the looks are few and fixed beforehand, each at
twice the length of the one before, and they share the error of 5 % equally between them (Bonferroni, which holds
however alike they are): each interval of a run with K looks is one of 1 - 0.05 / K. Those of all its looks together
hold at 95 %, so that it does not matter at which of them the run was stopped (repeated confidence intervals: Jennison
and Turnbull 1989).

A look at length L is at the requests that were due up to L, once all of them have ended, however long that takes: to
take only those that have ended at L would leave out the slow ones. The stages between looks are stages of the run; what
was sent after the look that settled it is not measured.
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from analysis.intervals import Z95
from analysis.run import Run

GROWTH = 2.0
SHORTEST = 1.25
"""A last step that makes the run longer by less than this is left out: the look before it moves to the end."""


def look_ends_s(first_s: float, most_s: float) -> list[float]:
    """The lengths at which a run is looked at: `first_s`, twice that, … and `most_s`, at which it ends."""
    ends = []
    while first_s * SHORTEST <= most_s:
        ends.append(first_s)
        first_s *= GROWTH
    return [*ends, most_s]


def z_of(run: Run) -> float:
    """The normal quantile of the run's intervals: that of 95 %, or of one of several looks that share the error."""
    count = len(_looks(run).get("ends_ns") or ())
    return NormalDist().inv_cdf(1 - 0.025 / count) if count > 1 else Z95


def as_of(run: Run, look: int) -> Run:
    """A run that may still go on as its look number `look`, from 1, sees it.

    Whose stamps the arrivals bear is told at its end: until then the kernel's, unless the transport has no such.
    """
    source = run.meta.get("timestamp_source") or ("user" if run.meta.get("transport") == "httpx" else "kernel")
    whole = {"complete": True, "interrupted_by": None, "timestamp_source": source}
    return run.but(meta={**run.meta, **settled_at(run.meta, look), **whole})


def settled_at(meta: Mapping[str, Any], look: int) -> dict[str, Any]:
    """What changes in the description of a run that was settled at a look: later stages are not measured."""
    seen, stages = 0, []
    for stage in meta["stages"]:
        seen += bool(stage["measured"])
        stages.append({**stage, "measured": bool(stage["measured"]) and seen <= look})
    return {"stages": stages, "looks": {**(meta.get("looks") or {}), "taken": look}}


def told(run: Run) -> dict[str, Any] | None:
    """How often the run was to be looked at, and at which look it was settled (None: at none); None without looks."""
    looks = _looks(run)
    return {"planned": len(looks["ends_ns"]), "taken": looks.get("taken")} if looks else None


def unsettled(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The limits of a look that neither pass nor fail."""
    return [each for each in summary["slo"]["limits"] if each["verdict"] == "no_verdict"]


def can_settle(entry: Mapping[str, Any]) -> bool:
    """Whether more of the same could settle a limit: what is undefined, or doubted as a whole, it could not."""
    return entry["needed_s"] is not None


def _looks(run: Run) -> Mapping[str, Any]:
    return run.meta.get("looks") or {}
