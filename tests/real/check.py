"""Against a real server, by hand: lengths, errors and cut streams, and what the report says of each.

    python -m tests.real.check http://127.0.0.1:8000 [--context 16384]

Needs a server of yours that listens on this machine. Each line is one short run: what was asked, and what came.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.rundir import read_run

WORKLOAD = "{name: real, concurrency: 2, requests: 4, classes: {c: {shape: chat, input_tokens: 60, output_tokens: 12}}}"


def run(target: str, folder: Path, *words: str) -> tuple[int, dict[str, Any], Path]:
    """Exit status, summary and run directory of one run."""
    (folder / "real.yaml").write_text(WORKLOAD)
    out = folder / f"run{len(list(folder.glob('run*')))}"
    command = ["run", str(folder / "real.yaml"), "--target", target, "--out", str(out), "--format", "json", "--quiet"]
    done = subprocess.run([sys.executable, "-m", "loadgen.cli", *command, *words], capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return done.returncode, json.loads(done.stdout), out


def outcome(summary: dict[str, Any]) -> str:
    outcomes = ", ".join(f"{count} {name}" for name, count in summary["requests"]["by_outcome"].items())
    errors = "; ".join(f"{one['status']}: {one['message']}" for one in summary["requests"]["errors"])
    return outcomes + (f"   [{errors[:150]}]" if errors else "")


def cases(context: int) -> Iterator[tuple[str, list[str]]]:
    yield "whole answers", []
    yield "running usage", ["--per-event-usage"]
    yield "completions", ["--endpoint", "completions"]
    yield "max_completion_tokens", ["--max-tokens-field", "max_completion_tokens"]
    yield "two choices", ["--body", "n=2"]
    yield "httpx", ["--transport", "httpx"]
    yield "unknown model", ["--model", "no-such-model", "--no-calibrate"]
    yield "prompt too long", ["--input-tokens", str(context + 1000)]
    yield "invalid parameter", ["--body", 'temperature="hot"', "--no-calibrate"]
    yield "negative length", ["--body", "max_tokens=-5", "--no-calibrate"]
    yield "malformed body", ["--body", "messages=5", "--no-calibrate"]
    yield "wrong path", []
    yield "cut by us", ["--set", "duration=1s", "--set", "requests=null", "--drain", "0s", "--output-tokens", "4000"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--context", type=int, default=16_384, help="longest prompt that the server takes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for title, words in cases(asked.context):
            wrong = title == "wrong path"
            target = f"{asked.target}/nowhere/chat/completions" if wrong else asked.target
            more = ["--no-calibrate", "--model", "x"] if wrong else []
            status, summary, out = run(target, Path(name), *words, *more)
            rows = read_run(out).requests
            good = rows[rows["outcome"] == "ok"]
            off = (good["prompt_tokens"] - good["asked_input_tokens"]).abs().max()
            short = (good["output_tokens"] != good["asked_output_tokens"]).sum()
            warnings = ",".join(one["code"] for one in summary["warnings"])
            print(f"{title:22} exit {status}  {outcome(summary)}", flush=True)
            if len(good):
                print(
                    f"{'':22} prompts off by {off:.0f} at most, {short} answers of another length, warnings: {warnings}"
                )


if __name__ == "__main__":
    main()
