"""Timers that do not wait for a whole millisecond, whatever else the loop waits for."""

import asyncio
import math
import selectors
import socket
import sys
from typing import Any

import pytest

from loadgen import event_loop

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere timers are fine")
READY = [("key", selectors.EVENT_READ)]


class Kernel:
    """What the two system calls wait, in virtual time: epoll in whole milliseconds, one more than asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, comes_s: float = 9.0) -> None:
        self.now_s = 0.0
        self.calls: list[str] = []
        self.comes_s = comes_s
        monkeypatch.setattr(event_loop.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(event_loop.select, "select", lambda *given: self._wait("select", given[-1]))
        monkeypatch.setattr(selectors.EpollSelector, "select", lambda _, timeout=None: self._epoll(timeout))

    def _epoll(self, timeout_s: float | None) -> list[Any]:
        up_s = timeout_s if timeout_s is None or timeout_s <= 0 else math.ceil(timeout_s * 1e3) * 1e-3 + 1e-3
        self._wait("epoll", None if up_s is None else max(0.0, up_s))
        return READY if self.now_s >= self.comes_s else []

    def _wait(self, name: str, timeout_s: float | None) -> None:
        self.calls.append(name)
        self.now_s = self.comes_s if timeout_s is None else min(self.now_s + timeout_s, max(self.now_s, self.comes_s))


@linux
@pytest.mark.parametrize("timeout_s", [0.000_05, 0.000_9, 0.001, 0.001_5, 0.002, 0.002_01, 0.009, 0.013, 0.25, 7.004_9])
def test_a_wait_is_as_long_as_asked(monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> None:
    with event_loop._FineSelector() as selector:
        kernel = Kernel(monkeypatch)
        assert selector.select(timeout_s) == []
        monkeypatch.undo()
    assert kernel.now_s == pytest.approx(timeout_s, abs=1e-6)


@linux
def test_what_comes_ends_the_wait_and_costs_one_call_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with event_loop._FineSelector() as selector:
        kernel = Kernel(monkeypatch, comes_s=0.004)
        assert (selector.select(0.05), kernel.now_s, kernel.calls) == (READY, 0.004, ["epoll"])
        kernel = Kernel(monkeypatch, comes_s=0.0004)
        assert (selector.select(0.0007), kernel.now_s, kernel.calls) == (READY, 0.0004, ["select", "epoll"])
        kernel = Kernel(monkeypatch)
        assert (selector.select(0), selector.select(-1), kernel.now_s) == ([], [], 0.0)
        assert (selector.select(None), kernel.now_s) == (READY, 9.0)
        monkeypatch.undo()


@linux
def test_where_select_cannot_take_the_descriptor_epoll_waits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with event_loop._FineSelector() as selector:
        kernel = Kernel(monkeypatch)
        monkeypatch.setattr(selector, "fileno", lambda: 1024)
        selector.select(0.0005)
        assert kernel.calls == ["epoll"]
        monkeypatch.undo()


def test_sockets_timers_and_threads_are_served() -> None:
    async def main() -> tuple[bytes, str, int]:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            loop.call_later(0.002, there.send, b"x")
            async with asyncio.timeout(30):
                return await loop.sock_recv(here, 1), await asyncio.to_thread(str, 1), await asyncio.sleep(0.0005, 7)

    assert event_loop.run(main()) == (b"x", "1", 7)
