"""Faults that the simulated server makes on purpose, so that what a client does about them can be tested.

A fault is written `KIND` or `KIND:key=value,key=value`, as in `pause:every=10s,for=1s` or `reset:share=2%,after=20`.
Every kind takes `share`, the part of the requests (of a pause: of its turns) that it hits, and `seed`, which decides
which ones: the same seed hits the requests of the same ids. Requests marked `x-loadgen-probe` are never hit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from analysis.units import seconds, share
from loadgen.sim.errors import ApiError

KINDS: Mapping[str, tuple[str, str]] = {
    "pause": ("every=10s,for=1s", "the whole engine stands still"),
    "freeze": ("after=20,for=2s", "one stream stands still after so many tokens, and then goes on at its own pace"),
    "buffer": ("bytes=16384", "a proxy holds bytes back until so many are together, or the answer ends"),
    "burst": ("tokens=0", "so many tokens leave in one write; 0: the whole answer, at its end"),
    "reset": ("after=20", "the connection is reset after so many tokens"),
    "error": ("after=20", "an error object ends the stream after so many tokens"),
    "reject": ("status=429,retry-after=1s", "the request is refused, with status 429 or 503"),
    "slow-headers": ("for=500ms", "the head of the answer comes late, and all that is behind it"),
}
"""Each kind with its own keys and their defaults, and what it does."""

_COUNTS = {"after": 0, "bytes": 1, "tokens": 0, "status": 429, "seed": 0}
"""Keys whose value is a whole number, and the least that it may be."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; of its fields, those that its kind has no key for mean nothing."""

    kind: str
    share: float = 1.0
    seed: int = 0
    every_ns: int = 0
    for_ns: int = 0
    after: int = 0
    bytes: int = 0
    tokens: int = 0
    status: int = 0
    retry_after_ns: int = 0

    def hits(self, what: str) -> bool:
        """Whether it hits the request of this id; always the same answer."""
        drawn = blake2b(f"{self.kind} {self.seed} {what}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") < self.share * 2**64

    def refusal(self) -> ApiError:
        """What a rejected request is told."""
        kind, what = ("RateLimitError", "rate limit") if self.status == 429 else ("ServiceUnavailableError", "capacity")
        headers = {"retry-after": str(-(-self.retry_after_ns // 1_000_000_000))}
        return ApiError(self.status, f"injected: the {what} is reached; try again later", kind=kind, headers=headers)


def parse_fault(text: str) -> Fault:
    """Raises ValueError with a one-line message."""
    kind, _, given = text.strip().partition(":")
    if kind not in KINDS:
        raise ValueError(f"{text!r}: unknown fault {kind!r}; choose one of {', '.join(KINDS)}")
    defaults, _ = KINDS[kind]
    known = {"share", "seed", *(pair.partition("=")[0] for pair in defaults.split(","))}
    fault = Fault(kind)
    for pair in [*defaults.split(","), *filter(None, given.split(","))]:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if key not in known or not equals:
            raise ValueError(f"{text!r}: {kind} takes {', '.join(sorted(known))}, as in {kind}:{defaults}")
        try:
            fault = replace(fault, **_field(key, value))
        except ValueError as error:
            raise ValueError(f"{text!r}: {key}: {error}") from None
    if kind == "pause" and fault.every_ns <= fault.for_ns:
        raise ValueError(f"{text!r}: a pause must come less often than it lasts: every must be above for")
    return fault


def _field(key: str, value: str) -> dict[str, Any]:
    if key == "share":
        return {"share": share(value)}
    if key not in _COUNTS:
        return {f"{key.replace('-', '_')}_ns": round(seconds(value) * 1e9)}
    if not value.isascii() or not value.isdecimal() or int(value) < _COUNTS[key]:
        raise ValueError(f"expected a whole number of at least {_COUNTS[key]}, got {value!r}")
    if key == "status" and value not in ("429", "503"):
        raise ValueError(f"expected 429 or 503, got {value!r}")
    return {key: int(value)}


def faults_of(faults: Sequence[Fault], request_id: str) -> dict[str, Fault]:
    """What hits a request, by kind; of several of one kind, the first that does."""
    found: dict[str, Fault] = {}
    for fault in faults:
        if fault.kind != "pause" and fault.kind not in found and fault.hits(request_id):
            found[fault.kind] = fault
    return found


def help_text() -> str:
    """The kinds, one a line, for the command line's help."""
    return "\n".join(f"  {kind}:{keys}  {what}" for kind, (keys, what) in KINDS.items())
