"""Loads the runs on the disk into the records: unfinished ones at once, the history afterwards.

Runs of other machines in the same folder are shown and otherwise left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_gpugate.core.messages import LiveLease
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.runs.folder import Torn
from jupyter_gpugate.runs.groups import Groups
from jupyter_gpugate.runs.ids import RUN_ID
from jupyter_gpugate.runs.life import ACTIVE, ENDED, Life, Live
from jupyter_gpugate.runs.machine import Machine, host_of
from jupyter_gpugate.runs.record import Record, Records, RunRow, row_of
from jupyter_gpugate.runs.removal import remove_left_behind
from jupyter_gpugate.runs.scanning import Found, Scanner, blank_spec

#: Runs that one thread reads before the others have their turn again.
AT_ONCE = 200


class Inventory:
    """One user's run directories, as this machine sees them."""

    def __init__(
        self,
        root: Path,
        machine: Machine,
        read: Callable[[Mapping[str, Any]], Request],
        log: logging.Logger,
    ) -> None:
        self.records = Records(self._load)
        self.groups = Groups(self.records)
        self.whole = asyncio.Event()  # all that has ended is in the records too
        self.root = root
        self._machine = machine
        self._read = read
        self._scanner = Scanner(root, machine, read)
        self._log = log
        self._rest: list[str] = []

    async def take_in_unfinished(self) -> None:
        """Read runs that may be unfinished; the history is read later."""
        try:
            ids, self._rest = await asyncio.to_thread(self._scanner.unfinished_first)
        except OSError as error:
            self._log.warning("%s: %s", self.root, error.strerror or error)
            return
        await self.take_in(ids)

    async def take_in_history(self) -> list[Record]:
        """Read the ended runs; return those that turn out to be unfinished."""
        late: list[Record] = []
        try:
            while self._rest:
                ids, self._rest = self._rest[:AT_ONCE], self._rest[AT_ONCE:]
                rows, others = await asyncio.to_thread(self._rows, ids)
                for row, key in rows:
                    self.records.add_past(row, key)
                late += await self.take_in(others)
        finally:
            self.whole.set()
        for problem in await asyncio.to_thread(remove_left_behind, self.root):
            self._log.warning("%s", problem)
        return late

    async def take_in(self, run_ids: Iterable[str]) -> list[Record]:
        """Read these runs; return those that this machine must continue."""
        scan = await asyncio.to_thread(self._scanner.scan, run_ids)
        for trouble in scan.troubles:
            self._log.warning("%s", trouble)
        unfinished = []
        for found in scan.runs:
            record = self._record_of(found)
            if record.status == ENDED:
                self.records.add_past(record.row(), record.spec.get("idempotency_key"))
            elif found.run_id not in self.records:
                self.records.add(record)
                unfinished += [record] if found.here else []
        return unfinished

    def stray(self, run_id: str, lease: LiveLease) -> Record:
        """Register a run that the gate has but whose directory cannot be read."""
        name = lease.name
        spec = {**blank_spec(run_id), "name": name}
        summary = {"run_id": run_id, "name": name, "submitted": 0.0}
        life = Life(lease.attempt, Live(lease.fence), abandoned=True)
        record = Record(run_id, self.root / run_id, spec, summary, self._read(spec), life)
        record.problem = "its directory cannot be read"
        self.records.add(record)
        return record

    async def look_elsewhere(self) -> None:
        """Update the runs that other machines began, ended or removed, and runs removed by hand."""
        with suppress(OSError):
            there = await asyncio.to_thread(self._scanner.run_ids)
            gone = set(self.records.past_ids()).difference(there)
            gone |= {r.run_id for r in self.records.elsewhere()}.difference(there)
            for run_id in gone:
                self.records.remove(run_id)
            new = [run_id for run_id in there if run_id not in self.records]
            old = [record.run_id for record in self.records.elsewhere()]
            if not new and not old:
                return  # as a rule: an idle gate does not wake a thread for it
            scan = await asyncio.to_thread(self._scanner.scan, [*new, *old])
            for record in map(self._record_of, (f for f in scan.runs if not f.here)):
                if record.status == ENDED:
                    self.records.remove(record.run_id)
                    self.records.add_past(record.row(), record.spec.get("idempotency_key"))
                else:
                    self.records.add(record)

    def _rows(self, run_ids: Iterable[str]) -> tuple[list[tuple[RunRow, object]], list[str]]:
        """Return rows of ended runs for lists, and the ids of all others."""
        rows, others = [], []
        for run_id in run_ids:
            summary = None
            with suppress(OSError, Torn):
                summary = self._scanner.row(run_id)
            if summary is None:
                others.append(run_id)
                continue
            machine = summary.get("machine")
            host = "" if self._machine.owns(machine) else host_of(machine)
            rows.append((row_of(run_id, summary, host), summary.get("key")))
        return rows, others

    def _record_of(self, found: Found) -> Record:
        request, status = self._read(found.spec), found.summary["status"]
        life = Life(
            found.attempt,
            Live() if status == ACTIVE else None,
            abandoned=status == ACTIVE,
            detached=found.detached or request.detached,
            ended=status == ENDED,
            stored=status == ENDED,
        )
        record = Record(found.run_id, found.path, found.spec, found.summary, request, life)
        record.problem = found.problem and f"its spec.json cannot be read: {found.problem}"
        record.host = "" if found.here else host_of(found.spec.get("machine"))
        return record

    def _load(self, run_id: str) -> Record | None:
        """Return a run that is over, or not this machine's, from the disk."""
        if not RUN_ID.fullmatch(run_id):
            return None
        try:
            record = self._record_of(self._scanner.read(run_id)[0])
        except (OSError, Torn):
            return None
        return record if record.status == ENDED or record.host else None
