"""What a probe found, as text and as JSON. Pure."""

from collections.abc import Iterator
from typing import Any

from loadgen.access import Access, public_url
from loadgen.probe import FIELD_NAMES, Findings, notes


def findings_json(access: Access, found: Findings) -> dict[str, Any]:
    return {
        "target": public_url(access.target),
        "models": found.models,
        "http_version": found.http_version,
        "server": found.server,
        "engine": access.engine,
        "tls": access.target.scheme == "https",
        "round_trip_s": found.round_trip_s,
        "problem": found.problem,
        "streams": found.streams,
        "ttft_s": found.ttft_s,
        "events": found.events,
        "output_tokens": found.tokens,
        "events_per_read": found.events_per_read,
        "usage": found.usage,
        "running_usage": found.running_usage,
        "channels": found.channels,
        "thinking_field": found.thinking_field,
        "reused_connection": found.reused_connection,
        "max_tokens_field": found.max_tokens_field,
        "refused": [FIELD_NAMES.get(name, name) for name in found.refused],
    }


def render_findings(access: Access, found: Findings) -> str:
    rows = list(_rows(access, found))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {text}" for name, text in rows]
    return "\n".join([*lines, *(f"note: {text}" for text in notes(found.refused))]) + "\n"


def _rows(access: Access, found: Findings) -> Iterator[tuple[str, str]]:
    yield "target", public_url(access.target)
    yield "server", f"{found.server or 'not named'}, {found.http_version or 'HTTP'}{_tls(access)}"
    if access.engine is not None:
        yield "engine", access.engine
    if found.round_trip_s is not None:
        yield "round trip", f"{found.round_trip_s * 1e3:.2f} ms"
    yield "models", ", ".join(found.models) if found.models else "not listed"
    if found.problem is not None:
        yield "answer", found.problem
        return
    yield "streaming", _streaming(found)
    if found.events is None:
        return
    yield "tokens", _tokens(found)
    yield "usage", _usage(found)
    yield "channels", ", ".join(found.channels) + (f" (field {found.thinking_field})" if found.thinking_field else "")
    if found.reused_connection is not None:
        yield "connection", "kept and used again" if found.reused_connection else "a new one for each request"
    yield "length field", found.max_tokens_field
    yield "refused fields", ", ".join(FIELD_NAMES.get(name, name) for name in found.refused) or "none"


def _tls(access: Access) -> str:
    if access.target.scheme != "https":
        return ""
    return ", TLS not checked" if access.insecure else ", TLS"


def _streaming(found: Findings) -> str:
    if found.events is None:
        return "no token came"
    if not found.streams:
        return "no: the whole answer came in one read"
    return f"yes: {found.events} token events, the first after {(found.ttft_s or 0.0) * 1e3:.0f} ms"


def _tokens(found: Findings) -> str:
    each = found.events_per_read or 0.0
    reads = "one event a read" if each < 1.5 else f"{each:.1f} events a read"
    if not found.tokens or not found.events:
        return reads
    ratio = found.tokens / found.events
    return f"{'one token an event' if found.tokens == found.events else f'{ratio:.2f} tokens an event'}, {reads}"


def _usage(found: Findings) -> str:
    if not found.usage:
        return "none: output lengths can only be estimated"
    return "at the end and running" if found.running_usage else "at the end only"
