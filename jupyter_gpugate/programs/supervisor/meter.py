"""The RAM held by a process tree, and its peak.

A cheap glance, several times a second, calls for an exact reading when the tree has grown, every
`READING_S`, at the end of each episode and before a stop.  What a process held beyond its readings
shows when it ends, by its resident high-water mark: that much is added to its last reading, which
also measures a run that is over before it was ever read.  File pages mapped meanwhile are counted
with it: they are few, and too much is the safe side.  In a tree that never had more than one
process the mark covers every stretch without a reading.
"""

from __future__ import annotations

from collections.abc import Iterable

from .clock import awake_time
from .memory import (
    GROWN_BYTES,
    Reading,
    glance,
    read_memory,
    read_roughly,
    shared_memory,
    surplus_huge_pages,
)
from .memory_files import MemoryFiles

READING_S = 5.0
SHARE = 0.02  # of the time that readings may cost at most
PATIENCE_S = 1.0  # for one reading of the whole tree


class RamMeter:
    """RAM held by a tree, and the greatest it held."""

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self.held: int | None = None
        self.shared = 0  # of what is held: what `statm` does not tell from files on a disk
        self.mapped: int | None = None
        self.files = files
        self._beside_processes = 0  # files in memory and huge pages, as last read
        self.taken_at = 0.0
        self.peak: int | None = None
        self.exact = True
        self.due_at = 0.0
        self._cost_s = 0.0
        self._rows: dict[int, int] = {}  # what each process held when it was last read
        self._ended: dict[int, int] = {}  # what ended workers held, while one beside them ends too
        self._beside: set[int] = set()  # the workers that were left when one ended last
        self._largest: dict[int, Reading] = {}  # per process, its reading with most resident
        self._single = 0  # most resident bytes that any one process was seen with
        self._seen = (0, 0)  # the greatest glance that a reading goes with

    def want(self) -> None:
        """Call for a reading as soon as its cost allows."""
        self.due_at = min(self.due_at, self.taken_at + self._cost_s / SHARE)

    def look(self, pids: Iterable[int]) -> None:
        """Call for a reading if these processes hold notably more than at any reading so far."""
        pairs = zip(glance(pids), self._seen)
        has_grown = any(now > seen + max(GROWN_BYTES, seen * 3 // 100) for now, seen in pairs)
        if has_grown or (self.files is not None and self.files.have_moved()):
            self.want()

    def read(self, pids: list[int], now: float) -> None:
        """Take a reading of every process of the tree."""
        began, most = awake_time(), shared_memory()
        found = read_all(pids, began)
        self._rows.clear()
        for pid, reading in found.items():
            self._take(pid, reading)
        self._largest = {pid: self._largest[pid] for pid in pids if pid in self._largest}
        if self._beside <= found.keys():
            self._ended.clear()
        self._beside_processes = self._read_beside(pids, found, most)
        self.held = sum(self._rows.values()) + self._beside_processes
        self.shared = sum(r.shared for r in found.values()) + self._beside_processes
        self.mapped = sum(reading.mapped for reading in found.values())
        self.exact = self.exact and all(reading.exact for reading in found.values())
        self.peak = max(self.peak or 0, self.held)
        resident, private = glance(pids)
        self._seen = (max(self._seen[0], resident), max(self._seen[1], private))
        self.taken_at, self._cost_s = now, awake_time() - began
        self.due_at = now + max(READING_S, self._cost_s / SHARE)

    def ended(self, pid: int, mark: int, *, had_children: bool, beside: Iterable[int] = ()) -> None:
        """Count what an ended worker held unseen: ``mark`` is its greatest resident size.

        The kernel's mark covers the children that the process waited for, so a process that had
        any is held against the largest process ever seen.  What it held, it held together with
        what the workers ``beside`` it hold now, and with what those held that ended just before:
        they are counted on until a reading finds every worker that is left, none on its way out.
        """
        self._beside = set(beside)
        largest = self._largest.pop(pid, Reading(0, 0, 0, exact=True))
        unseen = mark - max(largest.resident, self._single if had_children else 0)
        for other in self._beside:
            reading = read_memory(other)
            if reading is not None:
                self._take(other, reading)
        last = self._rows.pop(pid, 0)
        self._ended[pid] = largest.held + unseen if unseen > 0 else last
        together = sum(self._rows.values()) + sum(self._ended.values())
        # Mark and reading count what was mapped of files in memory, which may be measured by now.
        files = max(0, self._beside_processes - max(0, unseen) - largest.shmem)
        self.peak = max(self.peak or 0, together + files)

    def left_behind(self, pid: int) -> int:
        """Return the bytes of the run's files in memory that outlive it: it held at least that."""
        if self.files is None or not self.files.sizes:
            return 0
        left = self.files.look([pid])
        self.peak = max(self.peak or 0, left)
        return left

    def _read_beside(self, pids: list[int], found: dict[int, Reading], most: int) -> int:
        """Read what the tree holds in no process's pages: files in memory, surplus huge pages.

        A reserved pool of huge pages is out of what is available whether it is used or not, so
        that what a run takes of it is no need of its own.  ``most`` is the machine's shared memory
        before this reading: what is released meanwhile is not counted in both places.
        """
        huge = sum(reading.huge for reading in found.values())
        total = min(huge, surplus_huge_pages()) if huge else 0
        if self.files is not None:
            shared = [pid for pid, reading in found.items() if reading.shmem > 0]
            notable = [pid for pid in shared if found[pid].shmem > GROWN_BYTES]
            held = self.files.look(pids, notable)
            twice = self.files.mapped(shared) if held else 0
            for pid in shared if held else ():
                now = read_memory(pid)  # what it has released since is counted there and here
                twice += max(0, found[pid].shmem - (now.shmem if now else 0))
            held -= min(held, twice)
            mapped = sum(reading.shmem for reading in found.values())
            total += min(held, max(0, max(most, shared_memory()) - mapped))
        return total

    def _take(self, pid: int, reading: Reading) -> None:
        """Keep what one process holds now."""
        self._rows[pid] = reading.held
        if reading.resident >= self._largest.get(pid, reading).resident:
            self._largest[pid] = reading
        self._single = max(self._single, reading.resident)


def read_all(pids: list[int], began: float) -> dict[int, Reading]:
    """Read processes one by one, those that are gone left out.

    A process that forks without end locks its page tables for seconds on end; past `PATIENCE_S`
    the rest is read roughly, so that the run can still be stopped.
    """
    found: dict[int, Reading] = {}
    for pid in pids:
        is_late = awake_time() - began > PATIENCE_S
        reading = read_roughly(pid) if is_late else read_memory(pid)
        if reading is not None:
            found[pid] = reading
    return found
