"""Why nothing, or not everything, is known of the stalls of a result that another tool wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.commands import call

RESULTS = Path(__file__).parents[2] / "data" / "imports"
NO_TOKENS = "the result lists no token between the first and the last of a request"


def stalls(result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    """What `loadgen stalls` says of an imported result, in one line of text and as JSON."""
    out = tmp_path / "run"
    assert call("import_", {"result": result, "kind": None, "out": out, "quiet": True}) == 0
    capsys.readouterr()
    told = []
    for kind in ("text", "json"):
        assert call("stalls", {"run_dir": out, "format_": kind, "request": None}) == 0
        told.append(capsys.readouterr().out)
    return " ".join(told[0].split()), json.loads(told[1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("guidellm.json", f"Not known: {NO_TOKENS}, so itl, gap, stalls are undefined for this result of guidellm."),
        ("vllm-errors.json", "Not known: no request succeeded."),
        ("vllm-chat.json", "No stream froze."),
        ("sglang-native.jsonl", "No stream froze."),
    ],
)
def test_of_each_kind(name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, told = stalls(RESULTS / name, tmp_path, capsys)
    assert text == expected
    assert told["stalls"].get("undefined", "No stream froze") in expected


def test_aiperf_without_its_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in (RESULTS / "aiperf.jsonl").read_text().splitlines()]
    for line in lines:
        line["metrics"].pop("inter_chunk_latency", None)
    bare = tmp_path / "bare.jsonl"
    bare.write_text("\n".join(map(json.dumps, lines)))
    text, _ = stalls(bare, tmp_path, capsys)
    assert text == f"Not known: {NO_TOKENS}, so itl, gap, stalls are undefined for this result of aiperf."


def test_vllm_without_start_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((RESULTS / "vllm-completions.json").read_text())
    del result["start_times"]
    timeless = tmp_path / "timeless.json"
    timeless.write_text(json.dumps(result))
    text, told = stalls(timeless, tmp_path, capsys)
    assert told["stalls"]["count"] == 1
    assert told["stalls"]["undefined"] == "the result does not say when a request was sent"
    assert text.endswith(f"Which of them happened together, and why, is not known: {told['stalls']['undefined']}.")
