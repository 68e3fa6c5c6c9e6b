"""``snapshot(state, sample, decisions, now)``: the whole state in one answer.

All numbers are bytes or seconds; formatting belongs to the faces, except the ``message`` of a
reason.  `inputs_of` returns the inputs of `decide`, which suffice to repeat its decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jupyter_gpugate.core.admission.devices import ignored_settings
from jupyter_gpugate.core.admission.room import Room, earmark, rooms
from jupyter_gpugate.core.codec import to_json
from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.explaining.inputs import inputs_of, replay
from jupyter_gpugate.core.explaining.waiting import WaitingRows, queued_row, reason_rows
from jupyter_gpugate.core.leases import Lingering, RunLease, Stopping
from jupyter_gpugate.core.naming import name_of
from jupyter_gpugate.core.resources import RAM, VRAM, HolderKind
from jupyter_gpugate.core.samples import ReaderHealth, Sample
from jupyter_gpugate.core.shares import ResourceAttribution
from jupyter_gpugate.core.state import GateState

__all__ = ["inputs_of", "queued_row", "reason_rows", "replay", "running_row", "snapshot"]

#: The kernel counts a process's start in hundredths of a second since boot.
_TICKS_PER_S = 100


def snapshot(state: GateState, sample: Sample, decisions: Decisions, now: float) -> dict[str, Any]:
    """Everything that people and other programs may know of this tick."""
    here = rooms(state, sample, now)
    for mark in decisions.earmarks:
        earmark(here, mark)
    here = {resource: room for resource, room in here.items() if not room.cgroup}
    return {
        "tick": state.tick,
        "now": now,
        "reach": "user",
        "running": [running_row(state, lease, now) for lease in state.leases.values()],
        "queued": list(WaitingRows(state, decisions, now).all()),
        "lingering": [_lingering_row(left) for left in state.lingering.values()],
        "free_bytes": {r: room.free_bytes for r, room in here.items() if room.measured},
        "floors": {r: room.floor_bytes for r, room in here.items()},
        "reservations": {r: room.reserved_bytes for r, room in here.items()},
        "room_bytes": {r: room.room_bytes for r, room in here.items() if room.measured},
        "earmarks": [to_json(mark) for mark in decisions.earmarks],
        "attribution": _attribution(state, sample),
        "devices": [_device_row(state, sample, room) for room in here.values() if room.device],
        "unified": [device_words(state, u) for u, d in state.inventory.items() if d.unified],
        "external": list(_external_rows(state, sample, now)),
        "readers": [_reader_row(health, now) for health in sample.readers],
        "locks": [to_json(lock) for lock in state.locks.values()],
        "draining": state.draining,
        "ignored_settings": list(ignored_settings(state)),
        "declared": {r: _declared_row(room) for r, room in here.items() if room.declared},
        "traits": to_json(state.traits),
    }


def running_row(state: GateState, lease: RunLease, now: float) -> dict[str, Any]:
    """Return the row of one live attempt: its charge, its held memory and its reservation."""
    request, terms = lease.request, lease.terms
    resources = sorted({*lease.charges, *lease.usage})
    return {
        "run_id": lease.run_id,
        "name": request.family.name,
        "owner": request.owner,
        "phase": lease.phase.value,
        "attempt": lease.attempt.number,
        "fence": terms.fence,
        "devices": [device_words(state, uuid) for uuid in terms.devices],
        "elsewhere": [u for u in lease.usage if u not in (RAM, *terms.devices) and lease.held(u)],
        "charges": dict(lease.charges),
        "held": {r: lease.held(r) for r in resources},
        "meters": {r: u.meter for r, u in lease.usage.items()},
        "peaks": {r: u.peak_bytes for r, u in lease.usage.items()},
        "reservations": {r: lease.reservation(r) for r in resources},
        "settled": {r: u.settled for r, u in lease.usage.items()},
        "overrun": [r for r, u in lease.usage.items() if u.overrun_at is not None],
        "admit_basis": {r: b.value for r, b in terms.basis.items()},
        "caps": dict(terms.caps),
        "enforcement": terms.enforcement.value,
        "exclusive": terms.exclusive,
        **_supervised_part(state, lease, now),
        "estimate": to_json(lease.attempt.estimate),
    }


def _supervised_part(state: GateState, lease: RunLease, now: float) -> dict[str, Any]:
    """The part of a row that only a supervisor can fill."""
    live = lease.live
    stop = live.stop_reason if isinstance(live, Stopping) else ""
    overdue = live is not None and now - live.reported.at > state.traits.lease_ttl_s
    done = live.reported.episode if live else 0
    return {
        "pid": live.process.pid if live else None,
        "tree": [list(key) for key in live.reported.tree] if live else [],
        "overdue": overdue,
        "stop_reason": stop,
        "cancel_requested": stop.startswith("cancelled"),
        "kill_pending": "kill_pending" in stop,
        "episodes": {"done": done, "of": lease.request.setting.episodes},
        "started_s": now - live.started_at if live else None,
        "mapped_bytes": live.reported.report.mapped_bytes if live else None,
    }


def _lingering_row(left: Lingering) -> dict[str, Any]:
    return {
        "run_id": left.run_id,
        "owner": left.owner,
        "resource": left.resource,
        "held_bytes": left.held_bytes,
        "reserved_bytes": left.reservation(),
        "kill_pending": left.tree_alive,
    }


def _declared_row(room: Room) -> dict[str, Any]:
    return {
        "usable": room.free_bytes,
        "declared": room.reserved_bytes,
        "left": room.free_bytes - room.reserved_bytes,
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


def device_words(state: GateState, uuid: str) -> dict[str, Any]:
    """A device as people know it."""
    device = state.inventory.get(uuid)
    return {
        "uuid": uuid,
        "model": device.model if device else "",
        "index": device.index if device else None,
        "name": name_of(state.inventory, uuid),
    }


def _device_row(state: GateState, sample: Sample, room: Room) -> dict[str, Any]:
    reading, closed = sample.device(room.resource), room.locked or room.unread
    return {
        **device_words(state, room.resource),
        "total_bytes": room.total_bytes,
        "free_bytes": room.free_bytes if room.measured else None,
        "floor_bytes": room.floor_bytes,
        "reserved_bytes": room.reserved_bytes,
        "leases": room.leases,
        "driver_reserved_bytes": reading.driver_reserved_bytes if reading else None,
        "utilisation": reading.utilisation if reading else None,
        "source": reading.source if reading else "",
        "fault": to_json(reading.fault) if reading and reading.fault else None,
        "state": closed.check.value if closed else "ok",
        "message": explain(state, closed) if closed else "",
    }


def _external_rows(state: GateState, sample: Sample, now: float) -> Iterator[dict[str, Any]]:
    for resource, shares in state.attribution.resources.items():
        for held in shares.external:
            process = sample.processes.get(held.pid)
            known = process is not None and process.start_ticks == held.start_ticks
            ticks = held.start_ticks
            yield {
                "resource": resource,
                "pid": held.pid,
                "start_ticks": ticks,
                "uid": process.uid if process is not None and known else None,
                "age_s": None if ticks is None else max(0.0, now - ticks / _TICKS_PER_S),
                "held_bytes": held.held_bytes,
                "note": held.note,
            }


def _reader_row(health: ReaderHealth, now: float) -> dict[str, Any]:
    return {
        "name": health.name,
        "present": health.present,
        "age_s": None if health.taken_at is None else now - health.taken_at,
        "fault": to_json(health.fault) if health.fault else None,
        "detail": dict(health.detail),
    }
