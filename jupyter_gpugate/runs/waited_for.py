"""Runs that a notebook or terminal waits for: withdrawn if it ends before they start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jupyter_gpugate.core.requests import KernelRef
from jupyter_gpugate.core.samples import ProcessKey
from jupyter_gpugate.proc import boot_id
from jupyter_gpugate.runs.life import Event, Forsaken
from jupyter_gpugate.runs.processes import ended
from jupyter_gpugate.runs.record import Record, Records
from jupyter_gpugate.runs.tasks import Tasks


class WaitedFor:
    """Watches the kernels and terminals that wait for runs."""

    def __init__(
        self,
        records: Records,
        tasks: Tasks,
        handle: Callable[[Record, Event], Awaitable[None]],
    ) -> None:
        self._records = records
        self._tasks = tasks
        self._handle = handle
        self._watched: set[KernelRef] = set()

    def watch(self, record: Record) -> None:
        """Withdraw a run if its kernel ends before it starts, unless it is detached."""
        kernel = record.request.kernel
        if kernel is not None and not record.life.detached and kernel not in self._watched:
            self._watched.add(kernel)
            self._tasks.spawn(self._withdraw_after(kernel))

    async def _withdraw_after(self, kernel: KernelRef) -> None:
        if kernel.boot_id in ("", boot_id()):
            await ended(ProcessKey(kernel.pid, kernel.start_ticks))
        self._watched.discard(kernel)
        for record in self._records.unfinished():
            if record.request.kernel == kernel:
                await self._handle(record, Forsaken())

    def has(self, record: Record) -> bool:
        """Return whether a living notebook or terminal would notice the end of this run."""
        return not record.life.detached and record.request.kernel in self._watched
