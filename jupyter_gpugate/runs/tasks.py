"""Work of the run side that goes on by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """Tasks that end together; a failure is logged, because no caller awaits it."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unbroken: set[asyncio.Future[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let work go on."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def unbroken(self, work: Awaitable[T]) -> T:
        """Wait for work that must not be left half done: `stop` waits for it as well."""
        future = asyncio.ensure_future(work)
        self._unbroken.add(future)
        future.add_done_callback(self._unbroken.discard)
        return await asyncio.shield(future)

    async def stop(self) -> None:
        """Cancel all tasks, and await those that must not be interrupted."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._unbroken, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("the run side failed", exc_info=task.exception())
