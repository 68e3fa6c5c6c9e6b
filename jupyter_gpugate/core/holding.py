"""What everybody holds, read from one sample: ``observe(state, sample, now)``.

It shares the sample's bytes out, follows what each run holds and has held, and returns what
follows from that as events: peaks worth keeping, charges that settle or overrun, memory seen free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core import lingering
from jupyter_gpugate.core.attribution import attribute
from jupyter_gpugate.core.growth import can_be_told, grown
from jupyter_gpugate.core.model import (
    MB,
    RAM,
    Attribution,
    DeviceReading,
    Holder,
    HolderKind,
    Phase,
    ProcessKey,
    ResourceAttribution,
    Sample,
)
from jupyter_gpugate.core.settling import settling_events
from jupyter_gpugate.core.state import GateState, Growth, Lease, Usage

#: A peak is journalled when it has grown by this much, or by 2 %, since it last was.
PEAK_STEP_BYTES = 16 * MB


def observe(state: GateState, sample: Sample, now: float) -> tuple[GateState, tuple[ev.Event, ...]]:
    """Take a new sample in: the state that knows it, and the events that follow from it."""
    free = _free(sample)
    left = lingering.follow(state, sample, free)
    attribution = attribute(
        sample,
        _roots(state, sample),
        remembered=state.attribution.holder_of,
        lingering=lingering.claims(left),
        run_ram=_ram_reports(state, sample),
        run_vram={run_id: x.report.vram_held_bytes for run_id, x in state.leases.items()},
    )
    seen = _Seen(state, sample, attribution, free)
    state = replace(
        state,
        attribution=attribution,
        lingering=lingering.with_shares(left, attribution),
        leases={run_id: seen.of(lease) for run_id, lease in state.leases.items()},
        growth=_growth(state, sample, attribution),
        free_seen=free,
        utilisation=_utilisation(state, sample),
    )
    return state, tuple(_consequences(state, sample, now))


def readable_devices(sample: Sample) -> Iterable[DeviceReading]:
    """The devices of a sample that are a resource and could be read."""
    for reading in sample.devices:
        device = reading.device
        if reading.free_bytes is not None and not device.mig_enabled and not device.unified:
            yield reading


def _free(sample: Sample) -> dict[str, int]:
    free = {r.device.uuid: r.free_bytes or 0 for r in readable_devices(sample)}
    if sample.ram is not None:
        free[RAM] = sample.ram.free_bytes
    return free


def _roots(state: GateState, sample: Sample) -> dict[ProcessKey, Holder]:
    roots: dict[ProcessKey, Holder] = {}
    for kernel in sample.kernels:
        roots[kernel.key] = Holder(HolderKind.KERNEL, kernel.name)
    for left in state.lingering.values():
        roots.update(dict.fromkeys(left.tree, Holder(HolderKind.RUN, left.run_id)))
    for lease in state.leases.values():
        holder = Holder(HolderKind.RUN, lease.run_id)
        roots.update(dict.fromkeys(lease.tree, holder))
        if lease.process is not None:
            roots[lease.process] = holder
    return roots


def _ram_reports(state: GateState, sample: Sample) -> dict[str, int]:
    """Each run's own report, where it is no younger than the sample."""
    if sample.ram is None:
        return {}
    return {
        lease.run_id: lease.report.ram_held_bytes
        for lease in state.leases.values()
        if lease.report.ram_held_bytes is not None
        and lease.report_at is not None
        and lease.report_at <= sample.ram.taken_at
    }


def _taken_at(sample: Sample, resource: str) -> Optional[float]:
    if resource == RAM:
        return sample.ram.taken_at if sample.ram else None
    reading = sample.device(resource)
    return reading.taken_at if reading else None


# -- what live runs hold ------------------------------------------------------------------------


class _Tree(NamedTuple):
    """Resident - shared bytes of one run's processes in one sample."""

    greatest_bytes: int
    summed_bytes: int


