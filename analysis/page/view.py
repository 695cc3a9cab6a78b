"""A run as the figures of its report look at it: classes with their colours, bins of time, limits to draw."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from analysis.goodput import Good, judge
from analysis.limits import ALL, good_limits
from analysis.limits import Limit as Asked
from analysis.page.axes import Axis, clock, nice
from analysis.page.figures import Band, Limit
from analysis.page.shell import Swatch
from analysis.quantiles import Bools, Floats
from analysis.report.wording import quantity
from analysis.run import Run
from analysis.stalls import episodes as stalls
from analysis.stalls.causes import Episodes, diagnose
from analysis.stalls.episodes import Stalls
from analysis.stalls.interference import interference
from analysis.throughput import start_ns, windows

MOST_CLASSES = 6
_MOST_BINS = 75


class Group(NamedTuple):
    """Requests that are drawn alike."""

    name: str
    role: str
    rows: Bools


@dataclass(frozen=True)
class View:
    """`summary` is that of the run, with the limits it is judged by."""

    run: Run
    summary: Mapping[str, Any]

    @property
    def rows(self) -> Bools:
        """The requests that the headline numbers are of."""
        return self.run.measured

    @cached_property
    def class_names(self) -> list[str]:
        """Those with measured requests, the largest first; beyond MOST_CLASSES they share a colour."""
        sizes = {name: int((mine & self.rows).sum()) for name, mine in self.run.classes.items()}
        return sorted((name for name, size in sizes.items() if size), key=lambda name: -sizes[name])

    def role(self, class_name: str) -> str:
        known = self.class_names
        return f"class{min(known.index(class_name), MOST_CLASSES - 1)}" if class_name in known else "muted"

    def groups(self, phase: str, rows: Bools) -> list[Group]:
        """Those of `rows` by class, in the colour of the phase where there is but one class."""
        names = self.class_names
        if len(names) < 2:
            return [Group(names[0] if names and names[0] else "all requests", phase, rows)] if rows.any() else []
        found = [Group(name or "no class", self.role(name), self.run.classes[name] & rows) for name in names]
        kept = [group for group in found[: MOST_CLASSES - 1] if group.rows.any()]
        rest = np.logical_or.reduce([group.rows for group in found[MOST_CLASSES - 1 :]], initial=False)
        return [*kept, Group("the others", f"class{MOST_CLASSES - 1}", rest)] if np.any(rest) else kept

    @cached_property
    def start_s(self) -> Floats:
        """When each request was due, or sent where it has no due time."""
        return start_ns(self.run) / 1e9

    @cached_property
    def end_s(self) -> float:
        """When the last stage, or the last request, was over."""
        ends = [end for _, end in windows(self.run).values()]
        instants = [self.run.column(name) for name in ("sent_ns", "last_token_ns", "end_ns")]
        return float(np.nanmax(np.concatenate([*instants, ends, [1e6]]))) / 1e9

    @cached_property
    def clock(self) -> Axis:
        return clock(self.end_s)

    @cached_property
    def bin_s(self) -> float:
        return nice(self.end_s / _MOST_BINS)

    @cached_property
    def edges_s(self) -> Floats:
        """Bounds of equal bins of time over the whole run."""
        return np.arange(np.ceil(self.end_s / self.bin_s) + 1) * self.bin_s

    @property
    def middles_s(self) -> Floats:
        return self.edges_s[:-1] + self.bin_s / 2

    def per_second(self, at_s: Floats, weights: Floats | None = None) -> Floats:
        """How many instants, or what sum of weights, each bin has per second."""
        known = ~np.isnan(at_s)
        sums, _ = np.histogram(at_s[known], self.edges_s, weights=None if weights is None else weights[known])
        return sums / self.bin_s

    def quantiles(self, at_s: Floats, values: Floats, wanted: tuple[float, ...]) -> list[Floats]:
        """Quantiles of the values in each bin of time; NaN in a bin without any."""
        known = ~(np.isnan(at_s) | np.isnan(values))
        at_s, values = at_s[known], values[known]
        order = np.argsort(at_s, kind="stable")
        parts = np.split(values[order], np.searchsorted(at_s[order], self.edges_s[1:-1]))
        found = [np.quantile(part, wanted) if len(part) else np.full(len(wanted), np.nan) for part in parts]
        return list(np.array(found).T)

    @cached_property
    def bands(self) -> list[Band]:
        """The stages that are not measured, and the drain after the last."""
        spans, unmeasured = windows(self.run), {s["name"] for s in self.run.stages if not s.get("measured", True)}
        found = [Band(str(name), *_seconds(spans[name])) for name in spans if name in unmeasured]
        last_s = max((end for _, end in spans.values()), default=0.0) / 1e9
        return [*found, Band("drain", last_s, self.end_s)] if self.end_s - last_s > 0.02 * self.end_s else found

    def limits(self, *metrics: str, across: bool = False) -> list[Limit]:
        """The limits of the gate on any of these metrics, as lines; those of several classes that agree as one."""
        classes: dict[tuple[str, float], list[str]] = {}
        for each in self.summary["slo"]["limits"]:
            if each["metric"] in metrics:
                metric = [each["metric"].upper()] if len(metrics) > 1 else []
                unit = each["metric"], each["statistic"]
                words = " ".join([*metric, limit_words(*unit, each["operator"], each["limit"])])
                classes.setdefault((words, each["limit"]), []).append(each["class"])
        return [
            Limit(" ".join([*_scope(names), words]), value, self._limit_role(names), across)
            for (words, value), names in classes.items()
        ]

    def _limit_role(self, names: list[str]) -> str:
        one = len(names) == 1 and names[0] != ALL and len(self.class_names) > 1
        return self.role(names[0]) if one else "limit"

    @cached_property
    def good(self) -> Good:
        """Which requests met the per-request limits that the summary counts by."""
        workload = self.run.meta.get("workload")
        spec: Mapping[str, Any] = workload if isinstance(workload, Mapping) else {}
        names = ("metric", "statistic", "operator", "limit", "class")
        limits = [Asked(*(each[name] for name in names)) for each in self.summary["slo"]["limits"]]
        return judge(self.run, good_limits(spec.get("good") or {}), limits)

    @cached_property
    def stalls(self) -> Stalls:
        return stalls.find(self.run)

    @cached_property
    def episodes(self) -> Episodes:
        return diagnose(self.run, self.stalls, self.rows)

    @cached_property
    def interference(self) -> dict[str, Any]:
        return interference(self.run, self.episodes)

    @cached_property
    def prompt_tokens(self) -> Floats:
        """By the server's count, or as planned where it does not tell."""
        told, asked = self.run.column("prompt_tokens"), self.run.column("asked_input_tokens")
        return np.where(np.isnan(told), asked, told)

    @cached_property
    def computed_tokens(self) -> Floats:
        """Of each prompt, those that the server did not find in its cache, as far as it tells."""
        return self.prompt_tokens - np.nan_to_num(self.run.column("cached_tokens"))


def legend(groups: list[Group], kind: str) -> list[Swatch]:
    return [Swatch(f"{group.name} ({int(group.rows.sum()):,})", group.role, kind) for group in groups]


def _seconds(window: tuple[float, float]) -> tuple[float, float]:
    return window[0] / 1e9, window[1] / 1e9


def _scope(classes: list[str]) -> list[str]:
    return [] if ALL in classes else [", ".join(classes)] if len(classes) <= 3 else [f"{len(classes)} classes:"]


def limit_words(metric: str, statistic: str | None, operator: str, value: float) -> str:
    """A limit in a figure of its metric."""
    return f"{statistic or ''} {operator} {quantity(metric, statistic, value)}"
