"""Does the diagnosis of freezes name the right cause and the right culprit? See README.md beside this file."""

import argparse
from dataclasses import replace

import pandas as pd

from tests.analysis.ground_truth import CALM, SCENES, Plan, Verdicts, judge, simulate, with_seed
from tests.bench.causes_live import LIVE, live

PLANS = SCENES | {"calm": CALM}


def in_virtual_time(plan: Plan, seeds: int) -> Verdicts:
    verdicts = Verdicts()
    for seed in range(1, seeds + 1):
        verdicts.add(judge(simulate(with_seed(plan, seed)), plan.metrics))
    return verdicts


def confusion(verdicts: Verdicts) -> pd.DataFrame:
    """Episodes by what most delayed them (rows) and what was found (columns)."""
    pairs = [(truth, found, count) for (truth, found), count in verdicts.pairs.items()]
    frame = pd.DataFrame(pairs, columns=["truth", "found", "episodes"])
    return frame.pivot_table(index="truth", columns="found", values="episodes", aggfunc="sum", fill_value=0)


def row(name: str, verdicts: Verdicts) -> dict[str, object]:
    named = verdicts.culprits.total()
    return {
        "scene": name,
        "streams": verdicts.streams,
        "episodes": verdicts.clear,
        "right cause %": round(100 * verdicts.right, 1) if verdicts.clear else None,
        "culprits": named,
        "right culprit %": round(100 * verdicts.right_culprits, 1) if named else None,
        "mixed": verdicts.pairs.total() - verdicts.clear,
    }


def false_alarms(verdicts: Verdicts) -> float:
    """Episodes called prefill interference that are not, per 1,000 streams."""
    wrong = sum(n for (truth, found), n in verdicts.pairs.items() if found == "prefill_interference" != truth)
    return 1000 * wrong / verdicts.streams


def show(found: dict[str, Verdicts], wrong: int) -> None:
    total = Verdicts()
    for name, verdicts in found.items():
        total.add(verdicts)
        for each in verdicts.wrong[:wrong]:
            print(f"  {name}: {each}")
    print(pd.DataFrame([row(name, each) for name, each in {**found, "all": total}.items()]).to_string(index=False))
    print("\n" + confusion(total).to_string())


def show_live(names: list[str], seeds: range, metrics: bool, wrong: int) -> None:
    found = {}
    for name in names:
        found[name] = Verdicts()
        for seed in seeds:
            verdicts, scraped = live(LIVE[name], seed, metrics)
            found[name].add(verdicts)
            print(
                f"{name}, seed {seed}, {'with' if scraped else 'without'} /metrics: {verdicts.clear} episodes",
                flush=True,
            )
    show(found, wrong)
    if "no interference" in found:
        print(f"\n{false_alarms(found['no interference']):.2f} false alarms per 1,000 streams without interference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scene", action="append", choices=sorted({*PLANS, *LIVE}))
    parser.add_argument(
        "--live", action="store_true", help="real time, against the built-in server (12 minutes a seed)"
    )
    parser.add_argument("--first-seed", type=int, default=7, help="of the load, where it is live")
    parser.add_argument("--no-metrics", action="store_true", help="do not scrape the server, where it is live")
    parser.add_argument("--wrong", type=int, default=0, help="print so many of the wrong ones of each scene")
    asked = parser.parse_args()
    if asked.live:
        seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
        show_live(asked.scene or list(LIVE), seeds, not asked.no_metrics, asked.wrong)
        return
    show({name: in_virtual_time(PLANS[name], asked.seeds) for name in asked.scene or SCENES}, asked.wrong)
    if not asked.scene:
        calm = in_virtual_time(replace(CALM, pauses_rps=0.0, holds=0.0, stall={"floor": "20ms"}), asked.seeds)
        disturbed = in_virtual_time(CALM, asked.seeds)
        for name, verdicts in (("nothing injected, floor 20 ms", calm), ("pauses and held streams", disturbed)):
            print(f"\nno interference, {name}: {verdicts.streams:,} streams, {verdicts.pairs.total()} episodes, "
                  f"{false_alarms(verdicts):.2f} called prefill interference per 1,000 streams")  # fmt: skip


if __name__ == "__main__":
    main()
