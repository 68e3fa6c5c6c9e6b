"""Answers that many wait for, and tags as HTTP has them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from jupyter_gpugate.runs.record import Refused
from jupyter_gpugate.server.http.polls import Polls, is_known, tag_of


class Asked:
    """A question whose answer follows from one number, and how often it was made."""

    def __init__(self) -> None:
        self.polls = Polls()
        self.number = 1
        self.made = 0

    def stamp(self) -> tuple[Any, ...]:
        return (self.number,)

    async def make(self) -> tuple[Any, Any]:
        self.made += 1
        return {"number": self.number, "clock": self.made}, self.number

    async def ask(self, what: str = "it") -> str:
        made = await self.polls.answer(what, self.stamp, self.make)
        return f"{made.etag} {made.payload}"


def test_an_answer_is_made_once_for_all_who_wait_for_it() -> None:
    """As long as what it follows from is the same, and never longer."""

    async def test() -> None:
        asked = Asked()
        assert len(set(await asyncio.gather(*(asked.ask() for _ in range(50))))) == 1
        await asked.ask()
        assert asked.made == 1
        await asked.ask("something else")
        asked.number = 2
        assert '"number": 2' in await asked.ask()
        assert asked.made == 3

    asyncio.run(test())


def test_what_comes_in_while_many_answers_are_made_is_served_in_between() -> None:
    """Different answers are made one by one, each in a turn of its own."""

    async def test() -> None:
        asked = Asked()
        looks = [asyncio.create_task(asked.ask(str(n))) for n in range(50)]
        seen = []
        while not all(look.done() for look in looks):
            await asyncio.sleep(0)
            seen.append(asked.made)
        assert max(b - a for a, b in itertools.pairwise([0, *seen])) == 1

    asyncio.run(test())


def test_what_is_not_there_is_told_to_each() -> None:
    """A question that fails leaves nothing behind and blocks nobody."""

    def gone() -> tuple[Any, ...]:
        raise Refused(404, "not_found", "there is no such run")

    async def test() -> None:
        asked = Asked()
        for _ in range(2):
            with pytest.raises(Refused, match="no such run"):
                await asked.polls.answer("it", gone, asked.make)
        assert await asked.ask()

    asyncio.run(test())


TAG = tag_of("content")


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (TAG, True),
        (f"W/{TAG}", True),
        (f'"other", {TAG}', True),
        (f'W/"a",W/{TAG} , "b"', True),
        ("*", True),
        (" * ", True),
        ("", False),
        ('""', False),
        ('"other"', False),
        ('W/"other"', False),
        (TAG.strip('"'), False),
        (f'"a{TAG[1:]}', False),
        ('"*"', False),
        ("x" * 5000, False),
    ],
)
def test_a_tag_is_compared_as_http_asks_for(told: str, known: bool) -> None:
    """Weakly, in lists, and by the star that stands for any."""
    assert is_known(TAG, told) is known
