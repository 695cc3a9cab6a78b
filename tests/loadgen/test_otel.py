"""Spans on their way to a collector; those who have the extra read them there again."""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from analysis.rundir import read_run
from loadgen import otel
from loadgen.errors import UsageError
from loadgen.recipes.report import report
from loadgen.spans import ids_of
from tests.analysis.records import record, run_of
from tests.loadgen.test_end_to_end import loadgen
from tests.loadgen.test_spans import CLOCK, EPOCH_NS, FROZEN, MS

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "errors"


def arguments(run_dir: Path, url: str, **more: Any) -> dict[str, Any]:
    plain = dict.fromkeys(("output", "gpu", "model_spec", "slo", "max_errors", "more"))
    flags = {"strict_point": False, "allow_e2e": False, "tp": 1, "format_": "json", "run_dir": run_dir}
    return plain | flags | {"otel_endpoint": url} | more


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match=r"^--otel-endpoint needs an extra: pip install 'llm-loadgen\[otel\]'$"):
        otel.checked("http://127.0.0.1:4318")


@pytest.mark.parametrize("url", ["", "127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="expected a URL"):
        otel.checked(url)


def test_nothing_asked_needs_nothing() -> None:
    assert otel.checked(None) is None


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://user:secret@tempo.example/v1/traces?key=abc", "https://tempo.example/v1/traces"),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
    ],
)
def test_no_secret_of_the_url_is_shown(url: str, text: str) -> None:
    assert otel.shown(url) == text


@pytest.mark.parametrize("more", [{"format_": "vllm"}, {"more": [Path("other")]}])
def test_the_spans_are_those_of_one_run(more: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.recipes.report.checked", lambda url: url)
    with pytest.raises(UsageError, match="the spans of one run"):
        report(arguments(SAMPLE, "http://127.0.0.1:9", **more))


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """An OTLP receiver on this machine: its URL, and the requests that it has got."""
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    got: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, proto.ExportTraceServiceRequest.FromString(body)))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


def test_a_collector_gets_every_span() -> None:
    failed = record("7-1-1", [50], sent=10, end=70, outcome="http_error", status=503, error="busy")
    with collector() as (url, got):
        checked = otel.checked(url)
        assert checked == f"{url}/v1/traces"
        assert otel.send(run_of(FROZEN, failed, clock=CLOCK), checked) == 2
    ((path, request),) = got
    assert path == "/v1/traces"
    (of_run,) = request.resource_spans
    assert {each.key: each.value.string_value for each in of_run.resource.attributes}["loadgen.run"] == "r1"
    first, second = of_run.scope_spans[0].spans
    assert (int.from_bytes(first.trace_id, "big"), int.from_bytes(first.span_id, "big")) == ids_of("7-0-1")
    assert (first.name, first.kind) == ("chat m", 3)  # client
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (EPOCH_NS + 100 * MS, EPOCH_NS + 1090 * MS)
    assert [(each.name, each.time_unix_nano) for each in first.events] == [
        ("loadgen.first_token", EPOCH_NS + 500 * MS),
        ("loadgen.stall", EPOCH_NS + 560 * MS),
    ]
    assert {each.key: each.value.int_value for each in first.attributes}["gen_ai.usage.output_tokens"] == 6
    assert (first.status.code, second.status.code, second.status.message) == (0, 2, "busy")


def test_many_spans_go_in_batches() -> None:
    run = run_of(*(record(f"r{number}", [1], sent=number) for number in range(2 * otel.BATCH + 1)), clock=CLOCK)
    with collector() as (url, got):
        assert otel.send(run, f"{url}/v1/traces") == 2 * otel.BATCH + 1
    assert [len(each.resource_spans[0].scope_spans[0].spans) for _, each in got] == [otel.BATCH, otel.BATCH, 1]


def test_a_collector_that_refuses_is_told_in_one_line() -> None:
    with (
        collector(status=404) as (url, _),
        pytest.raises(UsageError, match=r"no collector took the spans \(0 were taken\)"),
    ):
        otel.send(run_of(FROZEN, clock=CLOCK), f"{url}/v1/traces")


def test_an_old_run_is_sent_after_its_report(capsys: pytest.CaptureFixture[str]) -> None:
    with collector() as (url, got):
        status = report(arguments(SAMPLE, url))
    run = read_run(SAMPLE)
    assert capsys.readouterr().err == f"loadgen: {run.sent.sum()} spans sent to {url}/v1/traces\n"
    spans = [span for _, each in got for span in each.resource_spans[0].scope_spans[0].spans]
    assert len(spans) == run.sent.sum()
    assert (
        sum(span.status.code == 2 for span in spans) == (run.sent & ~run.where("outcome", "ok", "cancelled")).sum() > 0
    )
    assert status in (0, 1, 3)


def test_repeated_runs_are_sent_one_by_one_afterwards(tmp_path: Path) -> None:
    done = loadgen("run", "chat", "--repeat", "2", "--otel-endpoint", "http://127.0.0.1:9", "--out",
                   str(tmp_path / "run"), status=2)  # fmt: skip
    assert done.stderr.splitlines() == [
        "loadgen: --otel-endpoint does not go together with --repeat: send each run afterwards: "
        "loadgen report OUT-1 --otel-endpoint URL"
    ]
    assert not list(tmp_path.iterdir())


def test_what_was_measured_stands_whether_a_collector_takes_it_or_not(tmp_path: Path) -> None:
    with collector() as (url, got), collector(status=404) as (other, _):
        words = ("run", "chat", "--requests", "3", "--concurrency", "3", "--warmup", "0", "--output-tokens", "3")
        taken = loadgen(*words, "--out", str(tmp_path / "a"), "--otel-endpoint", url, status=3)
        refused = loadgen(*words, "--out", str(tmp_path / "b"), "--otel-endpoint", other, status=3)
    assert f"loadgen: 3 spans sent to {url}/v1/traces" in taken.stderr
    assert len(got[0][1].resource_spans[0].scope_spans[0].spans) == 3
    assert (
        "no collector took the spans (0 were taken); `loadgen report` with the same flag tries again" in refused.stderr
    )
