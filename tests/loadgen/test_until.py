"""A run that goes on until its verdict: its stages, what ends it, what a look waits for, and the whole of it."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.record import RequestRecord
from analysis.rundir import read_meta
from loadgen import look, until
from loadgen.drive import Live, Stop, drive
from loadgen.errors import UsageError
from loadgen.look import SILENT_NS, known_up_to_ns
from loadgen.sim.child import LocalServer
from loadgen.until import SETTLED, Watch, in_stretches, look_ends_ns
from tests.loadgen.plans import MS, Answer, MemoryEngine, Plan, WordPrompter, session
from tests.loadgen.test_end_to_end import command, environment, loadgen
from tests.loadgen.virtual import VirtualClock, run_virtual
from workloads.schedule import Schedule, build
from workloads.spec import Workload

S = 1_000_000_000
OPEN = {"arrivals": {"rate": "4/s"}, "duration": "100s", "warmup": "10s"}


def schedule(**spec: Any) -> Schedule:
    return build(Workload.model_validate(spec), 1)


# Stages


@pytest.mark.parametrize(
    "load", [OPEN, {"concurrency": 2, "duration": "100s", "warmup": "10s"}], ids=["open", "closed"]
)
def test_the_measured_stage_is_cut_where_it_is_looked_at(load: dict[str, Any]) -> None:
    whole = schedule(**load)
    cut = in_stretches(whole, [20, 40, 100])
    assert [(s.name, s.start_ns / S, (s.end_ns or 0) / S, s.measured) for s in cut.stages] == [
        ("warmup", 0, 10, False), ("main", 10, 30, True), ("main-2", 30, 50, True), ("main-3", 50, 110, True),
    ]  # fmt: skip
    assert look_ends_ns(cut) == [30 * S, 50 * S, 110 * S]
    assert {stage.offered_rps for stage in cut.stages[1:]} == {whole.stages[1].offered_rps}


def test_the_requests_and_their_times_stay() -> None:
    whole = schedule(**OPEN)
    assert list(in_stretches(whole, [20, 100]).sessions()) == list(whole.sessions())


def test_what_has_no_one_measured_stage_is_refused() -> None:
    with pytest.raises(UsageError, match="one measured stage"):
        in_stretches(schedule(stages=[{"rate": "1/s", "duration": "5s"}, {"rate": "2/s", "duration": "5s"}]), [5, 10])


# What ends it


def found(*unsettled: str, can_settle: bool = True, gone: bool = False) -> dict[str, Any]:
    return {"names": list(unsettled), "unsettled": list(unsettled), "settled": ["errors 0% pass"],
            "can_settle": can_settle, "worker_gone": gone}  # fmt: skip


ENDS = {
    "settled at the first look": ([found()], 1),
    "settled at the second": ([found("itl.p99"), found()], 2),
    "not before the end": ([found("itl.p99")] * 3, None),
    "two looks that more of the same would not settle": ([found("itl.p99", can_settle=False)] * 2, 2),
    "one of them may be chance": ([found("a", can_settle=False), found("a"), found("a", can_settle=False)], None),
    "a worker is gone": ([found("itl.p99", gone=True)], 1),
    "it cannot be looked at": (["no space left"], None),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_ends_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says, taken = ENDS[case]
    told: list[str] = []
    shown: list[str] = []
    looked_at: list[int] = []

    async def scene() -> Watch:
        clock = VirtualClock()

        async def looking(_: Path, number: int, end_ns: int) -> Any:
            looked_at.append(clock.now_ns() // S)
            assert clock.now_ns() >= end_ns
            return says[number - 1]

        monkeypatch.setattr(until, "look", looking)
        stop = Stop()
        ends_ns = [each * S for each in (15, 25, 45, 85)]
        async with Watch(5 * S, ends_ns, Path("x"), clock, stop, shown.append, told.append) as watch:
            clock.start(0)
            await asyncio.wait([asyncio.ensure_future(stop.wait()), asyncio.ensure_future(clock.sleep_until(90 * S))],
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        assert stop.reason == (SETTLED if taken else None)
        return watch

    assert run_virtual(scene()).taken == taken
    assert looked_at == [15, 25, 45][: len(says)]
    if case == "settled at the second":
        assert told == [
            "after 10 s, settled: errors 0% pass",
            "after 10 s, unsettled: itl.p99; looking again after 20 s",
            "after 20 s, settled: errors 0% pass",
        ]
        assert shown == ["unsettled after 10 s: itl.p99", "settled after 20 s"]


# What a look waits for


def samples(*rows: tuple[int, int, int | None]) -> pd.DataFrame:
    """(worker, seconds, due time in seconds of its oldest open request)."""
    return pd.DataFrame(
        [{"worker": w, "t_ns": t * S, "oldest_ns": None if old is None else old * S} for w, t, old in rows]
    )


KNOWN = {
    "no sample yet": (None, 1, 0, False),
    "nothing open": (samples((0, 30, None)), 1, 29, False),
    "the oldest open request was due at 21": (samples((0, 10, 3), (0, 30, 21)), 1, 21, False),
    "the worker that is behind": (samples((0, 30, None), (1, 29, 12), (1, 28, 11)), 2, 12, False),
    "a worker that has told nothing": (samples((0, 30, None)), 2, 0, False),
    "a worker that fell silent": (samples((0, 30 + SILENT_NS // S, None), (1, 29, None)), 2, 28, True),
}


@pytest.mark.parametrize("case", KNOWN)
def test_up_to_when_all_is_known(case: str) -> None:
    client, workers, known_s, gone = KNOWN[case]
    assert known_up_to_ns(client, workers) == (known_s * S, gone)


def test_limits_without_a_verdict_for_one_reason_are_told_together() -> None:
    entries = [
        {"metric": m, "statistic": s, "class": c, "reason": r}
        for m, s, c, r in (("itl", "p99", "all", "few"), ("ttft", "p95", "rag", "few"), ("errors", None, "all", "x"))
    ]
    assert look._by_reason(entries) == ["itl.p99, rag:ttft.p95 (few)", "errors (x)"]


# The whole of it

WORKLOAD = """
{name: until, duration: 2s, drain: 5s, seed: 5, arrivals: {rate: 25/s},
 classes: {c: {shape: chat, input_tokens: 20, output_tokens: 6}}}
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_goes_on_until_it_is_settled_and_no_longer(workers: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    out = tmp_path / "run"
    with LocalServer() as server:
        done = loadgen("run", str(tmp_path / "w.yaml"), "--until-verdict", "--max-duration", "60s",
                       "--workers", workers, "--slo", "ttft.p50<20s", "--slo", "itl.p50<20s",
                       "--target", server.url, "--out", str(out), "--format", "json")  # fmt: skip
    summary, meta = json.loads(done.stdout), read_meta(out)
    taken = meta["looks"]["taken"]
    assert (meta["complete"], meta["interrupted_by"], summary["slo"]["verdict"]) == (True, None, "pass")
    assert summary["run"]["looks"] == {"planned": 6, "taken": taken}
    assert summary["run"]["duration_s"] == 2 * 2 ** (taken - 1)
    assert [stage["measured"] for stage in meta["stages"]] == [True] * taken + [False] * (len(meta["stages"]) - taken)
    assert "settled: " in done.stderr
    assert json.loads(loadgen("report", str(out), "--format", "json").stdout) == summary


def test_at_its_longest_duration_it_ends_without_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    with LocalServer() as server:
        done = loadgen("run", str(tmp_path / "w.yaml"), "--until-verdict", "--max-duration", "4s", "--format", "json",
                       "--slo", "ttft.p999<20s", "--target", server.url, "--out", str(tmp_path / "run"),
                       status=3)  # fmt: skip
    summary = json.loads(done.stdout)
    assert summary["run"]["looks"] == {"planned": 2, "taken": None}
    assert summary["run"]["duration_s"] == 4
    assert "too few for p999" in summary["slo"]["limits"][0]["reason"]
    assert summary["slo"]["limits"][0]["needed_s"] > 100


WRONG = {
    "no limit": ([], "no limit to settle"),
    "stages": (["--set", "duration=null", "--set", "stages=[{rate: 1/s, duration: 5s}]", "--set",
                "arrivals={process: poisson}", "--slo", "ttft.p50<1s"], "stages"),
    "shorter than the first look": (["--slo", "ttft.p50<1s", "--max-duration", "1s"], "--max-duration 1s"),
    "by the values alone": (["--slo", "ttft.p50<1s", "--strict-point"], "--strict-point"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_where_it_makes_no_sense_it_is_refused(case: str, tmp_path: Path) -> None:
    words, expected = WRONG[case]
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    err = loadgen("run", str(tmp_path / "w.yaml"), "--until-verdict", *words, status=2).stderr
    assert expected in err
    assert len(err.splitlines()) == 1


# Repeats


def test_repeats_are_judged_together_and_listed(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    out = tmp_path / "run"
    with LocalServer() as server:
        done = loadgen("run", str(tmp_path / "w.yaml"), "--repeat", "2", "--rest", "0", "--slo", "ttft.p50<20s",
                       "--target", server.url, "--out", str(out), "--format", "json",
                       "--html", str(tmp_path / "p.html"), "--gpu", "h100")  # fmt: skip
    summary = json.loads(done.stdout)
    parts = [json.loads((tmp_path / f"run-{n}" / "summary.json").read_text()) for n in (1, 2)]
    assert summary["requests"]["ok"] == sum(part["requests"]["ok"] for part in parts)
    assert [each["path"] for each in summary["runs"]] == [f"{out}-1", f"{out}-2"]
    assert [each["seed"] for each in summary["runs"]] == [5, 6]
    assert [each["slo"] for each in summary["runs"]] == [part["slo"] for part in parts]
    assert list(summary["by_stage"]) == ["main of run 1", "main of run 2"]
    assert json.loads((tmp_path / "run.json").read_text()) == summary
    assert json.loads(loadgen("report", f"{out}-1", f"{out}-2", "--format", "json").stdout) == summary
    assert "2 runs together" in loadgen("report", f"{out}-1", f"{out}-2").stdout
    assert "Against the roofline" in (tmp_path / "p.html").read_text()
    again = subprocess.run(
        command("run", str(tmp_path / "w.yaml"), "--repeat", "2", "--out", str(out)),
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert again.returncode == 2
    assert "run-1: not empty" in again.stderr


def test_what_waits_for_a_slot_is_open_since_it_was_due() -> None:
    async def scene() -> tuple[list[list[int]], Live]:
        clock, live = VirtualClock(), Live()
        seen: list[list[int]] = []
        plan = Plan([session(0, 0), session(1, 2), session(2, 1000)])
        engine, prompter = MemoryEngine(clock, lambda _: Answer(ms=50)), WordPrompter(clock)

        def keep(_: RequestRecord) -> None:
            assert live.oldest_ns == min(live.open_ns.values())
            seen.append([ns // MS for ns in live.open_ns.values()])

        await drive(plan, engine, clock, prompter, keep, stop=Stop(), live=live, max_in_flight=1)  # type: ignore[arg-type]
        return seen, live

    seen, live = run_virtual(scene())
    assert seen == [[0, 2], [2], [1000]]
    assert live.oldest_ns is None
