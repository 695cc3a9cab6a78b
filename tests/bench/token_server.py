"""Builds and runs the token server (token_server.c), and reads the log of what it sent.

with running(folder, first_ms=100, gap_ms=20) as server:
    load(server.url)
sent = server.log()  # complete only after the block
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

SOURCE = Path(__file__).with_name("token_server.c")

TOKEN = np.dtype([("request", "i4"), ("seq", "i4"), ("due_ns", "i8"), ("before_ns", "i8"), ("after_ns", "i8")])
"""struct token of the C source; instants are CLOCK_REALTIME."""


@dataclass(frozen=True)
class TokenServer:
    url: str
    folder: Path

    def log(self) -> pd.DataFrame:
        """A row per token, with the columns of TOKEN and its x-request-id; complete once the server has ended."""
        ids = (self.folder / "requests.txt").read_text().splitlines()
        tokens = pd.DataFrame(np.fromfile(self.folder / "tokens.bin", TOKEN))
        tokens["request_id"] = np.array(ids, dtype=object)[tokens["request"]]
        return tokens


def build(folder: Path) -> Path:
    binary = folder / "token_server"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", str(binary), str(SOURCE)], check=True)
    return binary


@contextmanager
def running(
    folder: Path, first_ms: float = 100, gap_ms: float = 20, spread: bool = True, core: int = 1
) -> Iterator[TokenServer]:
    """A server in a process of its own, pinned to `core`; it writes its log into `folder` as the block ends."""
    options = [str(first_ms), str(gap_ms), str(int(spread)), str(folder)]
    command = ["taskset", "-c", str(core), str(build(folder)), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().removeprefix("port "))
        try:
            yield TokenServer(f"http://127.0.0.1:{port}", folder)
        finally:
            process.terminate()
