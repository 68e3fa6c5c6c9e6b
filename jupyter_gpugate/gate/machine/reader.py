"""The machine reader: RAM, its cgroup limits and the process table, once a second, in a thread."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from jupyter_gpugate.core.samples import (
    CgroupReading,
    Fault,
    KernelProcess,
    Process,
    RamReading,
    ReaderHealth,
)
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.machine.cgroups import CgroupRoom, Cgroups
from jupyter_gpugate.gate.machine.kernel_file import KernelFile
from jupyter_gpugate.gate.machine.process_table import ProcessTable
from jupyter_gpugate.proc import boot_id

_KIB: Final = 1024
#: A line of ``/proc/meminfo``; those of pages for hugetlbfs have no unit.
_LINES: Final = re.compile(rb"^(\w+): +(\d+)(?: kB)?$", re.MULTILINE)


class MachineReading(NamedTuple):
    """One reading of the machine; unreadable values are None or absent."""

    ram: RamReading | None
    processes: Mapping[int, Process]  # by pid
    kernels: tuple[KernelProcess, ...]
    boot_id: str
    health: ReaderHealth


class MachineReader:
    """Reads the machine below ``proc``, ``cgroup_root`` and ``shm``; blocking, one call at a time.

    ``clock`` gives seconds on the gate's clock.  ``read`` does not raise on errors or hidden
    processes: the health of the reading has the fault.
    """

    def __init__(
        self,
        proc: str = "/proc",
        cgroup_root: str = "/sys/fs/cgroup",
        shm: str = "/dev/shm",  # noqa: S108 - nothing is written there
        clock: Callable[[], float] = awake_time,
    ) -> None:
        self._clock = clock
        self._shm = shm
        self._meminfo = KernelFile(f"{proc}/meminfo")
        self._arcstats = KernelFile(f"{proc}/spl/kstat/zfs/arcstats")
        self._proc = proc
        self._cgroups = Cgroups(proc, cgroup_root)
        self._table = ProcessTable(proc)
        self._boot_id = ""
        self._answered_at: float | None = None
        self._fault: Fault | None = None
        #: Other cgroups to read, in which runs live.
        self.watched: frozenset[str] = frozenset()

    def read(self) -> MachineReading:
        """Read everything once.

        Available memory is read before and after the walk, and the smaller counts: a process that
        ends during the walk never counts both as held and as free.
        """
        now = self._clock()
        faults: dict[str, str] = {}
        before = self._room(faults)
        processes = self._walk(faults)
        after = self._room(faults)
        ram = None
        if before is not None and after is not None:
            ram = _smaller(before, after).reading(now, _free_below(self._shm))
            self._answered_at = now
        return MachineReading(
            ram, processes, self._table.kernels(), self._boot_identity(), self._health(now, faults)
        )

    def close(self) -> None:
        """Give all descriptors back; a later ``read`` opens them anew."""
        self._table.close()
        self._cgroups.close()
        for file in (self._meminfo, self._arcstats):
            file.close()

    def _room(self, faults: dict[str, str]) -> _Room | None:
        code = "meminfo"
        try:
            memory = _read_meminfo(self._meminfo.read())
            total = memory.total
            spare = max(0, memory.most_reclaimable - memory.available)
            available = memory.available + min(spare, self._reclaimable_arc())
            code = "cgroup"
            own = _bounded(available, self._cgroups.tightest(total))
        except (OSError, ValueError) as error:
            faults[code] = str(error)
            return None
        others = self._others(total, available, own)
        return _Room(memory, available, own.free_bytes, own.bound_by, self._cgroups.own, others)

    def _others(
        self, total: int, available: int, own: CgroupReading
    ) -> Mapping[str, CgroupReading]:
        """Read the watched cgroups; a run whose cgroup is gone lives where the gate does."""
        watched = self.watched
        self._cgroups.forget_others(watched)
        readings = {}
        for cgroup in watched:
            try:
                level = self._cgroups.tightest_of(cgroup, total)
            except (OSError, ValueError):
                readings[cgroup] = own
            else:
                readings[cgroup] = _bounded(available, level)
        return readings

    def _reclaimable_arc(self) -> int:
        """Return the reclaimable part of the ZFS cache, which MemAvailable counts as used."""
        try:
            text = self._arcstats.read()
            return max(0, _arc_counter(text, "size") - _arc_counter(text, "c_min"))
        except (OSError, ValueError):  # no ZFS
            return 0

    def _walk(self, faults: dict[str, str]) -> Mapping[int, Process]:
        try:
            return self._table.walk()
        except OSError as error:
            faults["processes"] = str(error)
            return {}

    def _boot_identity(self) -> str:
        if not self._boot_id:
            try:
                self._boot_id = boot_id(self._proc)
            except OSError:
                return ""
        return self._boot_id

    def _health(self, now: float, faults: Mapping[str, str]) -> ReaderHealth:
        if not faults:
            self._fault = None
        else:
            code, text = next(iter(faults.items()))
            lasting = self._fault is not None and self._fault.code == code
            since = self._fault.since if self._fault is not None and lasting else now
            self._fault = Fault(code, text, since)
        return ReaderHealth(
            name="machine",
            present=True,
            taken_at=self._answered_at,
            fault=self._fault,
            detail=self._table.detail(),
        )


class _Memory(NamedTuple):
    """The machine's memory as the kernel reports it, in bytes."""

    total: int
    available: int
    shared: int  # shared memory, and files in memory
    locked: int
    huge: int  # pages for hugetlbfs, used or not
    surplus: int  # of those: taken from free memory beside the reserved pool
    anonymous: int
    unreclaimable: int  # of the kernel itself

    @property
    def most_reclaimable(self) -> int:
        """Return an upper limit for any cache: all but memory that certainly holds other data."""
        kept = self.anonymous + self.shared + self.huge + self.unreclaimable
        return max(0, self.total - kept)


