"""Caps: the charge of a run, or for a run of unknown need all memory that nobody was promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from jupyter_gpugate.core.admission.room import Room
from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.requests import Basis, Enforcement, Grant
from jupyter_gpugate.core.resources import MB
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import GateState

#: A cap rises in steps of at least this much, since each step is written down.
STEP_BYTES: Final = 256 * MB


def contexts_bytes(state: GateState, device: Device, workers: int) -> int:
    """Return the memory that the workers' contexts take and no framework's cap counts."""
    return state.device_overhead.get(device.model, 0) * workers


def cap_within(state: GateState, room: Room, workers: int, most_bytes: int) -> int:
    """Return the cap of a framework in a run that is to hold at most so much of a device."""
    contexts = contexts_bytes(state, room.device, workers) if room.device else 0
    # A cap of nothing would end a run whose charge is smaller than a context.
    return most_bytes - (contexts if contexts < most_bytes else 0)


def widened(state: GateState, rooms: Mapping[str, Room], grant: Grant) -> Grant:
    """Return a grant of this tick whose watch runs may use what all of its grants have left."""
    workers = state.queue[grant.run_id].request.setting.workers
    caps = {
        uuid: cap_within(
            state, rooms[uuid], workers, grant.charges[uuid] + max(0, rooms[uuid].room_bytes)
        )
        for uuid in grant.devices
        if grant.basis[uuid] is Basis.WATCH
    }
    return replace(grant, caps={**grant.caps, **caps})


def followed(
    state: GateState, rooms: Mapping[str, Room], grants: Iterable[Grant]
) -> dict[str, dict[str, int]]:
    """Return the new caps of live watch runs, by run and device.

    A cap falls where a neighbour is admitted, to the charge at least and to what the run holds, and
    rises with the memory that nobody was promised.
    """
    joined = frozenset(uuid for grant in grants for uuid in grant.devices)
    changes = {}
    for lease in state.leases.values():
        caps = {}
        for uuid in watched_caps(lease):
            room, cap = rooms.get(uuid), lease.caps[uuid]
            if room is None or not room.measured or room.declared:
                continue
            most = max(lease.charges[uuid], lease.held(uuid)) + max(0, room.room_bytes)
            new = cap_within(state, room, lease.request.setting.workers, most)
            if new >= cap + STEP_BYTES or (new < cap and uuid in joined):
                caps[uuid] = new
        if caps:
            changes[lease.run_id] = caps
    return changes


def watched_caps(lease: RunLease) -> tuple[str, ...]:
    """Return the devices on which a run's cap is enforced and follows its neighbours."""
    if lease.terms.enforcement is not Enforcement.ENFORCED:
        return ()
    return tuple(u for u in lease.caps if lease.terms.basis.get(u) is Basis.WATCH)
