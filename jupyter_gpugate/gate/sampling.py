"""Joins the newest readings of both readers into samples; neither can hold the other up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from jupyter_gpugate.core.model import DeviceReading, ReaderHealth, Sample

if TYPE_CHECKING:
    from jupyter_gpugate.gate.machine import MachineReading

#: The first reading is waited for: a GPU that is there must not seem absent at the start.
FIRST_PATIENCE_S = 3.0
#: A tick waits this long for the GPU reader, then goes on with its last readings and their age.
GPU_PATIENCE_S = 0.3


class ReadsGpus(Protocol):
    """A GPU reader, or its twin in a simulation."""

    async def read(self) -> tuple[tuple[DeviceReading, ...], ReaderHealth, bool]:
        """The devices, the reader's health, and whether the driver's pids are ours."""

    async def close(self) -> None:
        """End the reader's process."""


class ReadsMachine(Protocol):
    """A machine reader, or its twin in a simulation."""

    def read(self) -> MachineReading:
        """RAM, the process table and the kernels in it; blocking."""


class Sampler:
    """The newest reading of each reader, each with its own age."""

    def __init__(self, gpu: ReadsGpus, machine: ReadsMachine) -> None:
        self._gpu = gpu
        self._machine = machine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpugate-machine")
        self._gpu_read: asyncio.Task[None] | None = None
        self._devices: tuple[DeviceReading, ...] = ()
        self._gpu_health = ReaderHealth("gpu", present=False, taken_at=None)
        self._pids_are_ours = True
        self._asked_before = False

    async def fresh(self) -> Sample:
        """Read the machine anew, and the GPUs unless a reading of theirs is still under way."""
        gpu_read = self._start_gpu_read()
        loop = asyncio.get_running_loop()
        machine = await loop.run_in_executor(self._thread, self._machine.read)
        first = self._gpu_health.taken_at is None and not self._asked_before
        self._asked_before = True
        await asyncio.wait({gpu_read}, timeout=FIRST_PATIENCE_S if first else GPU_PATIENCE_S)
        return Sample(
            ram=machine.ram,
            processes=machine.processes,
            devices=self._devices,
            readers=(self._gpu_health, machine.health),
            kernels=machine.kernels,
            pids_are_ours=self._pids_are_ours,
            boot_id=machine.boot_id,
        )

    async def close(self) -> None:
        """Stop reading."""
        if self._gpu_read is not None:
            self._gpu_read.cancel()
            await asyncio.gather(self._gpu_read, return_exceptions=True)
        await self._gpu.close()
        self._thread.shutdown(wait=False)

    def _start_gpu_read(self) -> asyncio.Task[None]:
        if self._gpu_read is None or self._gpu_read.done():
            self._gpu_read = asyncio.create_task(self._read_gpus())
        return self._gpu_read

    async def _read_gpus(self) -> None:
        devices, health, ours = await self._gpu.read()
        if devices or health.fault is None:
            self._devices, self._pids_are_ours = devices, ours
        self._gpu_health = health
