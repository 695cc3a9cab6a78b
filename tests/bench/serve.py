"""How late the simulated server is with its tokens, and what a token costs it. See README.md beside this file."""

import argparse
import json
import multiprocessing
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SERVER_CORE, CLIENT_CORE = 0, 1


def body(tokens: int) -> bytes:
    asked = {"messages": [{"role": "user", "content": "w " * 20}], "max_tokens": tokens, "stream": True}
    return json.dumps({**asked, "ignore_eos": True}).encode()


def drain(port: int, streams: int, tokens: int) -> None:
    """Opens the streams and throws away what comes, until all have ended. The work of a process of its own."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    poller = selectors.EpollSelector()
    payload = body(tokens)
    for i in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: bench-{i}\r\n"
        sock.sendall(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
        sock.setblocking(False)
        poller.register(sock, selectors.EVENT_READ)
    scratch, left = bytearray(1 << 16), streams
    while left:
        for key, _ in poller.select():
            sock = key.fileobj  # type: ignore[assignment]
            n = sock.recv_into(scratch)
            if n == 0 or scratch[:n].endswith(b"0\r\n\r\n"):
                poller.unregister(sock)
                sock.close()
                left -= 1


def measure(streams: int, rate: float, tokens: int, server_flags: list[str], truth: bool) -> dict[str, Any]:
    """One load. `rate` is the wanted tokens per second of one stream; the clock of the engine is set to come near."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "truth.parquet"
        flags = [*server_flags, *([f"--truth={log}"] if truth else [])]
        command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "loadgen.sim.server", "--with-parent"]
        with subprocess.Popen(
            [*command, *flags, f"--speed={speed_for(streams, rate, tokens):.4f}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as server:  # fmt: skip
            assert server.stdout is not None
            assert server.stderr is not None
            port = int(json.loads(server.stdout.readline())["url"].rpartition(":")[2])
            cpu_before, start = cpu_s(server.pid), time.monotonic()
            client = multiprocessing.Process(target=drain, args=(port, streams, tokens))
            client.start()
            client.join()
            wall, cpu = time.monotonic() - start, cpu_s(server.pid) - cpu_before
            server.terminate()
            said = server.stderr.read().decode().strip()
        found: dict[str, Any] = {"streams": streams, "tok/s": round(streams * tokens / wall)}
        found["CPU µs/token"] = round(cpu / (streams * tokens) * 1e6, 1)
        if truth:
            found |= lateness(pd.read_parquet(log))
        return found | {"server says": said}


def lateness(rows: pd.DataFrame) -> dict[str, float]:
    """Of all tokens but those of the first half second, in which the connections are opened."""
    steady = rows[rows["due_ns"] > rows["due_ns"].min() + 500_000_000]
    late_us = (steady["sent_ns"] - steady["due_ns"]).to_numpy() / 1e3
    p50, p99, p999 = np.quantile(late_us, [0.5, 0.99, 0.999])
    return {"late p50 µs": round(p50), "p99 µs": round(p99), "p99.9 µs": round(p999), "max µs": round(late_us.max())}


def speed_for(streams: int, rate: float, tokens: int) -> float:
    """The speed at which a decode pass of the default model over all streams takes 1 / rate seconds."""
    from loadgen.sim.options import Options

    roofline = Options().config().replica.roofline
    pass_s = roofline.seconds(roofline.work((), streams, streams * (tokens // 2)))
    return pass_s * rate


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=lambda text: [int(part) for part in text.split(",")], default=[10, 100, 200])
    parser.add_argument("--rate", type=float, default=50.0, help="tokens per second and stream")
    parser.add_argument("--tokens", type=int, default=500, help="per stream")
    parser.add_argument("--no-truth", action="store_true", help="do not write a truth file")
    asked, flags = parser.parse_known_args()
    rows = [measure(streams, asked.rate, asked.tokens, flags, not asked.no_truth) for streams in asked.streams]
    with pd.option_context("display.width", 250, "display.max_colwidth", None):
        print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
