"""The machine reader: RAM, its cgroup limits and the process table, once a second, in a thread."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from jupyter_gpugate.core.model import Fault, KernelProcess, Process, RamReading, ReaderHealth
from jupyter_gpugate.gate.cgroups import Cgroups
from jupyter_gpugate.gate.kernel_file import KernelFile
from jupyter_gpugate.gate.process_table import ProcessTable

_KIB: Final = 1024


def boot_clock() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class MachineReading(NamedTuple):
    """What one reading showed; what could not be read is None or absent."""

    ram: RamReading | None
    processes: Mapping[int, Process]  # by pid
    kernels: tuple[KernelProcess, ...]
    boot_id: str
    health: ReaderHealth


class MachineReader:
    """Reads the machine below ``proc``, ``cgroup_root`` and ``shm``; blocking, one call at a time.

    ``clock`` gives seconds on the boot clock.  Neither a machine in trouble nor one that hides
    things makes ``read`` raise: the health of the reading says what is wrong.
    """

    def __init__(
        self,
        proc: str = "/proc",
        cgroup_root: str = "/sys/fs/cgroup",
        shm: str = "/dev/shm",  # noqa: S108 - nothing is written there
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._clock = clock
        self._shm = shm
        self._meminfo = KernelFile(f"{proc}/meminfo")
        self._arcstats = KernelFile(f"{proc}/spl/kstat/zfs/arcstats")
        self._boot = KernelFile(f"{proc}/sys/kernel/random/boot_id")
        self._cgroups = Cgroups(proc, cgroup_root)
        self._table = ProcessTable(proc)
        self._boot_id = ""
        self._answered_at: float | None = None
        self._fault: Fault | None = None

    def read(self) -> MachineReading:
        """Read everything once.

        What is available is read before and after the walk and the smaller counts: a process that
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
        for file in (self._meminfo, self._arcstats, self._boot):
            file.close()

    def _room(self, faults: dict[str, str]) -> _Room | None:
        code = "meminfo"
        try:
            total, available = _read_meminfo(self._meminfo.read())
            available = min(total, available + self._reclaimable_arc())
            code = "cgroup"
            level = self._cgroups.tightest(total)
        except (OSError, ValueError) as error:
            faults[code] = str(error)
            return None
        if level is None or level.free_bytes >= available:
            return _Room(total, available, available, "machine")
        return _Room(total, available, level.free_bytes, level.cgroup)

    def _reclaimable_arc(self) -> int:
        """Return what ZFS gives back under pressure; its cache counts as used in MemAvailable."""
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
                self._boot_id = self._boot.read().decode("ascii", "replace").strip()
            except OSError:
                return ""
            self._boot.close()
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


class _Room(NamedTuple):
    total: int
    available: int
    free: int
    bound_by: str

    def reading(self, taken_at: float, shm_free: int | None) -> RamReading:
        return RamReading(taken_at, self.total, self.available, self.free, self.bound_by, shm_free)


def _smaller(one: _Room, other: _Room) -> _Room:
    tighter = one if one.free <= other.free else other
    return tighter._replace(available=min(one.available, other.available))


def _read_meminfo(text: bytes) -> tuple[int, int]:
    """Return MemTotal and MemAvailable in bytes; numbers that cannot be are no reading."""
    total, available = (
        _number(rb"^%s: +(\d+) kB$" % name, text) * _KIB for name in (b"MemTotal", b"MemAvailable")
    )
    if not 0 <= available <= total or total == 0:
        raise ValueError(f"{available} of {total} bytes available")
    return total, available


def _arc_counter(text: bytes, name: str) -> int:
    return _number(rb"^%s +\d+ +(\d+)$" % name.encode(), text)


def _number(pattern: bytes, text: bytes) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no line like {pattern.decode()}")
    return int(found[1])


def _free_below(folder: str) -> int | None:
    """How much may still be written to shared memory; None where there is none."""
    try:
        where = os.statvfs(folder)
    except OSError:
        return None
    return where.f_bavail * where.f_frsize
