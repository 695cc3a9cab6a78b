"""The experiment's result on servers whose passes are known to the microsecond."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.interfere.result import interfere
from analysis.interfere.streams import Streams, chunks, control_s
from analysis.interfere.text import render_interfere
from analysis.interfere.verdict import exit_status, pieces
from analysis.record import RequestRecord
from analysis.run import Run
from tests.analysis.any_records import any_records
from tests.analysis.records import every, meta, record

LENGTHS = (500, 1000, 2000, 4000)


@dataclass
class Server:
    """Passes of `step` ms in which every stream gets a token. Prompts make a pass longer, by `per_token` ms a token and
    at most `budget` tokens a pass (None: whole); or not at all, on a machine of their own (`apart`)."""

    step: float = 10.0
    per_token: float = 0.1
    budget: int | None = None
    apart: bool = False
    now: float = 0.0

    def __post_init__(self) -> None:
        self.tokens_at: list[float] = []

    def decode(self, until: float) -> None:
        while self.now < until:
            self._pass(0)

    def prompt(self, tokens: int) -> tuple[float, float]:
        """When it was sent, in the middle of a pass, and its first token."""
        sent = self.now + self.step / 2
        self._pass(0)
        if self.apart:
            self.decode(self.now + tokens * self.per_token)
        while tokens > 0 and not self.apart:
            self._pass(min(tokens, self.budget or tokens))
            tokens -= self.budget or tokens
        return sent, self.now

    def _pass(self, tokens: int) -> None:
        self.now += self.step + tokens * self.per_token
        self.tokens_at.append(self.now)


def injected(name: str, tokens: int, sent: float, first: float, **more: Any) -> RequestRecord:
    made = record(name, [first - sent], sent=sent, class_name="injected", stage="experiment", usage=1, **more)
    made.asked_input_tokens = made.prompt_tokens = tokens
    return made


def victim(name: str, at: Sequence[float], stage: str = "experiment") -> RequestRecord:
    return record(name, [each - at[0] + 5 for each in at], sent=at[0] - 5, class_name="victim", stage=stage)


def experiment(server: Server, lengths: Sequence[int] = LENGTHS, repeats: int = 3, streams: int = 3) -> Run:
    """A second of decoding before, between and after the prompts."""
    server.decode(server.now + 1000)
    found = []
    for tokens in (1, *lengths) * repeats:
        found.append(injected(f"i{len(found)}", tokens, *server.prompt(tokens)))
        server.decode(server.now + 1000)
    victims = [victim(f"v{i}", server.tokens_at) for i in range(streams)]
    return made(found + victims, lengths, streams)


def made(records: list[RequestRecord], lengths: Sequence[int], streams: int, **changes: Any) -> Run:
    workload = {"name": "interfere", "streams": streams, "lengths": list(lengths), "repeats": 3, "rest_s": 1.0}
    stage = {"name": "experiment", "start_ns": 0, "end_ns": None, "measured": True}
    return Run.from_records(meta(workload=workload, **{"stages": [stage]} | changes), records)


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "freeze", "tokens", "why"),
    [
        (105, 115, 10, 1, "the gaps 100-110 and 110-120 overlap it, the token at 110 is inside"),
        (125, 165, 50, 0, "no token inside: the one gap that holds it, 120-170"),
        (115, 175, 50, 2, "120 and 170"),
        (120, 170, 50, 0, "a gap that only touches the window does not overlap it"),
        (165, 172, 50, 1, "the end of a freeze counts whole"),
        (172, 185, 10, 1, "after it"),
    ],
)
def test_the_longest_gap_that_overlaps_a_window(start: float, end: float, freeze: float, tokens: int, why: str) -> None:
    run = made([victim("v", [90, 100, 110, 120, 170, 180, 190])], LENGTHS, 1)
    window = Streams.of(run, 1).window(start * 1e6, end * 1e6)
    assert window is not None
    assert (window.freeze_s.tolist(), window.tokens.tolist()) == ([pytest.approx(freeze / 1e3)], [tokens]), why


@pytest.mark.parametrize(
    ("start", "end", "steady", "why"),
    [
        (200, 300, True, "both decode"),
        (140, 300, False, "b was sent before the window and got its first token in it"),
        (100, 120, False, "b is missing"),
        (450, 500, False, "a ends in it"),
        (480, 500, False, "its last token is in it: the gap behind that is no gap"),
        (490, 495, False, "a is over"),
    ],
)
def test_windows_in_which_a_stream_begins_or_ends_do_not_count(
    start: float, end: float, steady: bool, why: str
) -> None:
    a, b = victim("a", every(10, 40, 90)), victim("b", every(10, 60, 150))
    window = Streams.of(made([a, b], LENGTHS, 2), 2).window(start * 1e6, end * 1e6)
    assert (window is not None) == steady, why


@pytest.mark.parametrize(
    ("gaps", "expected", "why"),
    [
        ([10, 10, 10], None, "no gap stands out"),
        ([10, 29, 10], None, "less than three steps"),
        ([10, 300, 10], 1, "one freeze"),
        ([10, 110, 110, 110, 60, 10], 3.5, "three whole pieces and half of one"),
        ([10, 300, 40, 10], 1, "a hiccup of less than a quarter of the freeze is none of it"),
        ([10, 310, 110], 4 / 3, "a large hiccup makes less than half a piece"),
        ([60, 62, 64, 66, 10], (50 + 52 + 54 + 56) / 54, "attention grows: by the upper median"),
    ],
)
def test_pieces_from_gaps(gaps: list[float], expected: float | None, why: str) -> None:
    found = chunks(np.array(gaps) / 1e3, 0.01)
    assert np.isnan(found) if expected is None else found == pytest.approx(expected), why


def test_controls_keep_out_of_what_an_injection_does() -> None:
    run = experiment(Server())
    streams = Streams.of(run, 3)
    sent, end = (run.column(name)[run.where("class", "injected")] for name in ("sent_ns", "end_ns"))
    quiet = list(streams.quiet(sent, end))
    assert len(quiet) == 16  # before the first of 15 prompts, and behind each
    for length_s in (0.001, 0.1, 5.0):
        assert control_s(streams, quiet, length_s) == pytest.approx(0.01)


# --- the result -------------------------------------------------------------------------------------------------------


def rung(result: dict[str, Any], tokens: int) -> Any:
    return next(each for each in result["rungs"] if each["tokens"] == tokens)


def test_a_server_that_reads_prompts_whole() -> None:
    result = interfere(experiment(Server()), max_freeze_s=0.2)
    assert result["verdict"] == {"kind": "blocked", "chunk_tokens": None, "reason": None}
    for tokens in LENGTHS:  # a pass of 10 ms and 0.1 ms a token
        found = rung(result, tokens)
        assert found["freeze_s"]["median"] == pytest.approx(0.01 + 0.0001 * tokens)
        assert found["ttft_s"]["median"] == pytest.approx(0.015 + 0.0001 * tokens)
        assert (found["n"], found["chunks"], found["tokens_meanwhile"]) == (3, 1.0, 1.0)
        assert found["control"]["high_s"] == pytest.approx(0.01)
    assert result["freeze"]["s_per_1k_tokens"] == pytest.approx(0.1)
    assert result["freeze"]["at_zero_s"] == pytest.approx(0.01)
    assert result["prefill"]["tokens_per_s"] == pytest.approx(10_000)
    assert result["prefill"]["at_zero_s"] == pytest.approx(0.015)
    assert (result["gate"]["verdict"], result["gate"]["tokens"], exit_status(result)) == ("fail", 4000, 1)
    # 200 ms leave 190 ms for 1,900 tokens: the power of two below.
    assert result["advice"]["budget_tokens"] == 1024
    assert result["advice"]["expected_freeze_s"] == pytest.approx(0.01 + 0.1024)
    assert (result["advice"]["passes"], result["advice"]["ttft_extra_s"]) == (4, pytest.approx(0.03))


def test_a_server_that_cuts_prompts_into_chunks() -> None:
    result = interfere(experiment(Server(budget=512)), max_freeze_s=0.2)
    assert result["verdict"]["kind"] == "chunked"
    assert result["verdict"]["chunk_tokens"] == pytest.approx(512, rel=0.02)
    for tokens in LENGTHS:
        assert rung(result, tokens)["freeze_s"]["median"] == pytest.approx(0.01 + 0.0001 * min(tokens, 512))
    assert (
        rung(result, 4000)["tokens_meanwhile"] == 8
    )  # the pass under way and 7 of 8 chunks; the last is the first token
    assert (result["gate"]["verdict"], exit_status(result), result["advice"]) == ("pass", 0, None)


def test_a_server_whose_prefill_is_elsewhere() -> None:
    result = interfere(experiment(Server(apart=True)), max_freeze_s=0.2)
    assert result["verdict"] == {"kind": "isolated", "chunk_tokens": None, "reason": None}
    assert rung(result, 4000)["freeze_s"]["median"] == pytest.approx(0.01)
    assert rung(result, 4000)["ttft_s"]["median"] == pytest.approx(0.405)
    assert (exit_status(result), result["advice"]) == (0, None)


def test_small_chunks_are_counted_by_the_tokens_that_streams_got() -> None:
    result = interfere(experiment(Server(per_token=0.05, budget=199)))  # passes of 19.95 ms: under two steps
    assert rung(result, 4000)["chunks"] is None
    assert rung(result, 4000)["tokens_meanwhile"] == 21  # the pass under way and 20 of 21; the last is the first token
    assert result["one_token"]["tokens_meanwhile"] == 1
    assert pieces(result, rung(result, 4000)) == 21
    assert result["verdict"]["kind"] == "chunked"
    assert result["verdict"]["chunk_tokens"] == pytest.approx(199, rel=0.05)


def test_chunks_that_hardly_lengthen_a_pass_leave_decode_alone() -> None:
    result = interfere(experiment(Server(per_token=0.02, budget=199)))  # passes of 13.98 ms
    assert result["verdict"]["kind"] == "isolated"


@dataclass
class Hiccups(Server):
    """Once in each stretch without a prompt something else holds it up for 60 ms."""

    def decode(self, until: float) -> None:
        if until - self.now > 900:
            super().decode((self.now + until) / 2)
            self._pass(int(60 / self.per_token))
        super().decode(until)


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (Hiccups(per_token=0.05, budget=199), "chunked"),  # passes of 20 ms, seen by the tokens that did not come
        (Hiccups(per_token=0.0125), None),  # one of 60 ms
        (Hiccups(per_token=0.1, apart=True), "isolated"),
    ],
)
def test_noise_that_hides_freezes_is_no_isolation(server: Server, kind: str | None) -> None:
    result = interfere(experiment(server))
    assert result["verdict"]["kind"] == kind
    if kind is None:
        assert "without any prompt they stand still for up to" in result["verdict"]["reason"]


@settings(deadline=None, max_examples=15)
@given(
    budget=st.none() | st.integers(200, 1900),
    step=st.floats(3, 40),
    per_token=st.floats(0.2, 1),
    streams=st.integers(1, 4),
)
def test_any_such_server_is_seen_through(budget: int | None, step: float, per_token: float, streams: int) -> None:
    result = interfere(experiment(Server(step, per_token, budget), repeats=2, streams=streams))
    assert result["verdict"]["kind"] == ("blocked" if budget is None else "chunked")
    if budget is not None:
        assert result["verdict"]["chunk_tokens"] == pytest.approx(budget, rel=0.15)
    for tokens in LENGTHS:
        expected_s = (step + per_token * min(tokens, budget or tokens)) / 1e3
        assert rung(result, tokens)["freeze_s"]["median"] == pytest.approx(expected_s, rel=1e-4)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_hiccup_in_one_repeat_moves_neither_the_verdict_nor_the_slope() -> None:
    server, found = Server(budget=512), []
    server.decode(1000)
    for number, tokens in enumerate([1, *LENGTHS] * 3):
        found.append(injected(f"i{number}", tokens, *server.prompt(tokens)))
        if number == 7:  # behind a prompt of 1,000 tokens the whole machine stops
            server.now += 700
        server.decode(server.now + 1000)
    run = made([*found, victim("v", server.tokens_at)], LENGTHS, 1)
    result = interfere(run)
    assert result["verdict"]["kind"] == "chunked"
    assert result["verdict"]["chunk_tokens"] == pytest.approx(512, rel=0.02)
    low_s, high_s = rung(result, 4000)["freeze_s"]["ci95"]
    assert low_s <= 0.0612 <= high_s < 0.1


# --- the gate and the doubts ------------------------------------------------------------------------------------------


def scattered(freezes_ms: Sequence[float]) -> Run:
    """Prompts of 2,000 tokens that stop the streams for so long, each."""
    server, found = Server(), []
    server.decode(1000)
    for number, freeze in enumerate(freezes_ms):
        server.per_token = (freeze - server.step) / 2000
        found.append(injected(f"i{number}", 2000, *server.prompt(2000)))
        server.decode(server.now + 1000)
    return made([*found, victim("v", server.tokens_at)], [2000], 1)


@pytest.mark.parametrize(
    ("freezes_ms", "limit_s", "verdict", "status"),
    [
        ([200, 201, 202], 0.3, "pass", 0),
        ([200, 201, 202], 0.1, "fail", 1),
        ([200, 201, 202], 0.201, "no_verdict", 3),
        ([150, 200, 260], 0.22, "no_verdict", 3),
        ([200, 201, 202], None, None, 0),
        ([200], 0.1, "no_verdict", 3),
    ],
)
def test_gate(freezes_ms: list[float], limit_s: float | None, verdict: str | None, status: int) -> None:
    result = interfere(scattered(freezes_ms), limit_s)
    assert (result["gate"]["verdict"], exit_status(result)) == (verdict, status)


def test_the_run_has_a_limit_of_its_own() -> None:
    run = scattered([200, 201, 202])
    run.meta["workload"]["max_freeze_s"] = 0.1
    assert exit_status(interfere(run)) == 1
    assert exit_status(interfere(run, 0.5)) == 0


def test_freezes_without_any_prompt_are_not_held_against_prompts() -> None:
    server, found = Server(), []
    freezing = cycle([False] * 9 + [True])
    for number in range(3):
        for _ in range(200):
            server.decode(server.now + 40)
            server.now += 300 if next(freezing) else 0
        found.append(injected(f"i{number}", 4000, *server.prompt(4000)))
    server.decode(server.now + 1000)
    result = interfere(made([*found, victim("v", server.tokens_at)], [4000], 1), 0.2)
    assert result["gate"]["verdict"] == "no_verdict"
    assert "without any prompt too" in result["gate"]["reason"]


def reason(run: Run) -> str:
    result = interfere(run, 0.2)
    assert (result["verdict"]["kind"], exit_status(result)) == (None, 3)
    text = render_interfere(result)
    assert text.startswith("No verdict: ")
    return str(result["verdict"]["reason"])


def test_nothing_succeeded() -> None:
    failed = [injected(f"i{i}", 500, 50, 60, outcome="http_error", error="HTTP 503: busy") for i in range(3)]
    assert reason(made([*failed, victim("v", every(10, 90, 5))], [500], 1)) == (
        "no injected prompt was answered: HTTP 503: busy"
    )
    assert "no injected prompt was answered" in reason(made([], [500], 1))


def test_streams_that_end_early() -> None:
    prompts = [injected(f"i{i}", 500, 100 * i + 50, 100 * i + 90) for i in range(3)]
    short = [victim(f"v{i}", every(10, 7, 100 * i + 5)) for i in range(3)]
    assert reason(made([*prompts, *short], [500], 1)).startswith("streams began or ended in 3 of 3 windows")


def test_too_few_injections_of_the_longest_prompt() -> None:
    run = experiment(Server(), [500, 1000], repeats=1)
    assert reason(run).startswith("too few injections: 1 of 1,000 tokens count, 2 are needed")


def with_cached(run: Run, class_name: str, tokens: int) -> Run:
    run.requests.loc[run.requests["class"] == class_name, "cached_tokens"] = tokens
    return Run(run.meta, run.requests, run.chunks)


def test_prompts_from_the_cache_are_left_out() -> None:
    run = with_cached(experiment(Server(), [500, 1000]), "injected", 490)
    assert interfere(run)["injections"]["left_out"] == {"failed": 0, "cached": 9, "streams_changed": 0}
    assert reason(run).endswith("(left out: 9 cached): choose another --seed")


def test_what_a_template_has_in_the_cache_is_no_prompt_from_the_cache() -> None:
    run = with_cached(with_cached(experiment(Server(), [500, 1000]), "injected", 64), "victim", 64)
    assert interfere(run)["injections"]["left_out"]["cached"] == 0


def test_a_client_that_was_late() -> None:
    run = experiment(Server())
    client = run.requests.iloc[:2][[]].assign(t_ns=[0, 10**9], loop_lag_max_s=[0.5, 0.5], loop_lag_mean_s=[0.5, 0.5])
    late = Run({**run.meta, "timestamp_source": "user"}, run.requests, run.chunks, None, client)
    assert "the client is saturated" in reason(late)


def test_a_run_that_was_cut() -> None:
    run = experiment(Server())
    assert "cut short (SIGINT)" in reason(
        Run({**run.meta, "complete": False, "interrupted_by": "SIGINT"}, run.requests, run.chunks)
    )


def test_a_full_batch_makes_even_one_token_wait() -> None:
    server, found = Server(), []
    server.decode(1000)
    for number, tokens in enumerate([1, 500] * 3):
        sent = server.now + 5
        server.decode(server.now + 800)
        found.append(injected(f"i{number}", tokens, sent, server.prompt(tokens)[1]))
        server.decode(server.now + 500)
    assert reason(made([*found, victim("v", server.tokens_at)], [500], 1)).startswith(
        "the batch was full: a one-token prompt waited 815 ms, 82 steps of the streams"
    )


def test_another_run_is_refused() -> None:
    with pytest.raises(ValueError, match="not an experiment"):
        interfere(Run.from_records(meta(), []))


@settings(deadline=None, max_examples=30)
@given(records=any_records(), streams=st.integers(1, 3))
def test_whatever_was_recorded_there_is_a_result_and_a_page(records: list[RequestRecord], streams: int) -> None:
    for number, each in enumerate(records):
        each.class_name, each.stage = ("victim", "injected")[number % 2], "experiment"
        each.asked_input_tokens = 100 * number
    result = interfere(made(records, [100, 300], streams), 0.2)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert render_interfere(result, 80).endswith("\n")


# --- decode and the page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "power", "words"),
    [
        ({1: 10, 2: 10, 4: 10}, 0.0, "more of them come nearly free"),
        ({1: 10, 2: 14, 4: 20}, 0.5, "already slow each other down"),
        ({1: 10, 2: 20, 4: 40}, 1.0, "each costs about as much as the first"),
    ],
)
def test_itl_against_the_number_of_streams(steps: dict[int, float], power: float, words: str) -> None:
    run = experiment(Server())
    levels, stages, start = [], list(run.meta["stages"]), 1e6
    for count, step in steps.items():
        stages.append({"name": f"baseline-{count}", "start_ns": 0, "end_ns": 1, "measured": False})
        levels += [victim(f"b{count}{i}", every(step, 50, start + i), f"baseline-{count}") for i in range(count)]
        start += 1e5
    server = Server()
    prompts = [injected(f"i{i}", 500, *server.prompt(500)) for i in range(3)]
    result = interfere(made([*levels, *prompts, victim("v", server.tokens_at)], [500], 1, stages=stages))
    assert [each["itl_s"] for each in result["decode"]["by_streams"]] == [
        pytest.approx(step / 1e3) for step in steps.values()
    ]
    assert result["decode"]["power"] == pytest.approx(power, abs=0.02)
    assert words in " ".join(render_interfere(result).split())


def test_the_page_says_it_all() -> None:
    text = " ".join(render_interfere(interfere(experiment(Server()), 0.2)).split())
    for expected in (
        "Long prompts block decode: one of 4,000 tokens stops the streams for 410 ms",
        "fail freeze < 200 ms: 410 ms",
        "15 of 15 injections count",
        "410 ms of 415 ms",
        "prefill: 15.0 ms in the queue and on the way, then 100.0 ms per 1,000 tokens",
        "(10,000 tokens/s)",
        "Prefill in chunks: 1,024 tokens a pass",
        "A pool of their own for long prompts: short requests",
    ):
        assert expected in text


def test_bars_show_what_of_the_ttft_the_streams_stood_still() -> None:
    page = render_interfere(interfere(experiment(Server(budget=1000), [1000, 2000, 4000])), 80).splitlines()
    bars = {line.split()[0]: line.split()[1] for line in page if "█" in line and "░ the rest" not in line}
    frozen = {tokens: bar.count("█") for tokens, bar in bars.items()}
    assert frozen["1,000"] == frozen["2,000"] == frozen["4,000"] > 5
    assert bars["4,000"].count("░") > 2 * frozen["4,000"]
    assert len(bars["4,000"]) == 80 - 2 - 10 - 26
