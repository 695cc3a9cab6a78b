"""Do 95 % intervals of repeated runs cover the truth, where a server is another from run to run?

    python -m tests.bench.repeats [--trials 300]

Each trial pools some runs of tests/analysis/synthetic.py whose level of ITL is drawn anew for each run (log-normal,
with the spread in the first column: another node, other neighbours). The truth is the value over very many such
runs. `apart` is the interval of `--repeat`; `as one` is what the same requests would claim as one run,
for which what differs from run to run is one of its own slow changes; `none` counts those that claim no
interval, as their samples do not bound it: that covers, too.
"""

import argparse
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.limits import Limit
from analysis.pooled import pool
from analysis.run import Run
from analysis.summary import summarize
from tests.analysis.synthetic import Server, simulate

SERVER = Server(load=0.3)
LIMITS = [Limit("itl", "p50", "<", 1.0), Limit("itl", "mean", "<", 1.0), Limit("output_tokens_per_s", None, ">", 1.0),
          Limit("attainment", None, ">", 0.0)]  # fmt: skip
COLUMNS = ("apart", "apart: none", "as one", "as one: none")
WORKLOAD = {"name": "synthetic", "good": {"tpot": 0.021}}


def repeated(count: int, spread: float, seed: int, requests: int = 240, tokens: int = 10) -> Run:
    rng = np.random.default_rng((seed, count))
    levels = np.exp(spread * rng.standard_normal(count))
    return pool([
        simulate(replace(SERVER, itl_s=SERVER.itl_s * level), requests, tokens, seed * 1000 + number, workload=WORKLOAD)
        for number, level in enumerate(levels)
    ])  # fmt: skip


def as_one(run: Run) -> Run:
    return run.but(meta={key: value for key, value in run.meta.items() if key != "pooled"})


def values(run: Run) -> dict[str, tuple[float, list[float] | None]]:
    entries = summarize(run, LIMITS)["slo"]["limits"][: len(LIMITS)]
    return {each["metric"] + "." + (each["statistic"] or ""): (each["value"], each["ci95"]) for each in entries}


def covered(count: int, spread: float, trials: int, true: dict[str, float]) -> dict[str, Counter[str]]:
    found = {name: Counter[str]() for name in true}
    for seed in range(trials):
        run = repeated(count, spread, seed)
        for how, one in (("apart", run), ("as one", as_one(run))):
            for name, (_, ends) in values(one).items():
                found[name][how] += ends is None or ends[0] <= true[name] <= ends[1]
                found[name][f"{how}: none"] += ends is None
    return found


def truth(spread: float, runs: int = 400) -> dict[str, float]:
    parts = [values(repeated(20, spread, 10_000 + number)) for number in range(runs // 20)]
    return {name: float(np.mean([part[name][0] for part in parts])) for name in parts[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    asked = parser.parse_args()
    rows = []
    for spread in (0.0, 0.03, 0.1):
        true = truth(spread)
        for count in (2, 3, 5):
            for name, counts in covered(count, spread, asked.trials, true).items():
                shares = {how: f"{100 * counts[how] / asked.trials:.1f} %" for how in COLUMNS}
                rows.append({"spread": spread, "runs": count, "of": name, **shares})
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
