"""Observations of ended attempts, and the evidence of one setting's observations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Optional

from jupyter_gpugate.core.reports import AttemptOutcome
from jupyter_gpugate.core.requests import Enforcement, Family, Setting

#: Complete observations that a need is read from; an outlier is gone after so many.
WINDOW: Final = 10


@dataclass(frozen=True)
class Observation:
    """The record of one attempt on one kind of resource (``"ram"`` or ``"vram"``, per device)."""

    family: Family
    setting: Setting
    resource: str  # RAM or VRAM
    peak_bytes: int
    complete: bool  # may set or lower a need; else a lower bound
    at: float  # wall clock, for people and for order
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED
    charge_bytes: Optional[int] = None
    cap_bytes: Optional[int] = None
    enforcement: Enforcement = Enforcement.NONE
    oom_at_bytes: Optional[int] = None
    device_total_bytes: Optional[int] = None
    duration_s: Optional[float] = None
    neighbours: int = 0
    run_id: str = ""
    #: Memory of others that grew and shrank with the run: then it teaches nothing.
    elsewhere_bytes: Optional[int] = None

    @property
    def bound_bytes(self) -> int:
        """The least that such an attempt needs, as far as this one has shown."""
        return max(self.peak_bytes, self.oom_at_bytes or 0)

    @property
    def given_bytes(self) -> int:
        """The most that the attempt was given: its charge, or the wider cap of a watch run."""
        return max(self.charge_bytes, self.cap_bytes or 0) if self.charge_bytes else 0

    @property
    def enforced_cap_bytes(self) -> Optional[int]:
        """The cap, where the run could not exceed it."""
        return self.cap_bytes if self.enforcement is Enforcement.ENFORCED else None


@dataclass(frozen=True)
class Evidence:
    """The combined evidence of one setting's observations (bytes)."""

    complete: tuple[Observation, ...]  # the last ten, newest first
    bound_bytes: int  # greatest lower bound that no later enforced cap has refuted
    oom_bytes: int  # greatest out-of-memory figure since the last complete one, else 0
    cap_bytes: Optional[int]  # least enforced cap that sufficed since the last out-of-memory
    #: The most that grew and shrank elsewhere with attempts since the last complete one.
    elsewhere_bytes: int = 0

    @property
    def greatest(self) -> Observation:
        """The complete observation with the greatest peak; the newest of equals."""
        return max(self.complete, key=lambda observation: observation.peak_bytes)

    @property
    def peaks(self) -> tuple[int, ...]:
        return tuple(observation.peak_bytes for observation in self.complete)


@dataclass(frozen=True)
class Track:
    """One family in one setting on one resource: its observations, oldest first."""

    family: Family
    setting: Setting
    resource: str
    observations: tuple[Observation, ...]

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence of this track; computed once, because a track never changes."""
        return weigh(self.observations)


@dataclass(frozen=True)
class Calibration:
    """All observations that still count; a new value per change, sharing what did not change."""

    names: Mapping[tuple[str, str], tuple[Track, ...]] = field(default_factory=dict)

    def tracks(self, owner: str, name: str) -> tuple[Track, ...]:
        """Return the tracks of one owner's name, the one observed last at the end."""
        return self.names.get((owner, name), ())

    def observations(self) -> Iterator[Observation]:
        """Everything kept, in an order from which `from_observations` builds the same again."""
        for tracks in self.names.values():
            for track in tracks:
                yield from track.observations


def weigh(observations: Sequence[Observation]) -> Evidence:
    """Read the evidence off observations of one setting, given oldest first."""
    complete: list[Observation] = []
    bound, oom, cap, oom_later, elsewhere = 0, 0, None, False, 0
    for observation in reversed(observations):
        if observation.complete:
            if len(complete) < WINDOW:
                complete.append(observation)
            enforced = observation.enforced_cap_bytes
            if enforced is not None and not oom_later:
                cap = enforced if cap is None else min(cap, enforced)
            continue
        if not complete:
            elsewhere = max(elsewhere, observation.elsewhere_bytes or 0)
        if observation.oom_at_bytes is not None:
            oom_later = True
            oom = oom if complete else max(oom, observation.oom_at_bytes)
        if len(complete) < WINDOW:
            shown = observation.bound_bytes
            bound = max(bound, shown if cap is None else min(shown, cap))
    return Evidence(tuple(complete), bound, oom, cap, elsewhere)
