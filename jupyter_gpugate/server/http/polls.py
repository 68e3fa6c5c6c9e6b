"""Makes answers for many pollers once, and lets requests that change something go first."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from jupyter_gpugate.server.http.encode import SCALARS, encode, fields_of

#: The number of answers kept; each is valid for one tick.
REMEMBERED = 512
_TAG = re.compile(r'(?:W/)?("[^"]*")')

#: Fields that move by themselves, without anything having happened.
CLOCKS = {"now", "tick", "waited_s", "started_s", "age_s", "age_ms", "eta_s", "utilisation"}
#: Words and numbers of a reason follow the free memory of the moment; its kind does not.
MOMENTARY = {"message", "numbers", "free_bytes", "room_bytes", "external"}
PASSING = frozenset(CLOCKS | MOMENTARY)
#: Memory that moves less than this does not make a new answer.
GRAIN_BYTES = 16 << 20

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
        return encode(self._answer)


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


def essence_of(answer: Any, made: dict[int, Any] | None = None) -> Any:
    """Return an answer without clocks and small changes of memory, as the content of its ETag.

    ``made`` are the parts that are known: many rows share their reasons.
    """
    if type(answer) in SCALARS:
        return _grains(answer) if type(answer) is int else answer
    made = {} if made is None else made
    known = made.get(id(answer))
    if known is None:
        known = made[id(answer)] = _essence(answer, made)
    return known


def _grains(size: int) -> int:
    return size // GRAIN_BYTES if size >= GRAIN_BYTES else size


def _essence(answer: Any, made: dict[int, Any]) -> Any:
    if isinstance(answer, str):  # of an enum
        return answer
    if isinstance(answer, (list, tuple)):
        return [essence_of(one, made) for one in answer]
    found = answer if isinstance(answer, dict) else fields_of(answer)
    return {name: essence_of(one, made) for name, one in found.items() if name not in PASSING}


def tag_of(essence: Any) -> str:
    """Return an ETag of the answer's relevant content."""
    digest = hashlib.blake2b(encode(essence, sort_keys=True).encode(), digest_size=12)
    return f'"{digest.hexdigest()}"'


def is_known(etag: str, given: str) -> bool:
    """Return whether a caller already has the answer, by ``If-None-Match`` (RFC 9110, 13.1.2).

    Proxies that compress an answer make its tag a weak one, and caches send several.
    """
    return given.strip() == "*" or etag in _TAG.findall(given)
