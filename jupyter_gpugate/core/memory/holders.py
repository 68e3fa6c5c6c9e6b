"""Finds the holder of each process, its nearest known ancestor, in one pass.

A run or a model server counts at any height above a process; next the recorded holder of the
process, since its parent may be gone; last the notebook kernel above it.  So a kernel that a
run started for itself is the run's, and a run that a kernel started is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

from jupyter_gpugate.core.resources import Holder, HolderKind
from jupyter_gpugate.core.samples import Process, ProcessKey, Sample

#: How many parents are climbed.
DEPTH = 24

_OUTRANKS_KERNELS = (HolderKind.RUN, HolderKind.MODEL_SERVER)

HolderOf = Mapping[ProcessKey, Holder]


class _Above(NamedTuple):
    """The nearest of each sort at or above a process, as (holder, steps up)."""

    root: Optional[tuple[Holder, int]]
    remembered: Optional[tuple[Holder, int]]
    kernel: Optional[tuple[Holder, int]]

    def one_up(self) -> _Above:
        return _Above(*(found and (found[0], found[1] + 1) for found in self))

    def holder(self) -> Optional[Holder]:
        for found in self:
            if found is not None and found[1] <= DEPTH:
                return found[0]
        return None


_NOBODY = _Above(None, None, None)


class Holders:
    """The holders of one sample's processes.

    ``of`` is pid -> holder; a process that is missing there is external.  ``live`` are the
    holders with a root, whether or not a process of theirs is left.
    """

    def __init__(self, sample: Sample, roots: HolderOf, remembered: HolderOf) -> None:
        self._processes = sample.processes
        kernels = {k.key: Holder(HolderKind.KERNEL, k.name) for k in sample.kernels}
        known = {**kernels, **roots}
        self._roots = {k: _one_server(h) for k, h in known.items() if h.kind in _OUTRANKS_KERNELS}
        self._kernels = {k: h for k, h in known.items() if h.kind is HolderKind.KERNEL}
        self._remembered = remembered
        self._gone: Optional[dict[int, tuple[ProcessKey, Holder]]] = None
        self._above: dict[int, _Above] = {}
        for pid in sample.processes:
            self._climb(pid)
        found = ((pid, above.holder()) for pid, above in self._above.items())
        self.of: Mapping[int, Holder] = {pid: h for pid, h in found if h is not None}
        self.live = frozenset([*self._roots.values(), *self._kernels.values()])

    @property
    def live_runs(self) -> frozenset[Holder]:
        return frozenset(h for h in self.live if h.kind is HolderKind.RUN)

    def of_ghost(self, pid: int) -> Optional[Holder]:
        """Return the holder of a process that is gone but still listed by the driver."""
        _, holder = self._left_behind().get(pid, (None, None))
        return holder if holder in self.live else None

    def to_remember(self, sample: Sample) -> dict[ProcessKey, Holder]:
        """Return the holders of all that live, and of the gone that a device still lists."""
        if not self._processes:
            return dict(self._remembered)  # a table that could not be read proves no death
        memory = {self._processes[pid].key: holder for pid, holder in self.of.items()}
        for reading in sample.devices:
            for row in reading.processes or ():
                if row.pid not in self._processes and self.of_ghost(row.pid) is not None:
                    key, holder = self._left_behind()[row.pid]
                    memory[key] = holder
        return memory

    def _left_behind(self) -> dict[int, tuple[ProcessKey, Holder]]:
        """Return the remembered processes that are gone, the youngest of each pid."""
        if self._gone is None:
            self._gone = {
                key.pid: (key, holder)
                for key, holder in sorted(self._remembered.items())
                if key.pid not in self._processes
            }
        return self._gone

    def _climb(self, pid: int) -> None:
        path: dict[int, Process] = {}
        step: Optional[int] = pid
        while step is not None and step not in self._above and step not in path:
            path[step] = self._processes[step]
            step = self._parent(path[step])
        self._descend(path, _NOBODY if step is None else self._above.get(step, _NOBODY))
        if step in path:
            # A cycle of parents: who is above its last process is known after one round only.
            self._descend(path, self._above[step])

    def _descend(self, path: dict[int, Process], above: _Above) -> None:
        for pid in reversed(path):
            above = self._at(path[pid].key, above)
            self._above[pid] = above

    def _parent(self, process: Process) -> Optional[int]:
        parent = self._processes.get(process.parent_pid)
        # A parent is no younger than its child: such a one only got the pid of the parent.
        if parent is None or parent.start_ticks > process.start_ticks:
            return None
        return process.parent_pid

    def _at(self, key: ProcessKey, parent: _Above) -> _Above:
        root, known, kernel = (m.get(key) for m in (self._roots, self._remembered, self._kernels))
        if known is not None and known.kind is HolderKind.KERNEL:
            known, kernel = None, kernel or known
        if root is None and known is None and kernel is None and parent is _NOBODY:
            return _NOBODY
        up = parent.one_up()
        return _Above(
            (root, 0) if root else up.root,
            (known, 0) if known else up.remembered,
            (kernel, 0) if kernel else up.kernel,
        )


def _one_server(holder: Holder) -> Holder:
    """Take the replicas ``name#1`` and ``name#2`` of a model server for the one server."""
    name, _, replica = holder.name.rpartition("#")
    if holder.kind is HolderKind.MODEL_SERVER and name and replica.isdigit():
        return Holder(holder.kind, name)
    return holder
