"""One response while it lasts: its choices take tokens from the engine, and their bytes go to the socket."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic_ns
from typing import Literal

from loadgen.sim.answers import Form, Voice
from loadgen.sim.books import Note, Told
from loadgen.sim.errors import ApiError
from loadgen.sim.inject import Fault
from loadgen.sim.outlets import Gate, Outlet, Parcel, Wire, with_faults
from loadgen.sim.script import Script
from loadgen.sim.tokens import Token
from loadgen.sim.wire import choice_name

Ending = Literal["whole", "left", "reset", "error"]


class ChoiceSink(Told):
    """One choice: encodes its tokens and writes them, or has its reply do so where more than writing is to be done."""

    __slots__ = ("_notes", "_reply", "_send", "voice")

    def __init__(self, request_id: str, voice: Voice, reply: "Reply") -> None:
        name = choice_name(request_id, voice.index)
        super().__init__(name, voice.index, reply.form.ask.prompt_tokens, voice.script.finish)
        self.voice = voice
        self._reply: Reply | None = reply
        self._send = reply.direct
        self._notes = reply.notes

    def encode(self, token: Token) -> bytes:
        return chunk(self.voice.events(token)) if self._reply is not None and self._reply.form.ask.stream else b""

    def write(self, encoded: bytes, token: Token, due_ns: int) -> None:
        if self._send is not None and token.number > token.count and not token.last:
            self._notes.append((self, token, due_ns, due_ns, monotonic_ns(), ""))
            self._send(encoded)
        elif self._reply is not None:
            self._reply.write(self, encoded, token, due_ns)

    def close(self) -> None:
        # No cycle of references may be left: the collector is off.
        super().close()
        reply, self._reply, self._send = self._reply, None, None
        if reply is not None:
            reply.lost()


class Reply:
    """All choices of one request, and what ends it.

    `ended` resolves once: all was written (or, for an answer in one piece, all was generated), the client left or the
    engine broke, or an injected fault cut it.
    """

    def __init__(
        self,
        form: Form,
        request_id: str,
        scripts: Sequence[Script],
        transport: asyncio.WriteTransport,
        notes: list[Note],
        faults: Mapping[str, Fault],
    ) -> None:
        self.form = form
        self.notes = notes
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.gate: Gate | None = None
        self._wire = Wire(transport, notes, partial(_resolve, self.ended, "whole"))
        self._outlet: Outlet = self._wire
        if form.ask.stream:
            self._outlet, self.gate = with_faults(self._wire, faults)
        self._cut = faults.get("reset") or faults.get("error")
        # The short way is for answers that nothing but their own tokens happens to.
        plain = form.ask.stream and self._outlet is self._wire and self._cut is None
        self.direct: Callable[[bytes], None] | None = transport.write if plain else None
        self.failed = False
        self._begun = self._over = False
        self._tokens = 0
        self._open = len(scripts)
        self._cached = 0
        self._kept: list[tuple[ChoiceSink, Token, int]] = []
        self.scripts = scripts
        self.sinks = [ChoiceSink(request_id, form.voice(script, i), self) for i, script in enumerate(scripts)]

    def write(self, sink: ChoiceSink, encoded: bytes, token: Token, due_ns: int) -> None:
        if self._over:
            return
        self._tokens += token.count
        if self._cut is not None and self._cut.after == 0:
            self._cut_off(due_ns)
            return
        if sink.choice == 0 and token.number == token.count:
            self._cached = token.cached_tokens
        self._open -= token.last
        if self.form.ask.stream:
            closing = b"" if self._open else chunk(self.form.closing(self.scripts, self._cached))
            data = self._opening() + encoded + closing
            self._outlet.write([Parcel(data, sink, token, due_ns, due_ns)])
        else:
            self._kept.append((sink, token, due_ns))
        if self._open == 0:
            self._outlet.end()
        elif self._cut is not None and self._tokens >= self._cut.after:
            self._cut_off(due_ns)

    def body(self) -> bytes:
        """The whole answer in one piece. Notes its tokens as sent now: the last one was waited for."""
        now_ns, ready_ns = monotonic_ns(), self._kept[-1][2]
        self.notes += [(sink, token, due_ns, ready_ns, now_ns, "") for sink, token, due_ns in self._kept]
        return self.form.whole(self.scripts, self._cached)

    def lost(self) -> None:
        """The client left, or the engine broke."""
        _resolve(self.ended, "left")

    def _opening(self) -> bytes:
        """What opens the answer comes with the first token of any choice."""
        begun, self._begun = self._begun, True
        return b"" if begun else chunk(self.form.opening())

    def _cut_off(self, now_ns: int) -> None:
        assert self._cut is not None
        self._over = True
        self.failed = self._cut.kind == "error"
        if self._cut.kind == "reset":
            self._wire.reset()
            _resolve(self.ended, "reset")
        elif self.form.ask.stream:
            data = chunk(self.form.failure(injected_error()))
            self._outlet.write([Parcel(data, None, None, now_ns, now_ns)])
            self._outlet.end()
        else:
            _resolve(self.ended, "error")


def _resolve(ended: asyncio.Future[Ending], how: Ending) -> None:
    if not ended.done():
        ended.set_result(how)


def injected_error() -> ApiError:
    return ApiError(500, "injected: the engine failed", kind="InternalServerError")


def chunk(data: bytes) -> bytes:
    """HTTP's chunked coding; nothing for nothing, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
