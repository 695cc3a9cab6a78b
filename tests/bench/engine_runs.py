"""Runs of the simulated engine for tests/bench/verdicts.py: a few minutes of traffic in virtual time each."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from analysis.record import RequestRecord
from analysis.roofline import Roofline
from analysis.run import Run
from loadgen.host import quiet_gc
from loadgen.sim import catalog
from loadgen.sim.core import ClusterConfig, SimConfig
from loadgen.sim.replay import simulate
from workloads.schedule import build
from workloads.spec import Workload

GOOD = {"ttft": "300ms", "gap_p99": "150ms"}
CHAT = {
    "input_tokens": {"law": "lognormal", "mean": 300, "p95": 900},
    "output_tokens": {"law": "lognormal", "mean": 60, "p95": 150},
}
RAG = {
    "shape": "rag", "documents": {"count": 200, "tokens": 300, "top_k": 4}, "input_tokens": 60, "output_tokens": 60,
}  # fmt: skip


@dataclass(frozen=True)
class EngineLoad:
    """One class of traffic at a rate on replicas of one GPU with an 8B model.

    Attributes:
        requests: Mean number of a run.
    """

    name: str
    traffic: dict[str, Any]
    rate: float
    requests: int
    gpu: str = "l40s"
    replicas: int = 1

    def run(self, seed: int, slower: float = 1.0, requests: int | None = None) -> Run:
        """A run whose decode is slower by a factor: memory gives so much less, arithmetic as much as ever."""
        gpu = catalog.gpu(self.gpu)
        roofline = Roofline(replace(gpu, bandwidth=gpu.bandwidth / slower), catalog.model("llama-3.1-8b"))
        length_s = (requests or self.requests) / self.rate
        workload = Workload.model_validate(
            {
                "name": self.name,
                "arrivals": {"process": "poisson", "rate": self.rate},
                "warmup": "20s",
                "duration": f"{length_s:g}s",
                "classes": {"c": self.traffic},
                "good": GOOD,
            }
        )
        records: list[RequestRecord] = []
        with quiet_gc():
            driven = simulate(build(workload, seed), ClusterConfig(SimConfig(roofline), self.replicas), records.append)
        meta = {
            "id": f"{self.name}-{seed}", "loop": "open", "seed": seed, "timestamp_source": "simulated",
            "workload": workload.resolved(), "stages": [asdict(stage) for stage in driven.stages],
        }  # fmt: skip
        return Run.from_records(meta, records)


ENGINE_LOADS = [
    EngineLoad("engine, calm chat", CHAT, 1.5, 600),
    EngineLoad("engine, busy chat", CHAT, 5.0, 1500),
    EngineLoad("engine, rag, 2 replicas", RAG, 4.0, 1200, replicas=2),
]
