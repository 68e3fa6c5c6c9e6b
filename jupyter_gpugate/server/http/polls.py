"""Makes answers for many pollers once, and lets requests that change something go first."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

#: The number of answers kept; each is valid for one tick.
REMEMBERED = 512
_TAG = re.compile(r'(?:W/)?("[^"]*")')

#: An answer, and what of it counts as its content.
Making = Callable[[], Awaitable[tuple[Any, Any]]]
#: A cheap value that determines an answer: equal stamps, equal answers.
Stamp = Callable[[], tuple[Any, ...]]


class Made:
    """One answer, with the tag of its content."""

    def __init__(self, answer: Any, essence: Any) -> None:
        self._answer = answer
        self.etag = tag_of(essence)

    @functools.cached_property
    def payload(self) -> str:
        return json.dumps(self._answer)


class Polls:
    """Makes each answer once for all pollers while its stamp stays the same."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, tuple[tuple[Any, ...], Made]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def answer(self, what: Hashable, stamp: Stamp, make: Making) -> Made:
        """Return the answer; raise what its stamp or maker raises."""
        made = self._known(what, stamp())
        if made is not None:
            return made
        async with self._turn:
            # Hundreds may be woken by one tick: what has come in meanwhile is served in between.
            await asyncio.sleep(0)
            now = stamp()
            made = self._known(what, now)
            if made is None:
                made = Made(*await make())
                self._made[what] = (now, made)
                self._made.move_to_end(what)
                while len(self._made) > REMEMBERED:
                    self._made.popitem(last=False)
        return made

    def _known(self, what: Hashable, stamp: tuple[Any, ...]) -> Made | None:
        known = self._made.get(what)
        return known[1] if known is not None and known[0] == stamp else None


def tag_of(essence: Any) -> str:
    """Return an ETag of the answer's relevant content."""
    digest = hashlib.blake2b(json.dumps(essence, sort_keys=True).encode(), digest_size=12)
    return f'"{digest.hexdigest()}"'


def is_known(etag: str, told: str) -> bool:
    """Return whether a caller already has the answer, by ``If-None-Match`` (RFC 9110, 13.1.2).

    Proxies that compress an answer make its tag a weak one, and caches send several.
    """
    return told.strip() == "*" or etag in _TAG.findall(told)
