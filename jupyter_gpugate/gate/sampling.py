"""Joins the newest readings of both readers into samples; neither can hold the other up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from jupyter_gpugate.core.model import DeviceReading, ReaderHealth, Sample

if TYPE_CHECKING:
    from jupyter_gpugate.gate.machine import MachineReading

#: The first reading is waited for: a GPU that is there must not seem absent at the start.
FIRST_PATIENCE_S = 3.0
#: The process table of a stuck machine can take for ever: its last reading then grows old.
MACHINE_PATIENCE_S = 1.5
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
        self._reads: dict[str, asyncio.Task[None]] = {}
        self._devices: tuple[DeviceReading, ...] = ()
        self._gpu_health = ReaderHealth("gpu", present=False, taken_at=None)
        self._pids_are_ours = True
        self._reading: MachineReading | None = None
        self._is_first = True

    async def fresh(self) -> Sample:
        """Read anew what is not still being read, and join whatever there is in time."""
        machine = self._start("machine", self._read_machine)
        gpu = self._start("gpu", self._read_gpus)
        await asyncio.wait({machine}, timeout=MACHINE_PATIENCE_S)
        await asyncio.wait({gpu}, timeout=FIRST_PATIENCE_S if self._is_first else GPU_PATIENCE_S)
        self._is_first = False
        seen = self._reading
        return Sample(
            ram=seen.ram if seen else None,
            processes=seen.processes if seen else {},
            devices=self._devices,
            readers=(self._gpu_health, *((seen.health,) if seen else ())),
            kernels=seen.kernels if seen else (),
            pids_are_ours=self._pids_are_ours,
            boot_id=seen.boot_id if seen else "",
        )

    async def close(self) -> None:
        """Stop reading."""
        for read in self._reads.values():
            read.cancel()
        await asyncio.gather(*self._reads.values(), return_exceptions=True)
        await self._gpu.close()
        self._thread.shutdown(wait=False)

    def _start(self, name: str, read: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A reading that is still under way is not asked for twice."""
        if name not in self._reads or self._reads[name].done():
            self._reads[name] = asyncio.ensure_future(read())
        return self._reads[name]

    async def _read_machine(self) -> None:
        loop = asyncio.get_running_loop()
        self._reading = await loop.run_in_executor(self._thread, self._machine.read)

    async def _read_gpus(self) -> None:
        devices, health, ours = await self._gpu.read()
        if devices or health.fault is None:
            self._devices, self._pids_are_ours = devices, ours
        self._gpu_health = health
