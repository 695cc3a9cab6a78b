import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from loadgen.errors import UsageError
from loadgen.sim.child import LocalServer
from loadgen.sim.options import Options


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_server_of_our_own_answers_and_ends():
    with LocalServer(Options(model="llama-3.2-1b", speed=100)) as server:
        pid = server.pid
        assert server.model == "llama-3.2-1b"
        assert os.getsid(pid) != os.getsid(0)
        body = {"prompt": "a b c", "max_tokens": 5, "stream": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, trust_env=False)
        assert answer.text.count("data: ") == 6
    assert gone(pid)
    server.stop()


def test_a_taken_port_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^.*cannot listen on 127.0.0.1:{port}: Address already in use.*$"):
            LocalServer(port=port).start()


@pytest.mark.parametrize("how", ["closed input", "SIGTERM", "SIGINT"])
def test_the_process_ends_by_itself(how):
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.sim.server", "--with-parent", "--speed=100"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        assert process.stdout.readline().startswith(b'{"url": "http://127.0.0.1:')
        if how == "closed input":
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, how))
        assert process.wait(10) == 0
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
