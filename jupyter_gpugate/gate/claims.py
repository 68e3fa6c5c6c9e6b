"""Checks which processes a run may claim as its own in a heartbeat."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from jupyter_gpugate.core.samples import Process, ProcessKey
from jupyter_gpugate.proc import stat_of

#: Of one heartbeat no more than this many new claims are looked into; runs are smaller.
MOST_LOOKS: Final = 1024
#: How many parents are climbed.
_DEPTH: Final = 64
_ENVIRON: Final = 1 << 20


class Claims:
    """Checks the trees that heartbeats name; an accepted process stays accepted.

    A process is a run's where its user is the one who sends the heartbeat, and it descends from the
    run's supervisor or carries the run's mark in its environment.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._vetted: dict[str, frozenset[ProcessKey]] = {}

    def of_run(
        self,
        run_id: str,
        supervisor: ProcessKey,
        tree: Sequence[ProcessKey],
        uid: int,
        table: Mapping[int, Process],
    ) -> tuple[ProcessKey, ...]:
        """Return what of the tree is the run's; ``table`` is the newest known process table."""
        vetted = self._vetted.get(run_id, frozenset())
        kept, looks = [], 0
        for key in dict.fromkeys(tree):
            if key not in vetted and key != supervisor:
                looks += 1
                if looks > MOST_LOOKS or not self._is_own(run_id, supervisor, key, uid, table):
                    continue
            kept.append(key)
        self._vetted[run_id] = frozenset(kept)
        return tuple(kept)

    def forget(self, living: Mapping[str, object]) -> None:
        """Forget runs that have ended."""
        self._vetted = {run_id: keys for run_id, keys in self._vetted.items() if run_id in living}

    def _is_own(
        self,
        run_id: str,
        supervisor: ProcessKey,
        key: ProcessKey,
        uid: int,
        table: Mapping[int, Process],
    ) -> bool:
        process = self._find(key.pid, table)
        if process is None or process.key != key or process.uid != uid:
            return False
        return self._descends(process, supervisor, table) or self._carries(key, run_id)

    def _descends(
        self, process: Process, supervisor: ProcessKey, table: Mapping[int, Process]
    ) -> bool:
        above: Process | None = process
        for _ in range(_DEPTH):
            above = self._find(above.parent_pid, table) if above else None
            if above is None or above.key == supervisor:
                return above is not None
        return False

    def _find(self, pid: int, table: Mapping[int, Process]) -> Process | None:
        """Return a process, from its own folder where it is younger than the table."""
        found = table.get(pid)
        if found is not None or pid <= 0:
            return found
        with suppress(OSError, ValueError):
            stat = stat_of(pid, str(self._proc))
            uid = (self._proc / str(pid)).stat().st_uid
            return Process(pid, stat.start_ticks, stat.parent_pid, uid, 0)
        return None

    def _carries(self, key: ProcessKey, run_id: str) -> bool:
        with suppress(OSError), (self._proc / str(key.pid) / "environ").open("rb") as environ:
            names = environ.read(_ENVIRON).split(b"\0")
            return os.fsencode(f"GPUGATE_RUN_ID={run_id}") in names
        return False
