"""The inputs of a decision as JSON data, and back: ``replay(inputs_of(...))``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from jupyter_gpugate.core.codec import JsonObject, from_json, to_json
from jupyter_gpugate.core.leases import Granted, Lingering, RunLease
from jupyter_gpugate.core.queued import Queued, RequestKey
from jupyter_gpugate.core.samples import (
    Device,
    DeviceReading,
    RamReading,
    ReaderHealth,
    Sample,
)
from jupyter_gpugate.core.shares import Growth
from jupyter_gpugate.core.state import GateState, Lock, Traits


@dataclass(frozen=True)
class Inputs:
    """The inputs of `decide` from a state and a sample: enough to repeat its decisions."""

    now: float
    traits: Traits
    queue: tuple[Queued, ...]
    leases: tuple[RunLease, ...]
    lingering: tuple[Lingering, ...]
    locks: tuple[Lock, ...]
    draining: Optional[str]
    run_sides: Mapping[str, float]
    inventory: tuple[Device, ...]
    growth: Mapping[str, Growth]
    device_overhead: Mapping[str, int]
    utilisation: Mapping[str, float]
    fence: int
    patient_until: float
    ram: Optional[RamReading]
    devices: tuple[DeviceReading, ...]
    readers: tuple[ReaderHealth, ...]
    strangers: Mapping[str, int] = field(default_factory=dict)
    last_fences: Mapping[str, int] = field(default_factory=dict)


def inputs_of(state: GateState, sample: Sample, now: float) -> JsonObject:
    """The ``inputs`` of a snapshot, as JSON data."""
    inputs = Inputs(
        now=now,
        traits=state.traits,
        queue=tuple(state.queue.values()),
        leases=tuple(map(_without_others, state.leases.values())),
        lingering=tuple(state.lingering.values()),
        locks=tuple(state.locks.values()),
        draining=state.draining,
        run_sides=state.run_sides,
        inventory=tuple(state.inventory.values()),
        growth=state.growth,
        device_overhead=state.device_overhead,
        utilisation=state.utilisation,
        fence=state.fence,
        patient_until=state.patient_until,
        ram=sample.ram,
        devices=sample.devices,
        readers=sample.readers,
        strangers=state.strangers,
        last_fences=state.last_fences,
    )
    data: JsonObject = to_json(inputs)
    return data


def _without_others(lease: RunLease) -> RunLease:
    """Leave out who held memory beside a run and grew: it decides nothing."""
    live = lease.live
    if live is None:
        return replace(lease, stage=Granted({}))
    measured = replace(live.measured, others={}, grown={})
    return replace(lease, stage=replace(live, measured=measured))


def replay(data: Mapping[str, Any]) -> tuple[GateState, Sample, float]:
    """Rebuild from a snapshot's ``inputs`` what `decide` was given.

    Raises `ProtocolError` where the data have another form.
    """
    inputs = from_json(Inputs, data, "inputs")
    alike: dict[RequestKey, dict[str, None]] = {}
    for queued in inputs.queue:
        alike.setdefault(queued.key, {})[queued.request.run_id] = None
    state = GateState(
        traits=inputs.traits,
        queue={queued.request.run_id: queued for queued in inputs.queue},
        alike=alike,
        leases={lease.run_id: lease for lease in inputs.leases},
        lingering={(left.run_id, left.resource): left for left in inputs.lingering},
        locks={lock.resource: lock for lock in inputs.locks},
        draining=inputs.draining,
        run_sides=inputs.run_sides,
        inventory={device.uuid: device for device in inputs.inventory},
        growth=inputs.growth,
        device_overhead=inputs.device_overhead,
        utilisation=inputs.utilisation,
        fence=inputs.fence,
        patient_until=inputs.patient_until,
        strangers=inputs.strangers,
        last_fences=inputs.last_fences,
    )
    sample = Sample(ram=inputs.ram, devices=inputs.devices, readers=inputs.readers)
    return state, sample, inputs.now
