"""Generated worlds: a machine, a day of submits, and the notebooks and strangers beside them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from jupyter_gpugate.core.requests import Family, Hints, Request, Setting
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.gate.simulation.workload import Job, Outsider, World, steps
from tests.scorecard.people import (
    Cell,
    Choice,
    choices,
    hire,
    load_of,
    needs_bytes,
    ram_over_time,
    vram_over_time,
)

if TYPE_CHECKING:
    from jupyter_gpugate.gate.simulation.workload import Pairs

RUNTIME: Final = "torch 2.4"
#: Peaks of equal runs lie within this share of each other.
NOISE: Final = 0.10
#: The speed of a job beside another one, in the range of published measurements of pairs on one
#: device: small jobs hardly notice one another, two large ones together do a little more than one.
SLOWDOWNS: Final[Pairs] = {
    ("light", "light"): 0.98, ("light", "medium"): 0.92, ("light", "heavy"): 0.80,
    ("medium", "light"): 0.96, ("medium", "medium"): 0.78, ("medium", "heavy"): 0.66,
    ("heavy", "light"): 0.94, ("heavy", "medium"): 0.80, ("heavy", "heavy"): 0.58,
}  # fmt: skip
#: The memory-hours that jobs need at their peaks, over those of the devices while jobs arrive.
LOAD: Final = 1.2
#: The share of a device that no job's need exceeds: nobody submits what cannot run.
LARGEST_SHARE: Final = 0.8


@dataclass(frozen=True)
class Machine:
    """A machine and the size of its crowd."""

    name: str
    gpus: int
    vram_bytes: int
    ram_bytes: int
    people: int
    jobs: int
    scale: float  # of the published sizes: larger devices are bought for larger jobs

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(f"GPU-{n}", f"{self.vram_bytes // GB} GB", self.vram_bytes, n)
            for n in range(self.gpus)
        )


MACHINES: Final = (
    Machine("1 GPU", 1, 24 * GB, 64 * GB, people=3, jobs=40, scale=1.0),
    Machine("4 GPUs", 4, 40 * GB, 256 * GB, people=5, jobs=80, scale=1.4),
    Machine("8 GPUs", 8, 80 * GB, 512 * GB, people=8, jobs=120, scale=2.4),
)


@dataclass
class _Source:
    """The source of a cell as its author edits it."""

    version: int = 0
    factor: float = 1.0  # of the memory of the first version

    def edit(self, chance: random.Random) -> None:
        """Most edits leave the memory as it was."""
        self.version += 1
        if chance.random() < 0.3:
            self.factor = min(1.6, max(0.6, self.factor * chance.uniform(0.75, 1.35)))


def days(
    machine: Machine,
    seed: int,
    count: int = 2,
    *,
    noise: float = NOISE,
    load: float = LOAD,
    pairs: Pairs | None = None,
) -> list[World]:
    """The first days of the same people; sources stay as the day before has left them."""
    cells = hire(random.Random(f"{seed} people"), machine.people, machine.gpus, machine.scale)
    sources = [_Source() for _ in cells]
    worlds = []
    for day in range(count):
        chance = random.Random(f"{seed} day {day}")
        crowd = _Day(machine, chance, noise, load, f"d{day}")
        jobs = crowd.jobs(cells, sources)
        beside = crowd.outsiders(max(job.arrives_s for job in jobs))
        worlds.append(World(machine.devices(), machine.ram_bytes, jobs, beside, pairs or {}))
    return worlds


class _Day:
    def __init__(
        self, machine: Machine, chance: random.Random, noise: float, load: float, name: str
    ) -> None:
        self._machine = machine
        self._chance = chance
        self._noise = noise
        self._load = load
        self._name = name
        self._number = 0

    def jobs(self, cells: list[Cell], sources: list[_Source]) -> tuple[Job, ...]:
        """The sessions of a day, spread over the time that makes the load what it is."""
        sessions: list[list[Job]] = []
        while sum(map(len, sessions)) < self._machine.jobs:
            place = self._place_of_a_cell(cells)
            if self._chance.random() < 0.25:
                sources[place].edit(self._chance)
            fitting = self._that_fit(cells[place], sources[place])
            sessions.append([self._job(cells[place], sources[place], one) for one in fitting])
        wanted = sum(job.works_s * job.gpus * job.vram.peak for some in sessions for job in some)
        length = wanted / (self._load * self._machine.gpus * self._machine.vram_bytes)
        starts = sorted(self._chance.uniform(0.0, length) for _ in sessions)
        return tuple(
            replace(job, arrives_s=start + 2.0 * place)
            for start, some in zip(starts, sessions, strict=True)
            for place, job in enumerate(some)
        )

    def _that_fit(self, cell: Cell, source: _Source) -> list[Choice]:
        """Return what a session submits; nobody submits what no device here can hold."""
        most = LARGEST_SHARE * self._machine.vram_bytes
        wanted = choices(self._chance, cell)
        return [one for one in wanted if source.factor * needs_bytes(cell, one) <= most]

    def _place_of_a_cell(self, cells: list[Cell]) -> int:
        """Return the place of the next session's cell; a service is started rarely."""
        weights = [0.3 if cell.stopped else 1.0 for cell in cells]
        return self._chance.choices(range(len(cells)), weights)[0]

    def _job(self, cell: Cell, source: _Source, choice: Choice) -> Job:
        self._number += 1
        noise = 1 + self._chance.uniform(-self._noise / 2, self._noise / 2)
        peak = int(source.factor * needs_bytes(cell, choice) * noise)
        works = cell.works_s * self._chance.uniform(0.9, 1.1) / choice.workers**0.5
        ram = int(cell.ram_bytes * (1 + 0.4 * choice.workers) * noise)
        return Job(
            request=self._request(cell, source, choice),
            arrives_s=0.0,
            works_s=works,
            vram=vram_over_time(cell, peak, works, self._chance),
            ram=ram_over_time(ram, works),
            stopped=cell.stopped,
            load=load_of(peak, self._machine.scale),
        )

    def _request(self, cell: Cell, source: _Source, choice: Choice) -> Request:
        hint = None
        if cell.hint_factor is not None:
            # One number in the cell's first line, whatever the parameters below it.
            hint = int(cell.hint_factor * needs_bytes(cell, Choice()))
            hint = min(hint, int(LARGEST_SHARE * self._machine.vram_bytes))
        return Request(
            run_id=f"{self._name}-{self._number:04d}",
            family=Family(cell.owner, cell.name, f"v{source.version}", cell.gpus),
            setting=Setting(
                choice.workers,
                choice.parameters(cell),
                cell.episodes,
                runtime=RUNTIME if cell.kind == "cell" else "",
            ),
            hints=Hints(vram_bytes=hint),
            kind=cell.kind,
            service=cell.stopped,
        )

    def outsiders(self, until_s: float) -> tuple[Outsider, ...]:
        """Idle notebooks that hold memory, and strangers who take much for some minutes."""
        found: list[Outsider] = []
        for device in self._machine.devices():
            if self._chance.random() < 0.5:
                found.append(self._notebook(device, until_s))
            at = self._chance.expovariate(1 / 2400)
            while at < until_s:
                found.append(self._stranger(device, at))
                at += 900 + self._chance.expovariate(1 / 2400)
        return tuple(found)

    def _notebook(self, device: Device, until_s: float) -> Outsider:
        begins = self._chance.uniform(0.0, 0.3) * until_s
        ends = begins + self._chance.uniform(0.3, 1.0) * until_s
        held = self._chance.uniform(0.03, 0.15) * device.total_bytes
        curve = steps(((begins, held), (ends, 0)))
        return Outsider(f"notebook of {device.uuid}", device.uuid, curve, is_notebook=True)

    def _stranger(self, device: Device, at: float) -> Outsider:
        held = self._chance.uniform(0.05, 0.2) * device.total_bytes
        curve = steps(((at, held / 2), (at + 5, held), (at + self._chance.uniform(60, 600), 0)))
        return Outsider(f"stranger at {at:.0f} s", device.uuid, curve)
