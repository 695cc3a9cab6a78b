"""Where a run's metrics can be read: over HTTP and in a file, while it lasts and after it."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from loadgen.errors import UsageError
from loadgen.outlet import CONTENT_TYPE, Export, Outlet, opened, response, write
from tests.loadgen.scripted import DONE, Received, ScriptedServer, Step, answer, content, finish, role, usage
from tests.loadgen.test_end_to_end import command, environment, loadgen
from tests.loadgen.test_exporter import samples
from tests.loadgen.test_worker import KEY

WORKLOAD = """
name: watched
requests: 3
concurrency: 1
seed: 1
classes: {chat: {shape: chat, turns: 1, system_tokens: 0, input_tokens: 8, output_tokens: 5}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.mark.parametrize(
    ("head", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n", "200 OK", "x 1\n"),
        (b"GET /metrics?a=b HTTP/1.1\r\n\r\n", "200 OK", "x 1\n"),
        (b"GET / HTTP/1.0\r\n\r\n", "200 OK", "x 1\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK", ""),
        (b"GET /secrets HTTP/1.1\r\n\r\n", "404 Not Found", "GET /metrics\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "404 Not Found", "GET /metrics\n"),
        (b"\r\n\r\n", "404 Not Found", "GET /metrics\n"),
    ],
)
def test_answers(head: bytes, status: str, body: str) -> None:
    lines, _, found = response(head, lambda: "x 1\n").decode().partition("\r\n\r\n")
    assert lines.startswith(f"HTTP/1.1 {status}\r\n")
    assert found == body
    assert (CONTENT_TYPE in lines) == (status == "200 OK")


def test_a_port_in_use_is_told_before_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--prometheus-port {port}: .*: name a free port"), opened(Export(port)):
            pass


def test_a_port_is_given_back() -> None:
    port = free_port()
    for _ in range(2):  # as from run to run of --repeat
        with opened(Export(port)) as outlet:
            assert outlet.listener is not None
            assert outlet.listener.getsockname() == ("127.0.0.1", port)


def test_nothing_asked_opens_nothing() -> None:
    with opened(Export()) as outlet:
        assert outlet == Outlet()


def test_a_file_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "loadgen.prom"
    with pytest.raises(UsageError, match="cannot be written: No such file"), opened(Export(file=path)):
        pass


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "loadgen.prom"
    write(path, "old")
    with path.open() as reader:
        write(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "folder.prom").mkdir()
    with pytest.raises(OSError, match="directory"):
        write(tmp_path / "folder.prom", "text")
    assert len(list(tmp_path.iterdir())) == 2


async def polled(port: int, name: str, value: float) -> str:
    """The metrics, as soon as one of them has this value."""
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            await asyncio.sleep(0.01)
            try:
                text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            except httpx.TransportError:
                continue
            if samples(text).get((name,)) == value:
                return text


def test_a_run_shows_its_metrics_while_it_lasts_and_leaves_them_in_the_file(tmp_path: Path) -> None:
    """The second stream stands still until somebody has seen it."""
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    seen, port, file = asyncio.Event(), free_port(), tmp_path / "loadgen.prom"
    tokens = [content("x") for _ in range(4)]
    end = (finish("length"), usage(8, 5), DONE)

    def played(asked: Received) -> list[Step]:
        whole = answer(role(), *tokens, content("y"), *end)
        return [*whole[:5], seen, *whole[5:]] if len(server.requests) == 2 else whole

    async def main() -> tuple[str, str]:
        async with server:
            words = command(
                "run", str(tmp_path / "w.yaml"), "--target", server.url, "--model", "m", "--no-calibrate",
                "--no-metrics", "--workers", "1", "--no-priority", "--out", str(tmp_path / "run"),
                "--api-key", KEY, "--prometheus-port", str(port), "--prometheus-file", str(file),
            )  # fmt: skip
            process = await asyncio.create_subprocess_exec(
                *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
            )
            text = await polled(port, "loadgen_stalled_streams", 1)
            seen.set()
            _, err = await asyncio.wait_for(process.communicate(), 60)
            return text, err.decode()

    server = ScriptedServer(played)
    text, err = asyncio.run(main())
    found = samples(text)
    assert found["loadgen_requests_total", "chat", "ok"] == 1
    assert found["loadgen_requests_in_flight",] == 1
    assert found["loadgen_longest_silence_seconds",] > 0.2
    last = samples(file.read_text())
    assert (last["loadgen_running",], last["loadgen_requests_total", "chat", "ok"]) == (0, 3)
    assert (last["loadgen_output_tokens_total", "chat"], last["loadgen_stalls_total", "chat"]) == (15, 1)
    assert KEY not in text + file.read_text() + err
    assert "Traceback" not in err


def test_workers_are_exported_as_one(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(WORKLOAD.replace("concurrency: 1", "concurrency: 2"))
    file = tmp_path / "loadgen.prom"
    loadgen(
        "run", str(tmp_path / "w.yaml"), "--workers", "2", "--no-calibrate", "--quiet", "--out", str(tmp_path / "run"),
        "--prometheus-file", str(file),
    )  # fmt: skip
    last = samples(file.read_text())
    assert last["loadgen_requests_total", "chat", "ok"] == last["loadgen_requests_sent_total",] == 3
    assert last["loadgen_time_to_first_token_seconds_count", "chat"] == 3
    assert last["loadgen_stalled_streams",] == 0


def test_the_file_holds_no_more_than_metrics_before_the_run(tmp_path: Path) -> None:
    """Whoever collects it then finds nothing, and not the run before."""
    file = tmp_path / "loadgen.prom"
    file.write_text("loadgen_running 0\n")
    with opened(Export(file=file)):
        assert file.read_text() == ""


def test_a_taken_port_ends_the_command_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = loadgen("run", "chat", "--target", "http://127.0.0.1:9", "--out", str(tmp_path / "run"),
                       "--prometheus-port", str(taken.getsockname()[1]), status=2)  # fmt: skip
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_exporter_is_loaded_by_those_alone_who_use_it() -> None:
    code = "import sys, loadgen.measure; print('loadgen.exporter' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
