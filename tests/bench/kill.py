"""Kills a process of a run at a random point, again and again: every directory must be readable, and nothing that was
answered more than a second before may be missing. See README.md beside this file."""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

import pandas as pd

from analysis.rundir import read_run
from analysis.summary import summarize
from tests.loadgen.kills import Kill, Remains, killed_run

WORKERS = (1, 2, 3)
DURATION_S = 4.0


def kill_once(dice: random.Random) -> tuple[int, Kill, Remains]:
    """One run of one to three processes, and the kill of one of them or of the one that started them."""
    workers = dice.choice(WORKERS)
    victims = [None] if workers == 1 else [None, *range(workers)]
    kill = Kill(dice.uniform(0.05, 0.9 * DURATION_S), dice.choice(victims))
    with tempfile.TemporaryDirectory() as folder:
        left = asyncio.run(killed_run(Path(folder), workers, [kill], DURATION_S))
        summarize(read_run(left.folder))
        return workers, kill, left


def row(workers: int, kill: Kill, left: Remains) -> dict[str, object]:
    return {
        "workers": workers,
        "killed": "the run" if kill.victim is None else f"worker {kill.victim + 1}",
        "after s": round(kill.at_s, 2),
        "answered": left.answered,
        "kept": len(left.requests),
        "missing": len(left.missing),
        "still alive": len(left.alive),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None, help="of the points and the victims; drawn if left out")
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    rows = [row(*kill_once(dice)) for _ in range(asked.runs)]
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    bad = int(((table["missing"] > 0) | (table["still alive"] > 0)).sum())
    print(f"\n{len(table)} runs, all readable; {bad} with something missing or left alive")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
