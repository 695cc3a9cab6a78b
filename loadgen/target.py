"""Where requests go: the target as the user spelled it, taken apart once."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from loadgen.errors import UsageError

PATHS = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}
"""The generation path below /v1 of each kind of endpoint."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed target. `path` includes the query; `base` is what /models and the like are joined to."""

    scheme: str
    host: str
    port: int
    path: str
    base: str
    unix_path: str | None = None

    @property
    def url(self) -> str:
        """The generation URL, without any secret: for messages and results."""
        return f"{self.origin}{self.path}"

    @property
    def origin(self) -> str:
        return f"unix:{self.unix_path}" if self.unix_path else f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """What goes into the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == default_port(self.scheme) else f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.unix_path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def parse_target(text: str, endpoint: str) -> Target:
    """Take a target apart.

    `host:port`, `http://host`, `http://host/v1` and either with a slash at the end mean the same; a path that ends in a
    generation path, or has a query, is used as it is; `unix:///run/server.sock` talks over a Unix socket.

    Raises:
        UsageError: not a URL of a server.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise UsageError(f"--target {text}: expected unix:///absolute/path.sock")
        return Target("http", "localhost", 80, "/v1" + PATHS[endpoint], "/v1", path)
    parts = _split(text)
    path, base = _paths(parts, endpoint)
    host = (parts.hostname or "").encode("idna").decode() if ":" not in (parts.hostname or "") else parts.hostname or ""
    return Target(parts.scheme, host, parts.port or default_port(parts.scheme), path, base)


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"--target {text}: not a server's URL; expected for example http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise UsageError("--target: no user or password in the URL; use --api-key or -H 'authorization: …'")
    return parts


def _paths(parts: SplitResult, endpoint: str) -> tuple[str, str]:
    path = parts.path.rstrip("/")
    if path.endswith(tuple(PATHS.values())) or parts.query:
        base = path
        for ending in sorted(PATHS.values(), key=len, reverse=True):
            base = base.removesuffix(ending)
        full = parts.path + (f"?{parts.query}" if parts.query else "")
        return full or "/", base
    base = path if path.endswith("/v1") else f"{path}/v1"
    return base + PATHS[endpoint], base
