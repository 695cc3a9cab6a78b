"""Recorded traffic as sessions: with the times of the trace, or as conversations that come when the workload says."""

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from workloads.load_spec import Trace
from workloads.request import Passage, Round, Session, Turn
from workloads.shapes import BLOCKS, SESSION, TALK, Draws, Shape
from workloads.spec import Workload
from workloads.trace_formats import BLOCK_TOKENS, Conversation, Row, TraceReport, conversations, timed_rows
from workloads.units import to_ns
from workloads.yaml_file import WorkloadError

REORDER_ROWS = 1_000
"""Rows kept back to put those in order that were written a little late."""


class Replay:
    """A trace with times: each row a session of one turn that is due when the row says.

    The rows of one conversation of the trace keep their own times too. Each prompt of it begins with the words of the
    one before, so that a prefix cache finds there what it would have found.
    """

    def __init__(self, workload: Workload, trace: Trace, seed: int) -> None:
        self._workload = workload
        self._trace = trace
        self._seed = seed
        self._shapes = {name: Shape(name, spec, seed, cold=workload.cold) for name, spec in workload.classes.items()}

    def due(self, report: TraceReport) -> Iterator[tuple[int, Row]]:
        """(due_ns, row) of everything that is sent, in order of time."""
        measured = 0
        warm_ns = to_ns(self._workload.warmup)
        end_ns = None if self._workload.duration is None else warm_ns + to_ns(self._workload.duration)
        for due_ns, row in self._chosen(report):
            if end_ns is not None and due_ns >= end_ns:
                return
            measured += due_ns >= warm_ns
            report.used += 1
            report.turns += 1
            yield due_ns, row
            if measured == self._workload.requests:
                return

    def sessions(self, part: int = 0, of: int = 1) -> Iterator[Session]:
        """The sessions with number ≡ part mod `of`."""
        said: dict[str, int] = defaultdict(int)
        for number, (due_ns, row) in enumerate(self.due(TraceReport())):
            position = 1
            if row.session is not None:
                said[row.session] += 1
                position = said[row.session]
            if number % of == part:
                yield self._session(number, due_ns, row, position)

    def _chosen(self, report: TraceReport) -> Iterator[tuple[int, Row]]:
        trace = self._trace
        start_ns, end_ns = (0, None) if trace.window is None else map(to_ns, trace.window)
        first_ns = None
        for row in in_order(timed_rows(trace.file, trace.format, report), report):
            first_ns = row.time_ns if first_ns is None else first_ns
            time_ns = row.time_ns - first_ns
            if end_ns is not None and time_ns >= end_ns:
                return
            if time_ns >= start_ns and self._wanted(row, report):
                yield round((time_ns - start_ns) / trace.speed), row
        report.to_the_end = True

    def _wanted(self, row: Row, report: TraceReport) -> bool:
        """Whether the row is in the sample and can be sent; reports why not."""
        trace = self._trace
        # A row without a session is one of its own: thinned like that, bursts stay bursts.
        if not sampled(f"line {row.line}" if row.session is None else row.session, trace.sample):
            return False
        why = _too_long(trace, row.input_tokens, row.output_tokens)
        if row.class_name is not None and row.class_name not in self._shapes:
            why = f"class {row.class_name[:40]!r}, which the workload does not have"
        if why:
            report.drop(why, row.line)
        return not why

    def _session(self, number: int, due_ns: int, row: Row, position: int) -> Session:
        name = row.class_name or next(iter(self._shapes))
        shape = self._shapes[name]
        tools = shape.tools if sum(p.tokens for p in shape.tools) < row.input_tokens else ()
        defined = sum(p.tokens for p in tools)
        passages = shape.headed(tuple(_passages(shape, number, row, row.input_tokens - defined)), number)
        turn = Turn(
            request_id=f"{self._seed:x}-{number}-1",
            number=position,
            passages=passages,
            input_tokens=sum(p.tokens for p in passages) + defined,
            output_tokens=row.output_tokens,
            body=shape.body,
            tools=tools,
        )
        return Session(number, name, due_ns, (Round((turn,)),))


def _passages(shape: Shape, number: int, row: Row, left: int) -> Iterator[Passage]:
    """The class's system prompt, as far as `left` tokens have room for it, then the row's own text."""
    for passage in shape.prefix():
        if passage.tokens < left:
            left -= passage.tokens
            yield passage
    for block in row.blocks:
        if left > 0:
            yield Passage("user", shape.key(BLOCKS, block + 1), min(left, BLOCK_TOKENS))
            left -= BLOCK_TOKENS
    if left > 0:
        own = (SESSION, number + 1, 1) if row.session is None else (TALK, _digest(row.session))
        yield Passage("user", shape.key(*own), left)


