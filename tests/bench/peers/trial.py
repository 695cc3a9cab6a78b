"""One run of one tool against the token server, and its figures beside the server's own log."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from tests.bench.peers.tools import MODEL, PROMPT_TOKENS, Peer, read
from tests.bench.peers.tree import Cost
from tests.bench.token_server import running

SERVER_CORE, CLIENT_CORE = 1, 0
FIRST_MS, GAP_MS, FREEZE_MS = 100, 20, 500
LIMIT_S = 120
ROOT = os.geteuid() == 0
# Nice values do not count between sessions where the kernel groups tasks by them (sched_autogroup_enabled). Round robin
# for the tools, since processes of one tool that spin would starve its others under FIFO.
SERVER_FIRST = ("chrt", "--fifo", "10") if ROOT else ()
CLIENT_FIRST = ("chrt", "--rr", "10") if ROOT else ()
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OPENAI_API_KEY": "none"}

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Load:
    """`streams` requests in flight until streams × rounds are done, each of `tokens` tokens, one every 20 ms."""

    streams: int
    tokens: int = 200
    rounds: int = 2
    freeze: bool = False

    @property
    def requests(self) -> int:
        return self.streams * self.rounds

    @property
    def planned_s(self) -> float:
        """From the first request to the last token, for a client that is never late. The phase of a stream is under
        a gap."""
        freeze_ms = FREEZE_MS if self.freeze else 0
        return (self.rounds * (FIRST_MS + GAP_MS * self.tokens) + freeze_ms) / 1e3


@dataclass(frozen=True)
class Trial:
    tool: str
    load: Load
    figures: Figures = field(default_factory=dict)
    failure: str | None = None


def load_of(log: pd.DataFrame, load: Load) -> pd.DataFrame:
    """The tokens of the last requests that were answered in full, as many as the load has.

    Before them come probes and warm-ups; a tool may also start more than it was asked for, and leave them at its end.
    ValueError if there are too few.
    """
    sizes = log.groupby("request").size()
    whole = sizes.index[sizes == load.tokens][-load.requests :]
    if len(whole) < load.requests:
        raise ValueError(f"{len(whole)} answers of {load.requests} were taken in full")
    return pd.DataFrame(log[log["request"].isin(whole)])


def truth_ms(sent: pd.DataFrame) -> Figures:
    """TTFT (first send − arrival of the request) and gaps between sends, as percentiles over requests and gaps."""
    ordered = sent.sort_values(["request", "seq"])
    first = ordered[ordered["seq"] == 0]
    ttft_ms = (first["before_ns"] - first["arrived_ns"]).to_numpy() / 1e6
    gap_ms = ordered.groupby("request")["before_ns"].diff().dropna().to_numpy() / 1e6
    return {
        "ttft_p50": float(np.quantile(ttft_ms, 0.5)),
        "ttft_p99": float(np.quantile(ttft_ms, 0.99)),
        "itl_p50": float(np.quantile(gap_ms, 0.5)),
        "itl_p99": float(np.quantile(gap_ms, 0.99)),
        "longest": float(gap_ms.max()),
    }


def figures(load: Load, cost: Cost, log: pd.DataFrame, reported: Figures) -> Figures:
    """Every figure of a run; None where the tool does not report one. ValueError as load_of."""
    sent = load_of(log, load)
    took_s = float(sent["before_ns"].max() - sent["arrived_ns"].min()) / 1e9
    true = truth_ms(sent)
    return {
        "tokens": float(len(sent)),
        "cpu_s": cost.cpu_s,
        "peak_mb": cost.peak_mb,
        "start_s": float(log["arrived_ns"].min() - cost.started_ns) / 1e9,
        "report_s": float(cost.ended_ns - sent["before_ns"].max()) / 1e9,
        "rate": len(sent) / took_s,
        "slower": took_s / load.planned_s - 1,
        "send_p99": float(np.quantile(sent["after_ns"] - sent["before_ns"], 0.99)) / 1e6,
        "server_late_p99": float(np.quantile(sent["before_ns"] - sent["due_ns"], 0.99)) / 1e6,
        **{f"true_{name}": value for name, value in true.items()},
        **{f"said_{name}": value for name, value in reported.items()},
    }


def _cost(command: list[str], folder: Path) -> Cost:
    prefix = [*CLIENT_FIRST, "taskset", "-c", str(CLIENT_CORE), *command]
    watched = [sys.executable, "-m", "tests.bench.peers.tree", str(LIMIT_S), str(folder), *prefix]
    with (folder / "console.txt").open("w") as console:
        done = subprocess.run(
            watched, stdout=subprocess.PIPE, stderr=console, env=os.environ | OFFLINE, check=True, text=True
        )
    return Cost(**json.loads(done.stdout))


def attempt(peer: Peer, venv: Path, load: Load, tokenizer: str) -> Trial:
    """A tool that fails is a trial that says so."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        freeze = (load.requests * load.tokens // 4, FREEZE_MS) if load.freeze else None
        with running(folder, FIRST_MS, GAP_MS, core=SERVER_CORE, freeze=freeze, under=SERVER_FIRST) as server:
            values: Mapping[str, object] = {
                "url": server.url, "model": MODEL, "tokenizer": tokenizer, "streams": load.streams,
                "requests": load.requests, "tokens": load.tokens, "prompt_tokens": PROMPT_TOKENS, "folder": folder,
            }  # fmt: skip
            peer.write_files(folder, values)
            cost = _cost(peer.command(venv, values), folder)
        console = (folder / "console.txt").read_text(errors="replace")
        try:
            if cost.status:
                raise ValueError(f"status {cost.status}")
            return Trial(peer.name, load, figures(load, cost, server.log(), read(peer, folder, console)))
        except (ValueError, OSError) as error:
            return Trial(peer.name, load, failure=f"{error}: {console.strip().splitlines()[-1:]}")
