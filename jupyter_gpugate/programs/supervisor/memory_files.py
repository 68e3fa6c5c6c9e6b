"""Files in memory that a run has written; they stay when no process has them open."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from .clock import awake_time
from .memory import GROWN_BYTES, mappings, memory_devices, memory_mounts, shared_memory
from .open_files import (
    Inode,
    changed_files,
    mapped_by,
    opened_by,
    opened_elsewhere,
    renamed,
    size_of,
    unattached_segments,
    written_bytes,
)

EXPLAIN_S = 2.0  # until a growth of shared memory that no file explains is another process's


class MemoryFiles:
    """The files in memory that belong to a run.

    A file belongs to the run when it was changed during the run and either a process of the tree
    has it open, or mapped, for writing and no other process has; or it has appeared between two
    looks, is its user's, is open nowhere else, and the tree has written at least as much meanwhile
    as all such files hold together.  What a neighbour writes is neither.
    """

    def __init__(self, began_at: float) -> None:
        self.sizes: dict[Inode, int] = {}
        self._paths: dict[Inode, str] = {}
        self._foreign: set[Inode] = set()
        self._mounts: dict[int, str] = {}
        self._devices: set[int] = set()
        self._began_at = self._looked_at = began_at - 0.1  # wall clock; the stamps are coarse
        self._pids: set[int] = set()  # all processes that were in the tree
        self._shared = shared_memory()
        self._written = self._held = 0  # at the beginning of a window, as is `_shared`
        self._open_since = 0.0

    def have_moved(self) -> bool:
        """Whether the machine's shared memory has changed notably since the last look."""
        return abs(shared_memory() - self._shared) > GROWN_BYTES

    def paths(self) -> list[str]:
        """Return the paths of files that still have a name, the largest first."""
        named = [inode for inode in self.sizes if os.path.exists(self._paths.get(inode, ""))]
        return [self._paths[inode] for inode in sorted(named, key=self.sizes.__getitem__)[::-1]]

    def mapped(self, pids: Iterable[int]) -> int:
        """Return what of the run's files the readings of these processes count already."""
        own = (one for pid in pids for one in mappings(pid) if one[:2] in self.sizes)
        return sum(one.share for one in own)

    def look(self, pids: list[int], sharing: Iterable[int] = ()) -> int:
        """Find the run's files; return how much they hold.

        ``pids`` is the whole tree, ``sharing`` those with shared memory mapped.
        """
        self._pids.update(pids)
        now, written = time.time() - 0.1, written_bytes(pids)
        if not self._paths and not self.have_moved():
            self._written, self._looked_at = written, now
            return self._segments()
        if not self._devices:
            self._mounts, self._devices = memory_mounts(), memory_devices()
        shared = shared_memory()
        opened = {
            **mapped_by(sharing, self._devices, self._began_at),
            **opened_by(pids[1:], self._devices, self._began_at),
        }
        has_grown = min(written - self._written, shared - self._shared) > GROWN_BYTES
        new, closed = self._unassigned(set(pids), opened, has_grown=has_grown)
        self._measure(new, opened)
        # Bytes written to the run's own files are no evidence for other files.
        least = written - self._written - max(0, self._total() - self._held)
        if sum(map(size_of, closed.values())) <= least + (least >> 4):
            self._measure(closed, opened)
        self._close_window(now, shared, written)
        return self._total() + self._segments()

    def _unassigned(
        self, pids: set[int], opened: dict[Inode, str], *, has_grown: bool
    ) -> tuple[dict[Inode, str], dict[Inode, str]]:
        """Find files of no other process: those that the tree has open, and new closed ones."""
        assigned = self._paths.keys() | self._foreign
        new = {inode: path for inode, path in opened.items() if inode not in assigned}
        closed = self._appeared(opened) if has_grown else {}
        if sum(map(size_of, (*new.values(), *closed.values()))) > GROWN_BYTES:
            elsewhere = opened_elsewhere(pids, new.keys() | closed.keys(), self._devices)
            self._foreign |= new.keys() & elsewhere
            closed = {inode: path for inode, path in closed.items() if inode not in elsewhere}
            new = {inode: path for inode, path in new.items() if inode not in elsewhere}
        return new, closed

    def _appeared(self, opened: dict[Inode, str]) -> dict[Inode, str]:
        """Find files of this user that have changed since the last look and belong to no one."""
        return {
            inode: path
            for inode, path in changed_files(self._mounts, self._looked_at)
            if not (inode in opened or inode in self._paths or inode in self._foreign)
        }

    def _close_window(self, now: float, shared: int, written: int) -> None:
        """Begin to look anew, unless shared memory has grown for reasons that may show yet.

        The process that has written may be younger than the list of the tree, or not waited for.
        """
        unexplained = shared - self._shared - (self._total() - self._held)
        if unexplained > GROWN_BYTES:
            self._open_since = self._open_since or awake_time()
            if awake_time() - self._open_since < EXPLAIN_S:
                return
        self._open_since = 0.0
        self._held, self._shared, self._written = self._total(), shared, written
        self._looked_at = now

    def _measure(self, new: dict[Inode, str], opened: dict[Inode, str]) -> None:
        """Take files in, and forget those that are gone."""
        self._paths.update(new)
        self.sizes = {i: size for i in self._paths if (size := self._size(i, opened)) is not None}
        self._paths = {inode: self._paths[inode] for inode in self.sizes}

    def _size(self, inode: Inode, opened: dict[Inode, str]) -> int | None:
        """Measure a file, and renew its path; None when it is gone."""
        path = opened.get(inode, "")
        if path.startswith("/proc/"):
            try:
                self._paths[inode] = os.readlink(path)
                return os.stat(path).st_blocks * 512
            except OSError:
                pass
        last = self._paths[inode]
        for place in (last, renamed(last, inode.number)):
            try:
                status = os.stat(place)
            except OSError:
                continue
            if inode == (status.st_dev, status.st_ino):
                self._paths[inode] = place
                return status.st_blocks * 512
        return None

    def _total(self) -> int:
        return sum(self.sizes.values())

    def _segments(self) -> int:
        return unattached_segments(self._pids, self._began_at - 1)