def in_order(rows: Iterator[Row], report: TraceReport) -> Iterator[Row]:
    """Rows by time; one more than `REORDER_ROWS` rows too late to be put in its place is dropped."""
    kept: list[tuple[int, int, Row]] = []
    newest = last = -1
    for row in rows:
        if row.time_ns < last:
            report.drop(f"a time that lies more than {REORDER_ROWS:,} rows back", row.line)
            continue
        report.reordered += row.time_ns < newest
        newest = max(newest, row.time_ns)
        heapq.heappush(kept, (row.time_ns, row.line, row))
        if len(kept) > REORDER_ROWS:
            last, _, first = heapq.heappop(kept)
            yield first
    while kept:
        yield heapq.heappop(kept)[2]


class Conversations:
    """The sessions of a trace without times, by number from 0, over and over: `Traffic` with recorded lengths.

    What the trace does not say (system prompt, think time, whose answers the history takes) is the class's. Each time
    round, the texts are others.
    """

    def __init__(self, workload: Workload, trace: Trace, seed: int) -> None:
        (self._shape,) = (Shape(name, spec, seed, cold=workload.cold) for name, spec in workload.classes.items())
        self._trace = trace
        self._system = sum(passage.tokens for passage in self._shape.prefix())

    @cached_property
    def report(self) -> TraceReport:
        """What one reading of the file finds. WorkloadError if that is nothing."""
        report = TraceReport()
        for turns in self._usable(report):
            report.used += 1
            report.turns += len(turns)
        return check_usable(self._trace, report)

    def drawn(self, start: int = 0) -> Iterator[tuple[int, Shape, Draws]]:
        """(number, class, draws) of each session from number `start` on."""
        number, before = 0, -1
        while number != before:  # a file that has become empty since is no loop without end
            before = number
            for turns in self._usable(TraceReport()):
                if number >= start:
                    yield number, self._shape, self._draws(number, turns)
                number += 1

    def mean_turns(self) -> float:
        """Model calls that a session makes on average."""
        return self.report.turns / self.report.used

    def _usable(self, report: TraceReport) -> Iterator[Conversation]:
        for i, (line, turns) in enumerate(conversations(self._trace.file, report)):
            if sampled(f"conversation {i}", self._trace.sample):
                short = tuple(self._fitting(turns))
                if short:
                    yield short
                else:
                    report.drop(_too_long(self._trace, self._system + turns[0][0], turns[0][1]) or "", line)

    def _fitting(self, turns: Conversation) -> Iterator[tuple[int, int]]:
        """The turns before the first that is longer than the maxima."""
        context = self._system
        for inputs, outputs in turns:
            if _too_long(self._trace, context + inputs, outputs):
                return
            yield inputs, outputs
            context += inputs + outputs

    def _draws(self, number: int, turns: Conversation) -> Draws:
        n = len(turns)
        inputs, outputs = zip(*turns, strict=True)
        return Draws([1] * n, self._shape.pauses_ns(number, n).tolist(), inputs, outputs, [0] * n, [])


def sampled(session: str, share: float) -> bool:
    """Whether a session is in a sample of that share: the same ones every time, and more of them as it grows."""
    return share >= 1 or _digest(session) < share * 2**64


def check_usable(trace: Trace, report: TraceReport) -> TraceReport:
    """The report. WorkloadError if nothing is left to send."""
    if report.used:
        return report
    worst = max(report.dropped, key=lambda reason: report.dropped[reason][0], default=None)
    if worst is not None:
        count, lines = report.dropped[worst]
        found = f"no usable row in this {trace.format} trace; {count:,} of {report.rows:,}: {worst}"
        raise WorkloadError(f"{trace.file}:{lines[0]}: {found}")
    what = "is empty" if not report.rows else "has no row in the window, the run and the sample"
    raise WorkloadError(f"{trace.file}: this {trace.format} trace {what}")


def _too_long(trace: Trace, input_tokens: int, output_tokens: int) -> str | None:
    if trace.max_input_tokens is not None and input_tokens > trace.max_input_tokens:
        return f"more than max_input_tokens ({trace.max_input_tokens:,})"
    if trace.max_output_tokens is not None and output_tokens > trace.max_output_tokens:
        return f"more than max_output_tokens ({trace.max_output_tokens:,})"
    return None


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")
