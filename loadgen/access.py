"""How an endpoint is reached: address, secrets, trust, the proxy in the way; the same for probes and for the load."""

import re
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import msgspec

from loadgen.connection import reason
from loadgen.error_text import one_line
from loadgen.errors import NoVerdictError, UsageError
from loadgen.target import Target, parse_target

if TYPE_CHECKING:
    import httpx

PROBE_HEADER = {"x-loadgen-probe": "1"}
ENGINE_HEADER = "x-loadgen-engine"
"""By it a server says what it is, in words: only engines that are simulated do."""

PROBE_TIMEOUT_S = 60.0
LARGEST_ANSWER_BYTES = 16 * 1024 * 1024
"""Of an answer to anything but the load; lists of models come to some hundred kilobytes."""
SECRET_CHARS = 6
"""A shorter word of a header is no secret, and taking it out of every text would only make riddles."""
PUBLIC_QUERY = frozenset({"api-version"})


@dataclass(frozen=True)
class Access:
    """One endpoint and the way to it. `headers` and `api_key` are secrets: they are never shown or stored.

    Attributes:
        said: What the target has said so far that it is, by `ENGINE_HEADER`, to clients made here.
    """

    target: Target
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    insecure: bool = False
    proxy: Target | None = None
    said: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def engine(self) -> str | None:
        """What the target says that it is; None: nothing, or it was not asked anything."""
        return self.shown(", ".join(sorted(self.said))) or None

    def shown(self, text: str) -> str:
        """Words of the server as one line that may be shown: without secrets, which are looked for before it is cut."""
        return one_line(redactor(self.api_key, self.headers)(text))

    def client(self) -> "httpx.AsyncClient":
        """A client for everything but the load; its requests are marked, so that a server's log can tell them apart."""
        import httpx

        unix_path = self.target.unix_path
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        headers |= {name.lower(): value for name, value in self.headers.items()}
        return httpx.AsyncClient(
            headers=headers | PROBE_HEADER,
            verify=self.tls or False,
            proxy=self.proxy.origin if self.proxy else None,
            trust_env=False,
            timeout=httpx.Timeout(PROBE_TIMEOUT_S, connect=10.0),
            transport=httpx.AsyncHTTPTransport(uds=unix_path) if unix_path else None,
            event_hooks={"response": [self._hear]},
        )

    async def _hear(self, reply: "httpx.Response") -> None:
        if engine := reply.headers.get(ENGINE_HEADER):
            self.said.add(engine)

    @asynccontextmanager
    async def ask(
        self, client: "httpx.AsyncClient", method: str, path: str, json: object = None
    ) -> AsyncIterator["httpx.Response"]:
        """The answer to one request, not read yet. A connection that the server had just closed is replaced once.

        Raises:
            NoVerdictError: the server cannot be reached, or hung up.
        """
        import httpx

        try:
            try:
                reply = await client.send(client.build_request(method, self.url(path), json=json), stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError):
                reply = await client.send(client.build_request(method, self.url(path), json=json), stream=True)
            try:
                yield reply
            finally:
                await reply.aclose()
        except httpx.DecodingError as problem:
            raise NoVerdictError(f"{self.url(path)}: the answer cannot be unpacked: {problem}") from None
        except httpx.TransportError as problem:
            raise unreachable(self.target, problem) from None

    async def parts(self, reply: "httpx.Response") -> AsyncIterator[bytes]:
        """The body, as it comes. Raises NoVerdictError where it has no end."""
        size, until_s = 0, time.monotonic() + PROBE_TIMEOUT_S
        async for part in reply.aiter_bytes():
            size += len(part)
            if size > LARGEST_ANSWER_BYTES or time.monotonic() > until_s:
                much = f"{size / 1e6:,.0f} MB" if size > LARGEST_ANSWER_BYTES else f"{PROBE_TIMEOUT_S:g} s"
                raise NoVerdictError(f"{reply.url}: the answer had no end after {much}")
            yield part

    async def whole(self, reply: "httpx.Response") -> bytes:
        """The body. Raises NoVerdictError where it has no end."""
        return b"".join([part async for part in self.parts(reply)])

    def url(self, path: str) -> str:
        return f"{'http://localhost' if self.target.unix_path else self.target.origin}{path}"

    def warnings(self) -> list[dict[str, str]]:
        """What a report must say of the way that the load took."""
        found = []
        if self.insecure:
            found.append({"code": "insecure", "text": "the server's certificate was not checked (--insecure)"})
        if self.proxy:
            text = f"the load went through the proxy {self.proxy.origin}: its delays are in every number"
            found.append({"code": "proxy", "text": text})
        return found


