"""loadgen beside the other load generators for LLM servers. See README.md in the folder above."""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.bench.loads import numbers
from tests.bench.peers.table import kept, markdown, table
from tests.bench.peers.tools import PEERS, Peer
from tests.bench.peers.trial import SERVER_CORE, Load, Trial, attempt

WARM_UP = Load(10, tokens=20, rounds=1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    option = parser.add_argument
    there = os.environ.get("LOADGEN_PEERS")
    option("--peers", type=Path, default=there, help="a folder with a venv for each tool, by name  [$LOADGEN_PEERS]")
    option("--at", action="append", default=[], metavar="NAME=VENV", help="a tool that lives elsewhere")
    option("--tokenizer", default="gpt2", help="as the tools take it: a folder, or a name in the cache")
    option("--only", help="names of tools, with commas between them")
    ladder = "streams, in rising order; a tool that misses one load is not asked for more"
    option("--streams", type=numbers, default=[200, 500, 1000, 2000], help=ladder)
    option("--sizes", type=numbers, default=[200, 1000], help="two of them, which every tool must run")
    option("--frozen", type=int, default=50, help="streams of the run with a freeze")
    option("--repeats", type=int, default=3)
    option("--no-warm-up", action="store_true", help="all have just run: caches are full")
    option("--log", type=Path, default=Path("peers.jsonl"), help="trials are added to it as they end")
    option("--read", action="store_true", help="run nothing: the table of what is in the log")
    return parser.parse_args()


def environments(peers: Path | None, at: list[str]) -> dict[str, Path]:
    """Where each environment should be, by its name."""
    elsewhere = dict(each.split("=", 1) for each in at)
    names = {peer.venv for peer in PEERS}
    return {name: Path(elsewhere.get(name, (peers or Path()) / name)) for name in names}


def installed_mb(venv: Path) -> float:
    """What its files take on the disk, links to other files left out."""
    inside = [each for each in venv.resolve().rglob("*") if not each.is_symlink()]
    return sum(each.lstat().st_blocks for each in inside) * 512 / 2**20


def loads(asked: argparse.Namespace) -> list[Load]:
    return [Load(asked.frozen, freeze=True), *(Load(streams) for streams in asked.streams)]


def trials(asked: argparse.Namespace, venvs: dict[str, Path], peers: list[Peer]) -> Iterator[Trial]:
    """Interleaved: every tool under a load before the next load, every load before the next repeat."""
    for peer in [] if asked.no_warm_up else list(peers):
        warm = attempt(peer, venvs[peer.venv], WARM_UP, asked.tokenizer)
        if warm.failure:
            peers.remove(peer)
            yield warm
    for _ in range(asked.repeats):
        beaten: set[str] = set()
        for load in loads(asked):
            for peer in peers:
                if peer.name in beaten and load.streams not in asked.sizes:
                    continue
                trial = attempt(peer, venvs[peer.venv], load, asked.tokenizer)
                if not load.freeze and not kept(trial):
                    beaten.add(peer.name)
                yield trial


def as_line(trial: Trial) -> str:
    return json.dumps(asdict(trial))


def from_line(line: str) -> Trial:
    found = json.loads(line)
    return Trial(found["tool"], Load(**found["load"]), found["figures"], found["failure"])


def brief(trial: Trial) -> str:
    load = f"{trial.tool}, {trial.load.streams} streams{', frozen once' if trial.load.freeze else ''}"
    said = {key: None if value is None else round(value, 2) for key, value in trial.figures.items()}
    return f"{load}: {trial.failure or said}"


def main() -> None:
    asked = arguments()
    venvs = environments(asked.peers, asked.at)
    wanted = [peer for peer in PEERS if not asked.only or peer.name in asked.only.split(",")]
    there = [peer for peer in wanted if (venvs[peer.venv] / peer.program).exists()]
    if not asked.read:
        os.sched_setaffinity(0, {SERVER_CORE})  # what runs the tools must not run beside them
        with asked.log.open("a") as log:
            for trial in trials(asked, venvs, list(there)):
                print(brief(trial), flush=True)
                print(as_line(trial), file=log, flush=True)
    elif not asked.log.exists():
        raise SystemExit(f"{asked.log}: no such log: run the bench without --read first")
    found = [from_line(line) for line in asked.log.read_text().splitlines()]
    frame = table(found, [peer.name for peer in there], (asked.sizes[0], asked.sizes[-1], asked.frozen))
    frame.loc["installed, MB"] = [f"{installed_mb(venvs[peer.venv]):,.0f}" for peer in there]
    print("\n" + markdown(frame))
    for peer in wanted:
        if peer not in there:
            print(f"{peer.name}: not installed: no {venvs[peer.venv] / peer.program}")
    for trial in found:
        if trial.failure:
            print(f"failed: {brief(trial)}")


if __name__ == "__main__":
    main()
