"""What everybody holds, read from one sample: ``observe(state, sample, now)``.

It shares the sample's bytes out, follows what each run holds and has held, and returns what
follows from that as events: peaks worth keeping, charges that settle or overrun, memory seen free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.attribution import attribute
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
from jupyter_gpugate.core.state import GateState, Growth, Lease, Lingering, Usage

#: A peak is journalled when it has grown by this much, or by 2 %, since it last was.
PEAK_STEP_BYTES = 16 * MB
GROWTH_WINDOW_S = 60.0
GROWTH_MEMORY_S = 600.0
GROWTH_BUCKET_S = 10.0
#: This much of what a gone run held is back: the rest is nobody's to wait for.
RETURNED_SHARE = 0.95


def observe(state: GateState, sample: Sample, now: float) -> tuple[GateState, tuple[ev.Event, ...]]:
    """Take a new sample in: the state that knows it, and the events that follow from it."""
    lingering = {key: _follow(left, sample) for key, left in state.lingering.items()}
    attribution = attribute(
        sample,
        _roots(state, sample),
        remembered=state.attribution.holder_of,
        lingering=_still_held(lingering.values()),
        run_ram=_ram_reports(state, sample),
    )
    state = replace(
        state,
        attribution=attribution,
        lingering=_with_attributed(lingering, attribution),
        leases=_leases(state, sample, attribution),
        growth=_growth(state, sample, attribution),
        free_seen=_free(sample),
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


# -- memory of runs that are gone ---------------------------------------------------------------


def _follow(left: Lingering, sample: Sample) -> Lingering:
    """How much of a gone run's memory this sample still shows."""
    alive = left.tree_alive and (
        not sample.processes
        or any(
            pid in sample.processes and sample.processes[pid].start_ticks == ticks
            for pid, ticks in left.tree
        )
    )
    free = _free(sample).get(left.resource)
    held = left.last_held_bytes
    if not alive and free is not None and left.free_at_end is not None:
        held = max(0, held - max(0, free - left.free_at_end))
    return replace(left, tree_alive=alive, held_bytes=held)


def _still_held(lingering: Iterable[Lingering]) -> dict[str, dict[Holder, int]]:
    held: dict[str, dict[Holder, int]] = {}
    for left in lingering:
        if left.held_bytes and not left.tree_alive:
            holder = Holder(HolderKind.RUN, left.run_id)
            held.setdefault(left.resource, {})[holder] = left.held_bytes
    return held


def _with_attributed(
    lingering: Mapping[tuple[str, str], Lingering], attribution: Attribution
) -> dict[tuple[str, str], Lingering]:
    """A tree that still lives holds what the sample attributes to it."""
    result = {}
    for key, left in lingering.items():
        shares = attribution.resources.get(left.resource)
        if left.tree_alive and shares is not None and not shares.fault:
            held = shares.by_holder.get(Holder(HolderKind.RUN, left.run_id), 0)
            left = replace(left, held_bytes=held, last_held_bytes=max(held, left.last_held_bytes))
        result[key] = left
    return result


# -- what live runs hold ------------------------------------------------------------------------


def _leases(
    state: GateState, sample: Sample, attribution: Attribution
) -> dict[str, Lease]:
    greatest = _greatest_process(sample, attribution)
    leases = {}
    for run_id, lease in state.leases.items():
        if lease.phase is Phase.GRANTED:
            leases[run_id] = lease
            continue
        usage = dict(lease.usage)
        for resource, shares in attribution.resources.items():
            taken_at = _taken_at(sample, resource)
            seen = _seen(state, lease, resource, shares, sample, taken_at)
            if seen is not None:
                usage[resource] = seen
        ram = usage.get(RAM)
        if ram is not None:
            peak = max(ram.process_peak_bytes, greatest.get(run_id, 0))
            usage[RAM] = replace(ram, process_peak_bytes=peak)
        neighbours = max(lease.neighbours, _neighbours(state, lease))
        leases[run_id] = replace(lease, usage=usage, neighbours=neighbours)
    return leases


def _neighbours(state: GateState, lease: Lease) -> int:
    return sum(
        1
        for other in state.leases.values()
        if other.run_id != lease.run_id and set(other.devices) & set(lease.devices)
    )


def _greatest_process(sample: Sample, attribution: Attribution) -> dict[str, int]:
    greatest: dict[str, int] = {}
    for key, holder in attribution.holder_of.items():
        process = sample.processes.get(key.pid)
        if holder.kind is HolderKind.RUN and process and process.start_ticks == key.start_ticks:
            private = process.private_bytes
            greatest[holder.name] = max(private, greatest.get(holder.name, 0))
    return greatest


def _taken_at(sample: Sample, resource: str) -> Optional[float]:
    if resource == RAM:
        return sample.ram.taken_at if sample.ram else None
    reading = sample.device(resource)
    return reading.taken_at if reading else None


