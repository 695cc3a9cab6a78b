"""The engine on a loop whose time jumps: nothing here waits."""

import asyncio
from itertools import pairwise

import pytest

from loadgen.sim.core import Cluster
from loadgen.sim.options import Options
from loadgen.sim.realtime import Engine, Sink
from loadgen.sim.tokens import SimRequest
from tests.loadgen.virtual import VirtualLoop

S = 1_000_000_000


class Kept(Sink):
    """Keeps what it gets, and when."""

    __slots__ = ("encoded", "got", "loop")

    def __init__(self, request_id, loop):
        super().__init__(request_id)
        self.loop = loop
        self.encoded = []
        self.got = []

    def encode(self, token):
        self.encoded.append(token.number)
        return token.number

    def write(self, encoded, token, due_ns):
        assert encoded == token.number
        self.got.append((token.number, due_ns, self.loop.now_ns()))


class Loop(VirtualLoop):
    """Time begins at 0."""

    def __init__(self):
        super().__init__()
        self.virtual.now_ns = 0

    def now_ns(self):
        return self.virtual.now_ns


def virtual(main):
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main(runner.get_loop()))


def engine_on(loop, config=None):
    return Engine(config or Options().config(), loop.now_ns, spin_ns=0)


def dues(config, arrivals, until_ns=100 * S):
    """What the core alone gives: for each request the ends of the passes of its tokens."""
    core, found = Cluster(config), {}
    for at_ns, request in arrivals:
        for result in core.step(at_ns):
            note(found, result)
        core.submit(at_ns, request)
    while (next_ns := core.next_ns) is not None and next_ns <= until_ns:
        for result in core.step(next_ns):
            note(found, result)
    return found


def note(found, result):
    for token in result.tokens:
        found.setdefault(token.request_id, []).append((token.number, result.end_ns))


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(replicas=3, router="least-loaded"),
        Options(policy="disaggregated"),
        Options(speculative="3:0.7"),
    ],
)
def test_tokens_come_when_the_core_says(options):
    arrivals = [(i * 3_000_001, SimRequest(f"r{i}", 100 + 400 * (i % 3), 20 + i)) for i in range(12)]

    async def main(loop):
        engine, sinks = engine_on(loop, options.config()), []
        for at_ns, request in arrivals:
            await asyncio.sleep(at_ns / 1e9 - loop.time())
            sinks.append(Kept(request.request_id, loop))
            engine.attach((request, sinks[-1]))
        await asyncio.sleep(100)
        return engine, sinks

    engine, sinks = virtual(main)
    expected = dues(options.config(), arrivals)
    for sink in sinks:
        assert [(number, due_ns) for number, due_ns, _ in sink.got] == expected[sink.request_id]
        # The loop's time is a float: the nanosecond may be rounded away.
        assert all(abs(now_ns - due_ns) <= 2 for _, due_ns, now_ns in sink.got)
        assert sink.encoded == [number for number, *_ in sink.got]  # once each: while the pass lasted
    assert (engine.core.running, engine.core.waiting, engine.core.next_ns) == (0, 0, None)


def test_a_stream_that_closes_gets_nothing_more():
    async def main(loop):
        engine = engine_on(loop)
        first, second = Kept("a", loop), Kept("b", loop)
        for sink in (first, second):
            engine.attach((SimRequest(sink.request_id, 10, 50), sink))
        await asyncio.sleep(0.1)
        seen = len(first.got)
        assert engine.close(first)
        assert not engine.close(first)
        await asyncio.sleep(10)
        return seen, first, second, engine

    seen, first, second, engine = virtual(main)
    assert 0 < seen == len(first.got) < 50
    assert [number for number, *_ in second.got] == list(range(1, 51))
    assert (engine.core.totals.cancelled, engine.core.totals.finished) == (1, 1)


def test_a_pause_moves_everything_behind_it():
    def gaps(pause):
        async def main(loop):
            engine, sink = engine_on(loop), Kept("a", loop)
            engine.attach((SimRequest("a", 10, 30), sink))
            await asyncio.sleep(0.1)
            if pause:
                engine.pause(S)
            await asyncio.sleep(10)
            return [due_ns for _, due_ns, _ in sink.got]

        return virtual(main)

    without, paused = gaps(False), gaps(True)
    moved = [b - a for a, b in zip(without, paused, strict=True)]
    assert set(moved) == {0, S}
    assert moved == sorted(moved)


def test_an_engine_that_breaks_ends_its_streams_and_says_so():
    class Broken(Kept):
        __slots__ = ()

        def encode(self, token):
            raise ArithmeticError("by hand")

    async def main(loop):
        reports = []
        loop.set_exception_handler(lambda loop, context: reports.append(context["exception"]))
        engine, sink = engine_on(loop), Broken("a", loop)
        engine.attach((SimRequest("a", 5, 5), sink))
        await asyncio.sleep(1)
        return reports, sink

    reports, sink = virtual(main)
    assert [str(error) for error in reports] == ["by hand"]
    assert sink.closed


def test_a_late_caller_gets_what_was_due_before_it_submits():
    """A request comes after the end of a pass but before its timer: the pass' tokens do not wait for the next one."""

    async def main(loop):
        engine, first = engine_on(loop), Kept("a", loop)
        engine.attach((SimRequest("a", 10, 5), first))
        await asyncio.sleep(0.001)
        loop.virtual.now_ns += 50_000_000
        engine.attach((SimRequest("b", 10, 5), Kept("b", loop)))
        return first.got

    assert [number for number, *_ in virtual(main)] == [1, 2, 3, 4, 5]


def test_a_process_that_was_held_up_for_long_does_not_catch_up():
    async def main(loop):
        engine, sink = engine_on(loop), Kept("a", loop)
        engine.attach((SimRequest("a", 10, 30), sink))
        await asyncio.sleep(0.1)
        loop.virtual.now_ns += S
        await asyncio.sleep(10)
        return sink.got

    got = virtual(main)
    assert [number for number, *_ in got] == list(range(1, 31))
    late = [now_ns - due_ns for _, due_ns, now_ns in got]
    (victim,) = [i for i, each in enumerate(late) if each > 2]
    assert late[victim] > 0.9 * S  # one token was late, and is told to be
    gaps = [b[1] - a[1] for a, b in pairwise(got)]
    assert max(gaps[victim + 1 :]) < 2 * min(gaps)  # those behind it come at the old pace
    assert gaps[victim] > 0.9 * S
