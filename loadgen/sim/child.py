"""The simulated engine as a child process, for runs that name no target."""

import json
import os
import select
import subprocess
import sys
import time
from types import TracebackType

from loadgen.errors import UsageError
from loadgen.sim.options import Options

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


class LocalServer:
    """Serves on a free loopback port between `start` and `stop`, or within a `with` block.

    The process has a session of its own, so that Ctrl-C in the terminal does not end it before the client has drained;
    it ends with us all the same, as it watches its standard input.

    Attributes:
        url, model, hardware, pid: Known once `start` has returned.
    """

    def __init__(self, options: Options | None = None, port: int = 0) -> None:
        self.url = self.model = self.hardware = ""
        self.pid = 0
        self._options = options or Options()
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "LocalServer":
        """Returns when connections are accepted. Raises UsageError, with the server's own message, if that fails."""
        command = [sys.executable, "-m", "loadgen.sim.server", "--with-parent", f"--port={self._port}"]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, *self._options.argv()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        line = self._first_line()
        if not line:
            raise UsageError(self._failure())
        where = json.loads(line)
        self.url, self.model, self.hardware = where["url"], where["model"], where["hardware"]
        self.pid = where["pid"]
        return self

    def stop(self) -> None:
        """Ends the process, by force after `STOP_TIMEOUT_S`. May be called twice, and without `start`."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def _first_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor, line = self._process.stdout.fileno(), b""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not line.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                return b""
            read = os.read(descriptor, 4096)
            if not read:
                return b""
            line += read
        return line

    def _failure(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        process, errors = self._process, self._process.stderr
        if process.poll() is None:
            process.kill()
        said = errors.read().decode(errors="replace").strip().splitlines()
        self.stop()
        return f"the simulated server did not start: {said[-1] if said else f'no answer in {START_TIMEOUT_S:.0f} s'}"

    def __enter__(self) -> "LocalServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
