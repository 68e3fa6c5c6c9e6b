"""Measures this machine once, without a gate, for `jupyter gpugate doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.naming import name_of
from jupyter_gpugate.core.samples import Fault
from jupyter_gpugate.gate.clock import awake_time
from jupyter_gpugate.gate.gpu.accelerators import unmanaged
from jupyter_gpugate.gate.gpu.reader import GpuReader
from jupyter_gpugate.gate.machine.reader import MachineReader


def read_machine() -> dict[str, Any]:
    """Measure without a gate, in the form in which a gate answers."""

    async def gpus() -> tuple[Any, Any, bool]:
        reader = GpuReader(awake_time)
        try:
            answer = await reader.read()
            while answer[1].fault is not None and answer[1].fault.code == "starting":
                answer = await reader.read()
        finally:
            await reader.close()
        return answer

    machine = MachineReader()
    ram = machine.read()
    machine.close()
    devices, health, pids_are_ours = asyncio.run(gpus())
    here = {reading.device.uuid: reading.device for reading in devices}
    return {
        "reach": None,
        "unmanaged": [one._asdict() for one in unmanaged(measured=bool(devices))],
        "ram": to_json(ram.ram),
        "readers": to_json([health, ram.health]),
        "devices": [
            {**_device_row(to_json(reading)), "name": name_of(here, reading.device.uuid)}
            for reading in devices
        ],
        "attribution": {
            "devices": {r.device.uuid: {"fault": _text(r.processes_fault)} for r in devices},
            "pids_are_ours": pids_are_ours,
        },
    }


def _device_row(reading: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("free_bytes", "utilisation", "source", "fault")
    return {**reading["device"], **{name: reading[name] for name in kept}}


def _text(fault: Fault | None) -> str | None:
    return fault.text if fault is not None else None
