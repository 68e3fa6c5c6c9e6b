"""Reads the memory of every holder from one sample: ``apply_sample(state, sample, now)``.

It shares the sample's bytes out, follows what each run holds and has held, and returns what
follows from that as events: peaks worth keeping, charges that settle or overrun, memory seen free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.memory import elsewhere, lingering, unmovable
from jupyter_gpugate.core.memory.attribution import attribute
from jupyter_gpugate.core.memory.growth import can_be_told, grown
from jupyter_gpugate.core.memory.neighbours import strangers
from jupyter_gpugate.core.memory.services import ready_events
from jupyter_gpugate.core.memory.settling import settling_events
from jupyter_gpugate.core.memory.usage import PEAK_STEP_BYTES, UsageInSample, taken_at_of
from jupyter_gpugate.core.resources import (
    RAM,
    Holder,
    HolderKind,
)
from jupyter_gpugate.core.samples import DeviceReading, ProcessKey, Sample
from jupyter_gpugate.core.shares import Attribution, Growth
from jupyter_gpugate.core.state import GateState


def apply_sample(
    state: GateState, sample: Sample, now: float
) -> tuple[GateState, tuple[ev.Event, ...]]:
    """Take a new sample in: the state that knows it, and the events that follow from it."""
    state = unmovable.follow(state, sample)
    free = _free(sample)
    left = lingering.follow(state, sample, free)
    reports = unmovable.reports(state, sample)
    attribution = attribute(
        sample,
        _roots(state, sample),
        remembered=state.attribution.holder_of,
        lingering=lingering.claims(left),
        run_ram=reports.private,
        run_unmovable=reports.unmovable,
        run_vram=_run_vram(state),
    )
    usage = UsageInSample(state, sample, attribution, free)
    state = replace(
        state,
        attribution=attribution,
        lingering=lingering.with_shares(left, attribution),
        leases={run_id: usage.of(lease) for run_id, lease in state.leases.items()},
        growth=_growth(state, sample, attribution),
        present=frozenset(reading.device.uuid for reading in sample.devices),
        free_seen=free,
        utilisation=_utilisation(state, sample),
        strangers=strangers(attribution, state.leases, sample),
    )
    state = elsewhere.follow(state, sample)
    return state, tuple(_consequences(state, sample, now))


def readable_devices(sample: Sample) -> Iterable[DeviceReading]:
    """The devices of a sample that are a resource and could be read."""
    for reading in sample.devices:
        device = reading.device
        readable = reading.free_bytes is not None and not reading.contradiction
        if readable and not device.mig_enabled and not device.unified:
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
        if lease.live is not None:
            roots.update(dict.fromkeys(lease.live.reported.tree, lease.holder))
            roots[lease.live.process] = lease.holder
    return roots


def _run_vram(state: GateState) -> dict[str, Mapping[str, int]]:
    """Each live run's own report of the memory that its frameworks hold, by device."""
    return {
        run_id: lease.live.reported.report.vram_held_bytes
        for run_id, lease in state.leases.items()
        if lease.live is not None
    }


# -- what else a sample shows ---------------------------------------------------------------------


def _growth(state: GateState, sample: Sample, attribution: Attribution) -> dict[str, Growth]:
    growth = dict(state.growth)
    for resource, shares in attribution.resources.items():
        taken_at = taken_at_of(sample, resource)
        if taken_at is not None and can_be_told(shares):
            growth[resource] = grown(growth.get(resource, Growth()), shares, taken_at)
    return growth


def _utilisation(state: GateState, sample: Sample) -> dict[str, float]:
    """Return a slowly moving mean; a device without a reading is omitted, not called idle."""
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
        major = health.detail.get("driver", "").split(".")[0]
        if health.name == "gpu" and major and major != state.driver:
            yield ev.DriverSeen(now, major)
    for reading in sample.devices:
        if state.inventory.get(reading.device.uuid) != reading.device:
            yield ev.DeviceSeen(now, reading.device)
    for lease in state.leases.values():
        if lease.live is not None:
            yield from _peaks(lease, now)
            yield from ready_events(state, lease, now)
            yield from settling_events(state, lease, now)
    for left in state.lingering.values():
        if lingering.is_over(left, state.traits.linger_s, now):
            yield ev.Released(now, left.run_id, left.resource)


def _peaks(lease: RunLease, now: float) -> Iterable[ev.Event]:
    grown_peaks = {
        resource: usage.peak_bytes
        for resource, usage in lease.usage.items()
        if usage.peak_bytes - usage.journalled_peak_bytes
        > max(PEAK_STEP_BYTES, usage.journalled_peak_bytes // 50)
    }
    if grown_peaks:
        yield ev.Measured(now, lease.run_id, lease.terms.fence, grown_peaks)
