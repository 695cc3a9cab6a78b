"""A run on a cluster, as a whole: the same report however many nodes carry it, and what the command line says of it."""

import importlib.util
import os
import re
import shlex
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
import yaml

from analysis.rundir import RunJournal, RunWriter, read_run
from analysis.summary import summarize
from loadgen import arguments
from loadgen.cli import app
from loadgen.cluster import nodes
from loadgen.cluster.clocks import Reading, fit
from loadgen.cluster.parcel import Parcel
from loadgen.cluster.remote import RemoteWorker
from loadgen.cluster.retime import retime
from loadgen.errors import LoadgenError, UsageError
from loadgen.measure import measure
from loadgen.recipes.run import target_of
from loadgen.share import Share
from loadgen.sim.child import LocalServer
from tests.analysis.records import meta
from tests.loadgen.cluster.fakes import NearNode
from tests.loadgen.runner import options
from tests.loadgen.test_fleet import alike, differences, sent
from tests.test_layers import modules, reaches
from workloads.schedule import Schedule, build
from workloads.spec import Workload

HOUR_NS = 3_600_000_000_000


def plan(**more: Any) -> Schedule:
    shape = {"shape": "chat", "turns": 1, "input_tokens": 8, "output_tokens": 5}
    load = {"arrivals": {"process": "poisson", "rate": "8/s"}, "duration": "8s", "drain": "5s", "classes": {"a": shape}}
    return build(Workload.model_validate(load | more), 5)


# --- one timeline -----------------------------------------------------------------------------------------------------


def report_of(schedule: Schedule, folder: Path, drifts: list[float]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Requests and summary of a run on nodes whose clocks run so much faster than ours, each from another start."""
    writer = RunWriter.create(folder, meta(stages=[asdict(stage) for stage in schedule.stages], loop="open"))
    for i, drift in enumerate(drifts):
        journal = RunJournal.of_worker(folder, i)
        sent(schedule.shard(i, len(drifts)), i, journal.append)
        journal.end()
        ahead_ns, file = i * HOUR_NS, folder / f"journal-{i}.bin"

        def there(at_ns: Any, drift: float = drift) -> Any:
            return at_ns + np.rint(at_ns * drift).astype(np.int64)

        retime(file, there)
        at_ns = np.arange(0, 14, 2) * 1_000_000_000
        readings = [
            Reading(int(at), int(ahead_ns + reads - at), 5) for at, reads in zip(at_ns, there(at_ns), strict=True)
        ]
        clock = fit(readings)
        retime(file, lambda there_ns, clock=clock, taken=ahead_ns: clock.placed(there_ns, taken))  # type: ignore[misc]
    writer.close({})
    run = read_run(folder)
    return run.requests, summarize(run, limits=[])


def test_one_two_and_eight_nodes_give_the_same_report_whatever_their_clocks_do(tmp_path: Path) -> None:
    schedule = plan()
    rows, summary = report_of(schedule, tmp_path / "1", [0.0])
    assert len(rows) > 40
    instants = ["due_ns", "sent_ns", "first_token_ns", "last_token_ns", "end_ns"]
    for number, drifts in enumerate([[0.0, 1e-4], [0.0, 1e-4, -1e-4, 5e-5, 2e-6, 0.0, -3e-5, 4e-4]]):
        others, other = report_of(schedule, tmp_path / f"more{number}", drifts)
        one, two = alike(rows), alike(others)
        assert one["request_id"].tolist() == two["request_id"].tolist()
        assert one["outcome"].tolist() == two["outcome"].tolist()
        apart_ns = (one[instants] - two[instants]).abs().max()
        assert apart_ns.max() < 10
        assert other["requests"] == summary["requests"]
        assert list(differences(_rounded(other["metrics"]), _rounded(summary["metrics"]))) == []


def _rounded(value: Any) -> Any:
    """To a microsecond: clocks are fitted, not copied."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


# --- one run ----------------------------------------------------------------------------------------------------------


class NearCluster:
    nodes = ("node-a", "node-b")

    def workers(self, share: Share, n: int, files: int, folder: Path) -> list[RemoteWorker]:
        def parcel(i: int) -> Any:
            return lambda: Parcel.of(share, i, n)

        return [RemoteWorker(NearNode(self.nodes[i % 2]), parcel(i), i, n, files, folder) for i in range(n)]


@contextmanager
def near(address: str, workers: int | None) -> Iterator[NearCluster]:
    yield NearCluster()


@pytest.mark.parametrize(("workers", "carried_by"), [(None, 2), (1, 1)])
def test_a_run_is_carried_by_nodes_and_says_how_exact_their_clocks_are(
    workers: int | None, carried_by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "connected", near)
    schedule = plan(duration="2s", seed=5)
    server = LocalServer().start()
    try:
        asked = options(
            server.url, str(tmp_path / "run"), cluster="auto", workers=workers, model=server.model, quiet=True
        )
        assert measure(schedule.workload, schedule, asked) is None
    finally:
        server.stop()
    run = read_run(tmp_path / "run")
    planned = {turn.request_id for one in schedule.sessions() for r in one.rounds for turn in r.turns}
    assert set(run.requests["request_id"]) == planned
    assert set(run.requests["outcome"]) == {"ok"}
    assert (run.meta["workers"], run.meta["complete"]) == (carried_by, True)
    assert [(each["worker"], each["node"]) for each in run.meta["nodes"]] == [
        (i, f"node-{'ab'[i]}") for i in range(carried_by)
    ]
    assert all(0 < each["clock"]["error_s"] < 1 for each in run.meta["nodes"])
    assert [each["code"] for each in run.meta["warnings"]] == ["clock_error"]
    assert not list((tmp_path / "run").glob("journal*"))


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "ray://head", "ray://head:10001/x", "ray:// head:1", ""])
def test_an_address_that_is_none_says_what_was_expected(address: str) -> None:
    with pytest.raises(UsageError, match=r"expected ray://HOST:10001, auto or local"):
        arguments.cluster_of(address)


