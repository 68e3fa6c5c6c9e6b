"""A user's orders about existing runs: to stop, to detach or to delete them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_gpugate.core.reports import EndName, RunEnd
from jupyter_gpugate.runs import directory
from jupyter_gpugate.runs.attempts import Attempts
from jupyter_gpugate.runs.life import ENDED, QUEUED, CancelAsked, Detached, OverTime
from jupyter_gpugate.runs.outcome import stop_in
from jupyter_gpugate.runs.record import Record, Records, Refused
from jupyter_gpugate.runs.removal import remove_run

#: A supervisor that has not ended this long after its grace is over is itself killed.
OVERTIME_S = 15.0


@dataclass(frozen=True)
class Cancelled:
    """The stop of a run."""

    cancelled: bool
    end: EndName
    means: str
    ms: int
    survivors: Sequence[Any]  # as the supervisor has written them


class Orders:
    """Carries out what a user orders; raises `Refused` for what cannot be done."""

    def __init__(self, records: Records, attempts: Attempts, grace_s: float) -> None:
        self._records = records
        self._attempts = attempts
        self._grace_s = grace_s

    async def cancel(self, run_id: str) -> Cancelled:
        """Stop a run and wait until nothing of it is left: by what means, in how many ms."""
        record = self._unfinished(run_id)
        begun = time.monotonic()
        means = await self._stop(record)
        summary = record.summary
        outcome = summary.get("outcome") or {}
        kill, stop = outcome.get("kill") or {}, stop_in(outcome)
        is_stopped = stop is not None and stop.is_cancel  # a service ends as completed
        return Cancelled(
            cancelled=is_stopped or summary["end"] == RunEnd.CANCELLED.value,
            end=summary["end"],
            means=kill.get("means") or means,
            ms=kill.get("ms") or int(1000 * (time.monotonic() - begun)),
            survivors=kill.get("survivors") or [],
        )

    async def _stop(self, record: Record) -> str:
        """Stop a run; return by what means."""
        await self._attempts.handle(record, CancelAsked())
        try:
            await asyncio.wait_for(record.end.wait(), self._grace_s + OVERTIME_S)
        except asyncio.TimeoutError:
            await self._attempts.handle(record, OverTime())
            await record.end.wait()
            return "supervisor killed"
        return "signal" if record.summary.get("outcome") else "withdrawn"

    async def cancel_these(
        self, run_ids: Sequence[str]
    ) -> tuple[dict[str, Cancelled], dict[str, str]]:
        """Stop several runs at once; return the stops, and why others were refused.

        The runs that wait are withdrawn first, so that none of them starts in the others' place.
        """
        waiting = [r for r in run_ids if self._records.known(r).status == QUEUED]
        ordered = [*waiting, *(r for r in run_ids if r not in set(waiting))]
        works = await asyncio.gather(*map(self.cancel, ordered), return_exceptions=True)
        stopped, refused = {}, {}
        for run_id, work in zip(ordered, works, strict=True):
            if isinstance(work, Cancelled):
                stopped[run_id] = work
            elif isinstance(work, Refused):
                refused[run_id] = str(work)
            else:
                raise work
        return stopped, refused

    async def detach_these(self, run_ids: Sequence[str]) -> None:
        """Detach several runs; those that have ended meanwhile need nothing."""
        for run_id in run_ids:
            if self._records.known(run_id).status != ENDED:
                await self.detach(run_id)

    async def cancel_all(self) -> None:
        """Stop every unfinished run and wait for their ends."""
        cancels = (self.cancel(record.run_id) for record in self._records.unfinished())
        await asyncio.gather(*cancels, return_exceptions=True)

    async def detach(self, run_id: str) -> None:
        """Let an unfinished run go on without the notebook or terminal that waits for it."""
        record = self._unfinished(run_id)
        await self._attempts.handle(record, Detached())
        try:
            await asyncio.to_thread(directory.write_detached, record.path)
        except OSError as error:
            problem = f"it is detached until the gate restarts: {error.strerror}"
            raise Refused(503, "disk", problem) from None

    async def delete(self, run_id: str) -> str:
        """Remove an ended run and its directory; return which files remain, and why, or ""."""
        record = self._records.own(run_id)
        if record.status != ENDED:
            raise Refused(409, "state", f"{run_id} is {record.status}: cancel it first")
        try:
            left = await asyncio.to_thread(remove_run, record.path)
        except OSError as error:
            problem = f"{record.path} cannot be removed: {error.strerror}"
            raise Refused(503, "disk", problem) from None
        self._records.remove(run_id)
        return left

    def _unfinished(self, run_id: str) -> Record:
        """Return a run of this machine that has not ended."""
        record = self._records.own(run_id)
        if record.status == ENDED:
            raise Refused(409, "state", f"{run_id} has ended: {record.summary.get('end')}")
        return record
