"""How far the recorded arrival of each token is from the moment the server sent it. See README.md beside this file."""

import argparse

import numpy as np
import pandas as pd

from tests.bench.loads import Load, Outcome, measure, numbers


def arrival_errors(outcome: Outcome) -> pd.DataFrame:
    """The server's log with `error_ns`: recorded arrival − send. ValueError unless every token was recorded."""
    got = outcome.run.chunks[["request_id", "seq", "arrival_ns"]]
    joined = outcome.sent.merge(got, on=["request_id", "seq"], validate="one_to_one")
    if not len(joined) == len(outcome.sent) == outcome.tokens:
        raise ValueError(f"{len(outcome.sent)} tokens sent, {outcome.tokens} recorded, {len(joined)} in both")
    start_ns = outcome.run.meta["clock"]["epoch_ns_at_start"]
    return joined.assign(error_ns=start_ns + joined["arrival_ns"] - joined["before_ns"])


def row(outcome: Outcome) -> dict[str, object]:
    tokens = arrival_errors(outcome)
    chunks = outcome.run.chunks
    reads = len(chunks[["request_id", "read_id"]].drop_duplicates())
    p50, p99, worst = np.quantile(tokens["error_ns"], [0.5, 0.99, 1]) / 1e3
    return {
        "streams": outcome.load.streams,
        "stamps": outcome.run.meta["timestamp_source"],
        "tok/s": round(outcome.tokens_per_s),
        "error p50 µs": round(p50, 1),
        "p99 µs": round(p99, 1),
        "max µs": round(worst, 1),
        "over 1 ms %": round(100 * float((tokens["error_ns"] > 1_000_000).mean()), 2),
        "events/read": round(outcome.tokens / reads, 3),
        "send() p99 µs": round(float(np.quantile(tokens["after_ns"] - tokens["before_ns"], 0.99)) / 1e3, 1),
        "server late p99 ms": round(float(np.quantile(tokens["before_ns"] - tokens["due_ns"], 0.99)) / 1e6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=numbers, default=[50, 200, 800])
    parser.add_argument("--tokens", type=int, default=400, help="per stream; 50 a second")
    asked = parser.parse_args()
    loads = [Load(streams, asked.tokens, stamps=stamps) for stamps in ("kernel", "user") for streams in asked.streams]
    print(pd.DataFrame([row(measure(load)) for load in loads]).to_string(index=False))


if __name__ == "__main__":
    main()
