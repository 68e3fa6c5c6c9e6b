"""Joins the newest readings of both readers into samples; neither can delay the other.

The machine's thread sets the pace, so that an idle gate wakes as rarely as possible: once there,
once in the event loop, and once in the GPU reader's child where there is a GPU.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from jupyter_gpugate.core.samples import DeviceReading, ReaderHealth, Sample

if TYPE_CHECKING:
    from jupyter_gpugate.gate.machine.reader import MachineReading

BEAT_S = 1.0
#: The first reading is waited for: a GPU that is there must not seem absent at the start.
FIRST_PATIENCE_S = 3.0
#: The process table of a stuck machine can take for ever: its last reading then grows old.
MACHINE_PATIENCE_S = 1.5
#: A tick waits this long for the GPU reader, then goes on with its last readings and their age.
GPU_PATIENCE_S = 0.3
#: A machine without a GPU is asked for one this often; one that should have some, at each beat.
ABSENT_S = 30.0


class ReadsGpus(Protocol):
    """A GPU reader, or its twin in a simulation."""

    async def read(self) -> tuple[tuple[DeviceReading, ...], ReaderHealth, bool]:
        """The devices, the reader's health, and whether the driver's pids are ours."""

    async def close(self) -> None:
        """End the reader's process."""


class ReadsMachine(Protocol):
    """A machine reader, or its twin in a simulation."""

    watched: frozenset[str]  # cgroups to read beside the gate's own

    def read(self) -> MachineReading:
        """RAM, the process table and the kernels in it; blocking."""


class Sampler:
    """The newest reading of each reader, each with its own age."""

    def __init__(self, gpu: ReadsGpus, machine: ReadsMachine) -> None:
        self._gpu = gpu
        self._machine = machine
        self._gpu_read: asyncio.Task[None] | None = None
        self._devices: tuple[DeviceReading, ...] = ()
        self._gpu_health = ReaderHealth("gpu", present=True, taken_at=None)
        self._gpu_not_before = 0.0
        #: If there were GPUs before, a driver that lists none is asked again soon.
        self.expects_gpus = False
        self._pids_are_ours = True
        self._reading: MachineReading | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        self._told: Callable[[], None] = lambda: None
        self._asked = threading.Event()
        self._closed = False

    def start(self, told: Callable[[], None]) -> None:
        """Begin to read the machine once a second; ``told`` is called in the loop after each."""
        self._loop = asyncio.get_running_loop()
        self._told = told
        threading.Thread(target=self._keep_beat, name="gpugate-machine", daemon=True).start()

    def watch(self, cgroups: frozenset[str]) -> None:
        """Read the limits of these cgroups from the next reading on."""
        self._machine.watched = cgroups

    async def fresh(self) -> Sample:
        """Read both anew, each for no longer than its patience."""
        self._arrived.clear()
        self._asked.set()
        first = self._gpu_health.taken_at is None
        gpu = self._start_gpu_read()
        await asyncio.wait(
            {asyncio.ensure_future(self._arrived.wait())}, timeout=MACHINE_PATIENCE_S
        )
        if gpu is not None:
            await asyncio.wait({gpu}, timeout=FIRST_PATIENCE_S if first else GPU_PATIENCE_S)
        return self._join()

    async def newest(self) -> Sample:
        """Join the machine's reading that has just come with one of the GPUs."""
        gpu = self._start_gpu_read()
        if gpu is not None:
            await asyncio.wait({gpu}, timeout=GPU_PATIENCE_S)
        return self._join()

    async def close(self) -> None:
        """Stop reading."""
        self._closed = True
        self._asked.set()
        if self._gpu_read is not None:
            self._gpu_read.cancel()
            await asyncio.gather(self._gpu_read, return_exceptions=True)
        await self._gpu.close()

    def _join(self) -> Sample:
        machine = self._reading
        return Sample(
            ram=machine.ram if machine else None,
            processes=machine.processes if machine else {},
            devices=self._devices,
            readers=(self._gpu_health, *((machine.health,) if machine else ())),
            kernels=machine.kernels if machine else (),
            pids_are_ours=self._pids_are_ours,
            boot_id=machine.boot_id if machine else "",
        )

    # -- the machine's thread -------------------------------------------------------------------

    def _keep_beat(self) -> None:
        while not self._closed and self._loop is not None:
            self._asked.clear()
            begun = time.monotonic()
            reading = self._machine.read()
            try:
                self._loop.call_soon_threadsafe(self._take, reading)
            except RuntimeError:  # the loop is gone, and so is the receiver
                return
            self._asked.wait(max(0.0, begun + BEAT_S - time.monotonic()))

    def _take(self, reading: MachineReading) -> None:
        self._reading = reading
        self._arrived.set()
        self._told()

    # -- the GPU reader -------------------------------------------------------------------------

    def _start_gpu_read(self) -> asyncio.Task[None] | None:
        """A reading that is still under way is not asked for twice."""
        if self._gpu_read is not None and not self._gpu_read.done():
            return self._gpu_read
        if time.monotonic() < self._gpu_not_before:
            return None
        self._gpu_read = asyncio.ensure_future(self._read_gpus())
        return self._gpu_read

    async def _read_gpus(self) -> None:
        devices, health, ours = await self._gpu.read()
        if devices or health.fault is None:
            self._devices, self._pids_are_ours = devices, ours
        self._gpu_health = health
        self.expects_gpus = self.expects_gpus or bool(devices)
        if not health.present and health.fault is None and not self._should_have_gpus():
            self._gpu_not_before = time.monotonic() + ABSENT_S

    def _should_have_gpus(self) -> bool:
        return self.expects_gpus or any(Path("/dev").glob("nvidia[0-9]*"))
