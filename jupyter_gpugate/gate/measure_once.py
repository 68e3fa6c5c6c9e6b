"""Measures this machine once, without a gate, for `jupyter gpugate doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_gpugate.core.codec import JsonObject, to_json
from jupyter_gpugate.core.naming import Inventory, name_of
from jupyter_gpugate.core.samples import (
    Accelerator,
    Device,
    DeviceReading,
    Fault,
    RamReading,
    ReaderHealth,
)
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.gpu.accelerators import unmanaged
from jupyter_gpugate.gate.gpu.reader import GpuReader
from jupyter_gpugate.gate.machine.reader import MachineReader


@dataclass(frozen=True, kw_only=True)
class MeasuredDevice(Device):
    """A device and its memory."""

    name: str
    free_bytes: int | None
    utilisation: float | None
    source: str
    fault: Fault | None


@dataclass(frozen=True)
class Holders:
    """Why the holders of a device's memory are unknown; None where they are known."""

    fault: str | None


@dataclass(frozen=True)
class MeasuredHolders:
    """The holders of the memory of all devices, by UUID."""

    devices: Mapping[str, Holders]
    pids_are_ours: bool


@dataclass(frozen=True)
class MeasuredMachine:
    """Everything that can be measured here: those fields of `MachineAnswer` that need no gate."""

    unmanaged: tuple[Accelerator, ...]
    ram: RamReading | None
    readers: tuple[ReaderHealth, ...]
    devices: tuple[MeasuredDevice, ...]
    attribution: MeasuredHolders
    reach: None = None  # there is no gate


def read_machine() -> JsonObject:
    """Measure without a gate, in the form in which a gate answers."""
    machine = MachineReader()
    ram = machine.read()
    machine.close()
    readings, health, pids_are_ours = asyncio.run(_read_devices())
    here = {reading.device.uuid: reading.device for reading in readings}
    faults = {r.device.uuid: r.processes_fault for r in readings}
    holders = {uuid: Holders(fault.text if fault else None) for uuid, fault in faults.items()}
    measured = MeasuredMachine(
        unmanaged=tuple(unmanaged(measured=bool(readings))),
        ram=ram.ram,
        readers=(health, ram.health),
        devices=tuple(_measured(reading, here) for reading in readings),
        attribution=MeasuredHolders(holders, pids_are_ours),
    )
    answer: JsonObject = to_json(measured)
    return answer


async def _read_devices() -> tuple[tuple[DeviceReading, ...], ReaderHealth, bool]:
    reader = GpuReader(awake_time)
    try:
        answer = await reader.read()
        while answer[1].fault is not None and answer[1].fault.code == "starting":
            answer = await reader.read()
    finally:
        await reader.close()
    return answer


def _measured(reading: DeviceReading, here: Inventory) -> MeasuredDevice:
    return MeasuredDevice(
        **vars(reading.device),
        name=name_of(here, reading.device.uuid),
        free_bytes=reading.free_bytes,
        utilisation=reading.utilisation,
        source=reading.source,
        fault=reading.fault,
    )
