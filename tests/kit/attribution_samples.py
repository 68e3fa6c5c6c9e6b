"""Samples of a machine, in megabytes, for tests of attribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jupyter_gpugate.core.resources import (
    GB,
    MB,
    Holder,
    HolderKind,
)
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    GpuProcess,
    Process,
    ProcessKey,
    RamReading,
    Sample,
)
from jupyter_gpugate.core.shares import Attribution, ResourceAttribution

GPU = "GPU-0"
OTHER_GPU = "GPU-1"
INIT = 1
RUN = Holder(HolderKind.RUN, "run-a")
OTHER_RUN = Holder(HolderKind.RUN, "run-b")
KERNEL = Holder(HolderKind.KERNEL, "lab.ipynb")
SERVER = Holder(HolderKind.MODEL_SERVER, "clip")


def process(pid: int, parent: int = INIT, mb: int = 0, ticks: int | None = None) -> Process:
    """Make a process that started at ``ticks``, by default in the order of pids."""
    return Process(pid, pid if ticks is None else ticks, parent, 1000, mb * MB)


def key(pid: int) -> ProcessKey:
    """Name a process that `process` made with its default ticks."""
    return ProcessKey(pid, pid)


def gpu(
    used_mb: int,
    *rows: GpuProcess,
    uuid: str = GPU,
    total: int = 80 * GB,
    reserved: int | None = 0,
    **changes: Any,
) -> DeviceReading:
    """Make the reading of a board whose list holds ``rows``."""
    free = total - (reserved or 0) - used_mb * MB
    reading = DeviceReading(Device(uuid, "H200", total, 0), 1.0, free, reserved, rows)
    return replace(reading, **changes)


def row(pid: int, mb: int | None, kinds: str = "C") -> GpuProcess:
    """Make one row of a device's process list."""
    return GpuProcess(pid, None if mb is None else mb * MB, kinds)


def sample(
    *processes: Process, used_mb: int | None = None, devices: tuple[DeviceReading, ...] = ()
) -> Sample:
    """Make a sample of the given processes; init is always there."""
    ram = None
    if used_mb is not None:
        available = 64 * GB - used_mb * MB
        ram = RamReading(1.0, 64 * GB, available, available)
    table = {p.pid: p for p in (process(INIT, 0), *processes)}
    return Sample(ram=ram, processes=table, devices=devices)


def megabytes(shares: ResourceAttribution) -> dict[str, int]:
    """Read a share-out as name -> MB, with the totals under their own names."""
    named = {holder.name: held // MB for holder, held in shares.by_holder.items()}
    return {
        **named,
        "external": shares.external_bytes // MB,
        "overlap": shares.overlap_bytes // MB,
    }


def on_gpu(attribution: Attribution, uuid: str = GPU) -> ResourceAttribution:
    """Pick one device's share-out."""
    return attribution.resources[uuid]
