"""The last ten minutes of readings, and a log of the days on which something ran.

The readings lie in memory.  The log is written in batches, in a thread, and only while a run is
live: an idle gate writes nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.port import SampleRow, Samples
from jupyter_gpugate.places import check_own, open_private

KEPT = 600
#: Rows are written down together.
BATCH = 10
DAYS_KEPT = 7


class History:
    """The newest readings of the gate, added after each tick."""

    def __init__(
        self,
        gate: GateLoop,
        directory: Path,
        *,
        wall: Callable[[], float] = time.time,
        log: logging.Logger | None = None,
    ) -> None:
        self._gate = gate
        self._directory = directory
        self._wall = wall
        self._log = log or logging.getLogger("jupyter_gpugate")
        self._ring: deque[SampleRow] = deque(maxlen=KEPT)
        self._last = 0
        self._sample: Sample | None = None
        self._unwritten: list[SampleRow] = []
        self._writing: asyncio.Task[None] | None = None
        self._fault = ""

    def look(self) -> None:
        """Take in the newest sample, if it is a new one."""
        gate = self._gate
        if gate.sample is self._sample:
            return
        self._sample = gate.sample
        self._last += 1
        row = self._row()
        self._ring.append(row)
        if row.running:
            self._unwritten.append(row)
        if self._unwritten and (len(self._unwritten) >= BATCH or not row.running):
            self._write()

    def since(self, seq: int) -> Samples:
        """The readings after one, oldest first; all of them after a gate has begun anew."""
        known = seq if seq <= self._last else 0
        return Samples(tuple(row for row in self._ring if row.seq > known), self._last)

    async def close(self) -> None:
        """Write the pending lines."""
        if self._writing is not None:
            await self._writing
        if self._unwritten:
            self._write()
        if self._writing is not None:
            await self._writing

    def _row(self) -> SampleRow:
        state = self._gate.state
        shares = state.attribution.resources
        return SampleRow(
            seq=self._last,
            at=self._wall(),
            running=len(state.leases),
            queued=len(state.queue),
            free_bytes=state.free_seen,
            used_total={r: one.used_bytes for r, one in shares.items()},
            attributed={r: one.attributed_bytes for r, one in shares.items()},
            external={r: one.external_bytes for r, one in shares.items()},
        )

    def _write(self) -> None:
        """A disk that is slower than the rows come gets them all at once, later."""
        if self._writing is None or self._writing.done():
            rows, self._unwritten = self._unwritten, []
            self._writing = asyncio.create_task(self._written(rows))

    async def _written(self, rows: Sequence[SampleRow]) -> None:
        try:
            await asyncio.to_thread(write, self._directory, rows)
            self._fault = ""
        except OSError as error:
            if str(error) != self._fault:
                self._log.warning("the daily log cannot be written: %s", error)
            self._fault = str(error)


def write(directory: Path, rows: Sequence[SampleRow]) -> None:
    """Add rows to the logs of their days, and remove logs that are older than the days kept."""
    by_day: dict[str, list[str]] = {}
    for row in rows:
        day = time.strftime("%Y-%m-%d", time.localtime(row.at))
        by_day.setdefault(day, []).append(json.dumps(to_json(row)) + "\n")
    check_own(directory, "the folder of samples")
    for day, lines in by_day.items():
        path = directory / f"{day}.jsonl"
        is_new = not path.exists()
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(descriptor, "a", encoding="utf-8") as log:
            log.writelines(lines)
        if is_new:
            for old in sorted(directory.glob("????-??-??.jsonl"))[:-DAYS_KEPT]:
                old.unlink(missing_ok=True)
