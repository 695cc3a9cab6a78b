"""Builds and runs the token server (token_server.c), and reads the log of what it sent.

with running(folder, first_ms=100, gap_ms=20) as server:
    load(server.url)
sent = server.log()  # complete only after the block
"""

import subprocess
from collections.abc import Iterator, Sequence
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
        """A row per token, with the columns of TOKEN and its request's arrived_ns (when the client had sent it, by the
        kernel) and request_id (its x-request-id); complete once the server has ended.
        """
        lines = [line.split(" ", 1) for line in (self.folder / "requests.txt").read_text().splitlines()]
        tokens = pd.DataFrame(np.fromfile(self.folder / "tokens.bin", TOKEN))
        tokens["arrived_ns"] = np.array([int(arrived) for arrived, _ in lines], dtype=np.int64)[tokens["request"]]
        tokens["request_id"] = np.array([name for _, name in lines], dtype=object)[tokens["request"]]
        return tokens


def build(folder: Path) -> Path:
    binary = folder / "token_server"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", str(binary), str(SOURCE)], check=True)
    return binary


@contextmanager
def running(
    folder: Path,
    first_ms: float = 100,
    gap_ms: float = 20,
    spread: bool = True,
    core: int = 1,
    freeze: tuple[int, float] | None = None,
    under: Sequence[str] = (),
) -> Iterator[TokenServer]:
    """A server in a process of its own, pinned to `core`; it writes its log into `folder` as the block ends.

    `freeze` is (number of tokens after which all streams stand still once, ms); `under` a command that starts it with
    another priority, as `("chrt", "-f", "10")`.
    """
    options = [str(first_ms), str(gap_ms), str(int(spread)), str(folder), *(str(each) for each in freeze or ())]
    command = [*under, "taskset", "-c", str(core), str(build(folder)), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().removeprefix("port "))
        try:
            yield TokenServer(f"http://127.0.0.1:{port}", folder)
        finally:
            process.terminate()
