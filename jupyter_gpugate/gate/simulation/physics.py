"""The simulated machine while jobs live on it: progress, memory, and ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.resources import RAM, VRAM
from jupyter_gpugate.core.samples import KernelProcess
from jupyter_gpugate.gate.simulation.machine import Holding, SimulatedMachine
from jupyter_gpugate.gate.simulation.workload import Job, Outsider, Start, World

SUPERVISOR_BYTES = 12 << 20


@dataclass
class Running:
    """A live attempt of a job."""

    job: Job
    start: Start
    started_at: float
    supervisor: Holding
    worker: Holding
    cap_bytes: int | None  # per device, enforced; it may change while the run lives
    work_s: float = 0.0
    speed: float = 1.0
    peak_ram: int = 0

    @property
    def done(self) -> bool:
        return self.work_s >= self.job.works_s - 1e-6

    def next_change_s(self) -> float:
        """Seconds until its memory or its count of episodes changes, or it ends."""
        job, work = self.job, self.work_s + 1e-6
        steps = (job.vram.next_after(work), job.ram.next_after(work), job.next_episode_after(work))
        return (min(*steps, job.works_s) - self.work_s) / self.speed


@dataclass(frozen=True)
class Ended:
    """An attempt that has ended, with the evidence of memory that ran out."""

    running: Running
    at: float
    outcome: AttemptOutcome
    resource: str | None = None  # VRAM or RAM: what ran out
    evidence: str = ""  # "own_cap", "device_full" or "host_oom_killer"
    had_room: bool = False  # the device still had the memory that the run asked for


@dataclass
class _Beside:
    """A live outsider."""

    outsider: Outsider
    holding: Holding
    ended: bool = False


@dataclass
class Physics:
    """A machine in simulated time; a process that asks for too much memory ends."""

    world: World
    now: float = 0.0
    runs: dict[str, Running] = field(default_factory=dict)
    outsiders_ended: int = 0  # because a device was full

    def __post_init__(self) -> None:
        self.machine = SimulatedMachine(self.world.ram_bytes, self.world.devices)
        self.machine.background_ram_bytes = self.world.background_ram_bytes
        self._total = {device.uuid: device.total_bytes for device in self.world.devices}
        self._beside = [_Beside(o, self.machine.spawn()) for o in self.world.outsiders]
        for one in self._beside:
            if one.outsider.is_notebook:
                kernel = KernelProcess(one.holding.key, one.outsider.name, "ada")
                self.machine.kernels.append(kernel)
        self._let_outsiders_allocate()

    def free(self, device: str) -> int:
        return self._total[device] - self.machine.used(device, self.now)

    def held_by_others(self, device: str) -> int:
        """Bytes of everybody who is no job."""
        return sum(one.holding.gpu_bytes.get(device, 0) for one in self._beside)

    def outsiders_on(self, device: str) -> list[Outsider]:
        """The outsiders of a device that still live."""
        return [b.outsider for b in self._beside if b.outsider.device == device and not b.ended]

    def next_change(self) -> float:
        """The time at which something happens next; infinite if nothing does."""
        times = [self.now + run.next_change_s() for run in self.runs.values()]
        times += [b.outsider.vram.next_after(self.now) for b in self._beside if not b.ended]
        soonest = min(times, default=math.inf)
        if math.isinf(soonest):
            return soonest
        return max(self.now + self.world.grain_s, self.world.rounded_up(soonest))

    def start(self, job: Job, start: Start) -> Running:
        """Start a job now; its memory grows from the next moment on."""
        supervisor = self.machine.spawn(ram_bytes=SUPERVISOR_BYTES)
        worker = self.machine.spawn(parent_pid=supervisor.key.pid)
        running = Running(job, start, self.now, supervisor, worker, start.cap_bytes)
        self.runs[job.run_id] = running
        self._set_speeds(start.devices)
        return running

    def advance(self, to: float) -> list[Ended]:
        """Let time pass up to ``to``, at most the next change; return the attempts that ended."""
        passed, self.now = to - self.now, to
        for run in self.runs.values():
            run.work_s += passed * run.speed
        ended = [
            self._end(
                run, AttemptOutcome.CANCELLED if run.job.stopped else AttemptOutcome.COMPLETED
            )
            for run in list(self.runs.values())
            if run.done
        ]
        self._let_outsiders_allocate()
        for run in sorted(self.runs.values(), key=_growth):  # what is freed is there for others
            died = self._allocate(run)
            if died is not None:
                ended.append(died)
        return ended

    def _let_outsiders_allocate(self) -> None:
        for one in self._beside:
            device = one.outsider.device
            wanted, held = one.outsider.vram.at(self.now), one.holding.gpu_bytes.get(device, 0)
            if one.ended or wanted == held:
                continue
            if wanted - held > self.free(device):
                one.ended, wanted = True, 0
                self.outsiders_ended += 1
            one.holding.gpu_bytes[device] = wanted
            if not wanted:
                del one.holding.gpu_bytes[device]

    def _allocate(self, run: Running) -> Ended | None:
        """Give a run the memory that it asks for, or end it."""
        wanted, cap = run.job.vram.at(run.work_s + 1e-6), run.cap_bytes
        for device in run.start.devices:
            more = wanted - run.worker.gpu_bytes.get(device, 0)
            fits = more <= self.free(device)
            if cap is not None and wanted > cap:
                return self._run_out(run, VRAM, "own_cap", had_room=fits)
            if more > 0 and not fits:
                return self._run_out(run, VRAM, "device_full")
            if wanted or more:
                run.worker.gpu_bytes[device] = wanted
        ram = run.job.ram.at(run.work_s + 1e-6)
        if ram - run.worker.ram_bytes > self.world.ram_bytes - self.machine.used(RAM, self.now):
            return self._run_out(run, RAM, "host_oom_killer")
        run.worker.ram_bytes = ram
        run.peak_ram = max(run.peak_ram, ram + run.supervisor.ram_bytes)
        return None

    def _run_out(
        self, run: Running, resource: str, evidence: str, *, had_room: bool = False
    ) -> Ended:
        self._remove(run)
        return Ended(run, self.now, AttemptOutcome.OOM, resource, evidence, had_room)

    def _end(self, run: Running, outcome: AttemptOutcome) -> Ended:
        self._remove(run)
        return Ended(run, self.now, outcome)

    def _remove(self, run: Running) -> None:
        del self.runs[run.job.run_id]
        self.machine.kill(run.supervisor.key)
        self.machine.kill(run.worker.key)
        self._set_speeds(run.start.devices)

    def _set_speeds(self, devices: Iterable[str]) -> None:
        """Recompute the speeds of all runs on these devices; a run is as fast as on its slowest."""
        changed = set(devices)
        for run in self.runs.values():
            if changed.isdisjoint(run.start.devices):
                continue
            run.speed = min(
                (
                    self.world.speed(run.job.load, self._loads_beside(run, device))
                    for device in run.start.devices
                ),
                default=1.0,
            )

    def _loads_beside(self, run: Running, device: str) -> list[str]:
        others = (other for other in self.runs.values() if other is not run)
        return [other.job.load for other in others if device in other.start.devices]


def _growth(run: Running) -> int:
    return run.job.vram.at(run.work_s) - max(run.worker.gpu_bytes.values(), default=0)
