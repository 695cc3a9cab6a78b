import json
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

BODY = b'{"prompt": "a b", "max_tokens": 100000, "stream": true}'
ENDLESS = b"POST /v1/completions HTTP/1.1\r\nHost: sim\r\nX-Request-Id: mine\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


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
def test_the_process_ends_by_itself_and_leaves_the_truth(how, tmp_path):
    truth = tmp_path / "truth.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.sim.server", "--with-parent", f"--truth={truth}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        line = process.stdout.readline()
        assert line.startswith(b'{"url": "http://127.0.0.1:')
        answering = socket.create_connection(("127.0.0.1", int(json.loads(line)["url"].rpartition(":")[2])))
        answering.sendall(ENDLESS)
        got = answering.recv(100)
        assert got.startswith(b"HTTP/1.1 200")
        while got.count(b"data: ") < 3:
            got += answering.recv(1 << 16)
        if how == "closed input":
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, how))
        assert process.wait(10) == 0
        answering.close()
        assert process.stdout.read() == b""
        (lateness,) = process.stderr.read().decode().splitlines()
    rows = [json.loads(row) for row in truth.read_bytes().splitlines()]
    assert len(rows) >= 3
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["request_id"] for row in rows} == {"mine"}
    assert all(row["sent_ns"] >= row["due_ns"] > 1.7e18 for row in rows)
    assert lateness.startswith(f"loadgen: {len(rows)} writes of tokens, late by at most ")
