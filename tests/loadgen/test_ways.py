"""Ways to a server other than plain TCP: a Unix socket, an HTTP proxy, a tunnel through one, a client certificate."""

import asyncio
import ssl
from pathlib import Path

import pytest

from analysis.record import RequestRecord
from loadgen.access import Access, make_access, redactor
from loadgen.clock import RunClock
from loadgen.errors import UsageError
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpEngine, HttpOptions
from loadgen.openai_httpx import HttpxEngine
from loadgen.target import parse_target
from tests.loadgen.scripted import (
    DONE,
    Certificate,
    ScriptedServer,
    answer,
    content,
    finish,
    refused_url,
    role,
    usage,
    wire,
)
from workloads.request import Message, Request

WHOLE = answer(role(), content("Hello"), content(" world"), finish(), usage(5, 2), DONE)
REQUEST = Request("r", (Message("user", "hi"),), 1, 2)


async def send(
    url: str, transport: type[HttpEngine] | type[HttpxEngine] = HttpEngine, **options: object
) -> RequestRecord:
    http = HttpOptions(**options)  # type: ignore[arg-type]
    async with transport(parse_target(url, "chat"), BodyOptions("m"), http, RunClock()) as engine:
        return await engine.send(REQUEST)


@pytest.mark.parametrize("transport", [HttpEngine, HttpxEngine])
def test_a_unix_socket(transport: type[HttpEngine] | type[HttpxEngine], tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(wire(WHOLE))
        await reader.read()  # until the client closes
        writer.transport.abort()
        done.set()

    async def run() -> RequestRecord:
        server = await asyncio.start_unix_server(serve, tmp_path / "s.sock")
        async with server:
            record = await send(f"unix://{tmp_path}/s.sock", transport)
            await done.wait()
            return record

    done = asyncio.Event()

    record = asyncio.run(asyncio.wait_for(run(), 30))
    assert (record.outcome, list(record.chars)) == ("ok", [5, 6])
    assert asked[0].startswith(b"POST /v1/chat/completions HTTP/1.1")


@pytest.mark.parametrize("transport", [HttpEngine, HttpxEngine])
def test_an_http_proxy_is_told_the_whole_url(transport: type[HttpEngine] | type[HttpxEngine]) -> None:
    async def run() -> tuple[RequestRecord, str]:
        async with ScriptedServer(WHOLE) as proxy:
            record = await send("http://far.invalid:8000", transport, proxy=parse_target(proxy.url, "chat"))
            return record, proxy.requests[0].path

    record, path = asyncio.run(asyncio.wait_for(run(), 30))
    assert record.outcome == "ok"
    assert path == "http://far.invalid:8000/v1/chat/completions"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("tls"))


def tunnelled(certificate: Certificate, status: bytes) -> tuple[RequestRecord, list[bytes]]:
    """A request over TLS through a proxy that answers CONNECT with `status`."""
    asked: list[bytes] = []

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            sink.write(data)
        sink.close()

    async def run() -> RequestRecord:
        async with ScriptedServer(WHOLE, tls=certificate.context()) as server:

            async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
                try:
                    await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
                finally:
                    writer.transport.abort()
                    far_writer.transport.abort()
                    done.set()

            done = asyncio.Event()
            listener = await asyncio.start_server(proxy, "127.0.0.1", 0)
            port = listener.sockets[0].getsockname()[1]
            async with listener:
                trust = ssl.create_default_context(cafile=certificate.file)
                way = parse_target(f"127.0.0.1:{port}", "chat")
                record = await send("https://localhost:1234", tls=trust, proxy=way)
                await done.wait()
                return record

    return asyncio.run(asyncio.wait_for(run(), 30)), asked


def test_a_tunnel_through_a_proxy(certificate: Certificate) -> None:
    record, asked = tunnelled(certificate, b"200 Connection established")
    assert (record.outcome, record.error) == ("ok", None)
    assert asked[0].startswith(b"CONNECT localhost:1234 HTTP/1.1")


def test_a_proxy_that_refuses_the_tunnel(certificate: Certificate) -> None:
    record, _ = tunnelled(certificate, b"403 Forbidden")
    assert record.outcome == "connect_failed"
    assert "the proxy refused: HTTP/1.1 403 Forbidden" in (record.error or "")


