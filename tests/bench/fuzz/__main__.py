"""Hostile answers over real sockets: does the engine survive whatever a server sends?"""

import argparse
import asyncio
import gc
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from analysis.record import RequestRecord
from tests.bench.fuzz import server
from tests.bench.fuzz.mutate import plan, prepare
from tests.bench.fuzz.runner import Result, Runner

MAX_GROWTH_MB = 300.0


def fuzz(seed: int, cases: range, concurrency: int) -> tuple[Result, RequestRecord | None]:
    """Play the cases, in a process that must be left as it was found."""
    notes = mmap.mmap(-1, cases.stop)
    prepare()
    before = _descriptors()
    pid, port = server.start(seed, notes)

    async def run() -> tuple[Result, RequestRecord | None]:
        runner = Runner(seed, port, notes)
        record = await runner.run(iter(cases), concurrency)
        return runner.result, record

    try:
        with _stderr_caught() as noise, _without_garbage_collection():
            result, record = asyncio.run(run())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if noise:
        result.violation("noise", noise[0])
    if _descriptors() != before:
        result.violation("descriptors", f"{before} were open before, {_descriptors()} after")
    if result.rss_growth_mb > MAX_GROWTH_MB:
        result.violation("memory", f"grew by {result.rss_growth_mb:.0f} MB")
    return result, record


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def _stderr_caught() -> Iterator[list[str]]:
    """A list that gets what was written to standard error meanwhile, by whomever; empty if nothing was."""
    noise: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield noise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            noise += [text] if (text := caught.read().decode("utf-8", "replace")) else []


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """As in a run: what reference counts do not free stays, and shows as growth."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        print(f"{gc.collect()} objects in reference cycles")
        gc.enable()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=300)
    parser.add_argument("--only", type=int, metavar="CASE", help="play one case and show its plan and its record")
    asked = parser.parse_args()
    warnings.simplefilter("always", ResourceWarning)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    cases = range(asked.streams) if asked.only is None else range(asked.only, asked.only + 1)
    began_s = time.monotonic()
    result, record = fuzz(asked.seed, cases, asked.concurrency)
    if asked.only is not None:
        _show(asked.seed, asked.only, record)
    print(f"seed {asked.seed}: {len(cases)} streams in {time.monotonic() - began_s:.0f} s")
    for outcome, count in result.outcomes.most_common():
        print(f"  {outcome:<20} {count}")
    print(f"clean answers not judged: {result.exposed} behind a spoilt one, {result.raced} to a server that had left")
    print(f"clean answers that were late, and sent again: {len(result.slow)}")
    print(f"longest turn of the loop {result.longest_block_s:.2f} s of CPU, RSS grew by {result.rss_growth_mb:.0f} MB")
    print("violations:", ", ".join(f"{name} {count}" for name, count in result.violations.items()) or "none")
    return 1 if result.violations else 0


def _show(seed: int, case: int, record: RequestRecord | None) -> None:
    played = plan(seed, case)
    steps = [step if isinstance(step, bytes) else (step.data[:80], step.times) for step in played.steps]
    print(replace(played, steps=()), *steps, record, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
