"""The simulated server on this event loop, over real TCP.

async with serving(Options(speed=1000)) as client:
    answer = await client.post("/v1/chat/completions", json={...})
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

from loadgen.event_loop import run
from loadgen.sim.app import App
from loadgen.sim.books import Books
from loadgen.sim.options import Options
from loadgen.sim.server import bind, uvicorn_config

FAST = Options(speed=10_000)
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "two words"}]}


@asynccontextmanager
async def served(options: Options = FAST, books: Books | None = None) -> AsyncIterator[tuple[httpx.AsyncClient, App]]:
    """A client of the server, and the application behind it."""
    app = App(options.config(), options.behaviour(), books)
    listener = bind("127.0.0.1", 0)
    config = uvicorn_config(app)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=20) as client:
            yield client, app
    finally:
        server.force_exit = True
        await server.shutdown(sockets=[listener])
        await asyncio.sleep(0)  # connections close in the next turn


Exchange = Callable[[dict[str, Any]], Awaitable[list[bytes]]]


@asynccontextmanager
async def raw_connection(client: httpx.AsyncClient) -> AsyncIterator[Exchange]:
    """One connection without an HTTP client: `exchange(body)` gives the reads that an answer took."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)

    async def exchange(body: dict[str, Any]) -> list[bytes]:
        raw = json.dumps(body).encode()
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(raw), raw))
        reads = [await reader.read(1 << 16)]
        while not reads[-1].endswith((b"0\r\n\r\n", b"}")):
            reads.append(await reader.read(1 << 16))
        return reads

    yield exchange
    writer.close()
    await writer.wait_closed()


def talk(
    conversation: Callable[[httpx.AsyncClient], Awaitable[Any]], options: Options = FAST, books: Books | None = None
) -> Any:
    """Runs a conversation with a server that lives as long as it."""

    async def main() -> Any:
        async with served(options, books) as (client, _):
            return await conversation(client)

    return run(main())


def ask(body: dict[str, Any], path: str = CHAT, options: Options = FAST, **rest: Any) -> httpx.Response:
    """The answer to one request."""

    async def one(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(path, json=body, **rest)

    answer: httpx.Response = talk(one, options)
    return answer


def events(text: str) -> list[Any]:
    """The events of a stream, parsed; the last one must be [DONE]."""
    parts = text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
