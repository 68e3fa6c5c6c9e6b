"""The processes that grew during a run, named if it ran out of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Optional

from jupyter_gpugate.core.leases import Lease, Measured
from jupyter_gpugate.core.reports import RunEnd
from jupyter_gpugate.core.resources import MB, RAM, HolderKind
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.shares import ResourceAttribution, Rise, Share, Who
from jupyter_gpugate.core.state import Ended, GateState

#: Smaller changes are not attributed to anybody.
LEAST_RISE_BYTES = 64 * MB
#: A resource with less than this free counts as full.
FULL_BYTES = 256 * MB
#: Ends that a full resource may have caused, and the evidence for it.
FAILURES = (RunEnd.FAILED, RunEnd.OOM, RunEnd.LOST)
FULL_BY_EVIDENCE = {"device_full": "vram", "host_oom_killer": RAM, "memory_error": RAM}

Held = tuple[Share, ...]


def others_of(shares: ResourceAttribution, leases: Mapping[str, Lease]) -> Optional[Held]:
    """Return unpromised memory by holder; None if holders cannot be distinguished from runs."""
    if shares.fault or any(holder.kind is HolderKind.RUN for holder in shares.unknown):
        return None
    held: dict[Who, int] = {}
    for holder, size in shares.by_holder.items():
        if holder.kind is not HolderKind.RUN:
            held[Who("notebook", holder.name)] = size
        elif holder.name in leases:
            excess = size - leases[holder.name].terms.charges.get(shares.resource, 0)
            held[Who("run", holder.name)] = max(0, excess)
    for process in shares.external:
        named = process.pid and process.start_ticks is not None
        who = Who("process", "", process.pid, process.start_ticks) if named else Who("")
        held[who] = held.get(who, 0) + (process.held_bytes or 0)
    return tuple(Share(who, size) for who, size in held.items())


def rises(before: Held, now: Held, run_id: str, sample: Sample) -> tuple[Rise, ...]:
    """Return who holds more than before, largest growth first; empty if the total is small."""
    first = {share.who: share.held_bytes for share in before}
    grown = [
        Rise(share.who, share.held_bytes - first.get(share.who, 0), _uid(share.who, sample))
        for share in now
        if share.held_bytes > first.get(share.who, 0) and share.who != Who("run", run_id)
    ]
    enough = sum(one.rise_bytes for one in grown) >= LEAST_RISE_BYTES
    return tuple(sorted(grown, key=lambda one: -one.rise_bytes)) if enough else ()


def _uid(who: Who, sample: Sample) -> Optional[int]:
    process = sample.processes.get(who.pid)
    return process.uid if process and process.start_ticks == who.start_ticks else None


class Growers:
    """Tracks who grows beside the live runs, one sample at a time."""

    def __init__(self, state: GateState, sample: Sample, free: Mapping[str, int]) -> None:
        self._state = state
        self._sample = sample
        self._free = free
        self._others: dict[str, Optional[Held]] = {}

    def beside(
        self, lease: Lease, measured: Measured, shares: Mapping[str, ResourceAttribution]
    ) -> Measured:
        """Add the growth of others on a lease's resources while those were short."""
        before, grown = dict(measured.others), dict(measured.grown)
        for resource in (RAM, *lease.terms.devices):
            known = resource in shares and resource in self._free
            if not known or (resource in before and not self._is_short(lease, measured, resource)):
                continue
            now = self._on(shares[resource])
            if now is None:
                continue
            first = before.setdefault(resource, now)
            newest = rises(first, now, lease.holder.name, self._sample)
            if _sum(newest) > _sum(grown.get(resource, ())):
                grown[resource] = newest
        if (before, grown) == (measured.others, measured.grown):
            return measured
        return replace(measured, others=before, grown=grown)

    def _is_short(self, lease: Lease, measured: Measured, resource: str) -> bool:
        charge, free = lease.charges.get(resource, 0), self._free[resource]
        usage = measured.usage.get(resource)
        return is_short(free + (usage.held_bytes if usage else 0), charge, free)

    def _on(self, shares: ResourceAttribution) -> Optional[Held]:
        if shares.resource not in self._others:
            self._others[shares.resource] = others_of(shares, self._state.leases)
        return self._others[shares.resource]


def is_short(left_bytes: int, charge_bytes: int, free_bytes: int) -> bool:
    """Return whether a run's charge is no longer available, or the resource is full."""
    return left_bytes < charge_bytes or free_bytes < FULL_BYTES


def who_grew(state: GateState, sample: Sample, run_id: str) -> dict[str, tuple[Rise, ...]]:
    """Return who grew, by resource that a failed run lacked; up to this sample if it is newer."""
    ended = state.ended.get(run_id)
    if ended is None or ended.end.kind not in FAILURES or ended.evidence == "own_cap":
        return {}
    told = dict(ended.grown)
    for resource, before in ended.others.items():
        shares = state.attribution.resources.get(resource)
        now = others_of(shares, state.leases) if shares else None
        if now is not None and (_is_evident(ended, resource) or _lacks(state, run_id, resource)):
            newest = rises(before, now, run_id, sample)
            if _sum(newest) > _sum(told.get(resource, ())):
                told[resource] = newest
    return {resource: grown for resource, grown in told.items() if grown}


def _is_evident(ended: Ended, resource: str) -> bool:
    full = FULL_BY_EVIDENCE.get(ended.evidence)
    return full == RAM if resource == RAM else full == "vram"


def _lacks(state: GateState, run_id: str, resource: str) -> bool:
    free = state.free_seen.get(resource)
    left = state.lingering.get((run_id, resource))
    if free is None:
        return False
    held = left.held_bytes if left else 0
    return is_short(free + held, state.ended[run_id].charges.get(resource, 0), free)


def _sum(grown: Iterable[Rise]) -> int:
    return sum(one.rise_bytes for one in grown)
