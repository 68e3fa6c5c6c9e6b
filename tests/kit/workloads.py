"""Small workloads for the simulation."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, TypeAlias

from jupyter_gpugate.core.requests import Family, Hints, Request, Setting
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.gate.simulation.workload import Job, World, steps

#: The slot in which each job arrives, and its GB in each of its slots.
Slots: TypeAlias = "Sequence[tuple[int, list[float]]]"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyter_gpugate.gate.simulation.workload import Outsider, Pairs

DEVICE_GB = 24
#: Of packings by brute force: memory is constant within a slot.
SLOT_S = 10


def job(
    run_id: str,
    arrives_s: float,
    works_s: float,
    points: Sequence[tuple[float, float]],
    *,
    hint_gb: float | None = None,
    **fields: object,
) -> Job:
    """Make a job from points of (seconds, GB); its cell's name is that of the run."""
    request = Request(
        run_id,
        Family("ada", run_id, "v0", gpus=1),
        Setting(workers=1, runtime="torch 2.4"),
        hints=Hints(vram_bytes=None if hint_gb is None else int(hint_gb * GB)),
    )
    vram = steps((at, size * GB) for at, size in points)
    return Job(request, arrives_s, works_s, vram, **fields)  # type: ignore[arg-type]


def world(
    *jobs: Job, gpus: int = 1, outsiders: Sequence[Outsider] = (), pairs: Pairs | None = None
) -> World:
    """Make a world of 24 GB devices."""
    devices = tuple(Device(f"GPU-{n}", "24 GB", DEVICE_GB * GB, n) for n in range(gpus))
    return World(devices, 64 * GB, jobs, tuple(outsiders), pairs or {})


def random_slots(seed: int, count: int = 6) -> Slots:
    """Make jobs in slots of ten seconds: when each arrives, and its GB in each slot, rising."""
    chance = random.Random(seed)
    return [
        (chance.randint(1, 5), sorted(chance.uniform(1, 14) for _ in range(chance.randint(2, 6))))
        for _ in range(count)
    ]


def in_slots(slots: Slots) -> World:
    """Make the world of such jobs."""
    return world(
        *(
            job(
                f"job-{number}",
                SLOT_S * arrives,
                SLOT_S * len(sizes),
                [(SLOT_S * place, size) for place, size in enumerate(sizes)],
            )
            for number, (arrives, sizes) in enumerate(slots)
        )
    )


def shortest_makespan_s(slots: Slots, usable_gb: float) -> int:
    """Try every order, each job in the earliest slot in which it fits: the best packing."""
    return min(makespan_s(order, usable_gb) for order in itertools.permutations(slots))


def greedy_makespan_s(slots: Slots, usable_gb: float) -> int:
    """Start each job in the first slot in which it fits to the end beside those that started."""
    waiting = sorted(slots, key=lambda job: job[0])
    used: list[float] = [0.0] * 1000
    now = last = 0
    while waiting:
        for arrives, sizes in list(waiting):
            if arrives <= now and all(used[now + n] + s <= usable_gb for n, s in enumerate(sizes)):
                waiting.remove((arrives, sizes))
                for place, size in enumerate(sizes, now):
                    used[place] += size
                last = max(last, now + len(sizes))
        now += 1
    return SLOT_S * last


def makespan_s(order: Slots, usable_gb: float) -> int:
    """Pack jobs in this order, each in the earliest slot in which it fits beside the others."""
    length = sum(len(sizes) for _, sizes in order) + max(arrives for arrives, _ in order)
    used = [0.0] * length
    last = 0
    for arrives, sizes in order:
        start = arrives
        while any(used[start + n] + size > usable_gb for n, size in enumerate(sizes)):
            start += 1
        for place, size in enumerate(sizes, start):
            used[place] += size
        last = max(last, start + len(sizes))
    return SLOT_S * last
