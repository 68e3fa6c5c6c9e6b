"""``snapshot(state, sample, decisions, now)``: the one answer that explains everything.

All numbers are bytes or seconds; formatting belongs to the faces, but for the ``message`` of a
reason.  ``inputs`` is what `decide` saw: `replay` makes the same decisions from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from jupyter_gpugate.core.decisions import Check, Decisions, Reason
from jupyter_gpugate.core.explain import HELD_BY_THIS_NOTEBOOK, explain, megabytes, resource_words
from jupyter_gpugate.core.model import (
    RAM,
    VRAM,
    Attribution,
    Device,
    DeviceReading,
    Holder,
    HolderKind,
    RamReading,
    ReaderHealth,
    ResourceAttribution,
    Sample,
)
from jupyter_gpugate.core.protocol import from_json, to_json
from jupyter_gpugate.core.room import Room, rooms
from jupyter_gpugate.core.state import (
    GateState,
    Growth,
    GroupKey,
    Lease,
    Lingering,
    Lock,
    Queued,
    Traits,
)


def snapshot(
    state: GateState, sample: Sample, decisions: Decisions, now: float
) -> dict[str, Any]:
    """Everything that people and other programs may know of this tick."""
    here = rooms(state, sample, now)
    return {
        "tick": state.tick,
        "now": now,
        "reach": "user",
        "running": [running_row(state, lease, now) for lease in state.leases.values()],
        "queued": [
            queued_row(state, decisions, queued, position, now)
            for position, queued in enumerate(state.queue.values(), start=1)
        ],
        "lingering": [_lingering_row(left) for left in state.lingering.values()],
        "free_bytes": {r: room.free_bytes for r, room in here.items() if _measured(room)},
        "floors": {r: room.floor_bytes for r, room in here.items()},
        "reservations": {r: room.reserved_bytes for r, room in here.items()},
        "room_bytes": {r: room.room_bytes for r, room in here.items() if _measured(room)},
        "earmarks": [to_json(mark) for mark in decisions.earmarks],
        "attribution": _attribution(state, sample),
        "devices": [_device_row(state, sample, room) for room in here.values() if room.device],
        "external": _external_rows(state),
        "readers": [_reader_row(health, now) for health in sample.readers],
        "locks": [to_json(lock) for lock in state.locks.values()],
        "draining": state.draining,
        "declared": {
            r: {"usable": state.traits.usable_vram_bytes[r], "left": room.declared_left_bytes}
            for r, room in here.items()
            if room.declared_left_bytes is not None
        },
        "traits": to_json(state.traits),
    }


def running_row(state: GateState, lease: Lease, now: float) -> dict[str, Any]:
    """One live attempt: what it was charged, what it holds, and what is still reserved for it."""
    request = lease.request
    resources = sorted({*lease.charges, *lease.usage})
    return {
        "run_id": lease.run_id,
        "name": request.family.name,
        "owner": request.owner,
        "phase": lease.phase.value,
        "attempt": lease.attempt,
        "fence": lease.fence,
        "devices": [_device_words(state, uuid) for uuid in lease.devices],
        "elsewhere": [u for u in lease.usage if u not in (RAM, *lease.devices) and lease.held(u)],
        "charges": dict(lease.charges),
        "held": {r: lease.held(r) for r in resources},
        "meters": {r: u.meter for r, u in lease.usage.items()},
        "peaks": {r: u.peak_bytes for r, u in lease.usage.items()},
        "reservations": {r: lease.reservation(r) for r in resources},
        "settled": {r: u.settled for r, u in lease.usage.items()},
        "overrun": [r for r, u in lease.usage.items() if u.overrun_at is not None],
        "admit_basis": {r: b.value for r, b in lease.basis.items()},
        "caps": dict(lease.caps),
        "enforcement": lease.enforcement.value,
        "exclusive": request.exclusive,
        "pid": lease.process.pid if lease.process else None,
        "tree": [list(key) for key in lease.tree],
        "overdue": lease.beat_at is not None and now - lease.beat_at > state.traits.lease_ttl_s,
        "stop_reason": lease.stop_reason,
        "episodes": {"done": lease.episode, "of": request.setting.episodes},
        "started_s": None if lease.started_at is None else now - lease.started_at,
        "mapped_bytes": lease.report.mapped_bytes,
        "estimate": to_json(lease.estimate),
    }


def queued_row(
    state: GateState, decisions: Decisions, queued: Queued, position: int, now: float
) -> dict[str, Any]:
    """One request kept waiting, with its reasons, the dominant one first."""
    request = queued.request
    return {
        "run_id": request.run_id,
        "name": request.family.name,
        "owner": request.owner,
        "position": position,
        "waited_s": now - queued.submitted_at,
        "gpus": request.gpus,
        "class": request.job_class,
        "exclusive": request.exclusive,
        "attempts": queued.attempts,
        "estimate": to_json(queued.estimate),
        "reasons": reason_rows(state, decisions, queued),
        "eta_s": None,
    }


def reason_rows(state: GateState, decisions: Decisions, queued: Queued) -> list[dict[str, Any]]:
    """The reasons of one request; memory that its own notebook holds is named first."""
    reasons = decisions.reasons_of(queued.key)
    rows = [
        {
            "kind": reason.check.value,
            "resource": reason.resource,
            "message": explain(state, reason),
            "numbers": dict(reason.numbers),
            "who": list(reason.who),
        }
        for reason in reasons
    ]
    own = _held_by_its_notebook(state, queued, reasons)
    return [own, *rows] if own else rows


def _held_by_its_notebook(
    state: GateState, queued: Queued, reasons: Iterable[Reason]
) -> Optional[dict[str, Any]]:
    kernel = queued.request.kernel
    holder = state.attribution.holder_of.get(kernel.key) if kernel else None
    if holder is None or holder.kind is not HolderKind.KERNEL:
        return None
    for reason in reasons:
        shares = state.attribution.resources.get(reason.resource or "")
        held = shares.by_holder.get(holder, 0) if shares else 0
        short = reason.numbers.get("need_bytes", 0) - reason.numbers.get("room_bytes", 0)
        if reason.check in (Check.FIT, Check.EXTERNAL_HOLDS) and 0 < short <= held:
            where = resource_words(state, reason.resource or "")
            message = (
                f"this notebook itself holds {megabytes(held)} of {where} that the run waits for: "
                "free it (del, gc.collect, torch.cuda.empty_cache) or restart the kernel"
            )
            return {
                "kind": HELD_BY_THIS_NOTEBOOK,
                "resource": reason.resource,
                "message": message,
                "numbers": {"held_bytes": held, "short_bytes": short},
                "who": [holder.name],
            }
    return None


def _measured(room: Room) -> bool:
    return room.blocked is None and room.declared_left_bytes is None


def _lingering_row(left: Lingering) -> dict[str, Any]:
    return {
        "run_id": left.run_id,
        "owner": left.owner,
        "resource": left.resource,
        "held_bytes": left.held_bytes,
        "tree_alive": left.tree_alive,
    }


def _attribution(state: GateState, sample: Sample) -> dict[str, Any]:
    by_resource = state.attribution.resources
    devices = {r: shares for r, shares in by_resource.items() if r != RAM}
    resources = {r: _shares_row(shares) for r, shares in by_resource.items()}
    summed: dict[str, Any] = {}
    if RAM in by_resource:
        summed[RAM] = resources[RAM]
    if devices:
        summed[VRAM] = _sum_rows([_shares_row(shares) for shares in devices.values()])
    return {
        "resources": summed,
        "devices": {r: row for r, row in resources.items() if r != RAM},
        "pids_are_ours": sample.pids_are_ours,
    }


def _shares_row(shares: ResourceAttribution) -> dict[str, Any]:
    def of(kind: HolderKind) -> dict[str, int]:
        return {h.name: b for h, b in shares.by_holder.items() if h.kind is kind}

    return {
        "used_total": shares.used_bytes,
        "attributed": shares.attributed_bytes,
        "external": shares.external_bytes,
        "overlap": shares.overlap_bytes,
        "runs": of(HolderKind.RUN),
        "kernels": of(HolderKind.KERNEL),
        "model_servers": of(HolderKind.MODEL_SERVER),
        "fault": shares.fault,
    }


def _sum_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for key in ("used_total", "attributed", "external", "overlap"):
        total[key] = sum(row[key] for row in rows)
    for key in ("runs", "kernels", "model_servers"):
        names = sorted({name for row in rows for name in row[key]})
        total[key] = {name: sum(row[key].get(name, 0) for row in rows) for name in names}
    faults = [row["fault"] for row in rows if row["fault"]]
    total["fault"] = faults[0] if faults else None
    return total


def _device_words(state: GateState, uuid: str) -> dict[str, Any]:
    device = state.inventory.get(uuid)
    return {
        "uuid": uuid,
        "model": device.model if device else "",
        "index": device.index if device else None,
    }


def _device_row(state: GateState, sample: Sample, room: Room) -> dict[str, Any]:
    reading = sample.device(room.resource)
    return {
        **_device_words(state, room.resource),
        "total_bytes": room.total_bytes,
        "free_bytes": room.free_bytes if _measured(room) else None,
        "floor_bytes": room.floor_bytes,
        "reserved_bytes": room.reserved_bytes,
        "leases": room.leases,
        "driver_reserved_bytes": reading.driver_reserved_bytes if reading else None,
        "utilisation": reading.utilisation if reading else None,
        "source": reading.source if reading else "",
        "fault": to_json(reading.fault) if reading and reading.fault else None,
        "state": room.blocked.check.value if room.blocked else "ok",
        "message": explain(state, room.blocked) if room.blocked else "",
    }


def _external_rows(state: GateState) -> list[dict[str, Any]]:
    return [
        {
            "resource": resource,
            "pid": process.pid,
            "start_ticks": process.start_ticks,
            "held_bytes": process.held_bytes,
            "note": process.note,
        }
        for resource, shares in state.attribution.resources.items()
        for process in shares.external
    ]


def _reader_row(health: ReaderHealth, now: float) -> dict[str, Any]:
    return {
        "name": health.name,
        "present": health.present,
        "age_s": None if health.taken_at is None else now - health.taken_at,
        "fault": to_json(health.fault) if health.fault else None,
        "detail": dict(health.detail),
    }


# -- what a decision rests on, and the way back -----------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """What `decide` sees of a state and a sample: enough to make the same decisions again."""

    now: float
    traits: Traits
    queue: tuple[Queued, ...]
    leases: tuple[Lease, ...]
    lingering: tuple[Lingering, ...]
    locks: tuple[Lock, ...]
    draining: Optional[str]
    run_sides: Mapping[str, float]
    inventory: tuple[Device, ...]
    growth: Mapping[str, Growth]
    device_overhead: Mapping[str, int]
    runs_held: Mapping[str, int]
    utilisation: Mapping[str, float]
    fence: int
    patient_until: float
    ram: Optional[RamReading]
    devices: tuple[DeviceReading, ...]
    readers: tuple[ReaderHealth, ...]


def inputs_of(state: GateState, sample: Sample, now: float) -> dict[str, Any]:
    """The ``inputs`` of a snapshot, as JSON data."""
    inputs = Inputs(
        now=now,
        traits=state.traits,
        queue=tuple(state.queue.values()),
        leases=tuple(state.leases.values()),
        lingering=tuple(state.lingering.values()),
        locks=tuple(state.locks.values()),
        draining=state.draining,
        run_sides=state.run_sides,
        inventory=tuple(state.inventory.values()),
        growth=state.growth,
        device_overhead=state.device_overhead,
        runs_held={r: room.runs_held_bytes for r, room in rooms(state, sample, now).items()},
        utilisation=state.utilisation,
        fence=state.fence,
        patient_until=state.patient_until,
        ram=sample.ram,
        devices=sample.devices,
        readers=sample.readers,
    )
    data: dict[str, Any] = to_json(inputs)
    return data


def replay(data: Mapping[str, Any]) -> tuple[GateState, Sample, float]:
    """Rebuild from a snapshot's ``inputs`` what `decide` was given."""
    inputs = from_json(Inputs, data, "inputs")
    groups: dict[GroupKey, dict[str, None]] = {}
    for queued in inputs.queue:
        groups.setdefault(queued.key, {})[queued.request.run_id] = None
    state = GateState(
        traits=inputs.traits,
        queue={queued.request.run_id: queued for queued in inputs.queue},
        groups=groups,
        leases={lease.run_id: lease for lease in inputs.leases},
        lingering={(left.run_id, left.resource): left for left in inputs.lingering},
        locks={lock.resource: lock for lock in inputs.locks},
        draining=inputs.draining,
        run_sides=inputs.run_sides,
        inventory={device.uuid: device for device in inputs.inventory},
        growth=inputs.growth,
        device_overhead=inputs.device_overhead,
        attribution=Attribution(
            {r: _runs_only(r, held) for r, held in inputs.runs_held.items()}, {}
        ),
        utilisation=inputs.utilisation,
        fence=inputs.fence,
        patient_until=inputs.patient_until,
    )
    sample = Sample(ram=inputs.ram, devices=inputs.devices, readers=inputs.readers)
    return state, sample, inputs.now


def _runs_only(resource: str, held: int) -> ResourceAttribution:
    return ResourceAttribution(resource, held, {Holder(HolderKind.RUN, ""): held}, 0, 0)

