"""The bench against other tools: what the server's log says about a run, and what a process tree costs."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.bench.peers.__main__ import as_line, environments, from_line, installed_mb
from tests.bench.peers.tools import PEERS
from tests.bench.peers.tree import Cost
from tests.bench.peers.trial import Load, Trial, figures, load_of, truth_ms
from tests.bench.token_server import TOKEN, TokenServer

MS = 1_000_000


def log(*requests: tuple[int, Sequence[int]]) -> pd.DataFrame:
    """Sends in ms by request, each with the arrival of its request; every send() 0.5 ms late and 0.01 ms long."""
    rows = [
        (number, seq, at * MS - MS // 2, at * MS, at * MS + MS // 100, arrived * MS)
        for number, (arrived, sends) in enumerate(requests)
        for seq, at in enumerate(sends)
    ]
    return pd.DataFrame(rows, columns=["request", "seq", "due_ns", "before_ns", "after_ns", "arrived_ns"])


def test_the_truth_of_two_requests() -> None:
    # TTFT 100 and 140: p50 120, p99 139.6. Gaps 20, 20, 20, 60: p50 20, p99 20 + 0.97 × 40.
    true = truth_ms(log((0, [100, 120, 140]), (10, [150, 170, 230])))
    assert true["ttft_p50"] == pytest.approx(120)
    assert true["ttft_p99"] == pytest.approx(139.6)
    assert (true["itl_p50"], true["longest"]) == (20, 60)
    assert true["itl_p99"] == pytest.approx(58.8)


def test_gaps_are_those_of_a_request_whatever_the_order_of_the_log() -> None:
    straight = log((0, [100, 120, 140]), (1, [110, 130, 150]))
    assert truth_ms(straight.sort_values("before_ns")) == truth_ms(straight)
    assert truth_ms(straight)["longest"] == 20


def test_the_load_is_what_was_answered_in_full() -> None:
    # A warm-up as long as the load's answers, a shorter probe, the load, and a request too many that was left.
    sent = log((0, [5, 6]), (7, [9]), (10, [100, 120]), (11, [101, 121]), (12, [125]))
    assert set(load_of(sent, Load(2, tokens=2, rounds=1))["request"]) == {2, 3}
    with pytest.raises(ValueError, match="3 answers of 4 were taken in full"):
        load_of(sent, Load(2, tokens=2, rounds=2))


def test_the_figures_of_a_run() -> None:
    # Two streams of two tokens at once, planned to take 100 + 2 × 20 ms; the second ends 154 ms after the first came.
    sent = log((5, [25]), (1000, [1100, 1120]), (1014, [1114, 1154]))
    cost = Cost(0, started_ns=-2000 * MS, ended_ns=1254 * MS, cpu_s=0.5, peak_mb=12.0)
    got = figures(Load(2, tokens=2, rounds=1), cost, sent, {"ttft_p50": 101.0, "longest": None})
    assert got["tokens"] == 4
    assert (got["cpu_s"], got["peak_mb"]) == (0.5, 12.0)
    assert got["start_s"] == pytest.approx(2.005)  # to the first request of any kind, here a probe
    assert got["report_s"] == pytest.approx(0.1)
    assert got["rate"] == pytest.approx(4 / 0.154)
    assert got["slower"] == pytest.approx(0.1)
    assert got["server_late_p99"] == pytest.approx(0.5)
    assert got["send_p99"] == pytest.approx(0.01)
    assert (got["true_ttft_p50"], got["said_ttft_p50"], got["said_longest"]) == (100, 101.0, None)


@pytest.mark.parametrize(
    ("load", "planned_s"),
    [(Load(200), 8.2), (Load(7, tokens=50, rounds=3), 3.3), (Load(50, freeze=True), 8.7), (Load(1, 1, 1), 0.12)],
)
def test_how_long_a_load_should_take(load: Load, planned_s: float) -> None:
    assert load.planned_s == pytest.approx(planned_s)


def test_reads_the_log_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "requests.txt").write_text("1000 first\n2000 \n")
    rows = [(0, 0, 1, 1100, 1101), (1, 0, 1, 2100, 2101), (0, 1, 1, 2200, 2201)]
    np.array(rows, dtype=TOKEN).tofile(tmp_path / "tokens.bin")
    tokens = TokenServer("http://127.0.0.1:9", tmp_path).log()
    assert list(tokens["arrived_ns"]) == [1000, 2000, 1000]
    assert list(tokens["request_id"]) == ["first", "", "first"]


@pytest.mark.parametrize(
    "trial",
    [
        Trial("loadgen", Load(200), {"rate": 9.5, "said_longest": None}),
        Trial("aiperf", Load(50, freeze=True), failure="status 1: ['out of luck']"),
    ],
)
def test_a_trial_survives_the_file(trial: Trial) -> None:
    assert from_line(as_line(trial)) == trial


def test_where_the_tools_are() -> None:
    found = environments(Path("/venvs"), ["vllm=/opt/vllm"])
    assert found["vllm"] == Path("/opt/vllm")
    assert found["aiperf"] == Path("/venvs/aiperf")
    assert set(found) == {peer.venv for peer in PEERS}


def test_the_size_of_an_installation(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "module.py").write_bytes(b"x" * 2**20)
    (tmp_path / "link").symlink_to(tmp_path / "lib" / "module.py")
    assert installed_mb(tmp_path) == pytest.approx(1, rel=0.2)


def measured(folder: Path, limit_s: float, *command: str) -> Cost:
    run = [sys.executable, "-m", "tests.bench.peers.tree", str(limit_s), str(folder), *command]
    done = subprocess.run(run, check=True, capture_output=True, text=True)
    return Cost(**json.loads(done.stdout))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_tree_counts_with_those_that_outlive_its_root(tmp_path: Path) -> None:
    child = f'{sys.executable} -c \'import time; open("late", "w").write(str(time.process_time()))\''
    cost = measured(tmp_path, 60, "sh", "-c", f"({child}) & exit 3")
    assert cost.status == 3
    assert cost.ended_ns >= cost.started_ns
    assert cost.cpu_s >= float((tmp_path / "late").read_text()) - 0.02


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_tree_that_hangs_is_ended(tmp_path: Path) -> None:
    assert measured(tmp_path, 0.01, "sleep", "600").status == -9