def make_access(
    target: Target,
    *,
    headers: Mapping[str, str],
    api_key: str | None,
    ca_file: str | None,
    client_cert: str | None,
    insecure: bool,
    proxy: str | None,
) -> Access:
    """Raises UsageError for files without certificates and for a proxy that is none."""
    tls = _tls_context(ca_file, client_cert, insecure) if target.scheme == "https" else None
    return Access(target, headers, api_key, tls, insecure and tls is not None, _proxy(target, proxy))


def _tls_context(ca_file: str | None, client_cert: str | None, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as problem:
        raise UsageError(f"--ca-file {ca_file}: {problem.strerror or problem}") from None
    if client_cert is not None:
        try:
            context.load_cert_chain(client_cert)
        except (OSError, ssl.SSLError) as problem:
            raise UsageError(f"--client-cert {client_cert}: {problem.strerror or problem}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def _proxy(target: Target, url: str | None) -> Target | None:
    """The proxy in the way: by flag, or by environment for a target that is not on this machine."""
    if url is None and not target.is_loopback and not urllib.request.proxy_bypass(target.host):
        url = urllib.request.getproxies().get(target.scheme)
    if not url:
        return None
    if url.startswith("socks"):
        raise UsageError("a SOCKS proxy needs --transport httpx and httpx[socks]; name an HTTP proxy with --proxy")
    return parse_target(url, "chat")


def parsed(body: bytes) -> Any:
    """What a JSON body says; None where it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def public_url(target: Target) -> str:
    """The target's URL with the values of its query hidden: some gateways take keys there."""
    parts = urlsplit(target.url)
    query = "&".join(
        f"{quote(name)}={quote(value) if name in PUBLIC_QUERY else '…'}" for name, value in parse_qsl(parts.query)
    )
    return urlunsplit(parts._replace(query=query)) if parts.query else target.url


def unreachable(target: Target, problem: BaseException) -> NoVerdictError:
    """A transport error as one line that names the URL and the first cause."""
    words = str(problem)
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, ssl.SSLError) or (isinstance(cause, OSError) and cause.errno):
            words = reason(cause)
        cause = cause.__cause__ or cause.__context__
    return NoVerdictError(
        f"{target.origin} cannot be reached: {words or type(problem).__name__}; is the server running?"
    )


def redactor(api_key: str | None, headers: Mapping[str, str]) -> Callable[[str], str]:
    """What takes the user's secrets out of a text: some servers send back the key that they refuse. Where a text was
    cut, so may a secret have been at its end."""
    words = [word for value in (api_key or "", *headers.values()) for word in value.split()]
    secrets = sorted({word for word in words if len(word) >= SECRET_CHARS}, key=len, reverse=True)
    begun = tuple(word[:end] for word in secrets for end in range(len(word) - 1, SECRET_CHARS - 1, -1))
    pattern = re.compile("|".join(map(re.escape, secrets)) or "(?!)")

    def redact(text: str) -> str:
        text = pattern.sub("<secret>", text)
        kept = text.removesuffix("…")
        if not kept.endswith(begun):
            return text
        longest = max((part for part in begun if kept.endswith(part)), key=len)
        return f"{kept.removesuffix(longest)}<secret>{text[len(kept) :]}"

    return redact
