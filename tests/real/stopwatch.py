"""How long a long prompt stops the streams of others, measured without a line of loadgen's own engine.

Threads, blocking sockets and the clock: what `loadgen interfere` finds on the same server has to agree with it.

    python -m tests.real.stopwatch http://127.0.0.1:8000 --tokens 8192
"""

import argparse
import http.client
import json
import random
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

WORDS = [f"{a}{b}" for a in ("ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve") for b in "bdfgklmnprst"]


def events(address: str, body: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    """(seconds on the monotonic clock, content) of each event of an answer."""
    connection = http.client.HTTPConnection(address)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{address}: {response.status} {response.read(300)!r}")
    for line in response:
        if line.startswith(b"data: {"):
            yield time.monotonic(), json.loads(line[6:])
    connection.close()


class Stream(threading.Thread):
    """One answer after another; notes when each event came."""

    def __init__(self, address: str, model: str, number: int) -> None:
        super().__init__(daemon=True)
        self.address, self.model, self.number = address, model, number
        self.at_s: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            words = f"stream {self.number} {random.random()}"
            body = chat(self.model, words, 3000) | {"ignore_eos": True}
            for at_s, _ in events(self.address, body):
                self.at_s.append(at_s)
                if self.over.is_set():
                    return

    def longest_s(self, from_s: float, until_s: float) -> float:
        """The longest gap that reaches into a window."""
        at_s = list(self.at_s)
        return max((b - a for a, b in pairwise(at_s) if b > from_s and a < until_s), default=0.0)


def chat(model: str, text: str, tokens: int) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    options = {"include_usage": True}
    return {"model": model, "stream": True, "stream_options": options, "max_tokens": tokens, "messages": [message]}


def inject(address: str, model: str, words: int) -> tuple[float, float, int]:
    """When a fresh prompt left, when its first token came, and the prompt tokens that the server counted."""
    text = " ".join(random.choice(WORDS) for _ in range(words))
    sent_s, first_s, told = time.monotonic(), None, 0
    for at_s, event in events(address, chat(model, text, 1)):
        if first_s is None and event.get("choices"):
            first_s = at_s
        told = (event.get("usage") or {}).get("prompt_tokens", told)
    if first_s is None:
        raise SystemExit("no token came")
    return sent_s, first_s, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    address = urlsplit(asked.url).netloc
    _, _, probe = inject(address, asked.model, 1000)
    words = round(asked.tokens * 1000 / probe)
    streams = [Stream(address, asked.model, number) for number in range(asked.streams)]
    for stream in streams:
        stream.start()
    time.sleep(5)
    found = []
    for _ in range(asked.repeats):
        sent_s, first_s, told = inject(address, asked.model, words)
        time.sleep(1.5)  # the event that ends a gap may still be on its way
        gaps_s = [stream.longest_s(sent_s, first_s) for stream in streams]
        found.append(statistics.median(gaps_s))
        print(
            f"{told} tokens: TTFT {first_s - sent_s:.2f} s, gaps {', '.join(f'{each:.3f}' for each in gaps_s)} s",
            flush=True,
        )
        time.sleep(2)
    for stream in streams:
        stream.over.set()
    print(f"median {statistics.median(found):.3f} s")


if __name__ == "__main__":
    main()
