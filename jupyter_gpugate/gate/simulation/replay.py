"""Replays a workload under a policy, and integrates over time what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.gate.simulation.physics import Ended, Physics, Running
from jupyter_gpugate.gate.simulation.workload import Job, Start, World

#: A device has no room for a run beyond this many, whatever the policy.
MOST_ON_DEVICE = 8
#: The floor of a GPU: what even a policy that knows every need leaves free.
FLOOR_BYTES = 256 << 20
#: A policy that has not ended a workload by then never will.
LONGEST_S = 3 * 86400.0


class Policy(Protocol):
    """Decides which jobs start, where, and with how much memory."""

    def next_tick(self, physics: Physics, change: float) -> float:
        """The time of the next decision: ``change``, when something happens, or earlier."""

    def tick(self, physics: Physics, arrived: Sequence[Job], ended: Sequence[Ended]) -> list[Start]:
        """The jobs to start now, given the news since the last tick."""

    def started(self, run: Running) -> None:
        """Take note of a job that has been started as decided."""

    def queued(self) -> Mapping[str, str]:
        """The jobs that wait, each with the check that keeps it waiting."""

    def charges(self) -> Mapping[str, Mapping[str, int]]:
        """Bytes that are charged now, by run and resource."""

    def basis(self, run_id: str) -> str:
        """How well the need of a live job on its devices was known when it was started."""


@dataclass
class Attempt:
    """One attempt of a job, as it was granted and as it ended."""

    job: Job
    granted_at: float
    basis: str
    charge_bytes: int  # per device
    ended_at: float = math.inf
    outcome: AttemptOutcome | None = None
    evidence: str = ""
    had_room: bool = False


@dataclass
class Story:
    """All that happened in one replay; integrals are in byte-seconds and run-seconds."""

    world: World
    attempts: list[Attempt] = field(default_factory=list)
    charged: float = 0.0
    wasted: float = 0.0  # charged and not used
    used: float = 0.0
    waited: float = 0.0
    ran: float = 0.0
    held_back: dict[str, float] = field(default_factory=dict)  # although it fitted; by check
    outsiders_ended: int = 0
    ticks: int = 0
    ended_at: float = 0.0

    def of(self, run_id: str) -> Iterator[Attempt]:
        return (one for one in self.attempts if one.job.run_id == run_id)


def replay(world: World, policy: Policy) -> Story:
    """Let every job of a world arrive, and follow it to its end."""
    return _Replay(world, policy).run()


class _Replay:
    def __init__(self, world: World, policy: Policy) -> None:
        self.policy = policy
        self.physics = Physics(world)
        self.story = Story(world)
        self.live: dict[str, Attempt] = {}
        self.jobs = {job.run_id: job for job in world.jobs}
        self.to_come = sorted(world.jobs, key=lambda job: job.arrives_s)[::-1]

    def run(self) -> Story:
        while self.to_come or self.physics.runs or self.policy.queued():
            change = min(self.physics.next_change(), self._next_arrival(), LONGEST_S)
            at = self.policy.next_tick(self.physics, change)
            self._integrate(at - self.physics.now)
            if at >= LONGEST_S:
                break
            ended = self.physics.advance(at)
            for one in ended:
                self._note_end(one)
            for start in self.policy.tick(self.physics, self._arrived(), ended):
                self._start(start)
            self.story.ticks += 1
        self.story.outsiders_ended = self.physics.outsiders_ended
        return self.story

    def _next_arrival(self) -> float:
        if not self.to_come:
            return math.inf
        world, next_one = self.physics.world, self.to_come[-1]
        return max(self.physics.now + world.grain_s, world.rounded_up(next_one.arrives_s))

    def _arrived(self) -> list[Job]:
        arrived = []
        while self.to_come and self.to_come[-1].arrives_s <= self.physics.now:
            arrived.append(self.to_come.pop())
        return arrived

    def _start(self, start: Start) -> None:
        job = self.jobs[start.run_id]
        self.policy.started(self.physics.start(job, start))
        charges = self.policy.charges()[job.run_id]
        charge = min((charges[device] for device in start.devices), default=0)
        basis = self.policy.basis(job.run_id)
        self.live[job.run_id] = Attempt(job, self.physics.now, basis, charge)
        self.story.attempts.append(self.live[job.run_id])

    def _note_end(self, ended: Ended) -> None:
        attempt = self.live.pop(ended.running.job.run_id)
        attempt.ended_at, attempt.outcome = ended.at, ended.outcome
        attempt.evidence, attempt.had_room = ended.evidence, ended.had_room
        self.story.ended_at = max(self.story.ended_at, ended.at)

    def _integrate(self, seconds: float) -> None:
        """Add what is so until the next tick."""
        story, charges = self.story, self.policy.charges()
        story.ran += len(self.physics.runs) * seconds
        for run_id, run in self.physics.runs.items():
            for device in run.start.devices:
                held = run.worker.gpu_bytes.get(device, 0)
                charge = charges.get(run_id, {}).get(device, 0)
                story.charged += charge * seconds
                story.wasted += max(0, charge - held) * seconds
                story.used += held * seconds
        queued = self.policy.queued()
        story.waited += len(queued) * seconds
        for run_id in fitting(self.physics, [self.jobs[run_id] for run_id in queued]):
            check = queued[run_id]
            story.held_back[check] = story.held_back.get(check, 0.0) + seconds


def fitting(physics: Physics, jobs: Sequence[Job]) -> list[str]:
    """The jobs that would fit now, each by itself: beside the full peaks of the runs there."""
    if not jobs:
        return []
    rooms = true_rooms(physics)
    ram = physics.world.ram_bytes - sum(r.job.ram.peak for r in physics.runs.values())
    return [
        job.run_id
        for job in jobs
        if sum(room >= job.vram.peak for room in rooms.values()) >= job.gpus
        and job.ram.peak <= ram - physics.world.ram_bytes // 25
    ]


def true_rooms(physics: Physics) -> dict[str, int]:
    """What each device could give, knowing the full peak of every run there."""
    rooms = {}
    for device in physics.world.devices:
        here = [r for r in physics.runs.values() if device.uuid in r.start.devices]
        taken = sum(r.job.vram.peak for r in here) + physics.held_by_others(device.uuid)
        full = len(here) >= MOST_ON_DEVICE
        rooms[device.uuid] = -1 if full else device.total_bytes - taken - FLOOR_BYTES
    return rooms
