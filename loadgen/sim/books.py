"""Everything that left, noted as it leaves and counted when there is time: histograms, ends and the truth."""

import time
from collections.abc import Callable

from loadgen.sim.metrics import Ends, Histograms
from loadgen.sim.realtime import Sink
from loadgen.sim.tokens import Token, Totals
from loadgen.sim.truth import Row, TruthFile
from loadgen.sim.wire import request_of


class Told(Sink):
    """A sink that is kept book of. Instants are monotonic; `opened_ns` is when the core got the request."""

    __slots__ = ("choice", "finish", "first_ns", "last_ns", "opened_ns", "prompt_tokens")

    def __init__(self, request_id: str, choice: int, prompt_tokens: int, finish: str) -> None:
        super().__init__(request_id)
        self.choice, self.prompt_tokens, self.finish = choice, prompt_tokens, finish
        self.opened_ns = self.first_ns = self.last_ns = 0


Note = tuple[Told, Token, int, int, int, str]
"""A token that was written: when its pass ended (due), when the faults on its way let it go (ready), when it went
(sent), all in monotonic ns, and the fault that held it back. A plain tuple: it is made while others wait to be written.
"""


class Books:
    """`notes` is appended to on the way of a token; `digest` counts them, at some 2 µs each."""

    def __init__(self, truth: TruthFile | None = None) -> None:
        self.notes: list[Note] = []
        self.histograms = Histograms()
        self.ends = Ends()
        self.late_max_ns = 0
        self._truth = truth

    def digest(self, totals: Callable[[], Totals]) -> None:
        notes = self.notes[:]
        self.notes.clear()  # in place: whoever appends holds on to this list
        for note in notes:
            self._count(note)
        if any(token.number == token.count for _, token, *_ in notes):
            self.histograms.observe_totals(totals())
        if self._truth is not None and notes:
            epoch_ns = time.time_ns() - time.monotonic_ns()
            self._truth.add([_row(note, epoch_ns) for note in notes])

    def close(self) -> None:
        if self._truth is not None:
            self._truth.close()

    def lateness_text(self) -> str:
        """One line: how late our own writes were."""
        late = self.histograms.lateness
        if not late.count:
            return "no token was written"
        p50, p99 = (f"{late.quantile_bound(q) * 1e3:g}" for q in (0.5, 0.99))
        return (
            f"{late.count} writes of tokens, late by at most {p50} ms (half of them), {p99} ms (99 % of them), "
            f"{self.late_max_ns / 1e6:.3f} ms (all)"
        )

    def _count(self, note: Note) -> None:
        sink, token, due_ns, ready_ns, sent_ns, _ = note
        late_ns = sent_ns - ready_ns
        self.late_max_ns = max(self.late_max_ns, late_ns)
        self.histograms.lateness.observe(late_ns / 1e9)
        if sink.first_ns:
            self.histograms.inter_token.observe((due_ns - sink.last_ns) / 1e9 / token.count, token.count)
        else:
            sink.first_ns = due_ns
            self.histograms.first_token.observe((due_ns - sink.opened_ns) / 1e9)
        sink.last_ns = due_ns
        if token.last:
            self._count_request(sink, token.number)

    def _count_request(self, sink: Told, tokens: int) -> None:
        seen, decode_s = self.histograms, (sink.last_ns - sink.first_ns) / 1e9
        seen.e2e.observe((sink.last_ns - sink.opened_ns) / 1e9)
        seen.decode.observe(decode_s)
        seen.prompt_tokens.observe(sink.prompt_tokens)
        seen.generation_tokens.observe(tokens)
        if tokens > 1:
            seen.per_output_token.observe(decode_s / (tokens - 1))
        self.ends.finished(sink.finish)


def _row(note: Note, epoch_ns: int) -> Row:
    sink, token, due_ns, ready_ns, sent_ns, held_by = note
    cause, culprit, delay_ns = token.cause, token.culprit, token.delay_ns
    return Row(
        request_of(sink.request_id),
        sink.choice,
        token.number,
        token.count,
        due_ns + epoch_ns,
        sent_ns + epoch_ns,
        held_by or cause,
        None if held_by or culprit is None else request_of(culprit),
        ready_ns - due_ns if held_by else delay_ns,
    )
