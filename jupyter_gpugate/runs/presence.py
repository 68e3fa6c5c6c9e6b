"""The run side's messages to the gate: registration, presence, and acting on the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.messages import (
    PRESENCE_S,
    LiveLease,
    PresenceMessage,
    RegisterMessage,
    WithdrawMessage,
)
from jupyter_gpugate.core.reports import RunEnd
from jupyter_gpugate.runs.attempts import Attempts
from jupyter_gpugate.runs.inventory import Inventory
from jupyter_gpugate.runs.lease_client import FIRST_PAUSE_S, GateAway, LeaseClient
from jupyter_gpugate.runs.life import ENDED, QUEUED, Dismissed, Granted
from jupyter_gpugate.runs.lifecycle import UNWANTED
from jupyter_gpugate.runs.record import Record
from jupyter_gpugate.runs.requests import relevant_parameters
from jupyter_gpugate.runs.submitting import Submissions
from jupyter_gpugate.runs.tasks import Tasks

#: The pause between two presences that brought no news, one of which may have missed a new run.
LULL_S = 0.05


class Presence:
    """Keeps the gate informed of the run side's runs, and acts on its answers."""

    def __init__(
        self,
        inventory: Inventory,
        gate: LeaseClient,
        tasks: Tasks,
        *,
        attempts: Attempts,
        submissions: Submissions,
        take_up: Callable[[list[Record]], Awaitable[None]],
        log: logging.Logger,
    ) -> None:
        self._inventory = inventory
        self._records = inventory.records
        self._gate = gate
        self._tasks = tasks
        self._attempts = attempts
        self._submissions = submissions
        self._take_up = take_up
        self._log = log
        self._queueing_again: asyncio.Task[None] | None = None

    def queues_again(self) -> bool:
        """Return whether older runs are still being requested again."""
        return self._queueing_again is not None and not self._queueing_again.done()

    async def register(self) -> None:
        """Exchange with the gate which runs each side has, and settle the differences."""
        unfinished = self._records.unfinished()
        fences = {r.run_id: r.life.fence for r in unfinished if r.life.fence is not None}
        run_ids = tuple(record.run_id for record in unfinished)
        answer = await self._gate.insist(RegisterMessage(fences, run_ids))
        for run_id in answer.unneeded:
            if run_id not in self._submissions.under_way:
                await self._account_for(run_id, answer.live.get(run_id))
        unknown = [self._records.get(run_id) for run_id in answer.unknown]
        await self._queue_again([r for r in unknown if r is not None and r.status == QUEUED])

    async def _account_for(self, run_id: str, lease: LiveLease | None) -> None:
        """Report the end of a run that the gate holds as unfinished, or take the run up."""
        record = self._records.get(run_id)
        if record is None:
            late = await self._inventory.take_in([run_id])
            if not late and lease is not None:
                # Its directory is lost, its processes may not be.
                late = [self._inventory.stray(run_id, lease)]
            await self._take_up(late)
            record = self._records.get(run_id)
        if record is None:
            await self._gate.tell(WithdrawMessage(run_id, reason="unknown to its run side"))
        elif record.status == ENDED:
            await self._attempts.tell_end(record)

    async def _queue_again(self, records: list[Record]) -> None:
        """Request again the runs that the gate does not have, in order; a task does a long list."""
        if records:
            self._queueing_again = self._tasks.spawn(self._ask_again(records))
            await asyncio.wait({self._queueing_again}, timeout=FIRST_PAUSE_S)

    async def _ask_again(self, records: list[Record]) -> None:
        for record in records:
            refusal = await self._submissions.again(record)
            if refusal:
                await self._attempts.handle(record, Dismissed(RunEnd.REJECTED, refusal))

    async def keep(self) -> None:
        """Report presence until cancelled; register again after every failure."""
        pause, registered = FIRST_PAUSE_S, True
        while True:
            try:
                if not registered:
                    await self.register()
                    registered = True
                if not await self._hear():
                    await asyncio.sleep(LULL_S)
                pause = FIRST_PAUSE_S
            except Exception as error:  # noqa: BLE001 - without presence nothing starts any more
                if not isinstance(error, GateAway):
                    self._log.error("the gate's answer cannot be processed", exc_info=error)
                registered = False
                await asyncio.sleep(pause)
                pause = min(2 * pause, PRESENCE_S / 2)

    async def _hear(self) -> bool:
        """Report the waiting runs and act on the answer; return whether it contained any news."""
        waiting = tuple(r.run_id for r in self._records.unfinished() if r.status == QUEUED)
        known = tuple(sorted(fence for record in self._records for fence in record.life.fences))
        news = await self._gate.ask(PresenceMessage(waiting, known), PRESENCE_S + 10)
        for grant in news.grants:
            record = self._records.get(grant.run_id)
            if record is None:
                await self._attempts.decline(grant, UNWANTED, RunEnd.CANCELLED)
            else:
                estimate = news.estimates.get(grant.run_id)
                if estimate is not None:
                    estimate = estimate.with_values(relevant_parameters(record.spec))
                await self._attempts.handle(record, Granted(grant, to_json(estimate)))
        for ended in news.ended:
            record = self._records.get(ended.run_id)
            if record is not None and record.status == QUEUED:
                await self._attempts.handle(record, Dismissed(ended.end, ended.reason))
                await record.end.wait()  # the gate repeats it until then
        return bool(news)
