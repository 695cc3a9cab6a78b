import asyncio
import time

import pytest

from analysis.record import ANSWER, THINKING
from analysis.roofline import Roofline
from loadgen.clock import RunClock
from loadgen.sim import catalog
from loadgen.sim.core import SimConfig, SimRequest, replay
from loadgen.sim.virtual import VirtualEngine, VirtualLoop
from workloads.request import Message, Request

H100 = Roofline(catalog.gpu("h100"), catalog.model("llama-3.1-8b"))


def request(name, prompt=100, output=5, **rest):
    return Request(name, (Message("user", "hi"),), prompt, output, **rest)


def records_of(config, *plan, cancel_at_ns=None):
    """Records of requests sent at given instants (ns); those still open at `cancel_at_ns` are cancelled."""

    async def one(engine, clock, due_ns, what):
        await clock.sleep_until(due_ns)
        return await engine.send(what)

    async def main():
        loop = asyncio.get_running_loop()
        clock = RunClock(monotonic_ns=loop.now_ns)
        clock.start()
        engine = VirtualEngine(config, clock, loop.now_ns)
        tasks = [asyncio.create_task(one(engine, clock, *row)) for row in plan]
        if cancel_at_ns is not None:
            await clock.sleep_until(cancel_at_ns)
            for task in tasks:
                task.cancel()
        records = await asyncio.gather(*tasks)
        assert (engine.engine.core.running, engine.engine.core.pool.used) == (0, 0)
        return records

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("chunk_tokens", [0, 512])
def test_arrivals_are_those_of_the_core_alone(chunk_tokens):
    config = SimConfig(H100, chunk_tokens)
    plan = [(0, request("a", output=40)), (30_000_000, request("b", 5000, 3)), (31_000_000, request("c", 700, 9))]
    alone = {}
    for result in replay(config, [(t, SimRequest(r.request_id, r.input_tokens, r.output_tokens)) for t, r in plan]):
        for token in result.tokens:
            alone.setdefault(token.request_id, []).append(result.end_ns)
    for record in records_of(config, *plan):
        assert list(record.arrival_ns) == pytest.approx(alone[record.request_id], abs=2)
        assert record.outcome == "ok"
        assert record.end_ns == record.arrival_ns[-1]


def test_what_a_record_says():
    (record,) = records_of(SimConfig(H100), (1_000, request("a", 90, 5, thinking_tokens=2, keep_text=True)))
    assert record.sent_ns == record.headers_ns == pytest.approx(1_000, abs=1)
    assert list(record.kind) == [THINKING] * 2 + [ANSWER] * 3
    assert list(record.n_tokens) == [1] * 5
    assert list(record.read_id) == [0, 1, 2, 3, 4]
    assert (record.prompt_tokens, record.completion_tokens, record.reasoning_tokens) == (90, 5, 2)
    assert sum(record.chars) == len(record.text)
    assert len(record.text.split()) == 5


def test_what_does_not_fit_is_refused():
    too_long, too_big = (records_of(SimConfig(H100, kv_tokens=64), (0, request("a", n, 5)))[0] for n in (131_068, 60))
    assert (too_long.outcome, too_long.status) == (too_big.outcome, too_big.status) == ("http_error", 400)
    assert "context" in too_long.error
    assert "KV cache" in too_big.error


def test_a_cancelled_request_keeps_what_had_come():
    (record,) = records_of(SimConfig(H100), (0, request("a", output=500)), cancel_at_ns=1_000_000_000)
    assert record.outcome == "cancelled"
    assert 160 < len(record.arrival_ns) < 170  # about 6 ms each
    assert record.end_ns == pytest.approx(1_000_000_000, abs=1)


def test_hours_pass_in_no_time():
    began = time.monotonic()
    (record,) = records_of(SimConfig(H100), (7_200_000_000_000, request("a")))
    assert record.sent_ns == pytest.approx(7_200_000_000_000, abs=2)
    assert time.monotonic() - began < 7_200
