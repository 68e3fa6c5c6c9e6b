"""``snapshot(state, sample, decisions, now)``: the whole state in one answer.

All numbers are bytes or seconds; formatting belongs to the faces, except the ``message`` of a
reason.  `inputs_of` returns the inputs of `decide`, which suffice to repeat its decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from jupyter_gpugate.core.admission.devices import ignored_settings
from jupyter_gpugate.core.admission.room import Room, earmark, rooms
from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.endings import write_stop
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.explaining.inputs import inputs_of, replay
from jupyter_gpugate.core.explaining.rows import (
    AttributionRow,
    DeclaredRow,
    DeviceName,
    DeviceRow,
    EpisodeCount,
    ExternalRow,
    LingeringRow,
    ReaderRow,
    RunningRow,
    Shares,
    Snapshot,
)
from jupyter_gpugate.core.explaining.waiting import WaitingRows, queued_row, reason_rows
from jupyter_gpugate.core.leases import Lingering, Live, RunLease, Stopping
from jupyter_gpugate.core.naming import name_of
from jupyter_gpugate.core.resources import RAM, VRAM, HolderKind
from jupyter_gpugate.core.samples import ReaderHealth, Sample
from jupyter_gpugate.core.shares import ResourceAttribution
from jupyter_gpugate.core.state import GateState

__all__ = ["inputs_of", "queued_row", "reason_rows", "replay", "running_row", "snapshot"]

#: The kernel counts a process's start in hundredths of a second since boot.
_TICKS_PER_S = 100


def snapshot(state: GateState, sample: Sample, decisions: Decisions, now: float) -> Snapshot:
    """Everything that people and other programs may know of this tick."""
    here = rooms(state, sample, now)
    for mark in decisions.earmarks:
        earmark(here, mark)
    here = {resource: room for resource, room in here.items() if not room.cgroup}
    return Snapshot(
        tick=state.tick,
        now=now,
        reach="user",
        running=tuple(running_row(state, lease, now) for lease in state.leases.values()),
        queued=tuple(WaitingRows(state, decisions, now).all()),
        lingering=tuple(_lingering_row(left) for left in state.lingering.values()),
        free_bytes={r: room.free_bytes for r, room in here.items() if room.measured},
        floors={r: room.floor_bytes for r, room in here.items()},
        reservations={r: room.reserved_bytes for r, room in here.items()},
        room_bytes={r: room.room_bytes for r, room in here.items() if room.measured},
        earmarks=decisions.earmarks,
        attribution=_attribution(state, sample),
        devices=tuple(_device_row(state, sample, room) for room in here.values() if room.device),
        unified=tuple(device_name(state, u) for u, d in state.inventory.items() if d.unified),
        external=tuple(_external_rows(state, sample, now)),
        readers=tuple(_reader_row(health, now) for health in sample.readers),
        locks=tuple(state.locks.values()),
        draining=state.draining,
        ignored_settings=tuple(ignored_settings(state)),
        declared={r: _declared_row(room) for r, room in here.items() if room.declared},
        traits=state.traits,
        journal_fault=None,  # the gate that has one adds it
        sample_fault="",
    )


def running_row(state: GateState, lease: RunLease, now: float) -> RunningRow:
    """Return the row of one live attempt: its charge, its held memory and its reservation."""
    request, terms, live = lease.request, lease.terms, lease.live
    resources = sorted({*lease.charges, *lease.usage})
    stopping = live if isinstance(live, Stopping) else None
    return RunningRow(
        run_id=lease.run_id,
        name=request.family.name,
        group=request.group,
        owner=request.owner,
        phase=lease.phase,
        attempt=lease.attempt.number,
        fence=terms.fence,
        devices=tuple(device_name(state, uuid) for uuid in terms.devices),
        elsewhere=tuple(uuid for uuid in lease.elsewhere if lease.held(uuid)),
        charges=lease.charges,
        held={r: lease.held(r) for r in resources},
        meters={r: u.meter for r, u in lease.usage.items()},
        peaks={r: u.peak_bytes for r, u in lease.usage.items()},
        reservations={r: lease.reservation(r) for r in resources},
        settled={r: u.settled for r, u in lease.usage.items()},
        overrun=tuple(r for r, u in lease.usage.items() if u.overrun_at is not None),
        admit_basis=terms.basis,
        caps=lease.caps,
        enforcement=terms.enforcement,
        exclusive=terms.exclusive,
        service=terms.service,
        ready=not lease.is_loading if terms.service else None,
        pid=live.process.pid if live else None,
        tree=live.reported.tree if live else (),
        overdue=live is not None and now - live.reported.at > state.traits.lease_ttl_s,
        stop_reason=write_stop(stopping.stop, stopping.survivors) if stopping else "",
        cancel_requested=stopping is not None and stopping.stop.is_cancel,
        kill_pending=stopping is not None and bool(stopping.survivors),
        episodes=EpisodeCount(_episodes_of(live), request.setting.episodes),
        started_s=now - live.started_at if live else None,
        mapped_bytes=live.reported.report.mapped_bytes if live else None,
        estimate=lease.attempt.estimate,
        retry=lease.attempt.queued.retry_with(terms.charges),
    )


def _episodes_of(live: Optional[Live]) -> int:
    return live.reported.episode + live.reported.resumed if live else 0


def _lingering_row(left: Lingering) -> LingeringRow:
    return LingeringRow(
        run_id=left.run_id,
        owner=left.owner,
        resource=left.resource,
        held_bytes=left.held_bytes,
        reserved_bytes=left.reservation(),
        kill_pending=left.tree_alive,
    )


def _declared_row(room: Room) -> DeclaredRow:
    left = room.free_bytes - room.reserved_bytes
    return DeclaredRow(usable=room.free_bytes, declared=room.reserved_bytes, left=left)


def _attribution(state: GateState, sample: Sample) -> AttributionRow:
    shares = {r: _shares(one) for r, one in state.attribution.resources.items()}
    devices = {r: row for r, row in shares.items() if r != RAM}
    summed: dict[str, Shares] = {}
    if RAM in shares:
        summed[RAM] = shares[RAM]
    if devices:
        summed[VRAM] = _sum([*devices.values()])
    return AttributionRow(summed, devices, sample.pids_are_ours)


def _shares(shares: ResourceAttribution) -> Shares:
    def of(kind: HolderKind) -> dict[str, int]:
        return {h.name: b for h, b in shares.by_holder.items() if h.kind is kind}

    return Shares(
        used_total=shares.used_bytes,
        attributed=shares.attributed_bytes,
        external=shares.external_bytes,
        overlap=shares.overlap_bytes,
        runs=of(HolderKind.RUN),
        kernels=of(HolderKind.KERNEL),
        model_servers=of(HolderKind.MODEL_SERVER),
        fault=shares.fault,
    )


def _sum(rows: Sequence[Shares]) -> Shares:
    return Shares(
        used_total=sum(row.used_total for row in rows),
        attributed=sum(row.attributed for row in rows),
        external=sum(row.external for row in rows),
        overlap=sum(row.overlap for row in rows),
        runs=_sum_by_name([row.runs for row in rows]),
        kernels=_sum_by_name([row.kernels for row in rows]),
        model_servers=_sum_by_name([row.model_servers for row in rows]),
        fault=next((row.fault for row in rows if row.fault), None),
    )


def _sum_by_name(amounts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = sorted({name for one in amounts for name in one})
    return {name: sum(one.get(name, 0) for one in amounts) for name in names}


def device_name(state: GateState, uuid: str) -> DeviceName:
    """A device as people know it."""
    device = state.inventory.get(uuid)
    return DeviceName(
        uuid=uuid,
        model=device.model if device else "",
        index=device.index if device else None,
        name=name_of(state.inventory, uuid),
    )


def _device_row(state: GateState, sample: Sample, room: Room) -> DeviceRow:
    reading, closed = sample.device(room.resource), room.locked or room.unread
    return DeviceRow(
        **vars(device_name(state, room.resource)),
        total_bytes=room.total_bytes,
        free_bytes=room.free_bytes if room.measured else None,
        floor_bytes=room.floor_bytes,
        reserved_bytes=room.reserved_bytes,
        leases=room.leases,
        neighbours=room.neighbours,
        driver_reserved_bytes=reading.driver_reserved_bytes if reading else None,
        utilisation=reading.utilisation if reading else None,
        source=reading.source if reading else "",
        fault=reading.fault if reading else None,
        state=closed.check.value if closed else "ok",
        message=explain(state, closed) if closed else "",
    )


def _external_rows(state: GateState, sample: Sample, now: float) -> Iterator[ExternalRow]:
    for resource, shares in state.attribution.resources.items():
        for held in shares.external:
            process = sample.processes.get(held.pid)
            known = process is not None and process.start_ticks == held.start_ticks
            ticks = held.start_ticks
            yield ExternalRow(
                resource=resource,
                pid=held.pid,
                start_ticks=ticks,
                uid=process.uid if process is not None and known else None,
                age_s=None if ticks is None else max(0.0, now - ticks / _TICKS_PER_S),
                held_bytes=held.held_bytes,
                note=held.note,
            )


def _reader_row(health: ReaderHealth, now: float) -> ReaderRow:
    return ReaderRow(
        name=health.name,
        present=health.present,
        age_s=None if health.taken_at is None else now - health.taken_at,
        fault=health.fault,
        detail=health.detail,
    )