class _Seen:
    """What one sample shows of live runs."""

    def __init__(
        self, state: GateState, sample: Sample, attribution: Attribution, free: Mapping[str, int]
    ) -> None:
        self._state = state
        self._attribution = attribution
        self._free = free
        self._taken_at = {r: _taken_at(sample, r) for r in attribution.resources}
        self._trees = _trees(sample, attribution)

    def of(self, lease: Lease) -> Lease:
        """The lease as it stands after the sample."""
        if lease.phase is Phase.GRANTED:
            return lease
        usage = dict(lease.usage)
        for resource, shares in self._attribution.resources.items():
            seen = self._usage(lease, resource, shares)
            if seen is not None:
                usage[resource] = seen
        ram, tree = usage.get(RAM), self._trees.get(lease.run_id)
        if ram is not None and tree is not None:
            usage[RAM] = replace(
                ram,
                process_peak_bytes=max(ram.process_peak_bytes, tree.greatest_bytes),
                summed_peak_bytes=max(ram.summed_peak_bytes, tree.summed_bytes),
            )
        neighbours = max(lease.neighbours, _neighbours(self._state, lease))
        return replace(lease, usage=usage, neighbours=neighbours)

    def _usage(
        self, lease: Lease, resource: str, shares: ResourceAttribution
    ) -> Optional[Usage]:
        """A run's usage of one resource; None where it has nothing to do there."""
        holder = Holder(HolderKind.RUN, lease.run_id)
        known, taken_at = lease.usage.get(resource), self._taken_at[resource]
        if known is None and holder not in shares.by_holder:
            return None
        usage = known or Usage(peak_moved_at=taken_at or 0.0)
        if taken_at is None or (usage.read_at is not None and taken_at <= usage.read_at):
            return usage
        if lease.started_at is not None and taken_at < lease.started_at:
            return usage
        if shares.fault or holder in shares.unknown:
            return self._unattributed(lease, resource, usage)
        held = shares.by_holder.get(holder, 0)
        return _moved(lease, resource, usage, held, taken_at)

    def _unattributed(self, lease: Lease, resource: str, usage: Usage) -> Usage:
        """Bytes nobody tells: the run's own report, else its share of the fall of free, else 0.

        Such a reading counts for the reservation only: it is no reading for a peak.
        """
        charge = lease.charges.get(resource, 0)
        reported = _reported(lease, resource)
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
        """How many runs there are that may have taken what was free when this one was granted."""
        others = sum(
            1
            for other in self._state.leases.values()
            if other.run_id != lease.run_id
            and resource in other.charges
            and other.granted_at >= lease.granted_at
        )
        return 1 + others


def _reported(lease: Lease, resource: str) -> Optional[int]:
    if resource == RAM:
        return lease.report.ram_held_bytes
    return lease.report.vram_held_bytes.get(resource)


def _neighbours(state: GateState, lease: Lease) -> int:
    return sum(
        1
        for other in state.leases.values()
        if other.run_id != lease.run_id and set(other.devices) & set(lease.devices)
    )


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


def _moved(lease: Lease, resource: str, usage: Usage, held: int, taken_at: float) -> Usage:
    since = usage.read_at if usage.read_at is not None else lease.started_at
    gap = taken_at - since if since is not None else 0.0
    first = usage.first_used_at
    reported = _reported(lease, resource)
    meter, overhead = "nvml", usage.overhead_bytes
    if resource == RAM:
        meter = "pss" if reported == held else "statm"
    elif reported and held > reported:
        overhead = min(held - reported, held if overhead is None else overhead)
    return replace(
        usage,
        held_bytes=held,
        meter=meter,
        peak_bytes=max(held, usage.peak_bytes),
        read_at=taken_at,
        longest_gap_s=max(usage.longest_gap_s, gap),
        first_used_at=taken_at if first is None and held else first,
        episode_at_first_use=lease.episode if first is None else usage.episode_at_first_use,
        peak_moved_at=taken_at if held > usage.peak_bytes else usage.peak_moved_at,
        overhead_bytes=overhead,
    )


# -- what else a sample shows ---------------------------------------------------------------------


def _growth(state: GateState, sample: Sample, attribution: Attribution) -> dict[str, Growth]:
    growth = dict(state.growth)
    for resource, shares in attribution.resources.items():
        taken_at = _taken_at(sample, resource)
        if taken_at is not None and can_be_told(shares):
            growth[resource] = grown(growth.get(resource, Growth()), shares, taken_at)
    return growth


def _utilisation(state: GateState, sample: Sample) -> dict[str, float]:
    """A slowly moving mean; a device that does not tell is left out, not called idle."""
    means = {}
    for reading in sample.devices:
        if reading.utilisation is not None:
            uuid = reading.device.uuid
            before = state.utilisation.get(uuid, reading.utilisation)
            means[uuid] = 0.9 * before + 0.1 * reading.utilisation
    return means


# -- consequences -------------------------------------------------------------------------------


def _consequences(state: GateState, sample: Sample, now: float) -> Iterable[ev.Event]:
    for health in sample.readers:
        major = health.detail.get("driver_version", "").split(".")[0]
        if health.name == "gpu" and major and major != state.driver:
            yield ev.DriverSeen(now, major)
    for reading in sample.devices:
        if state.inventory.get(reading.device.uuid) != reading.device:
            yield ev.DeviceSeen(now, reading.device)
    for lease in state.leases.values():
        if lease.phase is not Phase.GRANTED:
            yield from _peaks(lease, now)
            yield from settling_events(state, lease, now)
    for left in state.lingering.values():
        if lingering.is_over(left, state.traits.linger_s, now):
            yield ev.Released(now, left.run_id, left.resource)


def _peaks(lease: Lease, now: float) -> Iterable[ev.Event]:
    grown_peaks = {
        resource: usage.peak_bytes
        for resource, usage in lease.usage.items()
        if usage.peak_bytes - usage.journalled_peak_bytes
        > max(PEAK_STEP_BYTES, usage.journalled_peak_bytes // 50)
    }
    if grown_peaks:
        yield ev.Measured(now, lease.run_id, lease.fence, grown_peaks)
