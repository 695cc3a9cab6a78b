"""Several processes carry one run: the same numbers as from one, and what happens when one, or all, must end."""

import asyncio
import json
import random
import re
import shutil
import signal
import sys
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.rundir import RunJournal, RunWriter, read_meta, read_run
from analysis.summary import summarize
from loadgen.clock import RunClock
from loadgen.drive import Live, Stop, drive
from loadgen.fleet import Fleet, LocalWorker, planned_tokens_per_s, worker_count
from loadgen.host import HostError
from loadgen.streams import Streams
from tests.analysis.records import meta
from tests.loadgen.kills import Kill, carriers, killed_run, left_after
from tests.loadgen.plans import MS, Answer, MemoryEngine, WordPrompter
from tests.loadgen.scripted import (
    DONE,
    HANG,
    Certificate,
    Received,
    ScriptedServer,
    Step,
    answer,
    content,
    finish,
    role,
    usage,
)
from tests.loadgen.test_worker import KEY, share
from tests.loadgen.virtual import VirtualClock, run_virtual
from workloads.schedule import Schedule, build
from workloads.spec import Workload

GOOD = answer(role(), content("Hello"), content(" world"), finish("length"), usage(8, 2), DONE)


def schedule(rate: str = "100/s", output_tokens: int = 100, **more: Any) -> Schedule:
    load = {"arrivals": {"process": "poisson", "rate": rate}, "duration": "10s"} | more
    if "concurrency" in load:
        del load["arrivals"]
    shape = {"shape": "chat", "turns": 1, "input_tokens": 8, "output_tokens": output_tokens}
    return build(Workload.model_validate(load | {"classes": {"c": shape}}), 1)


# --- how many ---------------------------------------------------------------------------------------------------------

COUNTS = {
    "little": (schedule(), None, None, 8, 1),  # 10,000 tokens a second
    "just what one carries": (schedule("250/s"), None, None, 8, 1),
    "a little more": (schedule("260/s"), None, None, 8, 2),
    "long answers": (schedule("100/s", 900), None, None, 8, 4),
    "never more than the cores": (schedule("1000/s", 900), None, None, 3, 3),
    "a rate that nobody plans": (schedule(concurrency=900), None, None, 8, 1),
    "as asked": (schedule(), 8, None, 2, 8),
    "none without a user": (schedule(concurrency=3), 8, None, 8, 3),
    "none without a slot": (schedule("1000/s", 900), None, 2, 8, 2),
}


@pytest.mark.parametrize("case", COUNTS)
def test_how_many_processes_carry_a_run(case: str) -> None:
    plan, asked, max_in_flight, cores, count = COUNTS[case]
    assert worker_count(plan, asked, max_in_flight, cores) == count


def test_the_busiest_stage_decides() -> None:
    stages = [{"rate": "10/s", "duration": "5s"}, {"rate": "300/s", "duration": "5s"}]
    plan = build(
        Workload.model_validate(
            {"stages": stages, "classes": {"c": {"shape": "chat", "turns": 1, "output_tokens": 90}}}
        ),
        1,
    )
    assert planned_tokens_per_s(plan) == pytest.approx(27_000)


# --- the same report --------------------------------------------------------------------------------------------------


class WholeEngine(MemoryEngine):
    """Answers of one token, with all that a record needs to be stored."""

    async def send(self, request: Any) -> Any:
        record = await super().send(request)
        count = len(record.arrival_ns)
        record.n_tokens, record.chars = array("i", [1] * count), array("i", [4] * count)
        record.kind, record.read_id = array("b", [1] * count), array("i", range(count))
        record.completion_tokens = count or None
        return record


def reply(request_id: str) -> Answer:
    """Some answers are slow, some fail; which, hangs on the request alone."""
    dice = random.Random(request_id)
    outcome = "broken" if dice.random() < 0.1 else "ok"
    return Answer(ms=dice.uniform(50, 900), first_ms=dice.uniform(5, 50), outcome=outcome)


