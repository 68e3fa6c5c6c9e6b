"""Oracle packing: every job's memory is known in advance, second by second."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from jupyter_gpugate.gate.simulation.replay import FLOOR_BYTES, MOST_ON_DEVICE
from jupyter_gpugate.gate.simulation.workload import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jupyter_gpugate.core.samples import Device
    from jupyter_gpugate.gate.simulation.physics import Ended, Physics, Running
    from jupyter_gpugate.gate.simulation.workload import Curve, Job

PAUSE_S = 10
#: How far ahead outsiders are looked at where a job's end cannot be computed.
HORIZON_S = 6 * 3600.0


def by_arrival(job: Job) -> float:
    """The order of submission."""
    return job.arrives_s


def by_length(job: Job) -> float:
    """Shortest first, which needs to know run times as well."""
    return job.works_s


class Oracle:
    """Starts each job as soon as its memory fits beside all others at every later time.

    Jobs are tried in ``order`` and skipped where they do not fit.  Where runs slow each other
    down their times cannot be computed in advance, and their later peaks count instead.
    """

    def __init__(self, order: Callable[[Job], float] = by_arrival) -> None:
        self._order = order
        self._queue: list[Job] = []
        self._live: dict[str, tuple[Job, tuple[str, ...]]] = {}

    def next_tick(self, physics: Physics, change: float) -> float:
        # A job that starts a little later may fit although nothing has changed meanwhile.
        waits = self._queue and not physics.world.pairs
        return min(change, physics.now + PAUSE_S - physics.now % PAUSE_S) if waits else change

    def tick(self, physics: Physics, arrived: Sequence[Job], ended: Sequence[Ended]) -> list[Start]:
        for one in ended:
            del self._live[one.running.job.run_id]
        self._queue = sorted([*self._queue, *arrived], key=self._order)
        starts: list[Start] = []
        if not self._queue:
            return starts
        profiles = {d.uuid: Profile(physics, d) for d in physics.world.devices}
        ram = physics.world.ram_bytes - physics.world.ram_bytes // 25
        ram -= sum(job.ram.peak for job, _ in self._live.values())
        for job in list(self._queue):
            devices = self._place(job, profiles) if job.ram.peak <= ram else None
            if devices is not None:
                for device in devices:
                    profiles[device].add(job)
                ram -= job.ram.peak
                self._queue.remove(job)
                self._live[job.run_id] = (job, devices)
                starts.append(Start(job.run_id, devices))
        return starts

    def started(self, run: Running) -> None:
        """Nothing to note."""

    def queued(self) -> Mapping[str, str]:
        return {job.run_id: "fit" for job in self._queue}

    def charges(self) -> Mapping[str, Mapping[str, int]]:
        return {
            i: dict.fromkeys(devices, job.vram.peak) for i, (job, devices) in self._live.items()
        }

    def basis(self, run_id: str) -> str:
        del run_id
        return "known"

    def _place(self, job: Job, profiles: Mapping[str, Profile]) -> tuple[str, ...] | None:
        ranks = sorted(
            (profile.runs, profile.room_bytes, uuid)
            for uuid, profile in profiles.items()
            if profile.fits(job)
        )
        chosen = tuple(rank[-1] for rank in ranks[: job.gpus])
        return chosen if len(chosen) == job.gpus else None


class Profile:
    """The future of one device: each holder as a curve over seconds from now on."""

    def __init__(self, physics: Physics, device: Device) -> None:
        self._usable = device.total_bytes - FLOOR_BYTES
        self._exact = not physics.world.pairs
        here = [r for r in physics.runs.values() if device.uuid in r.start.devices]
        self.runs = len(here)
        self._holders = [_Holder(r.job.vram, r.work_s, r.job.works_s - r.work_s) for r in here]
        self._holders += [
            _Holder(outsider.vram, physics.now, HORIZON_S)
            for outsider in physics.outsiders_on(device.uuid)
        ]
        self._peaks = sum(holder.peak for holder in self._holders)

    @property
    def room_bytes(self) -> int:
        """The room beside everybody's later peaks."""
        return self._usable - self._peaks

    def add(self, job: Job) -> None:
        holder = _Holder(job.vram, 0.0, job.works_s)
        self._holders.append(holder)
        self._peaks += holder.peak
        self.runs += 1

    def fits(self, job: Job) -> bool:
        """Whether a job may start now, given all that is known of later."""
        if self.runs >= MOST_ON_DEVICE:
            return False
        if job.vram.peak <= self.room_bytes:
            return True
        if not self._exact:
            return False
        new = _Holder(job.vram, 0.0, job.works_s)
        holders = [*self._holders, new]
        times = sorted(set(itertools.chain.from_iterable(h.steps() for h in holders)))
        return all(
            sum(holder.at(time) for holder in holders) <= self._usable
            for time in times
            if time < job.works_s
        )


class _Holder:
    """One curve from ``offset`` seconds on, until it ends ``lasts_s`` later."""

    def __init__(self, curve: Curve, offset_s: float, lasts_s: float) -> None:
        self._curve = curve
        self._offset_s = offset_s
        self._lasts_s = lasts_s
        self.peak = curve.peak_after(offset_s)

    def at(self, seconds: float) -> int:
        # Rounding up to whole seconds, as a simulated machine does, leaves the order of times.
        ended = seconds >= self._lasts_s - 1e-6
        return 0 if ended else self._curve.at(self._offset_s + seconds + 1e-6)

    def steps(self) -> Iterable[float]:
        """The times from 0 on at which it may be larger than just before."""
        yield 0.0
        yield from (t - self._offset_s for t in self._curve.times if t > self._offset_s)
