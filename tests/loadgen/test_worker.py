"""One worker: what it sends and hears, its clock, and the share that it is given."""

import asyncio
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from loadgen.access import make_access
from loadgen.drive import Live
from loadgen.openai_api import BodyOptions
from loadgen.openai_http import HttpOptions
from loadgen.share import Share
from loadgen.streams import Stalled
from loadgen.target import parse_target
from loadgen.tokenizer import Tokenizer
from loadgen.worker import SharedClock, Wire
from tests.loadgen.scripted import Certificate
from workloads.prompts import Calibration
from workloads.schedule import build
from workloads.spec import Workload, load_workload

KEY = "sk-very-secret-0123456789"


def share(concurrency: int = 8, requests: int = 100, url: str = "http://127.0.0.1:9", **more: Any) -> Share:
    classes = {"c": {"shape": "chat", "input_tokens": 8, "output_tokens": 2}}
    workload = Workload.model_validate({"concurrency": concurrency, "requests": requests, "classes": classes})
    access = make_access(
        parse_target(url, "chat"), headers={}, api_key=KEY, ca_file=more.get("ca_file"), client_cert=None,
        insecure=False, proxy=None,
    )  # fmt: skip
    return Share(build(workload, 1), Calibration(), access, BodyOptions("m"), HttpOptions(), **more)


@given(
    n=st.integers(1, 9), max_in_flight=st.integers(1, 50), concurrency=st.integers(1, 50), requests=st.integers(1, 99)
)
def test_the_parts_are_the_whole(n: int, max_in_flight: int, concurrency: int, requests: int) -> None:
    whole = share(concurrency, requests, max_in_flight=max_in_flight)
    parts = [whole.part(i, n) for i in range(n)]
    assert [part.worker for part in parts] == list(range(n))
    for name, asked in (("concurrency", concurrency), ("requests", requests)):
        assert sum(getattr(part.schedule, name) for part in parts) == asked
    slots = [part.max_in_flight or 0 for part in parts]
    assert sum(slots) == max_in_flight
    assert max(slots) - min(slots) <= 1
    assert slots[0] == max(slots), "the first part is the largest: its need of open files is every worker's"


def test_a_share_shows_no_key_and_arrives_whole(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    asked = share(url="https://127.0.0.1:9", ca_file=str(certificate.file))
    got = pickle.loads(pickle.dumps(asked.part(1, 2))).whole()
    assert KEY not in repr(got)
    assert got.access.api_key == KEY
    assert got.access.tls is not None
    assert got.access.tls.get_ca_certs() == asked.access.tls.get_ca_certs()  # type: ignore[union-attr]
    assert got.schedule == asked.schedule.shard(1, 2)


def test_a_tokenizer_arrives_whole(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(models.WordLevel({"two": 0, "words": 1}, unk_token="two"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    asked = share(tokenizer=Tokenizer(tmp_path / "tokenizer.json"))
    got = pickle.loads(pickle.dumps(asked.part(0, 2))).whole()
    assert got.tokenizer.count("two words") == 2


@pytest.mark.parametrize("name", ["agent", "chat", "mixed", "rag", "reasoning"])
def test_every_kind_of_schedule_arrives_whole(name: str) -> None:
    plan = build(load_workload(name, {"duration": "5s"}), 3)
    sent = plan.shard(1, 2)
    got = pickle.loads(pickle.dumps(sent))
    assert list(got.sessions()) == list(sent.sessions())
    assert list(got.primers()) == list(sent.primers())


def test_a_share_needs_no_certificate_where_there_is_no_tls() -> None:
    assert share().part(0, 2).whole().access == share().access


async def wire_ends() -> tuple[Wire, Wire]:
    (there, from_here), (here, from_there) = os.pipe(), os.pipe()
    return await Wire.over(here, from_here), await Wire.over(there, from_there)


def wires(test: Any) -> Any:
    """Runs `test(one end, other end)`."""

    async def main() -> Any:
        ends = await wire_ends()
        try:
            return await asyncio.wait_for(test(*ends), 10)
        finally:
            for end in ends:
                await end.close()

    return asyncio.run(main())


def test_messages_arrive_in_order_and_whole() -> None:
    messages = [("ready",), ("tick", Live(3, 1), Stalled(2, 9), "x" * 300_000), ("stop", None, True)]

    async def test(ours: Wire, theirs: Wire) -> list[Any]:
        for message in messages:
            ours.send(*message)
        return [await theirs.receive() for _ in messages]

    assert wires(test) == messages


@pytest.mark.parametrize("half", [b"", b"\x09", b"\x09\x00\x00\x00abc"])
def test_an_end_that_is_gone_is_no_message(half: bytes) -> None:
    async def main() -> Any:
        (there, from_here), (here, from_there) = os.pipe(), os.pipe()
        theirs = await Wire.over(there, from_there)
        os.write(from_here, half)
        os.close(from_here)
        os.close(here)
        heard = await theirs.receive()
        theirs.send("nobody", "hears")
        await theirs.close()
        return heard

    assert asyncio.run(main()) is None


def test_what_was_said_before_the_end_is_heard_though_what_came_in_return_was_not() -> None:
    """As when a run is stopped just as a worker says its last word."""
    words = [("tick", "x" * 40_000), ("tick", 2), ("done", 42)]

    async def test(ours: Wire, theirs: Wire) -> list[Any]:
        for word in words:
            theirs.send(*word)
        ours.send("stop", "SIGINT", False)  # nobody reads it any more
        await theirs.close()
        for _ in range(9):  # and this meets a closed end, of which we learn as the loop turns
            ours.send("stop", "SIGINT", True)
            await asyncio.sleep(0)
        return [await ours.receive() for _ in [*words, None]]

    assert wires(test) == [*words, None]


def test_who_does_not_read_is_noticed_and_not_waited_for() -> None:
    async def test(ours: Wire, theirs: Wire) -> tuple[bool, bool, Any]:
        before = ours.idle
        for _ in range(8):
            ours.send("x" * 1_000_000)
        during = ours.idle
        for _ in range(8):
            await theirs.receive()
        return before, during, ours.idle

    assert wires(test) == (True, False, True)


def test_a_shared_clock_says_when_it_is_ready_and_starts_when_it_is_told() -> None:
    async def test(ours: Wire, theirs: Wire) -> None:
        clock = SharedClock(ours)
        assert clock.now_ns() < 0
        clock.start(0)
        assert await theirs.receive() == ("ready",)
        waiting = asyncio.create_task(clock.sleep_until(1_000))
        await asyncio.sleep(0)
        assert clock.now_ns() < 0
        origin_ns = time.monotonic_ns()
        clock.start_at(origin_ns)
        await waiting
        assert clock.origin_ns == origin_ns
        assert clock.now_ns() > 1_000
        assert abs(clock.epoch_ns_at_start - time.time_ns() + clock.now_ns()) < 1_000_000_000

    wires(test)
