"""Readings of the machine: processes, RAM, devices, and the state of the readers.

Bytes are plain ``int``; times are ``float`` seconds that the machine has been awake since boot.
A value that could not be read is ``None`` or absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional


class ProcessKey(NamedTuple):
    """A process of this boot; a pid alone does not identify it."""

    pid: int
    start_ticks: int


class ProcessBytes(NamedTuple):
    """The bytes that one process holds of a resource."""

    process: ProcessKey
    held_bytes: int


class Process(NamedTuple):
    """One row of the process table; ``private_bytes`` is resident - shared of ``statm``."""

    pid: int
    start_ticks: int
    parent_pid: int
    uid: int
    private_bytes: int

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, self.start_ticks)


class GpuProcess(NamedTuple):
    """One process on one device; ``held_bytes`` is None if the driver does not report it."""

    pid: int
    held_bytes: Optional[int]
    kinds: str  # any of C(ompute), G(raphics), M(PS)


@dataclass(frozen=True)
class Fault:
    """Why something cannot be read: an error code, its text, and since when."""

    code: str
    text: str
    since: float


@dataclass(frozen=True)
class Device:
    """A GPU or a MIG slice, as the inventory remembers it."""

    uuid: str
    model: str  # the board's name, or the MIG profile for a slice
    total_bytes: int
    index: int
    parent: Optional[str] = None  # the board of a MIG slice
    mig_enabled: bool = False  # a board cut into slices is no resource itself
    unified: bool = False  # shares the machine's RAM: no resource of its own
    bus: str = ""


@dataclass(frozen=True)
class Accelerator:
    """The device file of an accelerator that is not gated."""

    path: str
    maker: str  # of the hardware, where known


@dataclass(frozen=True)
class DeviceReading:
    """The reading of one device; ``free_bytes`` None means that it cannot be gated."""

    device: Device
    taken_at: float
    free_bytes: Optional[int]
    driver_reserved_bytes: Optional[int] = None
    processes: Optional[tuple[GpuProcess, ...]] = None  # None: no process can be named
    processes_fault: Optional[Fault] = None
    utilisation: Optional[float] = None  # 0..1; None where it cannot be read, which is not idle
    fault: Optional[Fault] = None
    source: str = ""  # the driver call that gave ``free_bytes``, such as "nvml-v2"

    @property
    def used_bytes(self) -> Optional[int]:
        """Total - free - memory that the driver keeps for itself."""
        if self.free_bytes is None:
            return None
        return self.device.total_bytes - self.free_bytes - (self.driver_reserved_bytes or 0)

    @property
    def contradiction(self) -> str:
        """Why the numbers cannot all be true; empty where they can."""
        used, total = self.used_bytes, self.device.total_bytes
        if used is None or self.device.mig_enabled or self.device.unified:
            return ""
        if total > 0 and 0 <= used <= total and 0 <= (self.free_bytes or 0) <= total:
            return ""
        return (
            f"its numbers contradict each other: {self.free_bytes} bytes free and "
            f"{self.driver_reserved_bytes or 0} kept by the driver, of {total}"
        )


@dataclass(frozen=True)
class CgroupReading:
    """The RAM that the limits above a cgroup leave, and the cgroup whose limit binds."""

    free_bytes: int
    bound_by: str  # "machine" where no limit does


@dataclass(frozen=True)
class RamReading:
    """The machine's RAM; ``free_bytes`` is bounded by every cgroup level above the gate."""

    taken_at: float
    total_bytes: int
    available_bytes: int  # MemAvailable + reclaimable ARC
    free_bytes: int
    bound_by: str = "machine"  # or the cgroup whose limit binds
    shm_free_bytes: Optional[int] = None
    shared_bytes: int = 0  # shared memory, and files in memory
    #: The most that the kernel can neither drop nor find in a process's private pages: shared
    #: memory, locked pages, and huge pages beyond the reserved pool.
    unmovable_bytes: int = 0
    huge_pool_bytes: int = 0  # reserved for huge pages, used or not
    cgroup: str = ""  # the gate's own
    cgroups: Mapping[str, CgroupReading] = field(
        default_factory=dict
    )  # of runs that live in others

    @property
    def used_bytes(self) -> int:
        return max(0, self.total_bytes - self.available_bytes)


@dataclass(frozen=True)
class ReaderHealth:
    """The health of a reader: the time of its last answer, and its fault."""

    name: str  # "gpu" or "machine"
    present: bool  # False: this machine has no such hardware
    taken_at: Optional[float]
    fault: Optional[Fault] = None
    detail: Mapping[str, str] = field(default_factory=dict)  # driver version, struct in use, ...
    took_s: float = 0.0  # how long its newest reading took


@dataclass(frozen=True)
class KernelProcess:
    """A notebook kernel found in the process table."""

    key: ProcessKey
    name: str  # the notebook's path where it is known, else "pid N"
    owner: str


@dataclass(frozen=True)
class Sample:
    """The newest readings of both readers; what could not be read is absent."""

    ram: Optional[RamReading] = None
    processes: Mapping[int, Process] = field(default_factory=dict)
    devices: tuple[DeviceReading, ...] = ()
    readers: tuple[ReaderHealth, ...] = ()
    kernels: tuple[KernelProcess, ...] = ()
    pids_are_ours: bool = True  # False: the driver's pids are of another PID namespace
    boot_id: str = ""

    def device(self, uuid: str) -> Optional[DeviceReading]:
        for reading in self.devices:
            if reading.device.uuid == uuid:
                return reading
        return None
