"""The spans of a run, sent by OTLP over HTTP. Needs the extra `otel`."""

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from analysis.run import Run
    from loadgen.spans import Span

BATCH = 512
TIMEOUT_S = 10
PATH = "/v1/traces"


class Exporter(Protocol):
    """What of a SpanExporter is used."""

    def export(self, spans: Sequence[Any]) -> Any: ...


def checked(url: str | None) -> str | None:
    """Where the spans go: the URL itself, or its /v1/traces where it has no path.

    Raises UsageError for what is no URL, and where the extra is missing: before anything is measured.
    """
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--otel-endpoint {shown(url)}: expected a URL, as in http://127.0.0.1:4318")
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("--otel-endpoint needs an extra: pip install 'llm-loadgen[otel]'") from None
    return url if parts.path.strip("/") else parts._replace(path=PATH).geturl()


def shown(url: str) -> str:
    """Without a password or a query, which may be a key."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def send(run: "Run", url: str) -> int:
    """Sends a run's spans to a URL that was `checked`, and returns how many. Raises UsageError where it fails."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what goes wrong is told once, in our words
    exporter: Any = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S)
    try:
        return send_to(exporter, run, url)
    finally:
        exporter.shutdown()


def send_to(exporter: Exporter, run: "Run", where: str) -> int:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    from loadgen.spans import resource_of, spans_of

    resource, sent = Resource(resource_of(run)), 0
    try:
        for batch in _batches(spans_of(run)):
            if exporter.export([_readable(span, resource) for span in batch]) is not SpanExportResult.SUCCESS:
                raise UsageError(f"--otel-endpoint {shown(where)}: no collector took the spans ({sent} were taken)")
            sent += len(batch)
    except ValueError as problem:
        raise UsageError(f"--otel-endpoint: {problem}") from None
    return sent


def _batches(spans: "Iterator[Span]") -> "Iterator[list[Span]]":
    while batch := list(islice(spans, BATCH)):
        yield batch


def _readable(span: "Span", resource: Any) -> Any:
    """The SDK's own form of a span that is over."""
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    return ReadableSpan(
        name=span.name,
        context=SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)),
        resource=resource,
        attributes=span.attributes,
        events=[Event(name, attributes, timestamp=at_ns) for name, at_ns, attributes in span.events],
        kind=SpanKind.CLIENT,
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("loadgen"),
    )
