"""The experiment's bookkeeping on a virtual clock, over an engine in memory whose every pass is known."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from analysis.interfere.result import interfere
from analysis.record import ANSWER, UNKNOWN, RequestRecord
from analysis.run import Run
from loadgen.drive import Stop
from loadgen.interfere import Experiment, Ran
from loadgen.interfere_plan import Design, Known, forecast, outline, stream_tokens, trials
from tests.loadgen.virtual import VirtualClock, run_virtual
from workloads.prompts import Prompter
from workloads.request import Request

MS = 1_000_000
SMALL = Design((500, 2000), streams=3, repeats=2, rest_s=0.2, seed=3)


@dataclass
class Server:
    """Passes of 10 ms; a prompt is read whole, at 0.1 ms a token, while every stream stands still.

    Attributes:
        blocks: Whether prompts hold streams up.
        longest: The longest answer it gives, whatever was asked.
        context: Longer prompts are refused with a 400.
        refuse: Says of a request what is wrong with it.
    """

    clock: VirtualClock
    blocks: bool = True
    longest: int = 10**9
    context: int = 10**9
    refuse: Callable[[Request], str | None] = lambda _: None
    free_ns: int = 0
    requests: list[Request] = field(default_factory=list)

    async def send(self, request: Request) -> RequestRecord:
        self.requests.append(request)
        record = RequestRecord(request.request_id, sent_ns=self.clock.now_ns(), tries=1, outcome="ok")
        problem = self.refuse(request)
        if problem is None and request.input_tokens > self.context:
            problem = f"HTTP 400: at most {self.context} tokens"
        try:
            if problem is not None:
                record.outcome, record.status, record.error = "http_error", int(problem[5:8]), problem
                await asyncio.sleep(0.001)
            else:
                await self._answer(request, record)
        except asyncio.CancelledError:
            record.outcome = "cancelled"
        record.end_ns = self.clock.now_ns()
        return record

    async def _answer(self, request: Request, record: RequestRecord) -> None:
        record.status, record.prompt_tokens = 200, request.input_tokens
        self.free_ns = max(self.free_ns, self.clock.now_ns()) + request.input_tokens * MS // 10
        await self._until(self.free_ns)
        for number in range(min(request.output_tokens, self.longest)):
            if number:
                await self._until(self.clock.now_ns() + 10 * MS)
                await self._until(self.free_ns if self.blocks else 0)
            record.arrival_ns.append(self.clock.now_ns())
            record.n_tokens.append(UNKNOWN)
            record.kind.append(ANSWER)
            record.chars.append(4)
            record.read_id.append(number)
        record.completion_tokens, record.finish_reason = len(record.arrival_ns), "length"

    async def _until(self, t_ns: int) -> None:
        while self.clock.now_ns() < t_ns:
            await asyncio.sleep((t_ns - self.clock.now_ns()) / 1e9)


@dataclass
class Told:
    ran: Ran
    records: list[RequestRecord]
    lines: list[str]
    server: Server

    def of(self, class_name: str, stage: str = "experiment") -> list[RequestRecord]:
        return [each for each in self.records if (each.class_name, each.stage) == (class_name, stage)]

    def result(self) -> dict[str, Any]:
        meta = {
            "workload": self.ran.design.workload(self.ran.notes),
            "stages": [{"name": s.name, "measured": s.measured} for s in self.ran.stages],
            "complete": self.ran.interrupted_by is None,
            "interrupted_by": self.ran.interrupted_by,
        }
        return interfere(Run.from_records(meta, self.records))


def conducted(design: Design = SMALL, stop_at_s: float | None = None, **server: Any) -> Told:
    async def main() -> Told:
        clock, stop = VirtualClock(), Stop()
        engine = Server(clock, **server)
        records: list[RequestRecord] = []
        lines: list[str] = []
        experiment = Experiment(
            design, engine, clock, Prompter(1), records.append, stop=stop, live=None, tell=lines.append
        )
        if stop_at_s is not None:
            asyncio.get_running_loop().call_later(stop_at_s, stop.set, "SIGINT")
        return Told(await experiment.run(), records, lines, engine)

    return run_virtual(main())


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_each_repeat_has_every_length_both_controls_and_an_order_of_its_own() -> None:
    drawn = trials([500, 1000, 2000], 4, seed=7)
    blocks = [drawn[start : start + 5] for start in range(0, 20, 5)]
    assert all(Counter(block) == Counter([None, 1, 500, 1000, 2000]) for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    assert drawn == trials([500, 1000, 2000], 4, seed=7) != trials([500, 1000, 2000], 4, seed=8)


@pytest.mark.parametrize(
    ("context", "fitting"), [(None, (512, 8192)), (8193, (512, 8192)), (8192, (512,)), (512, ()), (513, (512,))]
)
def test_lengths_that_fit_leave_room_for_one_token(context: int | None, fitting: tuple[int, ...]) -> None:
    assert Design((8192, 512, 512), context_tokens=context).fitting == fitting


@pytest.mark.parametrize(
    ("streams", "levels"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8])]
)
def test_levels_of_the_baseline(streams: int, levels: list[int]) -> None:
    assert Design((500,), streams).levels == levels


@pytest.mark.parametrize(
    ("trial", "seconds", "why"),
    [
        (8000, 6.01, "half as much again as it took, and a step"),
        (4000, 3.01, "half of the longer prompt's"),
        (16000, 6.01, "no longer one is known"),
        (None, 6.01, "as the longest"),
    ],
)
def test_how_long_a_trial_may_take(trial: int | None, seconds: float, why: str) -> None:
    known = Known({8000: 4.0}, itl_s=0.01)
    assert known.window_s(trial) == pytest.approx(seconds), why
    assert known.expected_s(trial) == pytest.approx((seconds - 0.01) / 1.5), why


def test_streams_are_long_enough_for_the_windows_and_no_longer_than_the_experiment() -> None:
    design, known = Design((500, 2000)), Known({2000: 10.0}, itl_s=0.01, first_s=0.1)
    assert stream_tokens(Design((500, 2000), context_tokens=10**6), known, left_s=1000) == 6004  # four windows of 15 s
    assert stream_tokens(Design((500,), context_tokens=3000), known, left_s=1000) == 3000 - 32 - 1
    assert stream_tokens(design, known, left_s=1000) == 2000 - 32 - 1  # the context is at least that of the prompts
    assert stream_tokens(design, Known({500: 1.0}, 0.01, 0.1), left_s=8.0) == 1033  # 0.3 s, 8 s, a window of 1.51 s


def test_what_the_user_is_told_before() -> None:
    assert outline(SMALL) == (
        "will send 7 prompts of 1, 500, 2,000 tokens (7,002 in all), one at a time, beside 3 streams of 32-token "
        "prompts, decoding without a pause"
    )
    known = Known({2000: 0.2}, itl_s=0.01)
    text = forecast(SMALL, known, [2000, None, 1])
    # Rests 3 x 0.2; 0.2 for the prompt, 0.2 for none, 0.0001 for one token.
    assert text == (
        "the experiment takes about 1 s: 2 prompts of 2,001 tokens together, and 3 streams that write up to 300 tokens "
        "(10.0 ms a token)"
    )


# --- the experiment ---------------------------------------------------------------------------------------------------


def test_it_ends_by_itself_and_finds_what_the_server_does() -> None:
    told = conducted()
    result = told.result()
    assert told.ran.interrupted_by is None
    assert told.lines[1:] == ["repeat 1 of 2 is done", "repeat 2 of 2 is done"]
    assert result["injections"] == {
        "sent": 6, "used": 6, "left_out": {"failed": 0, "cached": 0, "streams_changed": 0},
    }  # fmt: skip
    assert result["verdict"]["kind"] == "blocked"
    for tokens, rung in zip([500, 2000], result["rungs"], strict=True):
        assert rung["n"] == 2
        assert rung["ttft_s"]["median"] == pytest.approx(tokens / 10_000, abs=1e-6)
        # Streams that the prompt met in mid-step get their next token when it has been read.
        assert rung["freeze_s"]["median"] == pytest.approx(tokens / 10_000, abs=0.0101)
    assert [each["itl_s"] for each in result["decode"]["by_streams"]] == pytest.approx([0.01] * 3)


def test_every_request_is_filed_once_in_its_stage() -> None:
    told = conducted()
    assert [stage.name for stage in told.ran.stages] == [
        "pilot",
        "baseline-1",
        "baseline-2",
        "baseline-3",
        "experiment",
    ]
    assert [stage.measured for stage in told.ran.stages] == [False] * 4 + [True]
    starts, ends = ([getattr(s, name) for s in told.ran.stages] for name in ("start_ns", "end_ns"))
    assert starts[1:] == ends[:-1]
    assert ends[-1] >= max(each.end_ns or 0 for each in told.records)
    assert len({each.request_id for each in told.records}) == len(told.records) == len(told.server.requests)
    assert [each.asked_input_tokens for each in told.of("injected", "pilot")] == [2000]
    assert [len(told.of("victim", f"baseline-{count}")) for count in (1, 2, 3)] == [1, 2, 3]
    asked = [each.asked_input_tokens for each in told.of("injected")]
    assert asked == [each for each in trials([500, 2000], 2, seed=3) if each is not None]
    assert all(each.outcome == "ok" for each in told.records)


def test_prompts_are_fresh_and_come_one_at_a_time_after_a_rest() -> None:
    told = conducted()
    texts = [" ".join(m.content for m in request.messages)[:40] for request in told.server.requests]
    assert len(set(texts)) == len(texts)
    spans = [(each.sent_ns or 0, each.end_ns or 0) for each in told.of("injected")]
    assert all(later[0] - earlier[1] >= 200 * MS for earlier, later in pairwise(spans))


@pytest.mark.parametrize("blocks", [True, False])
def test_streams_are_renewed_together_and_between_injections(blocks: bool) -> None:
    design = Design((500, 9000), streams=3, repeats=6, rest_s=1.0, seed=3, context_tokens=10_000)
    told = conducted(design, blocks=blocks)
    victims = told.of("victim")
    assert len(victims) > 3
    assert len(victims) % 3 == 0
    assert told.result()["injections"]["left_out"]["streams_changed"] == 0
    assert told.result()["injections"]["used"] == 18
    begun = sorted(each.sent_ns or 0 for each in victims)
    assert all(group[2] - group[0] < 50 * MS for group in zip(begun[::3], begun[1::3], begun[2::3], strict=True))
    assert told.result()["verdict"]["kind"] == ("blocked" if blocks else "isolated")


def test_lengths_that_the_server_refuses_are_left_out_and_said_so() -> None:
    told = conducted(context=600)
    assert told.ran.design.fitting == (500,)
    assert told.ran.notes == ("a prompt of 2,000 tokens is left out: HTTP 400: at most 600 tokens",)
    assert told.ran.notes[0] in told.lines
    result = told.result()
    assert [each["tokens"] for each in result["rungs"]] == [500]
    assert result["verdict"]["kind"] == "blocked"


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ({"context": 100}, "a prompt of 500 tokens failed: HTTP 400: at most 100 tokens"),
        ({"refuse": lambda _: "HTTP 503: busy"}, "a prompt of 2,000 tokens failed: HTTP 503: busy"),
        ({"longest": 20}, "answers end early: the server does not heed ignore_eos"),
        ({"longest": 1}, "a stream of 128 tokens failed or was not streamed"),
        (
            {"refuse": lambda request: "HTTP 429: slow down" if request.output_tokens > 128 else None},
            "a stream failed twice: HTTP 429: slow down",
        ),
    ],
)
def test_what_cannot_go_on_stops_it(server: dict[str, Any], reason: str) -> None:
    told = conducted(**server)
    assert (told.ran.interrupted_by or "").startswith(reason)
    assert told.result()["verdict"]["kind"] is None
    assert told.ran.ended_ns < 30e9


def test_streams_that_end_early_are_replaced_at_once_and_their_windows_do_not_count() -> None:
    told = conducted(Design((500, 14000), streams=3, repeats=2, rest_s=0.2), longest=130, blocks=False)
    begun, ended = ([getattr(each, name) or 0 for each in told.of("victim")] for name in ("sent_ns", "end_ns"))
    assert len(begun) > 6
    assert all(start in ended for start in begun[3:])
    result = told.result()
    assert result["injections"]["left_out"] == {"failed": 0, "cached": 0, "streams_changed": 2}
    assert result["verdict"]["reason"].startswith("too few injections: 0 of 14,000 tokens count")


@pytest.mark.parametrize("stop_at_s", [0.005, 0.1, 1.0, 5.5, 6.0])
def test_a_stop_cuts_what_is_open_and_keeps_what_was_measured(stop_at_s: float) -> None:
    told = conducted(stop_at_s=stop_at_s)
    assert told.ran.interrupted_by == "SIGINT"
    assert told.ran.ended_ns <= (stop_at_s + 0.01) * 1e9
    assert len(told.records) == len(told.server.requests)
    assert {each.outcome for each in told.records} <= {"ok", "cancelled"}
    assert all(stage.end_ns == told.ran.ended_ns for stage in told.ran.stages[-1:])
    assert told.result()["verdict"]["kind"] is None
