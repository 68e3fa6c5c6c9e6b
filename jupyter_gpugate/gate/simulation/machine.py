"""A simulated machine in memory, with the readings of its readers in simulated seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jupyter_gpugate.core.resources import GB, RAM
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    Fault,
    GpuProcess,
    KernelProcess,
    Process,
    ProcessKey,
    RamReading,
    ReaderHealth,
    Sample,
)

BOOT = "simulated-boot"


@dataclass
class Holding:
    """One simulated process and the memory it holds, in bytes."""

    key: ProcessKey
    parent_pid: int = 1
    uid: int = 1000
    ram_bytes: int = 0
    gpu_bytes: dict[str, int] = field(default_factory=dict)


class SimulatedMachine:
    """A machine as a table: RAM, devices, processes; memory of the dead may come back late."""

    def __init__(self, ram_bytes: int = 64 * GB, devices: Iterable[Device] = ()) -> None:
        self.ram_bytes = ram_bytes
        self.devices: dict[str, Device] = {d.uuid: d for d in devices}
        self.processes: dict[int, Holding] = {}
        self.kernels: list[KernelProcess] = []
        self.background_ram_bytes = GB
        self.faults: dict[str, Fault] = {}
        self.missing: set[str] = set()
        self.gpu_reader_since: float | None = None  # set: the reader has hung since then
        self.names_holders = True  # False: the driver lists no processes
        self._late: list[tuple[float, str, int]] = []  # (until, resource, bytes)
        self._next_pid = 1000
        self._last_gpu: tuple[DeviceReading, ...] = ()
        self._last_gpu_at = 0.0
        self.spawn()  # a machine is never without any process

    def spawn(self, *, parent_pid: int = 1, ram_bytes: int = 0, uid: int = 1000) -> Holding:
        """Start a process; pids are never reused."""
        self._next_pid += 1
        holding = Holding(
            ProcessKey(self._next_pid, self._next_pid * 7), parent_pid, uid, ram_bytes
        )
        self.processes[holding.key.pid] = holding
        return holding

    def kill(self, key: ProcessKey, now: float = 0.0, returns_after_s: float = 0.0) -> None:
        """End a process; with a slow driver its memory still counts as used for a while."""
        holding = self.processes.pop(key.pid, None)
        if holding is None or returns_after_s <= 0:
            return
        for uuid, held in holding.gpu_bytes.items():
            self._late.append((now + returns_after_s, uuid, held))

    def used(self, resource: str, now: float) -> int:
        """Bytes in use, by whomever."""
        late = sum(b for until, r, b in self._late if r == resource and until > now)
        if resource == RAM:
            return self.background_ram_bytes + sum(h.ram_bytes for h in self.processes.values())
        return late + sum(h.gpu_bytes.get(resource, 0) for h in self.processes.values())

    def sample(self, now: float) -> Sample:
        """Return the sample that the readers would take now."""
        available = max(0, self.ram_bytes - self.used(RAM, now))
        ram = RamReading(now, self.ram_bytes, available, available)
        if self.gpu_reader_since is None:
            self._last_gpu = tuple(self._readings(now))
            self._last_gpu_at = now
        return Sample(
            ram=ram,
            processes={
                h.key.pid: Process(*h.key, h.parent_pid, h.uid, h.ram_bytes)
                for h in self.processes.values()
            },
            devices=self._last_gpu,
            readers=(self._gpu_health(), ReaderHealth("machine", present=True, taken_at=now)),
            kernels=tuple(self.kernels),
            boot_id=BOOT,
        )

    def _gpu_health(self) -> ReaderHealth:
        fault = None
        if self.gpu_reader_since is not None:
            fault = Fault("TIMEOUT", "the driver does not answer", self.gpu_reader_since)
        return ReaderHealth("gpu", bool(self.devices), self._last_gpu_at, fault)

    def _readings(self, now: float) -> Iterable[DeviceReading]:
        for uuid, device in self.devices.items():
            if uuid in self.missing:
                continue
            if uuid in self.faults:
                yield DeviceReading(device, now, None, fault=self.faults[uuid])
                continue
            rows = tuple(
                GpuProcess(h.key.pid, h.gpu_bytes[uuid], "C")
                for h in self.processes.values()
                if uuid in h.gpu_bytes
            )
            free = max(0, device.total_bytes - self.used(uuid, now))
            listed = rows if self.names_holders else None
            yield DeviceReading(device, now, free, processes=listed, source="simulated")
