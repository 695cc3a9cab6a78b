import asyncio

import pytest

from loadgen.sim.inject import parse_fault
from loadgen.sim.outlets import Parcel, with_faults
from loadgen.sim.tokens import Token
from tests.loadgen.virtual import VirtualLoop

MS = 1_000_000


class End:
    """The end of the way: what arrived when, one entry a write."""

    def __init__(self, loop):
        self.loop = loop
        self.writes = []
        self.ended_ms = None

    def write(self, parcels):
        names = "".join(parcel.data.decode() for parcel in parcels)
        held = [parcel.held_by for parcel in parcels]
        self.writes.append((round(self.loop.time() * 1000), names, held, [p.ready_ns // MS for p in parcels]))

    def end(self):
        self.ended_ms = round(self.loop.time() * 1000)


def play(*faults, tokens=6, gap_ms=10, open_at_ms=None, size=1):
    """Tokens a, b, c … every `gap_ms`, then the end."""

    async def main():
        loop = asyncio.get_running_loop()
        loop.virtual.now_ns = 0
        end = End(loop)
        first, gate = with_faults(end, {fault.kind: fault for fault in map(parse_fault, faults)})

        def send(n):
            due_ns = n * gap_ms * MS
            token = Token("id", n + 1, n == tokens - 1, "decode", None, 0)
            first.write([Parcel(b"abcdefgh"[n : n + 1] * size, None, token, due_ns, due_ns)])
            if token.last:
                first.end()

        for n in range(tokens):
            loop.call_at(n * gap_ms / 1000, send, n)
        if open_at_ms is not None:
            loop.call_at(open_at_ms / 1000, lambda: gate.open(open_at_ms * MS))
        await asyncio.sleep(10)
        return end

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_without_faults_every_token_leaves_at_once():
    end = play()
    assert [(at, names) for at, names, *_ in end.writes] == [(10 * n, "abcdef"[n]) for n in range(6)]
    assert end.ended_ms == 50


@pytest.mark.parametrize(
    ("fault", "writes"),
    [
        ("buffer:bytes=2", [(10, "ab"), (30, "cd"), (50, "ef")]),
        ("buffer:bytes=4", [(30, "abcd"), (50, "ef")]),
        ("buffer", [(50, "abcdef")]),
        ("burst:tokens=3", [(20, "abc"), (50, "def")]),
        ("burst", [(50, "abcdef")]),
    ],
)
def test_what_is_held_back_leaves_together(fault, writes):
    end = play(fault)
    assert [(at, names) for at, names, *_ in end.writes] == writes
    assert end.ended_ms == 50


def test_who_was_held_back_is_known_and_until_when():
    (_, _, held, ready), _ = play("burst:tokens=3").writes
    assert held == ["burst", "burst", ""]
    assert ready == [20, 20, 20]


def test_a_freeze_is_one_silence():
    end = play("freeze:after=2,for=1s")
    assert [(at, names) for at, names, *_ in end.writes] == [
        (0, "a"), (10, "b"), (1020, "c"), (1030, "d"), (1040, "e"), (1050, "f")
    ]  # fmt: skip
    assert [held for _, _, held, _ in end.writes] == [[""], [""], ["freeze"], [""], [""], [""]]
    assert end.ended_ms == 1050


def test_a_freeze_behind_the_last_token_is_none():
    assert play("freeze:after=6,for=1s").ended_ms == 50


@pytest.mark.parametrize(
    ("open_at_ms", "writes", "ended_ms"),
    [(25, [(25, "abc"), (30, "d"), (40, "e"), (50, "f")], 50), (500, [(500, "abcdef")], 500)],
)
def test_a_late_head_holds_back_all_behind_it(open_at_ms, writes, ended_ms):
    end = play("slow-headers", open_at_ms=open_at_ms)
    assert [(at, names) for at, names, *_ in end.writes] == writes
    assert end.ended_ms == ended_ms


def test_faults_lie_behind_one_another():
    end = play("freeze:after=1,for=100ms", "burst:tokens=2", "slow-headers", open_at_ms=200)
    assert [(at, names) for at, names, *_ in end.writes] == [(200, "abcdef")]
    end = play("freeze:after=1,for=100ms", "burst:tokens=2")
    assert [(at, names) for at, names, *_ in end.writes] == [(110, "ab"), (130, "cd"), (150, "ef")]
