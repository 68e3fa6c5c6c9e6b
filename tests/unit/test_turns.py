"""So many at once, and a fair turn for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from jupyter_gpugate.runs.turns import TooManyWaiting, Turns


class Work:
    """Pieces of work that last until they are told to end."""

    def __init__(self, most: int, most_waiting: int = 100) -> None:
        self.turns = Turns(most, most_waiting)
        self.begun: list[str] = []
        self._end: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        """Ask for turns; whose work it is stands before the number."""
        for name in names:
            self._end[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._work(name))
            await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._end[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self.turns.one(name[0]):
            self.begun.append(name)
            await self._end[name].wait()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's own steps."""

    async def whole() -> None:
        await test()

    asyncio.run(whole())


def test_who_asks_for_much_leaves_a_place_and_turns_to_others() -> None:
    """One asker never has the last place; those who wait come in turn by whose work it is."""

    async def test() -> None:
        work = Work(3)
        await work.ask("a1", "a2", "a3", "a4", "b1", "b2", "c1")
        assert work.begun == ["a1", "a2", "b1"]
        await work.end("a1")
        assert work.begun[3:] == ["a3"]
        await work.end("b1")
        await work.end("a2")
        await work.end("a3")
        assert sorted(work.begun[4:]) == ["a4", "b2", "c1"]

    run(test)


def test_a_place_that_nobody_wants_any_more_goes_to_the_next() -> None:
    """Whoever gives up while waiting or at work blocks nobody."""

    async def test() -> None:
        work = Work(2)
        await work.ask("a1", "b1", "a2", "c1")
        await work.give_up("a2")
        await work.give_up("b1")
        assert work.begun == ["a1", "b1", "c1"]
        await work.give_up("a1")
        await work.give_up("c1")
        await work.ask("d1", "e1")
        assert work.begun[3:] == ["d1", "e1"]
        for name in ("d1", "e1"):
            await work.end(name)

    run(test)


def test_a_line_that_is_too_long_takes_nobody_in() -> None:
    """Whoever comes then is told so at once."""

    async def test() -> None:
        work = Work(2, most_waiting=2)
        await work.ask("a1", "a2", "a3")
        with pytest.raises(TooManyWaiting):
            async with work.turns.one("b"):
                raise AssertionError
        for name in ("a1", "a2", "a3"):
            await work.end(name)

    run(test)
