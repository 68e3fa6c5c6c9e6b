"""Runs a limited number of jobs at once, in fair turns between callers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator


class TooManyWaiting(Exception):
    """Too many jobs are waiting."""


class Turns:
    """Lets ``most`` jobs run at once; no caller may occupy the last place as well.

    Waiting jobs take turns by caller, so a caller with many jobs delays only its own.
    """

    def __init__(self, most: int, most_waiting: int) -> None:
        self._most = most
        self._most_waiting = most_waiting
        self._at_work: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def one(self, whose: str) -> AsyncIterator[None]:
        """Wait for a turn and keep it for the duration of the block."""
        await self._turn(whose)
        try:
            yield
        finally:
            self._at_work[whose] -= 1
            if not self._at_work[whose]:
                del self._at_work[whose]
            self._next()

    async def _turn(self, whose: str) -> None:
        if sum(map(len, self._waiting.values())) >= self._most_waiting:
            raise TooManyWaiting
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(whose, deque()).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had come just then
                self._at_work[whose] -= 1
                self._next()
            raise

    def _next(self) -> None:
        while self._at_work.total() < self._most:
            whose = next((w for w in self._waiting if self._at_work[w] < self._share), None)
            if whose is None:
                return
            line = self._waiting.pop(whose)
            turn = line.popleft()
            if line:
                self._waiting[whose] = line  # behind all others
            if not turn.done():
                self._at_work[whose] += 1
                turn.set_result(None)

    @property
    def _share(self) -> int:
        return max(1, self._most - 1)
