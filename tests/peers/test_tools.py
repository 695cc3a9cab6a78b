"""The bench against other tools: what it reads in their results, and how it calls them."""

import json
from pathlib import Path

import pytest
import yaml

from tests.bench.peers.tools import PEERS, Peer, look_up, printed, read, reported_ms
from workloads.spec import load_workload

DATA = Path(__file__).parent / "data"
BY_NAME = {peer.name: peer for peer in PEERS}
VALUES = {
    "url": "http://127.0.0.1:9", "model": "bench", "tokenizer": "/somewhere/tokenizer", "streams": 7, "requests": 14,
    "tokens": 200, "prompt_tokens": 16, "folder": "/somewhere/run",
}  # fmt: skip
CONSOLE = """P99 ITL (ms):                            20.41
Max ITL (ms):                            23.26
===================="""

# Recorded from 10 to 20 streams at 20 ms a token, shortened to what is read and its neighbours.
RECORDED = {
    "loadgen": ("loadgen.json", (111.664, 119.129, 0.0, 374.975, 642.496)),
    "SGLang Rust": ("sglang-rust.jsonl", (111.737, 121.241, 19.999, 24.165, 23.26)),
    "SGLang Python": ("sglang-python.jsonl", (114.021, 125.532, 20.0, 20.415, 23.26)),
    "vllm bench serve": ("vllm.json", (118.332, 132.211, 20.0, 23.693, None)),
    "inference-perf": ("inference-perf.json", (131.117, 324.418, 19.894, 165.164, 179.709)),
    "aiperf": ("aiperf.json", (189.47, 224.835, 20.406, 20.804, 92.436)),
    "guidellm": ("guidellm.json", (144.591, 214.843, 20.0, 20.792, 20.792)),
}


def test_every_tool_has_a_recorded_result() -> None:
    assert set(RECORDED) == set(BY_NAME)


@pytest.mark.parametrize("name", RECORDED)
def test_reads_what_it_reports(name: str) -> None:
    file, wanted = RECORDED[name]
    got = reported_ms(json.loads((DATA / file).read_text()), CONSOLE, BY_NAME[name].fields)
    assert list(got) == ["ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "longest"]
    assert tuple(got.values()) == pytest.approx(wanted, abs=6e-4, nan_ok=False)


@pytest.mark.parametrize(
    ("document", "path", "wanted"),
    [
        ({"a": {"b": 2}}, "a/b", 2.0),
        ({"a": [{"b": 1}, {"b": 2}]}, "a/1/b", 2.0),
        ({"a": {"p99.9": 3.5}}, "a/p99.9", 3.5),
        ({"a": {}}, "a/b", None),  # an older version, say
        ({"a": None}, "a/b", None),
        ({"a": {"b": None}}, "a/b", None),  # null is not 0
        ({"a": []}, "a/0/b", None),  # no benchmark at all
        ({"a": "20 ms"}, "a", None),
    ],
)
def test_a_number_or_none(document: object, path: str, wanted: float | None) -> None:
    assert look_up(document, path) == wanted


def test_a_number_that_only_the_console_has() -> None:
    assert printed(CONSOLE, "Max ITL (ms):") == 23.26
    assert printed(CONSOLE, "Max TTFT (ms):") is None
    assert printed("", "Max ITL (ms):") is None


def test_a_tool_that_left_no_result(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"aiperf left no out/profile_export_aiperf\.json"):
        read(BY_NAME["aiperf"], tmp_path, "")


def test_finds_a_result_in_a_folder_of_the_tools_own_choice(tmp_path: Path) -> None:
    made = tmp_path / "out" / "20261130" / "summary_lifecycle_metrics.json"
    made.parent.mkdir(parents=True)
    made.write_text((DATA / "inference-perf.json").read_text())
    assert read(BY_NAME["inference-perf"], tmp_path, "")["ttft_p50"] == pytest.approx(131.117, abs=6e-4)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_load_is_asked_for(peer: Peer, tmp_path: Path) -> None:
    command = peer.command(Path("/venvs/it"), VALUES)
    peer.write_files(tmp_path, VALUES)
    said = command + [each for path in sorted(tmp_path.iterdir()) for each in path.read_text().split()]
    assert command[0].startswith("/venvs/it/bin/")
    assert not [each for each in said if "$" in each]
    text = " ".join(said)
    for wanted in ("http://127.0.0.1:9", "7", "14", "200", "16"):
        assert wanted in text
    assert peer.name == "loadgen" or "/somewhere/tokenizer" in text


def test_files_are_what_the_tools_take(tmp_path: Path) -> None:
    for name in ("loadgen", "inference-perf"):
        BY_NAME[name].write_files(tmp_path, VALUES)
    theirs = yaml.safe_load((tmp_path / "peers.yml").read_text())
    assert theirs["load"]["stages"] == [{"num_requests": 14, "concurrency_level": 7}]
    assert theirs["data"]["output_distribution"]["mean"] == 200
    ours = load_workload(str(tmp_path / "peers.yaml"))
    assert (ours.concurrency, ours.requests) == (7, 14)
