"""The figures of one replay, and their means over seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.resources import GB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyter_gpugate.gate.simulation.replay import Attempt, Story

OWN_CAP = "own_cap"


@dataclass(frozen=True)
class Figures:
    """One policy on one world; means of several worlds have the same fields."""

    jobs: float
    lost: float  # jobs that ended out of memory, or never started
    wait_mean_s: float  # from the submit to the start of the attempt that counts
    wait_p95_s: float
    makespan_s: float
    own_cap: float  # attempts that hit their own cap
    own_cap_with_room: float  # of those: although the device still had the memory
    device_full: float  # attempts that ended because others held the memory, or the RAM
    outsiders_ended: float  # notebooks and strangers who found a device full
    oom_jobs: float  # jobs of which any attempt ran out of memory
    repaired: float  # of those: jobs that a later attempt completed
    wasted_gb_h: float  # charged and not used, on devices
    used_share: float  # of all devices' memory, while anything was to be done
    calibrated: float  # admissions by a measurement
    undercharged: float  # of those: true peak above the charge
    waited_s: float  # run-seconds in the queue
    ran_s: float
    held_back_s: float  # run-seconds in the queue of runs that would have fitted

    @property
    def held_back_share(self) -> float:
        return self.held_back_s / self.waited_s if self.waited_s else 0.0

    @property
    def undercharged_share(self) -> float:
        return self.undercharged / self.calibrated if self.calibrated else 0.0


def figures_of(story: Story) -> Figures:
    """Work out the figures of a replay."""
    last = {attempt.job.run_id: attempt for attempt in story.attempts}
    waits = [_wait(story, last.get(job.run_id), job.arrives_s) for job in story.world.jobs]
    ooms = [a for a in story.attempts if a.outcome is AttemptOutcome.OOM]
    hit = {a.job.run_id for a in ooms}
    saved = {run_id for run_id in hit if last[run_id].outcome is not AttemptOutcome.OOM}
    calibrated = [a for a in story.attempts if a.basis == "calibrated"]
    begun = min((job.arrives_s for job in story.world.jobs), default=0.0)
    makespan = story.ended_at - begun
    memory = sum(device.total_bytes for device in story.world.devices)
    return Figures(
        jobs=len(story.world.jobs),
        lost=len(hit - saved) + sum(job.run_id not in last for job in story.world.jobs),
        wait_mean_s=statistics.fmean(waits),
        wait_p95_s=sorted(waits)[math.ceil(0.95 * len(waits)) - 1],
        makespan_s=makespan,
        own_cap=sum(a.evidence == OWN_CAP for a in ooms),
        own_cap_with_room=sum(a.had_room for a in ooms),
        device_full=sum(a.evidence != OWN_CAP for a in ooms),
        outsiders_ended=story.outsiders_ended,
        oom_jobs=len(hit),
        repaired=len(saved),
        wasted_gb_h=story.wasted / GB / 3600,
        used_share=story.used / (memory * makespan) if makespan else 0.0,
        calibrated=len(calibrated),
        undercharged=sum(a.job.vram.peak > a.charge_bytes for a in calibrated),
        waited_s=story.waited,
        ran_s=story.ran,
        held_back_s=sum(story.held_back.values()),
    )


def _wait(story: Story, attempt: Attempt | None, arrives_s: float) -> float:
    return (story.ended_at if attempt is None else attempt.granted_at) - arrives_s


def mean_of(some: Sequence[Figures]) -> Figures:
    """Return the mean of each figure."""
    return Figures(
        **{f.name: statistics.fmean(getattr(one, f.name) for one in some) for f in fields(Figures)}
    )


def as_json(figures: Figures) -> dict[str, Any]:
    """Return the figures with the shares that follow from them."""
    return asdict(figures) | {
        "held_back_share": figures.held_back_share,
        "undercharged_share": figures.undercharged_share,
    }


def from_json(data: Mapping[str, Any]) -> Figures:
    """Read figures back."""
    return Figures(**{f.name: data[f.name] for f in fields(Figures)})
