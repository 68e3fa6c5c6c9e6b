"""Policies that go by declared numbers alone, as batch systems do, and exclusive devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpugate.gate.simulation.replay import MOST_ON_DEVICE
from jupyter_gpugate.gate.simulation.workload import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jupyter_gpugate.core.samples import Device
    from jupyter_gpugate.gate.simulation.physics import Ended, Physics, Running
    from jupyter_gpugate.gate.simulation.workload import Job

#: The bytes that a job declares per device.
Declare = "Callable[[Job, Device], int]"


class Ledger:
    """Starts jobs in the order of their arrival while the sums of declared bytes fit; no retry.

    Nothing is measured and no cap is enforced.  Jobs that do not fit are skipped.
    """

    def __init__(self, declare: Callable[[Job, Device], int], most: int = MOST_ON_DEVICE) -> None:
        self._declare = declare
        self._most = most
        self._queue: dict[str, Job] = {}
        self._charges: dict[str, dict[str, int]] = {}

    def next_tick(self, physics: Physics, change: float) -> float:
        del physics
        return change

    def tick(self, physics: Physics, arrived: Sequence[Job], ended: Sequence[Ended]) -> list[Start]:
        for one in ended:
            del self._charges[one.running.job.run_id]
        self._queue.update((job.run_id, job) for job in arrived)
        starts = []
        for job in list(self._queue.values()) if arrived or ended else ():
            devices = self._place(job, physics.world.devices)
            if devices is not None:
                del self._queue[job.run_id]
                self._charges[job.run_id] = {d.uuid: self._declared(job, d) for d in devices}
                starts.append(Start(job.run_id, tuple(d.uuid for d in devices)))
        return starts

    def started(self, run: Running) -> None:
        """Nothing to note."""

    def queued(self) -> Mapping[str, str]:
        return dict.fromkeys(self._queue, "fit")

    def charges(self) -> Mapping[str, Mapping[str, int]]:
        return self._charges

    def basis(self, run_id: str) -> str:
        del run_id
        return "declared"

    def _declared(self, job: Job, device: Device) -> int:
        """What a job declares; whatever that is, it may run alone."""
        return min(self._declare(job, device), device.total_bytes)

    def _place(self, job: Job, devices: Sequence[Device]) -> Sequence[Device] | None:
        """Return the devices with the fewest runs, then the tightest fit; None if too few fit."""
        ranks = []
        for device in devices:
            here = [c[device.uuid] for c in self._charges.values() if device.uuid in c]
            left = device.total_bytes - sum(here) - self._declared(job, device)
            if left >= 0 and len(here) < self._most:
                ranks.append((len(here), left, device.index, device))
        chosen = [rank[-1] for rank in sorted(ranks)[: job.gpus]]
        return chosen if len(chosen) == job.gpus else None


def exclusive() -> Ledger:
    """One run per device."""
    return Ledger(lambda _job, device: device.total_bytes, most=1)


def declared(factor: float) -> Ledger:
    """Each job declares its true need times a factor; with 0 nothing holds it back."""
    most = MOST_ON_DEVICE if factor else 1_000_000
    return Ledger(lambda job, _device: int(factor * job.vram.peak), most)


def by_estimator(name: str) -> Ledger:
    """Each job declares what a published estimator says; where that has no number, a device."""
    return Ledger(lambda job, device: job.estimates.get(name, device.total_bytes))