class _Room(NamedTuple):
    memory: _Memory
    available: int
    free: int
    bound_by: str
    cgroup: str
    others: Mapping[str, CgroupReading]

    def reading(self, taken_at: float, shm_free: int | None) -> RamReading:
        memory = self.memory
        return RamReading(
            taken_at,
            memory.total,
            self.available,
            self.free,
            self.bound_by,
            shm_free,
            shared_bytes=memory.shared,
            unmovable_bytes=memory.shared + memory.locked + memory.surplus,
            huge_pool_bytes=memory.huge - memory.surplus,
            cgroup=self.cgroup,
            cgroups=self.others,
        )


def _smaller(one: _Room, other: _Room) -> _Room:
    tighter = one if one.free <= other.free else other
    others = {
        cgroup: min(reading, other.others.get(cgroup, reading), key=lambda each: each.free_bytes)
        for cgroup, reading in one.others.items()
    }
    return tighter._replace(available=min(one.available, other.available), others=others)


def _bounded(available: int, level: CgroupRoom | None) -> CgroupReading:
    if level is None or level.free_bytes >= available:
        return CgroupReading(available, "machine")
    return CgroupReading(level.free_bytes, level.cgroup)


def _read_meminfo(text: bytes) -> _Memory:
    """Read ``/proc/meminfo``; impossible numbers are rejected."""
    lines = {name: int(number) for name, number in _LINES.findall(text)}
    if not {b"MemTotal", b"MemAvailable"} <= lines.keys():
        raise ValueError("no lines MemTotal and MemAvailable")

    def of(*names: bytes) -> int:
        return sum(lines.get(name, 0) for name in names) * _KIB

    total, available, huge = of(b"MemTotal"), of(b"MemAvailable"), of(b"Hugetlb")
    if not 0 <= available <= total or total == 0:
        raise ValueError(f"{available} of {total} bytes available")
    return _Memory(
        total=total,
        available=available,
        shared=of(b"Shmem"),
        locked=of(b"Mlocked"),
        huge=huge,
        surplus=min(huge, lines.get(b"HugePages_Surp", 0) * of(b"Hugepagesize")),
        anonymous=of(b"AnonPages"),
        unreclaimable=of(b"SUnreclaim", b"PageTables", b"KernelStack"),
    )


def _arc_counter(text: bytes, name: str) -> int:
    return _number(rb"^%s +\d+ +(\d+)$" % name.encode(), text)


def _number(pattern: bytes, text: bytes) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no line like {pattern.decode()}")
    return int(found[1])


def _free_below(folder: str) -> int | None:
    """Return the free bytes of shared memory; None if there is none."""
    try:
        where = os.statvfs(folder)
    except OSError:
        return None
    return where.f_bavail * where.f_frsize