def sent(plan: Schedule, worker: int, take: Callable[[Sequence[Any]], None]) -> None:
    """Drives a schedule in virtual time, and hands over its records."""

    async def main() -> list[Any]:
        clock, filed = VirtualClock(), list[Any]()
        await drive(
            plan,
            WholeEngine(clock, reply),
            clock,
            WordPrompter(clock),
            filed.append,
            stop=Stop(),
            worker=worker,  # type: ignore[arg-type]
        )
        return filed

    take(run_virtual(main()))


def report_of(plan: Schedule, folder: Path, shards: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Requests and summary of a run directory that so many processes have written."""
    stages = [{"name": stage.name, "start_ns": stage.start_ns, "end_ns": stage.end_ns, "measured": stage.measured,
               "offered_rps": stage.offered_rps} for stage in plan.stages]  # fmt: skip
    writer = RunWriter.create(folder, meta(stages=stages, loop="open"))
    for i in range(shards):
        journal = writer if shards == 1 else RunJournal.of_worker(folder, i)
        sent(plan.shard(i, shards), i, journal.append)
        if journal is not writer:
            journal.end()
    writer.close({})
    run = read_run(folder)
    return run.requests, summarize(run, limits=[])


@pytest.mark.parametrize("turns", [1, {"law": "uniform", "low": 1, "high": 4}])
def test_one_two_and_eight_processes_give_the_same_report(turns: Any, tmp_path: Path) -> None:
    shape = {"shape": "chat", "turns": turns, "think_time": "300ms", "input_tokens": 8, "output_tokens": 5}
    load = {"arrivals": {"process": "poisson", "rate": "8/s"}, "duration": "8s", "warmup": "1s", "drain": "5s"}
    plan = build(Workload.model_validate(load | {"classes": {"a": shape, "b": shape}}), 5)
    rows, summary = report_of(plan, tmp_path / "1", 1)
    assert len(rows) > 60
    assert {"ok", "broken"} <= set(rows["outcome"])
    for shards in (2, 8):
        others, other = report_of(plan, tmp_path / str(shards), shards)
        assert set(others["worker"]) == set(range(shards))
        pd.testing.assert_frame_equal(alike(others), alike(rows))
        known = others["due_ns"].dropna()
        assert known.is_monotonic_increasing
        assert list(differences(other | {"client": None}, summary | {"client": None})) == []


def alike(rows: pd.DataFrame) -> pd.DataFrame:
    plain = rows.drop(columns="worker").astype({"class": "object", "stage": "object", "outcome": "object"})
    return plain.sort_values("request_id", ignore_index=True)


def differences(left: Any, right: Any, where: str = "summary") -> Iterator[str]:
    """Where two JSON values differ by more than the order in which floats were added up."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        for key in left.keys() - {"first_request_id"}:  # the first to be due, or the first to fail
            yield from differences(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for at, pair in enumerate(zip(left, right, strict=True)):
            yield from differences(*pair, f"{where}[{at}]")
    elif left != (pytest.approx(right, rel=1e-12) if isinstance(right, float) else right):
        yield f"{where}: {left} and {right}"


# --- processes --------------------------------------------------------------------------------------------------------

Act = Callable[[asyncio.subprocess.Process, ScriptedServer], Awaitable[None]]


async def run_with(
    folder: Path,
    answers: Sequence[Any],
    act: Act | None = None,
    *,
    tls: Any = None,
    load: str = "requests: 40",
    **asked: Any,
) -> tuple[int, str, ScriptedServer]:
    """Exit status and stderr of a run in folder/run, and the server that it met."""
    workload = folder / "workload.yaml"
    classes = "classes: {c: {shape: chat, turns: 1, system_tokens: 0, input_tokens: 8, output_tokens: 2}}"
    workload.write_text(f"name: small\nconcurrency: 4\n{load}\ndrain: 60s\n{classes}\n")
    secrets = {"api_key": asked.pop("api_key", None)}
    async with ScriptedServer(*answers, tls=tls) as server:
        told = {"url": server.url, "out": str(folder / "run"), "workload": str(workload), **asked}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.loadgen.runner", json.dumps(told),
            stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(secrets).encode() + b"\n")
        if act is not None:
            await asyncio.wait_for(act(process, server), 60)
        said = await asyncio.wait_for(process.stderr.read(), 60)
        assert b"Traceback" not in said, said.decode()
        return await process.wait(), said.decode(), server


def ids(server: ScriptedServer) -> list[str]:
    return sorted(request.headers["x-request-id"] for request in server.requests)


def test_two_workers_carry_a_run_and_nobody_else_learns_the_key(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def look_round(request: Received) -> list[Step]:
        seen.extend(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        return GOOD

    certificate = Certificate.make(tmp_path)
    status, said, server = asyncio.run(
        run_with(
            tmp_path, [look_round], tls=certificate.context(), workers=2, api_key=KEY, ca_file=str(certificate.file)
        )
    )
    assert (status, said) == (0, "")
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    run = read_run(tmp_path / "run")
    assert sorted(run.requests["request_id"]) == ids(server)
    assert run.requests["outcome"].tolist() == ["ok"] * 40
    assert set(run.requests["worker"]) == {0, 1}
    assert (run.meta["complete"], run.meta["workers"], run.meta["interrupted_by"]) == (True, 2, None)
    files = [path for path in (tmp_path / "run").iterdir() if not path.name.endswith(".bin")]
    assert len(files) == len(list((tmp_path / "run").iterdir())) >= 3
    assert any(b"loadgen.worker" in title for title in seen)
    for text in [*seen, *(path.read_bytes() for path in files)]:
        assert KEY.encode() not in text


def hang_later(count: int) -> Callable[[Received], list[Step]]:
    """The first requests are answered, the later ones hang after a token."""
    served: list[Received] = []

    def reply(request: Received) -> list[Step]:
        served.append(request)
        return list(GOOD) if len(served) <= count else [*GOOD[:3], HANG]

    return reply


async def all_hang(folder: Path, answered: int) -> None:
    """Waits until the journals have what was answered: the four users hang then."""
    while not (folder / "run.json").exists() or len(read_run(folder).requests) < answered:
        await asyncio.sleep(0.05)


def test_the_first_interrupt_lets_streams_end_and_the_second_ends_all_workers_at_once(tmp_path: Path) -> None:
    workers: list[int] = []

    async def interrupt(process: asyncio.subprocess.Process, server: ScriptedServer) -> None:
        await all_hang(tmp_path / "run", 12)
        workers.extend(carriers(process.pid, tmp_path / "run").values())
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.5)
        assert process.returncode is None
        assert len(server.requests) == 16
        process.send_signal(signal.SIGINT)

    status, said, _ = asyncio.run(run_with(tmp_path, [hang_later(12)], interrupt, load="requests: 500", workers=2))
    assert status == 130
    assert said == "loadgen: stopping: waiting up to 60 s for the open streams; once more to end at once\n"
    requests = read_run(tmp_path / "run").requests
    assert requests["outcome"].value_counts().to_dict() == {"ok": 12, "cancelled": 4}
    assert read_meta(tmp_path / "run")["interrupted_by"] == "SIGINT"
    assert len(workers) == 2
    assert asyncio.run(left_after(10, workers)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_is_whole_in_itself(workers: int, tmp_path: Path) -> None:
    async def interrupt(process: asyncio.subprocess.Process, server: ScriptedServer) -> None:
        while len(server.requests) < 40:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)

    status, _, server = asyncio.run(run_with(tmp_path, [GOOD], interrupt, load="duration: 10m", workers=workers))
    run = read_run(tmp_path / "run")
    assert status == 0
    assert (run.meta["complete"], run.meta["interrupted_by"]) == (False, "SIGINT")
    assert sorted(run.requests["request_id"][run.requests["outcome"] != "not_sent"]) == ids(server)


def test_five_kills_at_random_points_cost_what_was_not_written_yet(tmp_path: Path) -> None:
    """Four of five workers one after the other, then the process that started them: the fifth ends by itself."""
    dice = random.Random()
    victims = dice.sample(range(5), 4)
    kills = [Kill(dice.uniform(0.3, 2.8), victim) for victim in victims] + [Kill(dice.uniform(3.5, 4.0), None)]
    left = asyncio.run(killed_run(tmp_path, 5, kills, duration_s=60))
    assert left.missing == set(), kills
    assert left.alive == []
    assert left.answered > 50
    assert not read_meta(left.folder)["complete"]
    for kill in kills[:-1]:
        assert f"worker {kill.victim + 1} of 5 was ended by SIGKILL" in left.said  # type: ignore[operator]


def test_the_run_goes_on_without_a_worker_and_says_so(tmp_path: Path) -> None:
    left = asyncio.run(killed_run(tmp_path, 2, [Kill(0.9, 1)], duration_s=2))
    meta = read_meta(left.folder)
    assert (left.status, left.missing) == (0, set())
    assert meta["complete"] is False
    assert meta["interrupted_by"].startswith("worker 2 of 2 was ended by SIGKILL after ")
    last_sent_ns = left.requests.groupby("worker")["sent_ns"].max()
    assert last_sent_ns[0] > 1_500 * MS > last_sent_ns[1]


def test_a_worker_that_cannot_start_is_one_line_that_says_why(tmp_path: Path) -> None:
    async def start(parts: int) -> None:
        asked = share(url="https://127.0.0.1:9")
        shares = [replace(asked.part(i, parts), ca_file=str(tmp_path / "gone.pem")) for i in range(parts)]
        workers = [LocalWorker(one, parts, tmp_path) for one in shares]
        stages = asked.schedule.stages
        fleet = Fleet(workers, stages, RunClock(), Stop(), Live(), Streams(), lambda tally: None, lambda text: None)
        await fleet.carry()

    with pytest.raises(HostError, match=r"^worker 1 of 2 did not start: --ca-file .*gone\.pem: No such file"):
        asyncio.run(start(2))


# --- the disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_ends_the_run_at_once_and_keeps_what_was_measured(workers: int, tmp_path: Path) -> None:
    """It would last ten minutes otherwise."""
    status, said, server = asyncio.run(
        run_with(tmp_path, [GOOD], load="duration: 10m", workers=workers, file_bytes=100_000)
    )
    run = tmp_path / "run"
    assert (
        said
        == f"loadgen: {run}: cannot write the journal: File too large; `loadgen report {run}` reads what was kept\n"
    )
    assert status == 3
    kept = read_run(run).requests
    assert 20 < len(kept) <= len(server.requests)
    assert read_meta(run)["interrupted_by"] == f"{run}: cannot write the journal: File too large"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_directory_that_is_removed_ends_the_run_at_once(workers: int, tmp_path: Path) -> None:
    async def remove(process: asyncio.subprocess.Process, server: ScriptedServer) -> None:
        while len(server.requests) < 20:
            await asyncio.sleep(0.01)
        shutil.rmtree(tmp_path / "run")

    status, said, _ = asyncio.run(run_with(tmp_path, [GOOD], remove, load="duration: 10m", workers=workers))
    run = tmp_path / "run"
    assert said == f"loadgen: {run}: cannot write the journal: No such file or directory; nothing could be kept\n"
    assert status == 3
    assert not run.exists()


def test_results_that_do_not_fit_leave_the_journal(tmp_path: Path) -> None:
    """The journal is small enough, Parquet is not."""
    status, said, _ = asyncio.run(run_with(tmp_path, [GOOD], load="requests: 8", file_bytes=6_000))
    run = tmp_path / "run"
    assert re.fullmatch(
        rf"loadgen: {run}: cannot write the results: .*File too large; `loadgen report {run}` .*\n", said
    )
    assert status == 3
    assert len(read_run(run).requests) == 8