@pytest.mark.parametrize("address", ["ray://head:10001", "ray://[::1]:10001", "auto", "local", None])
def test_addresses_that_ray_takes(address: str | None) -> None:
    assert arguments.cluster_of(address) == address


def test_nodes_cannot_reach_the_built_in_engine() -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="--cluster: name a --target that the nodes reach"):
        target_of({"target": None, "model": None, "cluster": "ray://head:10001"}, stack)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_one_line_says_what_to_install() -> None:
    with pytest.raises(UsageError, match=r"^--cluster needs an extra: pip install 'llm-loadgen\[ray\]'$"):
        nodes.connected("local", None).__enter__()


class FakeRay(types.ModuleType):
    """As much of Ray as it takes to connect."""

    def __init__(self, found: list[dict[str, Any]], problem: Exception | None = None) -> None:
        super().__init__("ray")
        self.found, self.problem = found, problem
        self.asked: list[dict[str, Any]] = []
        self.environment: dict[str, str] = {}
        self.ended = 0

    def init(self, **asked: Any) -> None:
        self.asked.append(asked)
        self.environment = dict(os.environ)
        if self.problem is not None:
            raise self.problem

    def nodes(self) -> list[dict[str, Any]]:
        return self.found

    def shutdown(self) -> None:
        self.ended += 1


def node(name: str, cpus: float = 4, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus} if cpus else {}}


def test_only_nodes_that_live_and_have_a_cpu_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay([node("b"), node("head", cpus=0), node("dead", alive=False), node("a")])
    monkeypatch.setitem(sys.modules, "ray", fake)
    with nodes.connected("ray://head:10001", None) as cluster:
        assert cluster.nodes == ["a", "b"]
    assert fake.ended == 1


def test_a_cluster_of_our_own_gets_room_for_all_workers_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay([node("a")])
    monkeypatch.setitem(sys.modules, "ray", fake)
    for name in nodes.SECRET_VARIABLES:
        monkeypatch.setenv(name, "sk-secret")
    with nodes.connected("local", 64):
        assert fake.asked[0]["num_cpus"] == 64
        assert fake.asked[0]["include_dashboard"] is False
        assert fake.environment["RAY_USAGE_STATS_ENABLED"] == "0"
        assert "sk-secret" not in fake.environment.values()
        assert os.environ["OPENAI_API_KEY"] == "sk-secret"


WHY: dict[str, tuple[Exception, str]] = {
    "its node": (
        RuntimeError("The actor died unexpectedly.\n\tpid: 7\nThe actor died because its node has died. Node Id: e0"),
        "its node died",
    ),
    "its process": (RuntimeError("The actor died unexpectedly.\n\tip: 10.0.0.1"), "its process died"),
    "nothing of ours there": (
        RuntimeError("The actor died because of an error raised in its creation task, " + 400 * "-"
                     + "\nRuntimeError: The actor with name Post failed to import on the worker."),
        "llm-loadgen is not installed there",
    ),
    "the head": (ConnectionError("GRPC connection failed"), "the cluster is out of reach"),
    "something else": (RuntimeError("the owner\n  is gone"), "the owner is gone"),
}  # fmt: skip


@pytest.mark.parametrize("case", WHY)
def test_what_ray_says_of_a_loss_in_a_few_words(case: str) -> None:
    problem, words = WHY[case]
    assert nodes.why(problem) == words


NO_CLUSTER: dict[str, tuple[FakeRay, str]] = {
    "nobody there": (
        FakeRay([], ConnectionError("ray client\n connection timeout")),
        "no cluster there: ray client conn",
    ),
    "only GPUs without a CPU": (FakeRay([node("a", cpus=0)]), "no node of the cluster has a CPU"),
}


@pytest.mark.parametrize("case", NO_CLUSTER)
def test_no_cluster_is_one_line(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, line = NO_CLUSTER[case]
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(LoadgenError, match=line) as caught, nodes.connected("ray://head:10001", None):
        pass
    assert "\n" not in str(caught.value)


def test_the_job_in_the_docs_is_yaml_and_its_command_one_that_we_take() -> None:
    page = (Path(__file__).parents[3] / "docs" / "distributed.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    command, name, *words = shlex.split(job["spec"]["entrypoint"])
    assert (command, name) == ("loadgen", "run")
    typer.main.get_command(app).get_command(None, name).make_context(name, words)  # type: ignore[attr-defined,arg-type]
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        assert group["template"]["spec"]["containers"][0]["image"]


def test_only_one_module_knows_ray() -> None:
    paths = [*modules("loadgen"), *modules("analysis"), *modules("workloads")]
    assert {path.name for path in paths if reaches(path, "ray")} == {"nodes.py"}