def _seen(
    state: GateState,
    lease: Lease,
    resource: str,
    shares: ResourceAttribution,
    sample: Sample,
    taken_at: Optional[float],
) -> Optional[Usage]:
    """A run's usage of one resource after this sample; None where it has nothing to do there."""
    holder = Holder(HolderKind.RUN, lease.run_id)
    known = lease.usage.get(resource)
    if known is None and holder not in shares.by_holder:
        return None
    usage = known or Usage(peak_moved_at=taken_at or 0.0)
    if taken_at is None or (usage.read_at is not None and taken_at <= usage.read_at):
        return usage
    if shares.fault or holder in shares.unknown:
        return _unattributed(state, lease, resource, usage, sample)
    if lease.started_at is not None and taken_at < lease.started_at:
        return usage
    held = shares.by_holder.get(holder, 0)
    meter = "nvml"
    if resource == RAM:
        meter = "pss" if lease.report.ram_held_bytes == held else "statm"
    return _moved(lease, usage, held, meter, taken_at)


def _moved(lease: Lease, usage: Usage, held: int, meter: str, taken_at: float) -> Usage:
    since = usage.read_at if usage.read_at is not None else lease.started_at
    gap = taken_at - since if since is not None else 0.0
    grew = held > usage.peak_bytes
    first = usage.first_used_at
    return replace(
        usage,
        held_bytes=held,
        meter=meter,
        peak_bytes=max(held, usage.peak_bytes),
        read_at=taken_at,
        longest_gap_s=max(usage.longest_gap_s, gap),
        first_used_at=taken_at if first is None and held else first,
        episode_at_first_use=lease.episode if first is None else usage.episode_at_first_use,
        peak_moved_at=taken_at if grew else usage.peak_moved_at,
    )


def _unattributed(
    state: GateState, lease: Lease, resource: str, usage: Usage, sample: Sample
) -> Usage:
    """Bytes nobody tells: the run's own report, else its share of the fall of free, else 0.

    Such a reading counts for the reservation only: it is no reading for a peak.
    """
    charge = lease.charges.get(resource, 0)
    reported = lease.report.vram_held_bytes.get(resource)
    if reported is not None:
        return replace(usage, held_bytes=min(charge, reported), meter="report")
    free = _free(sample).get(resource)
    if free is None:
        return usage
    before = usage.free_at_grant
    if before is None:
        before = state.free_seen.get(resource, free)
        usage = replace(usage, free_at_grant=before)
    sharing = sum(
        1
        for other in state.leases.values()
        if resource in other.devices and other.granted_at >= lease.granted_at
    )
    held = min(charge, max(0, before - free) // max(1, sharing))
    return replace(usage, held_bytes=held, meter="by_delta")


# -- what others hold, and how fast it grows ------------------------------------------------------


def _growth(state: GateState, sample: Sample, attribution: Attribution) -> dict[str, Growth]:
    growth = dict(state.growth)
    for resource, shares in attribution.resources.items():
        taken_at = _taken_at(sample, resource)
        if taken_at is not None and not shares.fault:
            growth[resource] = _grown(
                growth.get(resource, Growth()), taken_at, others_bytes(shares)
            )
    return growth


def others_bytes(shares: ResourceAttribution) -> int:
    """What others than runs hold; what gone runs left behind is not theirs."""
    runs = sum(b for h, b in shares.by_holder.items() if h.kind is HolderKind.RUN)
    return max(0, shares.used_bytes - runs)


def _grown(growth: Growth, at: float, held: int) -> Growth:
    recent = tuple(p for p in growth.recent if at - p[0] <= GROWTH_WINDOW_S)
    rise = held - min((b for _, b in recent), default=held)
    bucket = at - at % GROWTH_BUCKET_S
    rises = [p for p in growth.rises if at - p[0] <= GROWTH_MEMORY_S]
    if rises and rises[-1][0] == bucket:
        rises[-1] = (bucket, max(rise, rises[-1][1]))
    else:
        rises.append((bucket, rise))
    return Growth((*recent, (at, held)), tuple(rises))


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
        if _is_back(left, state, now):
            yield ev.Released(now, left.run_id, left.resource)


def _peaks(lease: Lease, now: float) -> Iterable[ev.Event]:
    grown = {
        resource: usage.peak_bytes
        for resource, usage in lease.usage.items()
        if usage.peak_bytes - usage.journalled_peak_bytes
        > max(PEAK_STEP_BYTES, usage.journalled_peak_bytes // 50)
    }
    if grown:
        yield ev.Measured(now, lease.run_id, lease.fence, grown)


def _is_back(left: Lingering, state: GateState, now: float) -> bool:
    if left.tree_alive:
        return False
    returned = left.held_bytes <= (1 - RETURNED_SHARE) * left.last_held_bytes
    return returned or now - left.ended_at >= state.traits.linger_s
