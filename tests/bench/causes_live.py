"""The scenes of the bench `causes` in real time: the built-in server as a child, `loadgen run` against it."""

import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.run import Run
from analysis.rundir import read_run
from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options
from tests.analysis.ground_truth import Known, Verdicts, Why, judge

WORKLOAD = """
name: causes
arrivals: {process: poisson, rate: %s/s}
duration: %ds
drain: 60s
classes:
  chat: {weight: 9, shape: chat, turns: 1, input_tokens: {law: uniform, low: 60, high: 500},
         output_tokens: {law: uniform, low: 100, high: 400}}
  rag: {weight: %s, shape: chat, turns: 1, input_tokens: {law: uniform, low: 6000, high: 16000}, output_tokens: 80}
"""
WORDS = {"freeze": "held", "buffer": "buffered", "burst": "buffered"}
"""Faults of the server under the names that the judge knows."""


@dataclass(frozen=True)
class Scene:
    """Requests per second, the weight of long prompts beside 9 of short ones, and the server's options."""

    rate: float
    long: float
    options: Options
    seconds: int = 60


LIVE = {
    "whole prompts": Scene(4, 1, Options(chunk_tokens=0)),
    "whole prompts, busy": Scene(6, 1.2, Options(chunk_tokens=0)),
    "2 replicas, whole prompts": Scene(9, 1, Options(chunk_tokens=0, replicas=2)),
    "chunked, slow": Scene(0.5, 1, Options(speed=0.1), 180),
    "pauses, whole prompts": Scene(4, 1, Options(chunk_tokens=0, inject=("pause:every=9s,for=800ms",))),
    "pauses, chunked": Scene(5, 1, Options(inject=("pause:every=5s,for=700ms",))),
    "one stream stops": Scene(5, 0.001, Options(inject=("freeze:after=30,for=800ms,share=30%",))),
    "buffering proxy": Scene(5, 0.001, Options(inject=("buffer:bytes=16384,share=20%",))),
    "little cache": Scene(6, 0.001, Options(kv_tokens=4000)),
    "no interference": Scene(8, 0.001, Options()),
}


def live(scene: Scene, seed: int, metrics: bool) -> tuple[Verdicts, bool]:
    """What the diagnosis made of a scene, and whether the server was scraped. RuntimeError if the run failed.

    Args:
        seed: Of the load.
        metrics: Whether the server's /metrics may be scraped.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truth = folder / "truth.parquet"
        server = LocalServer(Options(**_fields(scene.options) | {"truth": str(truth)})).start()
        try:
            _load(scene, server.url, folder, ["--seed", str(seed), *([] if metrics else ["--no-metrics"])])
        finally:
            server.stop()
        run = read_run(folder / "run")
        return judge(Known(run, _why(run, pd.read_parquet(truth))), run.server is not None), run.server is not None


def _fields(options: Options) -> dict[str, object]:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}


def _load(scene: Scene, url: str, folder: Path, more: list[str]) -> None:
    workload = folder / "causes.yaml"
    workload.write_text(WORKLOAD % (scene.rate, scene.seconds, scene.long))
    loadgen = str(Path(sys.executable).with_name("loadgen"))
    command = [loadgen, "run", str(workload), "--target", url, "--out", str(folder / "run"), "--quiet", *more]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if not (folder / "run" / "requests.parquet").exists():
        raise RuntimeError(f"loadgen ended with status {done.returncode}: {done.stderr.strip()}")


def _why(run: Run, truth: pd.DataFrame) -> dict[str, list[Why]]:
    """Of each request of the run, what delayed each of its tokens; empty where the server told nothing."""
    found: dict[str, list[Why]] = defaultdict(list)
    ordered = truth.sort_values(["request_id", "number"])
    columns = (ordered[name] for name in ("request_id", "cause", "culprit", "delay_ns"))
    for request_id, cause, culprit, delay_ns in zip(*columns, strict=True):
        found[request_id].append({(WORDS.get(cause, cause), culprit): float(delay_ns)})
    events = dict(zip(run.requests["request_id"], run.events.per_request.tolist(), strict=True))
    return {name: found[name] + [{}] * (count - len(found[name])) for name, count in events.items()}
