"""A workload for a simulated machine: jobs, and the people and programs beside them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.resources import GB
from jupyter_gpugate.core.samples import Device

#: Two loads -> the speed of the first one beside the second, as a share of its speed alone.
Pairs = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Curve:
    """Bytes over seconds in steps: from ``times[i]`` on it is ``sizes[i]``, before that 0."""

    times: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def peak(self) -> int:
        return max(self.sizes, default=0)

    def at(self, seconds: float) -> int:
        place = bisect_right(self.times, seconds)
        return self.sizes[place - 1] if place else 0

    def next_after(self, seconds: float) -> float:
        """The time of the next step; infinite after the last."""
        place = bisect_right(self.times, seconds)
        return self.times[place] if place < len(self.times) else math.inf

    def peak_after(self, seconds: float) -> int:
        """The greatest value from ``seconds`` on."""
        place = bisect_right(self.times, seconds)
        return max(self.sizes[max(0, place - 1) :], default=0) if self.times else 0


def steps(points: Iterable[tuple[float, float]]) -> Curve:
    """Return the curve through points of (seconds, bytes), without steps that change nothing."""
    times: list[float] = []
    sizes: list[int] = []
    for seconds, size in points:
        if not sizes or int(size) != sizes[-1]:
            times.append(seconds)
            sizes.append(int(size))
    return Curve(tuple(times), tuple(sizes))


@dataclass(frozen=True)
class Job:
    """A run as it will be: its request, its arrival, and its memory over seconds of its own work.

    ``vram`` is per device.  A ``stopped`` job is a service: its user ends it.  ``load`` names its
    row in the table of slowdowns.  ``estimates`` are the bytes that published estimators give.
    """

    request: Request
    arrives_s: float
    works_s: float
    vram: Curve
    ram: Curve = Curve()
    stopped: bool = False
    load: str = ""
    estimates: Mapping[str, int] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return self.request.run_id

    @property
    def gpus(self) -> int:
        return self.request.gpus

    def episodes_at(self, work_s: float) -> int:
        """How many episodes are done after so many seconds of work."""
        return min(self.request.setting.episodes, int(self._episodes(work_s)))

    def next_episode_after(self, work_s: float) -> float:
        done = self.episodes_at(work_s)
        if done >= self.request.setting.episodes:
            return math.inf
        return (done + 1) * self.works_s / self.request.setting.episodes

    def _episodes(self, work_s: float) -> float:
        # A quotient of floats may fall just short of the whole number that it stands for.
        return work_s * self.request.setting.episodes / self.works_s + 1e-9


@dataclass(frozen=True)
class Outsider:
    """A process that asks nobody: an idle notebook, or somebody else's program, on one device."""

    name: str
    device: str
    vram: Curve  # over seconds of the simulation
    is_notebook: bool = False


@dataclass(frozen=True)
class World:
    """Everything that happens on a machine, whoever decides when a job starts."""

    devices: tuple[Device, ...]
    ram_bytes: int
    jobs: tuple[Job, ...]
    outsiders: tuple[Outsider, ...] = ()
    pairs: Pairs = field(default_factory=dict)
    background_ram_bytes: int = GB
    grain_s: float = 1.0  # times are rounded up to multiples of it

    def rounded_up(self, seconds: float) -> float:
        """Return the time at which something that is due at ``seconds`` happens."""
        return math.ceil(seconds / self.grain_s - 1e-6) * self.grain_s

    def speed(self, load: str, others: Sequence[str]) -> float:
        """Return the speed beside others on a device, never less than an equal share of it."""
        speed = math.prod(self.pairs.get((load, other), 1.0) for other in others)
        return max(speed, 1 / (1 + len(others)))


class Start(NamedTuple):
    """A decision to start a job; ``cap_bytes`` is enforced on each device, where it is set."""

    run_id: str
    devices: tuple[str, ...]
    cap_bytes: int | None = None
