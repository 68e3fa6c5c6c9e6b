"""The run side: keeps specs, starts supervisors, adopts survivors, and talks to the gate.

The run directories are its only memory.  A run is queued, then active with one attempt, then
ended; the gate says when an attempt may start, the attempt's own outcome on disk says how it ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.reports import RunEnd
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.proc import boot_id
from jupyter_gpugate.runs import directory, output
from jupyter_gpugate.runs.attempts import Attempts
from jupyter_gpugate.runs.inventory import Inventory
from jupyter_gpugate.runs.lease_client import LeaseClient, Way
from jupyter_gpugate.runs.life import ENDED, QUEUED, CancelAsked, Detached, Dismissed, OverTime
from jupyter_gpugate.runs.machine import Machine
from jupyter_gpugate.runs.presence import Presence
from jupyter_gpugate.runs.programs import Programs
from jupyter_gpugate.runs.record import Record, Refused, Row
from jupyter_gpugate.runs.removal import remove_run
from jupyter_gpugate.runs.requests import request_of
from jupyter_gpugate.runs.submitting import Submissions
from jupyter_gpugate.runs.tasks import Tasks
from jupyter_gpugate.runs.unheard import Unheard
from jupyter_gpugate.runs.waited_for import WaitedFor

#: A supervisor that has not ended this long after its grace is over is itself killed.
OVERTIME_S = 15.0
#: How often the folder of all runs is read again for what others have done in it.
LOOK_AROUND_S = 15.0


class Launcher:
    """One user's runs."""

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
        self._grace_s = grace_s
        self._log = log
        way = socket if isinstance(socket, Way) else Way.by_socket(str(socket))
        self._gate = LeaseClient(way.dial)
        self._tasks = Tasks(log)
        self._inventory = Inventory(runs, machine, partial(request_of, owner=owner), log)
        self._records = self._inventory.records
        self._programs = Programs(runs)
        self._attempts = Attempts(
            self._gate,
            self._tasks,
            addresses=way.addresses,
            grace_s=grace_s,
            programs=self._programs,
            log=log,
        )
        self._submissions = Submissions(
            self._inventory,
            self._gate,
            self._tasks,
            runs=runs,
            owner=owner,
            root=root,
            cache=cache,
            machine=machine,
        )
        self._unheard = Unheard(self.submit)
        self._waited_for = WaitedFor(self._records, self._tasks, self._attempts.handle)
        self._presence = Presence(
            self._inventory,
            self._gate,
            self._tasks,
            attempts=self._attempts,
            submissions=self._submissions,
            take_up=self._take_up,
            log=log,
        )
        self._closing = False

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Restore the runs on the disk: adopt, finish or queue them again, oldest first."""
        await self._inventory.take_in_unfinished()
        await self._take_up(self._records.unfinished())
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
                self._waited_for.watch(record)
            except Exception:  # noqa: BLE001 - whatever is wrong with one run
                self._log.exception("%s cannot be adopted", record.run_id)

    async def _look_around(self) -> None:
        """Read the history, then watch for changes made by other machines."""
        late = await self._inventory.take_in_history()
        if late:
            await self._take_up(late)
            await self._presence.register()
        for problem in await asyncio.to_thread(self._programs.remove_unused):
            self._log.warning("%s", problem)
        while True:
            await asyncio.sleep(LOOK_AROUND_S)
            await self._inventory.look_elsewhere()

    async def history(self) -> None:
        """Wait until the ended runs are in the records as well."""
        await self._inventory.whole.wait()

    async def stop(self) -> None:
        """Release everything; runs go on under their supervisors."""
        self._closing = True
        await self._tasks.stop()
        self._gate.close()

    def unfinished(self) -> bool:
        """Whether any run is queued or active."""
        return bool(self._records.unfinished())

    async def cancel_all(self) -> None:
        """Stop every unfinished run and wait for their ends."""
        cancels = (self.cancel(record.run_id) for record in self._records.unfinished())
        await asyncio.gather(*cancels, return_exceptions=True)

    # -- submitting -----------------------------------------------------------------------------

    async def submit(self, body: Mapping[str, Any]) -> tuple[str, bool]:
        """Queue a run: its id, and whether it is a new one.  Raises `Refused`."""
        if self._closing:
            raise Refused(503, "stopping", "this gate is stopping", retry_after="1")
        if self._presence.queues_again():
            raise Refused(503, "starting", "older runs are queued again first", retry_after="1")
        _refuse_stranger(body.get("kernel") or {})
        record, is_new = await self._submissions.submit(body)
        if is_new:
            self._waited_for.watch(record)
        return record.run_id, is_new

    async def submit_within(
        self, body: Mapping[str, Any], wait_s: float
    ) -> tuple[str, bool] | None:
        """As `submit`, or None after ``wait_s``; it goes on, and the same body asks again."""
        return await self._unheard.submit(body, wait_s)

    def reads(self, key: str) -> bool:
        """Return whether the sources of the submit with this key are being read."""
        return self._submissions.reads(key)

    async def request_of(self, body: Mapping[str, Any]) -> Request:
        """The request that a body would become; nothing is queued."""
        return await self._submissions.request_of(body)

    # -- notebooks that wait --------------------------------------------------------------------

    def is_waited_for(self, run_id: str) -> bool:
        """Whether a living notebook or terminal would notice the end of this run."""
        return self._waited_for.has(self.known(run_id))

    async def detach(self, run_id: str) -> None:
        """Let an unfinished run go on without the notebook or terminal that waits for it."""
        record = self._own(run_id)
        if record.status == ENDED:
            raise Refused(409, "state", f"{run_id} has ended: {record.summary.get('end')}")
        await self._attempts.handle(record, Detached())
        try:
            await asyncio.to_thread(directory.write_detached, record.path)
        except OSError as error:
            problem = f"it is detached until the gate restarts: {error.strerror}"
            raise Refused(503, "disk", problem) from None

    # -- what people ask ------------------------------------------------------------------------

    def known(self, run_id: str) -> Record:
        """The record of a run; `Refused` (404) where there is none."""
        record = self._records.get(run_id)
        if record is None:
            # A run is often asked for by its name, of which there may be many.
            named = [r.run_id for r in self._records.unfinished() if r.spec["name"] == run_id]
            meant = f"; it is the name of {', '.join(named)}" if named else ""
            raise Refused(404, "not_found", f"there is no run {run_id}{meant}", run_id=run_id)
        return record

    def _own(self, run_id: str) -> Record:
        """The record of a run of this machine; `Refused` (409) for one of another machine."""
        record = self.known(run_id)
        if record.host:
            raise Refused(
                409,
                "elsewhere",
                f"{run_id} belongs to another machine, {record.host}, and can be changed there "
                f"only; if that machine is gone for good, remove {record.path}",
                run_id=run_id,
                machine=record.host,
            )
        return record

    def find(self, run_id: str) -> Record | None:
        """The record of a run, if there is one."""
        return self._records.get(run_id)

    def rows(self) -> list[Row]:
        """All runs, newest first; see `history`."""
        return self._records.rows()

    def elsewhere(self) -> list[Row]:
        """Return the unfinished runs of other machines that share this home, oldest first."""
        rows = (record.row() for record in self._records.elsewhere())
        return sorted(rows, key=lambda row: (row["submitted"], row["run_id"]))

    def kept(self) -> dict[str, Any]:
        """Return the folder of run directories, and their number."""
        return {"directory": str(self._inventory.root), "count": len(self._records)}

    def newest(self, name: str) -> Record | None:
        """The run of this name that was submitted last."""
        return self._records.newest(name)

    async def output(self, run_id: str, start: int) -> dict[str, Any]:
        """The newest attempt's output from a byte on, at most 64 KiB of it."""
        record = self.known(run_id)
        text, following = await asyncio.to_thread(output.read_output, record.attempt_path, start)
        over = record.status == ENDED and not text
        return {"from": start, "next": following, "text": text, "ended": over}

    def output_tail(self, record: Record, until: int | None = None) -> str:
        """The end of a live run's output, or of its part before a byte."""
        return output.output_tail(record.attempt_path, until) if record.attempt else ""

    def output_from(self, record: Record, start: int) -> str:
        """The output from a byte on, or the end of it."""
        return output.output_from(record.attempt_path, start) if record.attempt else ""

    def stamp(self, run_id: str) -> tuple[Any, ...]:
        """Return a stamp that changes whenever anything that is reported of the run changes."""
        record = self.known(run_id)
        tail = output.output_stamp(record.attempt_path) if record.attempt else None
        return (record.life, self.is_waited_for(run_id), tail)

    async def episodes(self, run_id: str) -> tuple[list[dict[str, Any]], int]:
        """Finished episodes of every attempt, and how many earlier ones are left out."""
        record = self.known(run_id)
        return await asyncio.to_thread(directory.read_episodes, record.path)

    async def export(self, run_id: str) -> dict[str, Any]:
        """Spec, summary, episodes and output."""
        record = self.known(run_id)
        beginning = await self.output(run_id, 0)
        episodes, left_out = await self.episodes(run_id)
        return {
            "spec": dict(record.spec),
            "summary": record.summary,
            "episodes": episodes,
            "episodes_left_out": left_out,
            "output": beginning["text"],
        }

    async def delete(self, run_id: str) -> str:
        """Remove an ended run and its directory; return which files remain, and why, or ""."""
        record = self._own(run_id)
        if record.status != ENDED:
            raise Refused(409, "state", f"{run_id} is {record.status}: cancel it first")
        try:
            left = await asyncio.to_thread(remove_run, record.path)
        except OSError as error:
            problem = f"{record.path} cannot be removed: {error.strerror}"
            raise Refused(503, "disk", problem) from None
        self._records.remove(run_id)
        return left

    # -- cancelling -----------------------------------------------------------------------------

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Stop a run and wait until nothing of it is left: by what means, in how many ms."""
        record = self._own(run_id)
        begun = time.monotonic()
        if record.status == ENDED:
            raise Refused(409, "state", f"{run_id} has ended: {record.summary.get('end')}")
        means = await self._stop(record)
        summary = record.summary
        kill = (summary.get("outcome") or {}).get("kill") or {}
        return {
            "cancelled": summary.get("end") == RunEnd.CANCELLED.value,
            "end": summary.get("end"),
            "means": kill.get("means") or means,
            "ms": kill.get("ms") or int(1000 * (time.monotonic() - begun)),
            "survivors": kill.get("survivors") or [],
        }

    async def _stop(self, record: Record) -> str:
        await self._attempts.handle(record, CancelAsked())
        try:
            await asyncio.wait_for(record.end.wait(), self._grace_s + OVERTIME_S)
        except asyncio.TimeoutError:
            await self._attempts.handle(record, OverTime())
            await record.end.wait()
            return "supervisor killed"
        return "signal" if record.summary.get("outcome") else "withdrawn"


def _refuse_stranger(kernel: Mapping[str, Any]) -> None:
    """Refuse a notebook of another machine: its interpreter and files are not here."""
    if kernel.get("boot_id", "") not in ("", boot_id()):
        raise Refused(
            400,
            "bad_request",
            "kernel.boot_id: this notebook's kernel runs on another machine than this gate: start "
            "a gate on the kernel's machine (`jupyter gpugate serve --user`), and unset "
            "GPUGATE_USER_SOCKET there if it is set",
            field="kernel.boot_id",
            gate=boot_id(),
        )
