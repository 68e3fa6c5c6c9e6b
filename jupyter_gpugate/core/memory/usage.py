"""The memory of live runs in one sample: held, peaks, and their meters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Optional

from jupyter_gpugate.core.leases import Lease, Live, RunLease, Usage
from jupyter_gpugate.core.memory.growers import Growers
from jupyter_gpugate.core.resources import MB, RAM, HolderKind
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.shares import Attribution, ResourceAttribution
from jupyter_gpugate.core.state import GateState

#: A peak has risen noticeably when it has grown by this much, or by 2 %.
PEAK_STEP_BYTES = 16 * MB


def taken_at_of(sample: Sample, resource: str) -> Optional[float]:
    """Return the time of this resource's reading; None without one."""
    if resource == RAM:
        return sample.ram.taken_at if sample.ram else None
    reading = sample.device(resource)
    return reading.taken_at if reading else None


class _Tree(NamedTuple):
    """Resident - shared bytes of one run's processes in one sample."""

    greatest_bytes: int
    summed_bytes: int


_NOBODY = _Tree(0, 0)


class UsageInSample:
    """The memory of live runs in one sample."""

    def __init__(
        self, state: GateState, sample: Sample, attribution: Attribution, free: Mapping[str, int]
    ) -> None:
        self._state = state
        self._attribution = attribution
        self._free = free
        self._taken_at = {r: taken_at_of(sample, r) for r in attribution.resources}
        self._trees = _trees(sample, attribution)
        self._growers = Growers(state, sample, free)

    def of(self, lease: RunLease) -> RunLease:
        """Return the lease after the sample."""
        live = lease.live
        if live is None:
            return lease
        usage = dict(live.measured.usage)
        for resource, shares in self._attribution.resources.items():
            of_it = self._usage(lease, live, resource, shares)
            if of_it is not None:
                usage[resource] = of_it
        neighbours = max(live.measured.neighbours, _neighbours(self._state, lease))
        measured = replace(live.measured, usage=usage, neighbours=neighbours)
        measured = self._growers.beside(lease, measured, self._attribution.resources)
        return replace(lease, stage=replace(live, measured=measured))

    def _usage(
        self, lease: Lease, live: Live, resource: str, shares: ResourceAttribution
    ) -> Optional[Usage]:
        """A holder's usage of one resource; None where it has nothing to do there."""
        holder = lease.holder
        known, taken_at = live.measured.usage.get(resource), self._taken_at[resource]
        if known is None and holder not in shares.by_holder:
            return None
        usage = known or Usage(peak_moved_at=taken_at or 0.0)
        if taken_at is None or (usage.read_at is not None and taken_at <= usage.read_at):
            return usage
        if taken_at < live.started_at:
            return usage
        if shares.fault or holder in shares.unknown:
            return self._unattributed(lease, live, resource, usage)
        held = shares.by_holder.get(holder, 0)
        moved = _moved(live, usage, held, taken_at)
        if resource == RAM:
            return self._of_ram(lease, live, moved)
        return _of_device(live, resource, moved)

    def _of_ram(self, lease: Lease, live: Live, usage: Usage) -> Usage:
        """Return the usage with the meter of its RAM and the peaks of its processes."""
        tree = self._trees.get(lease.holder.name, _NOBODY)
        by_report = live.reported.report.ram_held_bytes == usage.held_bytes
        return replace(
            usage,
            meter="pss" if by_report else "statm",
            process_peak_bytes=max(usage.process_peak_bytes, tree.greatest_bytes),
            summed_peak_bytes=max(usage.summed_peak_bytes, tree.summed_bytes),
        )

    def _unattributed(self, lease: Lease, live: Live, resource: str, usage: Usage) -> Usage:
        """Return the usage by the run's report, else its share of the fall of free, else 0.

        The result counts for the reservation only, not for a peak.
        """
        charge = lease.charges.get(resource, 0)
        reported = _reported(live, resource)
        if reported is not None:
            return replace(usage, held_bytes=min(charge, reported), meter="report")
        free = self._free.get(resource)
        if free is None:
            return usage
        if usage.free_at_grant is None:
            before = self._state.free_seen.get(resource, free)
            usage = replace(usage, free_at_grant=before)
        fallen = max(0, (usage.free_at_grant or 0) - free)
        held = min(charge, fallen // self._granted_since(lease, resource))
        return replace(usage, held_bytes=held, meter="by_delta")

    def _granted_since(self, lease: Lease, resource: str) -> int:
        """Count the runs that may have taken memory that was free when this one was granted."""
        others = sum(
            1
            for other in self._state.leases.values()
            if other.holder != lease.holder
            and resource in other.charges
            and other.terms.granted_at >= lease.terms.granted_at
        )
        return 1 + others


def _reported(live: Live, resource: str) -> Optional[int]:
    report = live.reported.report
    return report.ram_held_bytes if resource == RAM else report.vram_held_bytes.get(resource)


def _neighbours(state: GateState, lease: Lease) -> int:
    """Count the other runs and other holders on a run's devices."""
    devices = set(lease.terms.devices)
    runs = sum(
        1
        for other in state.leases.values()
        if other.holder != lease.holder and not devices.isdisjoint(other.terms.devices)
    )
    return runs + sum(state.strangers.get(uuid, 0) for uuid in devices)


def _trees(sample: Sample, attribution: Attribution) -> dict[str, _Tree]:
    trees: dict[str, _Tree] = {}
    for key, holder in attribution.holder_of.items():
        process = sample.processes.get(key.pid)
        if holder.kind is HolderKind.RUN and process and process.start_ticks == key.start_ticks:
            private = process.private_bytes
            tree = trees.get(holder.name, _Tree(0, 0))
            greatest, summed = max(private, tree.greatest_bytes), private + tree.summed_bytes
            trees[holder.name] = _Tree(greatest, summed)
    return trees


def _moved(live: Live, usage: Usage, held: int, taken_at: float) -> Usage:
    """Return the usage after a reading, whatever the resource."""
    since = usage.read_at if usage.read_at is not None else live.started_at
    first, rises = usage.first_used_at, held > usage.peak_bytes
    climbs = held > usage.plateau_bytes + max(PEAK_STEP_BYTES, usage.plateau_bytes // 50)
    return replace(
        usage,
        held_bytes=held,
        peak_bytes=max(held, usage.peak_bytes),
        read_at=taken_at,
        longest_gap_s=max(usage.longest_gap_s, taken_at - since),
        first_used_at=taken_at if first is None and held else first,
        episode_at_first_use=(
            live.reported.episode if first is None else usage.episode_at_first_use
        ),
        peak_moved_at=taken_at if rises else usage.peak_moved_at,
        plateau_bytes=held if climbs else usage.plateau_bytes,
        plateau_at=taken_at if climbs else usage.plateau_at,
        episode_at_peak=live.reported.episode if rises else usage.episode_at_peak,
    )


def _of_device(live: Live, uuid: str, usage: Usage) -> Usage:
    """Return the usage with its meter and the least overhead of its contexts."""
    reported, least, held = _reported(live, uuid), usage.overhead_bytes, usage.held_bytes
    if reported and held > reported:
        least = min(held - reported, held if least is None else least)
    return replace(usage, meter="nvml", overhead_bytes=least)
