"""The requests of a run as spans: the pure part."""

import pytest

from loadgen.openai_http import request_headers
from loadgen.spans import SLICE, Span, ids_of, resource_of, spans_of
from tests.analysis.records import every, record, run_of
from workloads.request import Message, Request

EPOCH_NS = 1_800_000_000_000_000_000
MS = 1_000_000
CLOCK = {"epoch_ns_at_start": EPOCH_NS}

FROZEN = record(
    "7-0-1", [400, 420, 440, 460, 960, 980], sent=100, due=90, end=1090, usage=6, prompt_tokens=50, cached_tokens=32,
    asked_output_tokens=6, status=200, finish_reason="length", session=4, turn=2, class_name="chat",
)  # fmt: skip


def span_of(made: object = FROZEN, **meta: object) -> Span:
    (span,) = spans_of(run_of(made, clock=CLOCK, **meta))  # type: ignore[arg-type]
    return span


def test_a_request_is_a_span_from_its_send_to_its_end() -> None:
    span = span_of()
    assert span.name == "chat m"
    assert (span.start_ns, span.end_ns) == (EPOCH_NS + 100 * MS, EPOCH_NS + 1090 * MS)
    assert span.error is None
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 6,
        "gen_ai.usage.input_tokens": 50,
        "gen_ai.usage.cache_read.input_tokens": 32,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.response.finish_reasons": ["length"],
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": 9,
        "loadgen.request_id": "7-0-1",
        "loadgen.class": "chat",
        "loadgen.stage": "main",
        "loadgen.session": 4,
        "loadgen.turn": 2,
        "loadgen.worker": 0,
        "loadgen.outcome": "ok",
        "loadgen.tries": 1,
        "loadgen.tokens_source": "usage",
        "loadgen.ttft_s": pytest.approx(0.4),
        "loadgen.ttfat_s": pytest.approx(0.4),
        "loadgen.tpot_s": pytest.approx(0.58 / 5),
        "loadgen.send_lag_s": pytest.approx(0.01),
    }
    assert {type(value) for value in span.attributes.values()} == {str, bool, int, float, list}


def test_the_first_token_and_each_stall_are_events() -> None:
    assert span_of().events == (
        ("loadgen.first_token", EPOCH_NS + 500 * MS, {}),
        ("loadgen.stall", EPOCH_NS + 560 * MS, {"loadgen.stall.duration_s": 0.5}),
    )


def test_the_first_token_of_the_answer_is_another_where_it_was_thought_first() -> None:
    span = span_of(record("r", every(20, 6, 100), kinds="RRRCCC", usage=6))
    assert [(name, (at_ns - EPOCH_NS) / MS) for name, at_ns, _ in span.events] == [
        ("loadgen.first_token", 100),
        ("loadgen.first_answer_token", 160),
    ]


@pytest.mark.parametrize(
    ("made", "start_end_ms", "error", "kind"),
    [
        (record("r", sent=10, end=70, outcome="http_error", status=503, error="busy"), (10, 70), "busy", "http_error"),
        (record("r", sent=None, due=5, end=9, outcome="connect_failed"), (5, 9), "connect_failed", "connect_failed"),
        (record("r", sent=None, end=9, outcome="client_error", error="no file"), (9, 9), "no file", "client_error"),
        (record("r", [50], sent=10, end=70, outcome="cancelled"), (10, 70), None, None),
    ],
)  # fmt: skip
def test_what_failed_says_why(made: object, start_end_ms: tuple[int, int], error: str | None, kind: str | None) -> None:
    span = span_of(made)
    assert ((span.start_ns - EPOCH_NS) // MS, (span.end_ns - EPOCH_NS) // MS) == start_end_ms
    assert (span.error, span.attributes.get("error.type")) == (error, kind)


def test_what_was_never_sent_has_no_span() -> None:
    records = [record("a", sent=None, outcome="skipped"), record("b", sent=None, outcome="not_sent"), record("c", [1])]
    assert [span.attributes["loadgen.request_id"] for span in spans_of(run_of(*records, clock=CLOCK))] == ["c"]


@pytest.mark.parametrize(
    ("meta", "name", "server"),
    [
        ({"endpoint": "completions"}, "text_completion m", ("127.0.0.1", 9)),
        ({"endpoint": "responses", "target": "https://gateway.example/v1"}, "chat m", ("gateway.example", 443)),
        ({"model": None, "target": None, "endpoint": None}, "chat", (None, None)),
    ],
)
def test_where_it_went(meta: dict[str, object], name: str, server: tuple[object, object]) -> None:
    span = span_of(**meta)
    assert (span.name, (span.attributes.get("server.address"), span.attributes.get("server.port"))) == (name, server)


def test_a_span_has_the_ids_that_its_request_carried() -> None:
    headers = request_headers(Request("7-0-1", (Message("user", "hi"),), 1, 2))
    _, trace, parent, _ = headers["traceparent"].split("-")
    assert ids_of("7-0-1") == (int(trace, 16), int(parent, 16))
    assert (span_of().trace_id, span_of().span_id) == ids_of("7-0-1")


def test_each_request_of_a_long_run_has_its_own_events() -> None:
    records = [record(f"r{number}", [100, 120, 140, 160, 660 + number], sent=number) for number in range(2 * SLICE + 1)]
    spans = list(spans_of(run_of(*records, clock=CLOCK)))
    assert [span.attributes["loadgen.request_id"] for span in spans] == [f"r{n}" for n in range(len(records))]
    stalls = [span.events[-1][2]["loadgen.stall.duration_s"] for span in spans]
    assert stalls == [pytest.approx(0.5 + number / 1000) for number in range(len(records))]


def test_a_run_that_does_not_say_when_it_was_has_none() -> None:
    with pytest.raises(ValueError, match="does not say when"):
        list(spans_of(run_of(FROZEN)))


def test_all_spans_share_what_the_run_is() -> None:
    run = run_of(FROZEN, clock=CLOCK)
    assert resource_of(run) == {"service.name": "loadgen", "loadgen.run": "r1", "loadgen.workload": "wire"}
