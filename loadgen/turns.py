"""Sharing the event loop between those who send and those who read."""

import asyncio
from collections import deque

EACH_TURN = 16


class Turns:
    """Lets a few pass in each turn of the event loop, in order of arrival.

    What sends costs the loop a quarter of a millisecond. A burst of hundreds (users that begin together, streams that
    end together) would else be one long turn, and the tokens that arrive meanwhile would be read several at once, with
    the time of the last.
    """

    def __init__(self, each_turn: int = EACH_TURN) -> None:
        self._loop = asyncio.get_running_loop()
        self._each_turn = self._left = each_turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        if self._left == self._each_turn:
            self._loop.call_soon(self._next_turn)
        if self._left > 0:
            self._left -= 1
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._left = self._each_turn
        while self._waiting and self._left > 0:
            turn = self._waiting.popleft()
            if not turn.done():  # else its request was cut
                turn.set_result(None)
                self._left -= 1
        if self._left < self._each_turn:
            self._loop.call_soon(self._next_turn)
