"""What receiving a token costs the client, by transport. See README.md beside this file."""

import argparse

import pandas as pd

from tests.bench.loads import Load, Outcome, measure, numbers

TRANSPORTS = ("fast", "httpx")


def row(outcome: Outcome) -> dict[str, object]:
    return {
        "transport": outcome.load.transport,
        "streams": outcome.load.streams,
        "tok/s": round(outcome.tokens_per_s),
        "CPU µs/token": round(outcome.cpu_s / outcome.tokens * 1e6, 1),
        "peak RSS MB": round(outcome.peak_rss_mb),
    }


def marginal_us(small: Outcome, large: Outcome) -> float:
    """CPU per further token, in µs: what starting, planning and reporting cost every run drops out."""
    return (large.cpu_s - small.cpu_s) / (large.tokens - small.tokens) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=numbers, default=[200, 800], help="at least two, in rising order")
    parser.add_argument("--tokens", type=int, default=200, help="per stream; 50 a second")
    asked = parser.parse_args()
    outcomes = {
        transport: [measure(Load(streams, asked.tokens, transport)) for streams in asked.streams]
        for transport in TRANSPORTS
    }
    print(pd.DataFrame([row(outcome) for group in outcomes.values() for outcome in group]).to_string(index=False))
    cost = {transport: marginal_us(group[0], group[-1]) for transport, group in outcomes.items()}
    print("\nmarginal CPU: " + ", ".join(f"{transport} {us:.1f} µs/token" for transport, us in cost.items()))
    print(f"httpx / fast: {cost['httpx'] / cost['fast']:.1f}")


if __name__ == "__main__":
    main()
