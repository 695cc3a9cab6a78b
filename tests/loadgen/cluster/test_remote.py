"""Workers on other machines, without Ray: what comes back, what a lost node costs, and how a run is stopped."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.columns import ROW_FIELDS
from analysis.journal import read_journal
from analysis.rundir import RunWriter, read_run
from loadgen.clock import RunClock
from loadgen.cluster.parcel import Parcel, joined, pieces
from loadgen.cluster.post import Post
from loadgen.cluster.remote import Handle, LostError, RemoteWorker, facts, placement
from loadgen.drive import Live, Stop
from loadgen.errors import LoadgenError
from loadgen.fleet import Fleet
from loadgen.host import HostError
from loadgen.share import Carried, Share
from loadgen.streams import Stalled, Streams
from tests.analysis.records import meta
from tests.loadgen.cluster.fakes import HOST, STAGES, NearNode, ScriptedNode, journal_bytes
from tests.loadgen.kills import left_after
from tests.loadgen.scripted import DONE, HANG, ScriptedServer, answer, content, finish, role, usage
from tests.loadgen.test_worker import KEY, share

HOUR_NS = 3_600_000_000_000
GOOD = answer(role(), content("Hello"), content(" world"), finish("length"), usage(8, 2), DONE)


class Ran:
    """A fleet on these nodes: what it made of them."""

    def __init__(self, nodes: Sequence[Handle], folder: Path, whole: Share | None = None) -> None:
        folder.mkdir(exist_ok=True)
        asked, n = whole or share(), len(nodes)
        self.folder = folder
        self.stop, self.live, self.streams, self.clock = Stop(), Live(), Streams(), RunClock()
        self.workers = [
            RemoteWorker(node, lambda i=i: Parcel.of(asked, i, n), i, n, 64, folder)  # type: ignore[misc]
            for i, node in enumerate(nodes)
        ]
        self.said: list[str] = []
        self.measured = 0
        self.stages = asked.schedule.stages if whole else STAGES

    async def carry(self, act: Callable[["Ran"], Awaitable[None]] | None = None) -> tuple[Carried, list[str]]:
        fleet = Fleet(
            self.workers, self.stages, self.clock, self.stop, self.live, self.streams, self._count, self.said.append
        )
        acting = None if act is None else asyncio.ensure_future(act(self))
        try:
            return await asyncio.wait_for(fleet.carry(), 60)
        finally:
            if acting is not None:
                await acting

    def _count(self, tally: Any) -> None:
        self.measured += tally.measured

    def requests(self) -> dict[str, int | None]:
        """When each left, by the journals that came."""
        frames = [frame for path in self.folder.glob("journal-*.bin") for frame in read_journal(path)]
        rows = [row for kind, rows in frames if kind == "requests" for row in rows]
        return {row[0]: row[ROW_FIELDS.index("sent_ns")] for row in rows}


def test_all_that_nodes_wrote_stands_on_our_timeline_however_their_clocks_are_set(tmp_path: Path) -> None:
    names = [[f"a{i}" for i in range(30)], [f"b{i}" for i in range(30)]]
    nodes = [
        ScriptedNode("node-a", journal_bytes(tmp_path / "far", names[0], 5_000_000_000), HOUR_NS),
        ScriptedNode("node-b", journal_bytes(tmp_path / "far", names[1], 5_000_000_000), -HOUR_NS // 3),
    ]

    async def main() -> tuple[Ran, Carried, list[str]]:
        ran = Ran(nodes, tmp_path / "run")
        return (ran, *await ran.carry())

    ran, carried, losses = asyncio.run(main())
    assert losses == []
    assert (carried.driven.interrupted_by, carried.timestamp_source) == (None, "kernel")
    assert (ran.measured, ran.live, ran.streams.told) == (6, Live(6, 2), Stalled(2, 5))
    sent_ns = ran.requests()
    assert set(sent_ns) == {*names[0], *names[1]}
    for node, worker in zip(nodes, ran.workers, strict=True):
        (start,) = [message for message in node.told if message[0] == "start"]
        assert worker.clock is not None
        error_ns = worker.clock.error_ns
        assert error_ns < 100_000_000
        assert abs(worker.clock.ahead_ns - node.ahead_ns) <= error_ns
        assert abs(start[1] - ran.clock.origin_ns - node.ahead_ns) <= error_ns
        assert (node.closed, node.killed) == (True, True)
        assert {joined(node.taken).i, joined(node.taken).n} == {worker.worker, 2}
    assert all(abs((at or 0) - 5_000_000_000) < 100_000_000 for at in sent_ns.values())
    (told,) = placement(ran.workers)
    assert told["code"] == "clock_error"
    assert [(each["worker"], each["node"], each["host"]) for each in facts(ran.workers)] == [
        (0, "node-a", HOST), (1, "node-b", HOST)
    ]  # fmt: skip


@pytest.mark.parametrize("polls", [0, 1, 2, 20])
def test_a_node_that_dies_costs_what_had_not_come_and_the_rest_goes_on(polls: int, tmp_path: Path) -> None:
    journal = journal_bytes(tmp_path / "far", [f"b{i}" for i in range(90)], at_a_time=10)
    nodes = [
        ScriptedNode("node-a", journal_bytes(tmp_path / "far", ["a1", "a2"])),
        ScriptedNode("node-b", journal, HOUR_NS, lasts=True, dies_after=polls),
    ]

    async def main() -> tuple[Ran, Carried, list[str]]:
        ran = Ran(nodes, tmp_path / "run")
        return (ran, *await ran.carry())

    ran, carried, losses = asyncio.run(main())
    (loss,) = losses
    assert loss.startswith("worker 2 of 2 on node node-b was lost (its node died; last heard of at ")
    assert loss.endswith(" s: the rest of its share is missing")
    assert (carried.driven.interrupted_by, ran.said) == (loss, [loss])
    kept = {name for name in ran.requests() if name.startswith("b")}
    assert kept < {f"b{i}" for i in range(90)}
    assert bool(kept) == (polls >= 20)
    assert {"a1", "a2"} <= set(ran.requests())


def test_a_node_that_falls_silent_is_lost_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.cluster.remote.SILENT_S", 0.1)
    journal = journal_bytes(tmp_path / "far", ["a"])
    nodes = [ScriptedNode("node-a", journal, lasts=True, dies_after=2, falls_silent=True)]

    async def main() -> list[str]:
        _, losses = await Ran(nodes, tmp_path / "run").carry()
        return losses

    (loss,) = asyncio.run(main())
    assert loss.startswith("worker 1 of 1 on node node-a was lost (no answer in 0.1 s; last heard of at ")
    assert nodes[0].killed


def test_a_stop_reaches_all_and_the_second_too_and_what_was_written_is_fetched(tmp_path: Path) -> None:
    nodes = [
        ScriptedNode(name, journal_bytes(tmp_path / "far", [f"{name}{i}" for i in range(30)]), lasts=True)
        for name in "ab"
    ]

    async def stop(ran: Ran) -> None:
        while not all(node.told for node in nodes):
            await asyncio.sleep(0)
        ran.stop.set("SIGINT")
        ran.stop.set("SIGINT", at_once=True)

    async def main() -> tuple[Ran, Carried, list[str]]:
        ran = Ran(nodes, tmp_path / "run")
        return (ran, *await ran.carry(stop))

    ran, carried, losses = asyncio.run(main())
    assert (carried.driven.interrupted_by, losses) == ("SIGINT", [])
    for node in nodes:
        assert next(message[1:] for message in node.told if message[0] == "stop") == ("SIGINT", False)
    assert len(ran.requests()) == 60


CANNOT_START = {
    "another version there": ({"loadgen": "9.9"}, r"loadgen 9\.9 is installed there and .* here: install the same"),
    "too few open files": ({"refuses": HostError("this run needs about 64 open files")}, "this run needs about 64"),
    "the file is gone": (
        {"refuses": LoadgenError("the share cannot be unpacked: no room")},
        "the share cannot be unpacked",
    ),
    "its node dies": ({"refuses": LostError("its node died")}, "its node died"),
}


@pytest.mark.parametrize("case", CANNOT_START)
def test_a_node_that_cannot_start_is_one_line(case: str, tmp_path: Path) -> None:
    odd, line = CANNOT_START[case]
    good, bad = ScriptedNode("node-a", b""), ScriptedNode("node-b", b"", **odd)  # type: ignore[arg-type]

    async def main() -> None:
        await Ran([good, bad], tmp_path / "run").carry()

    with pytest.raises(HostError, match=rf"^worker 2 of 2 on node node-b did not start: {line}"):
        asyncio.run(main())
    assert good.killed
    assert bad.killed
    assert good.closed
    assert not good.told


def test_a_directory_that_is_gone_ends_the_run_at_once(tmp_path: Path) -> None:
    node = ScriptedNode("node-a", journal_bytes(tmp_path / "far", [f"a{i}" for i in range(30)]), lasts=True)

    async def main() -> Carried:
        ran = Ran([node], tmp_path / "run")
        (tmp_path / "run").rmdir()
        carried, _ = await ran.carry()
        return carried

    carried = asyncio.run(main())
    assert carried.unwritten == f"{tmp_path}/run: cannot write the journal: No such file or directory"
    assert ("stop", carried.unwritten, True) in node.told


# --- with a real worker -----------------------------------------------------------------------------------------------


def test_posts_with_real_workers_carry_a_run(tmp_path: Path) -> None:
    async def main() -> tuple[Ran, ScriptedServer, Carried, list[str]]:
        writer = RunWriter.create(tmp_path / "run", meta(stages=[]))
        async with ScriptedServer(GOOD) as server:
            ran = Ran([NearNode("a"), NearNode("b")], tmp_path / "run", share(4, 40, server.url))
            carried, losses = await ran.carry()
        writer.close({})
        return ran, server, carried, losses

    ran, server, carried, losses = asyncio.run(main())
    assert (losses, carried.driven.interrupted_by) == ([], None)
    run = read_run(tmp_path / "run")
    assert sorted(run.requests["request_id"]) == sorted(request.headers["x-request-id"] for request in server.requests)
    assert set(run.requests["worker"]) == {0, 1}
    assert set(run.requests["outcome"]) == {"ok"}
    assert run.requests["ttft_s"].between(0, 10).all()
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    assert all(abs(each.clock.ahead_ns) <= each.clock.error_ns for each in ran.workers if each.clock)
    assert not any(node.exists() for node in _folders(ran))


def _folders(ran: Ran) -> list[Path]:
    return [worker._post.post._folder for worker in ran.workers]  # type: ignore[attr-defined]


def test_a_worker_that_is_killed_on_its_node_costs_its_share_and_its_journal_still_comes(tmp_path: Path) -> None:
    async def kill(ran: Ran) -> None:
        while not (tmp_path / "run" / "journal-1.bin").exists() or len(ran.requests()) < 10:
            await asyncio.sleep(0.02)
        process = ran.workers[1]._post.post._worker._process  # type: ignore[attr-defined]
        os.kill(process.pid, signal.SIGKILL)
        while not ran.said:
            await asyncio.sleep(0.02)
        ran.stop.set("enough")

    async def main() -> tuple[Ran, Carried, list[str]]:
        async with ScriptedServer(GOOD) as server:
            ran = Ran([NearNode("a"), NearNode("b")], tmp_path / "run", share(4, 1_000_000, server.url))
            return (ran, *await ran.carry(kill))

    ran, _, losses = asyncio.run(main())
    (loss,) = losses
    assert loss.startswith("worker 2 of 2 on node b was ended by SIGKILL after ")
    assert len(ran.requests()) >= 10
    assert not any(node.exists() for node in _folders(ran))


# --- a post -----------------------------------------------------------------------------------------------------------


async def begun(url: str, n: int = 1) -> Post:
    post, parcel = Post(), Parcel.of(share(4, 40, url), 0, n)
    for number, piece in enumerate(pieces(parcel)):
        post.take(number, piece)
    await post.begin(64)
    return post


def test_what_was_said_is_said_again_until_it_was_heard() -> None:
    async def main() -> None:
        async with ScriptedServer(GOOD) as server:
            post = await begun(server.url)
            first = await post.poll(0, 0)
            while not first.messages:
                first = await post.poll(0, 0)
            again = await post.poll(0, 0)
            assert first.messages[:1] == again.messages[:1] == [("ready",)]
            post.tell("start", time.monotonic_ns())
            heard, got, kinds = 1, b"", []
            while not (news := await post.poll(heard, len(got))).over:
                heard, got = heard + len(news.messages), got + news.journal
                kinds += [message[0] for message in news.messages]
            assert kinds[-2:] == ["done", "ended"]
            assert len(got) > 1_000
            await post.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_whom_nobody_asks_any_more_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.cluster.post.ALONE_S", 0.5)

    async def main() -> list[int]:
        async with ScriptedServer([*GOOD[:3], HANG]) as server:
            post = await begun(server.url)
            pid = post._worker._process.pid  # type: ignore[union-attr]
            left = await left_after(20, [pid])
            await post.close()
            return left

    assert asyncio.run(asyncio.wait_for(main(), 60)) == []


def test_a_share_that_came_torn_is_one_line() -> None:
    async def main() -> None:
        post = Post()
        post.take(0, b"\x80\x04 no parcel")
        try:
            await post.begin(64)
        finally:
            await post.close()

    with pytest.raises(LoadgenError, match=r"^the share cannot be unpacked: "):
        asyncio.run(main())
