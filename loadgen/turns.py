"""Sharing the event loop between those who send and those who read."""

import asyncio
from collections import deque
from collections.abc import Callable

EACH_TURN = 16
EACH_BUSY_TURN = 4


class Turns:
    """Lets a few pass in each turn of the event loop, in order of arrival.

    What begins or ends a request costs the loop some tenths of a millisecond. A burst of hundreds (users that begin
    together, streams that end together) would else be one long turn, and the tokens that arrive meanwhile would be read
    several at once, with the time of the last.

    Args:
        busy: Whether much else waits for the loop: then fewer pass.
    """

    def __init__(self, busy: Callable[[], bool] = lambda: False) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy = busy
        self._left = 0
        self._under_way = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        if not self._under_way:
            self._begin()
        if self._left > 0:
            self._left -= 1
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin(self) -> None:
        self._under_way = True
        self._left = EACH_BUSY_TURN if self._busy() else EACH_TURN
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._under_way = False
        if not self._waiting:
            return
        self._begin()
        while self._waiting and self._left > 0:
            turn = self._waiting.popleft()
            if not turn.done():  # else its request was cut
                turn.set_result(None)
                self._left -= 1
