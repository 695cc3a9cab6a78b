"""A run's own metrics in Prometheus' text format.

Nothing here is on the hot path: counts come from `loadgen.tally`, and text is made when somebody asks for it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadgen.drive import stage_at
from loadgen.progress import Progress
from loadgen.tally import UNIT_NS, Tally, Times

TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1, 1.5, 2.5, 5, 7.5, 10, 20, 40),
    *(80, 160),
)
ITL_S = (
    *(0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
LAG_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Upper bounds. Those of TTFT and ITL hold vLLM's own, so that both sides can be laid over one another."""


class Histogram:
    """Counts by upper bound in seconds, the last one infinite."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = bounds_s
        self._bounds = [round(bound * 1e9 / UNIT_NS) for bound in bounds_s]
        self._counts = [0] * (len(bounds_s) + 1)
        self.total_ns = 0

    def add(self, times: Times) -> None:
        """A time that was rounded down to a bound is above it, but for the very nanosecond."""
        for value, count in times.counts.items():
            self._counts[bisect_right(self._bounds, value)] += count
        self.total_ns += times.total_ns

    def samples(self, labels: "Labels") -> "Iterator[Sample]":
        """As Prometheus has them: how many did not exceed each bound, their sum and their number."""
        so_far = 0
        for bound, count in zip((*(str(float(bound)) for bound in self.bounds_s), "+Inf"), self._counts, strict=True):
            so_far += count
            yield "_bucket", [*labels, ("le", bound)], so_far
        yield "_sum", labels, self.total_ns / 1e9
        yield "_count", labels, so_far


@dataclass
class Totals:
    """All that has ended since the start, in the shape in which it is exported; by class where it has one."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    prompt_tokens: Counter[str] = field(default_factory=Counter)
    output_tokens: Counter[str] = field(default_factory=Counter)
    stalls: Counter[str] = field(default_factory=Counter)
    ttft: dict[str, Histogram] = field(default_factory=dict)
    itl: dict[str, Histogram] = field(default_factory=dict)
    lag: Histogram = field(default_factory=lambda: Histogram(LAG_S))

    @classmethod
    def of(cls, classes: Sequence[str]) -> "Totals":
        """Nothing yet, of each of these classes: a counter must begin at 0 to have a rate."""
        totals = cls()
        for name in classes:
            totals.ended[name, "ok"] = 0
            for counter in (totals.prompt_tokens, totals.output_tokens, totals.stalls):
                counter[name] = 0
            totals.ttft[name], totals.itl[name] = Histogram(TTFT_S), Histogram(ITL_S)
        return totals

    def add(self, tally: Tally) -> None:
        self.ended.update(tally.ended)
        self.prompt_tokens.update(tally.prompt_tokens)
        self.output_tokens.update(tally.output_tokens)
        self.stalls.update(tally.stalls)
        self.lag.add(tally.lag)
        for found, into, bounds_s in ((tally.ttft, self.ttft, TTFT_S), (tally.itl, self.itl, ITL_S)):
            for (_, name), times in found.items():
                into.setdefault(name, Histogram(bounds_s)).add(times)


Labels = Sequence[tuple[str, str]]
Sample = tuple[str, Labels, float]
"""What follows the family's name, the labels, the value."""


@dataclass(frozen=True)
class Family:
    """One metric: its name, its type, what it is, and its values."""

    name: str
    kind: str
    help: str
    samples: Sequence[Sample]

    def text(self) -> str:
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        lines += [f"{self.name}{suffix}{_braces(labels)} {value}" for suffix, labels, value in self.samples]
        return "\n".join([*lines, ""])


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels) + "}" if labels else ""


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exporter:
    """The metrics of one run. Feed it with `totals.add`; `text` is what Prometheus reads."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.totals = Totals.of(list(progress.schedule.workload.classes))
        self.running = True

    def text(self) -> str:
        return "".join(family.text() for family in (*self._ended(), *self._now(), *self._times()))

    def _ended(self) -> Iterator[Family]:
        totals = self.totals
        requests = [("", [("class", name), ("outcome", what)], n) for (name, what), n in sorted(totals.ended.items())]
        yield Family("loadgen_requests_total", "counter", "Planned requests that are over, by their end", requests)
        sent = [("", (), self._progress.live.sent)]
        yield Family("loadgen_requests_sent_total", "counter", "Requests sent", sent)
        for name, text, values in (
            ("loadgen_prompt_tokens_total", "Prompt tokens of requests that are over", totals.prompt_tokens),
            ("loadgen_output_tokens_total", "Output tokens of requests that are over", totals.output_tokens),
            ("loadgen_stalls_total", "Gaps in which a stream froze, of requests that ended ok", totals.stalls),
        ):
            yield Family(name, "counter", text, [("", [("class", each)], n) for each, n in sorted(values.items())])

    def _now(self) -> Iterator[Family]:
        """What holds at this moment; what is not known is left out."""
        progress = self._progress
        now_ns = max(0, progress.clock.now_ns())
        stage = stage_at(progress.schedule.stages, now_ns)
        stalled = progress.stalled(now_ns)
        gauges = {
            "loadgen_running": ("1 while the run lasts, 0 in the last state of a file", int(self.running)),
            "loadgen_elapsed_seconds": ("Time since the start of the run", now_ns / 1e9),
            "loadgen_requests_in_flight": ("Requests sent and not over", progress.live.in_flight),
            "loadgen_requests_waiting": ("Requests due and not sent", progress.waiting()),
            "loadgen_offered_requests_per_second": ("Planned rate of the stage", stage.offered_rps),
            "loadgen_stalled_streams": ("Streams in a stall", stalled and stalled.streams),
            "loadgen_longest_silence_seconds": ("Of these streams", stalled and stalled.longest_ns(now_ns) / 1e9),
        }
        for name, (text, value) in gauges.items():
            if value is not None:
                yield Family(name, "gauge", text, [("", (), value)])
        where = [("workload", progress.schedule.workload.name), ("stage", stage.name)]
        yield Family("loadgen_stage_info", "gauge", "Workload and stage of the load", [("", where, 1)])

    def _times(self) -> Iterator[Family]:
        totals = self.totals
        for name, text, values in (
            ("loadgen_time_to_first_token_seconds", "From the send to the first token", totals.ttft),
            ("loadgen_inter_token_latency_seconds", "Gaps between tokens, for each token", totals.itl),
        ):
            found = [each for label, times in sorted(values.items()) for each in times.samples([("class", label)])]
            yield Family(name, "histogram", text, found)
        if self._progress.schedule.loop == "open":
            lag = list(totals.lag.samples([]))
            yield Family("loadgen_send_lag_seconds", "histogram", "From due to sent: our own lateness", lag)