def test_a_client_certificate(certificate: Certificate, tmp_path: Path) -> None:
    both = tmp_path / "client.pem"
    both.write_text(certificate.file.read_text() + certificate.key.read_text())
    demanding = certificate.context()
    demanding.verify_mode = ssl.CERT_REQUIRED
    demanding.load_verify_locations(certificate.file)

    async def run(client_cert: str | None) -> RequestRecord:
        async with ScriptedServer(WHOLE, tls=demanding) as server:
            access = reach(server.url, ca_file=str(certificate.file), client_cert=client_cert)
            return await send(server.url, tls=access.tls)

    assert asyncio.run(asyncio.wait_for(run(str(both)), 30)).outcome == "ok"


# --- how the way is found ---------------------------------------------------------------------------------------------


def reach(url: str, **changes: object) -> Access:
    plain: dict[str, object] = dict.fromkeys(("api_key", "ca_file", "client_cert", "proxy"))
    return make_access(parse_target(url, "chat"), **plain | {"headers": {}, "insecure": False} | changes)  # type: ignore[arg-type]


def test_a_proxy_of_the_environment_is_taken_only_for_targets_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "inside.invalid")
    assert reach("http://127.0.0.1:8000").proxy is None
    assert reach("http://inside.invalid").proxy is None
    far = reach("http://far.invalid")
    assert far.proxy is not None
    assert far.proxy.origin == "http://proxy.invalid:3128"
    assert [one["code"] for one in far.warnings()] == ["proxy"]


def test_what_the_report_must_say_of_trust() -> None:
    assert [one["code"] for one in reach("https://h.invalid", insecure=True).warnings()] == ["insecure"]
    assert reach("http://127.0.0.1", insecure=True).warnings() == []


WRONG = {"client_cert": "/nowhere", "ca_file": "/nowhere", "proxy": "socks5://127.0.0.1:1"}


@pytest.mark.parametrize("name", WRONG)
def test_files_and_proxies_that_cannot_be_used(name: str) -> None:
    with pytest.raises(UsageError):
        reach("https://h.invalid", **{name: WRONG[name]})


def test_secrets_are_taken_out_of_texts() -> None:
    redact = redactor("sk-0123456789", {"x-key": "Token abcdef-99", "x-team": "blue"})
    assert redact("bad sk-0123456789 and abcdef-99, team blue") == "bad <secret> and <secret>, team blue"
    assert redactor(None, {})("nothing to hide") == "nothing to hide"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no: sk-0123456789", "no: <secret>"),
        ("no: sk-0123456…", "no: <secret>…"),
        ("no: sk-01234", "no: <secret>"),
        ("no: sk-012", "no: <secret>"),
        ("no: sk-01…", "no: sk-01…"),  # five characters of it
        ("sk-012 is how it begins", "sk-012 is how it begins"),
        ("abcdef-9…", "<secret>…"),
    ],
)
def test_a_secret_that_was_cut_off_with_its_text_is_taken_out_too(text: str, shown: str) -> None:
    assert redactor("sk-0123456789", {"x-key": "Token abcdef-99"})(text) == shown


@pytest.mark.parametrize("transport", [HttpEngine, HttpxEngine])
def test_opening_a_connection_is_no_part_of_the_send(transport: type[HttpEngine] | type[HttpxEngine]) -> None:
    async def run() -> list[RequestRecord]:
        clock = RunClock()
        async with (
            ScriptedServer(WHOLE) as server,
            transport(parse_target(server.url, "chat"), BodyOptions("m"), HttpOptions(), clock) as engine,
        ):
            clock.start()
            return [await engine.send(REQUEST) for _ in range(2)]

    first, second = asyncio.run(asyncio.wait_for(run(), 30))
    assert [(each.outcome, each.reused_connection) for each in (first, second)] == [("ok", False), ("ok", True)]
    assert first.connect_s is not None
    assert second.connect_s is None
    assert first.sent_ns is not None
    assert first.connect_s * 1e9 <= first.sent_ns < first.arrival_ns[0]


@pytest.mark.parametrize("transport", [HttpEngine, HttpxEngine])
def test_what_could_not_connect_was_never_sent(transport: type[HttpEngine] | type[HttpxEngine]) -> None:
    record = asyncio.run(asyncio.wait_for(send(refused_url(), transport), 30))
    assert (record.outcome, record.sent_ns) == ("connect_failed", None)
