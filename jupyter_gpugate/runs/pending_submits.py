"""Submits that continue while the client polls for their result."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

#: How long the result of a submit is kept for a client that has not asked yet.
KEPT_S = 120.0

Body = Mapping[str, Any]
#: A run's id, and whether it is a new one.
Submitted = tuple[str, bool]


def body_digest(body: Body) -> str:
    """Return the identity of a body without its kernel: a restarted kernel sends the same run."""
    fields = {k: v for k, v in body.items() if k != "kernel"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class PendingSubmits:
    """Answers a submit within a time, and keeps its result until the same body asks again."""

    def __init__(self, submit: Callable[[Body], Awaitable[Submitted]]) -> None:
        self._submit = submit
        self._under_way: dict[str, tuple[str, asyncio.Task[Submitted]]] = {}

    async def submit(self, body: Body, wait_s: float) -> Submitted | None:
        """Return the result, or None if it takes longer; raise what the submit raises."""
        key, digest = body.get("idempotency_key"), body_digest(body)
        if not key:
            return await self._submit(body)
        known, task = self._under_way.get(key, ("", None))
        if task is None or known != digest:
            task = asyncio.ensure_future(self._submit(body))
            self._under_way[key] = (digest, task)
            self._forget_later(key, task)
        await asyncio.wait({task}, timeout=wait_s)
        if not task.done():
            return None
        self._forget(key, task)
        return task.result()

    def _forget_later(self, key: str, task: asyncio.Task[Submitted]) -> None:
        def look() -> None:
            if task.done():
                self._forget(key, task)
            else:
                self._forget_later(key, task)

        asyncio.get_running_loop().call_later(KEPT_S, look)

    def _forget(self, key: str, task: asyncio.Task[Submitted]) -> None:
        if self._under_way.get(key, ("", None))[1] is task:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved
