"""Several runs of one workload as one run, end to end on one timeline, so that every number is made as for one run.

What keeps them apart: each has stages of its own name, and blocks of time of its own, between which runs that differ
more than by chance make every interval wider (`intervals.spread`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.quantiles import Ints
from analysis.run import Run

if TYPE_CHECKING:
    import pandas as pd

APART_NS = 1_000_000_000
"""Between the last thing that happened in a run and the start of the next."""

_SHARED = ("workload", "target", "model", "endpoint", "loop")


def starts_ns(run: Run) -> list[float]:
    """Where on its timeline each of the runs starts that make up a run: one of them, unless it is pooled."""
    return [float(each["start_ns"]) for each in run.meta.get("pooled") or [{"start_ns": 0}]]


def run_count(run: Run) -> int:
    return len(run.meta.get("pooled") or [None])


def run_numbers(run: Run) -> Ints | None:
    """The number of the run that each request is of, by its stage; None where there is but one."""
    if run_count(run) == 1:
        return None
    starts = np.array(starts_ns(run))
    of = {stage["name"]: int(np.searchsorted(starts, stage["start_ns"], "right")) - 1 for stage in run.stages}
    codes, names = run.words("stage")
    return np.array([*(of.get(name, 0) for name in names), 0], dtype=np.int64)[codes]


def pool(runs: Sequence[Run]) -> Run:
    """At least one run as one. ValueError (one line) where they are not runs of the same workload and target."""
    _check(runs)
    if len(runs) == 1:
        return runs[0]
    import pandas as pd

    offset_ns, moved, pooled = 0, [], []
    for number, run in enumerate(runs, 1):
        moved.append(_moved(run, number, offset_ns))
        pooled.append({"start_ns": offset_ns, **_about(run)})
        offset_ns += _end_ns(run) + APART_NS
    meta = _meta(runs, moved, pooled)
    requests, chunks = (pd.concat([getattr(each, name) for each in moved], ignore_index=True) for name in _TABLES)
    more = (_samples(moved, each) for each in (*_SIDES, "counted"))
    return Run.from_frames(meta, _typed(requests), _typed(chunks), *more)


_TABLES, _SIDES = ("requests", "chunks"), ("server", "client")


def _check(runs: Sequence[Run]) -> None:
    if not runs:
        raise ValueError("no runs to pool")
    if len({run.meta.get("keep_events", "all") for run in runs}) > 1:
        raise ValueError("these runs kept different events (--keep-events): only alike ones can be judged together")
    for key in _SHARED:
        if any(_plan(run, key) != _plan(runs[0], key) for run in runs):
            raise ValueError(f"these are runs of another {key}: only runs of the same can be judged together")


def _plan(run: Run, key: str) -> Any:
    found = run.meta.get(key)
    return {k: v for k, v in found.items() if k != "seed"} if isinstance(found, Mapping) else found


def _about(run: Run) -> dict[str, Any]:
    return {key: run.meta.get(key) for key in ("id", "seed", "started_at", "complete", "interrupted_by")}


def _end_ns(run: Run) -> int:
    """When the last thing happened in a run."""
    instants = [run.column(name) for name in ("due_ns", "sent_ns", "last_token_ns", "end_ns")]
    ends = [float(stage["end_ns"]) for stage in run.stages if stage.get("end_ns")]
    return int(np.nanmax(np.concatenate([*instants, ends, [0.0]])))


def _moved(run: Run, number: int, offset_ns: int) -> Run:
    """A run later on the timeline, with names that no other has."""
    requests, chunks = run.requests.copy(), run.chunks.copy()
    for name in [each for each in map(str, requests) if each.endswith("_ns")]:
        requests[name] = requests[name] + offset_ns
    requests["session"] = requests["session"] + (number - 1) * _SESSIONS
    requests["stage"] = requests["stage"].astype("object").map(lambda name: _named(name, number), na_action="ignore")
    requests["request_id"] = f"{number}:" + requests["request_id"].astype("object")
    chunks["request_id"] = _renamed(chunks["request_id"], number)
    counted = run.counted
    if counted is not None:
        counted = counted.assign(request_id=_renamed(counted["request_id"], number))
    chunks["arrival_ns"] = chunks["arrival_ns"] + offset_ns
    server, client = (_later(frame, offset_ns) for frame in (run.server, run.client))
    return Run({**run.meta, "stages": _stages(run, number, offset_ns)}, requests, chunks, server, client, counted)


def _renamed(ids: "pd.Series[Any]", number: int) -> "pd.Series[Any]":
    owner = ids.astype("category").cat
    renamed: pd.Series[Any] = owner.rename_categories([f"{number}:{each}" for each in owner.categories])
    return renamed


_SESSIONS = 10**12
"""More sessions than a run has."""


def _named(stage: str, number: int) -> str:
    return f"{stage} of run {number}"


def _stages(run: Run, number: int, offset_ns: int) -> list[dict[str, Any]]:
    """Those of a run; all of it, where it names none."""
    moved = []
    for stage in run.stages:
        end_ns = None if stage.get("end_ns") is None else stage["end_ns"] + offset_ns
        start_ns = (stage.get("start_ns") or 0) + offset_ns
        moved.append({**stage, "name": _named(stage["name"], number), "start_ns": start_ns, "end_ns": end_ns})
    return moved


def _later(frame: "pd.DataFrame | None", offset_ns: int) -> "pd.DataFrame | None":
    return frame if frame is None or "t_ns" not in frame else frame.assign(t_ns=frame["t_ns"] + offset_ns)


def _meta(runs: Sequence[Run], moved: Sequence[Run], pooled: list[dict[str, Any]]) -> dict[str, Any]:
    first = runs[0].meta
    metas = [run.meta for run in runs]
    whole = all(meta.get("complete", True) for meta in metas)
    stepped_ns = sum(abs((meta.get("clock") or {}).get("stepped_ns") or 0) for meta in metas)
    sources = {meta.get("timestamp_source") for meta in metas}
    return {
        **first,
        "stages": [stage for run in moved for stage in run.stages],
        "complete": whole,
        "interrupted_by": next((meta.get("interrupted_by") for meta in metas if meta.get("interrupted_by")), None),
        "timestamp_source": sources.pop() if len(sources) == 1 else "user",
        "clock": {**(first.get("clock") or {}), "stepped_ns": stepped_ns},
        "warnings": [each for meta in metas for each in meta.get("warnings") or []],
        "pooled": pooled,
    }


def _samples(moved: Sequence[Run], name: str) -> "pd.DataFrame | None":
    import pandas as pd

    frames = [frame for run in moved if (frame := getattr(run, name)) is not None and len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else None


def _typed(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Columns of words as categories again: those of runs with other words do not stay so when put together."""
    import pandas as pd

    words = [name for name in _WORDS if name in frame and not isinstance(frame[name].dtype, pd.CategoricalDtype)]
    return frame.assign(**{name: frame[name].astype("category") for name in words})


_WORDS = ("class", "stage", "outcome", "finish_reason", "tokens_source", "kind")
