"""The run side: keeps specs, starts supervisors, adopts survivors, and talks to the gate.

The run directories are its only memory.  A run is queued, then active with one attempt, then
ended; the gate says when an attempt may start, the attempt's own outcome on disk says how it ended.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from jupyter_gpugate.core.reports import RunEnd
from jupyter_gpugate.runs.attempts import Attempts
from jupyter_gpugate.runs.intake import Intake
from jupyter_gpugate.runs.inventory import Inventory
from jupyter_gpugate.runs.lease_client import LeaseClient, Way
from jupyter_gpugate.runs.life import QUEUED, Dismissed
from jupyter_gpugate.runs.machine import Machine
from jupyter_gpugate.runs.orders import Orders
from jupyter_gpugate.runs.presence import Presence
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import Record
from jupyter_gpugate.runs.requests import request_of
from jupyter_gpugate.runs.submitting import Submissions
from jupyter_gpugate.runs.tasks import Tasks
from jupyter_gpugate.runs.waited_for import WaitedFor

#: How often the folder of all runs is read again for what others have done in it.
LOOK_AROUND_S = 15.0


class Launcher:
    """One user's runs: joins the parts of the run side, and starts and stops them."""

    def __init__(
        self,
        *,
        runs: Path,
        socket: Path | Way,
        owner: str,
        grace_s: float,
        root: Path,
        machine: Machine,
        log: logging.Logger,
        cache: Path | None = None,
    ) -> None:
        self._log = log
        way = socket if isinstance(socket, Way) else Way.by_socket(str(socket))
        self._gate = gate = LeaseClient(way.dial)
        self._tasks = tasks = Tasks(log)
        self._programs = programs = Programs(runs)
        self.inventory = Inventory(runs, machine, partial(request_of, owner=owner), log)
        self.records = self.inventory.records
        self._attempts = Attempts(
            gate,
            tasks,
            addresses=way.addresses,
            grace_s=grace_s,
            programs=programs,
            groups=self.inventory.groups,
            log=log,
        )
        submissions = Submissions(
            self.inventory,
            gate,
            tasks,
            owner=owner,
            root=root,
            machine=machine,
            programs=programs,
            cache=cache,
        )
        self._presence = self._presence_with(submissions)
        self.waited_for = WaitedFor(self.records, self._tasks, self._attempts.handle)
        self.intake = Intake(submissions, self._presence, self.waited_for)
        self.orders = Orders(self.records, self._attempts, grace_s)

    def _presence_with(self, submissions: Submissions) -> Presence:
        return Presence(
            self.inventory,
            self._gate,
            self._tasks,
            attempts=self._attempts,
            submissions=submissions,
            take_up=self._take_up,
            log=self._log,
        )

    async def start(self) -> None:
        """Restore the runs on the disk: adopt, finish or queue them again, oldest first."""
        await self.inventory.take_in_unfinished()
        await self._take_up(self.records.unfinished())
        await self._presence.register()
        self._tasks.spawn(self._presence.keep())
        self._tasks.spawn(self._look_around())

    async def _take_up(self, records: list[Record]) -> None:
        """Adopt live runs; one that cannot be adopted does not affect the others."""
        for record in records:
            try:
                if record.attempt:
                    await self._attempts.adopt(record)
                if record.problem and record.status == QUEUED:
                    lost = Dismissed(RunEnd.LOST, record.problem)
                    await self._attempts.handle(record, lost)
                self.waited_for.watch(record)
            except Exception:  # noqa: BLE001 - whatever is wrong with one run
                self._log.exception("%s cannot be adopted", record.run_id)

    async def _look_around(self) -> None:
        """Read the history, then watch for changes made by other machines."""
        late = await self.inventory.take_in_history()
        if late:
            await self._take_up(late)
            await self._presence.register()
        for problem in await asyncio.to_thread(self._programs.remove_unused):
            self._log.warning("%s", problem)
        while True:
            await asyncio.sleep(LOOK_AROUND_S)
            await self.inventory.look_elsewhere()

    async def stop(self) -> None:
        """Release everything; runs go on under their supervisors."""
        self.intake.close()
        await self._tasks.stop()
        self._gate.close()
