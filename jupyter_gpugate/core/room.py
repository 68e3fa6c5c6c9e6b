"""What admission may still give in this tick, per resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Callable, Optional

from jupyter_gpugate.core.decisions import Check, Earmark, Reason
from jupyter_gpugate.core.model import GB, MB, RAM, Device, HolderKind, Sample
from jupyter_gpugate.core.settling import holds_watch_slot, is_overrun
from jupyter_gpugate.core.state import MACHINE, GateState, Lease

RAM_FLOOR_BYTES = 2 * GB
RAM_FLOOR_SHARE = 0.04
GPU_FLOOR_BYTES = 256 * MB
GPU_FLOOR_SHARE = 0.10


@dataclass
class Room:
    """One resource in this tick; grants of the same tick take from it as they are made."""

    resource: str
    total_bytes: int
    free_bytes: int
    floor_bytes: int
    reserved_bytes: int  # of leases, and of gone runs whose tree still lives
    runs_held_bytes: int
    earmarked_bytes: int = 0  # set aside for somebody else's run
    blocked: Optional[Reason] = None  # nobody can be admitted here at all
    leases: int = 0
    exclusive: tuple[str, ...] = ()  # runs that have the device for themselves
    unsettled: tuple[str, ...] = ()  # runs that keep the device's one watch slot
    overrun: tuple[str, ...] = ()
    cleared_for: Optional[str] = None  # the exclusive run that the device is kept clear for
    declared_left_bytes: Optional[int] = None  # the declared ledger, where nothing is measured
    utilisation: float = 0.0
    device: Optional[Device] = None

    @property
    def room_bytes(self) -> int:
        return self.free_bytes - self.floor_bytes - self.reserved_bytes - self.earmarked_bytes

    @property
    def alone_bytes(self) -> int:
        """What would fit with no run alive."""
        return self.free_bytes + self.runs_held_bytes - self.floor_bytes

    def take(self, charge: int, run_id: str, exclusive: bool, watch: bool) -> None:
        """Count a grant of this tick."""
        self.reserved_bytes += charge
        self.leases += 1
        if self.declared_left_bytes is not None:
            self.declared_left_bytes -= charge
        if exclusive:
            self.exclusive = (*self.exclusive, run_id)
        if watch:
            self.unsettled = (*self.unsettled, run_id)

    def numbers(self, need: int) -> dict[str, int]:
        """The arithmetic of the fit check, for people to follow."""
        return {
            "need_bytes": need,
            "free_bytes": self.free_bytes,
            "floor_bytes": self.floor_bytes,
            "reserved_bytes": self.reserved_bytes,
            "earmarked_bytes": self.earmarked_bytes,
            "room_bytes": self.room_bytes,
            "total_bytes": self.total_bytes,
        }


def rooms(state: GateState, sample: Sample, now: float) -> dict[str, Room]:
    """Every resource that gates: RAM where it was ever read, and each device of the inventory."""
    result = {RAM: _ram_room(state, sample, now)}
    for uuid, device in state.inventory.items():
        if not device.mig_enabled and not device.unified:
            result[uuid] = _device_room(state, sample, now, device)
    return result


def earmark(result: Mapping[str, Room], mark: Earmark, sign: int = 1) -> None:
    """Set a head's room aside against everybody else, or (-1) give it back."""
    for resource, need in mark.bytes_by_resource.items():
        result[resource].earmarked_bytes += sign * need


def clear_for(result: Mapping[str, Room], mark: Earmark) -> None:
    """Let nothing new start on the devices that an exclusive run waits for."""
    for uuid in mark.devices:
        result[uuid].cleared_for = mark.run_id


def _ram_room(state: GateState, sample: Sample, now: float) -> Room:
    ram = sample.ram
    room = Room(
        resource=RAM,
        total_bytes=ram.total_bytes if ram else 0,
        free_bytes=ram.free_bytes if ram else 0,
        floor_bytes=max(RAM_FLOOR_BYTES, int(RAM_FLOOR_SHARE * ram.total_bytes)) if ram else 0,
        reserved_bytes=_reserved(state, RAM),
        runs_held_bytes=_runs_held(state, RAM),
    )
    room.blocked = _stale(state, RAM, ram.taken_at if ram else None, now)
    room.overrun = _runs_where(state, lambda lease: is_overrun(lease, RAM))
    return room


def _device_room(state: GateState, sample: Sample, now: float, device: Device) -> Room:
    uuid = device.uuid
    reading = sample.device(uuid)
    free = reading.free_bytes if reading and reading.free_bytes is not None else 0
    here = [lease for lease in state.leases.values() if uuid in lease.devices]
    room = Room(
        resource=uuid,
        total_bytes=device.total_bytes,
        free_bytes=free,
        floor_bytes=gpu_floor(state, device),
        reserved_bytes=_reserved(state, uuid),
        runs_held_bytes=_runs_held(state, uuid),
        leases=len(here),
        exclusive=tuple(lease.run_id for lease in here if lease.request.exclusive),
        unsettled=_runs_where(state, lambda le: holds_watch_slot(state, le, uuid, now)),
        overrun=_runs_where(state, lambda lease: is_overrun(lease, uuid)),
        utilisation=round(state.utilisation.get(uuid, 0.0), 2),
        device=device,
    )
    lock = state.locks.get(uuid)
    usable = state.traits.usable_vram_bytes.get(uuid)
    if lock is not None:
        room.blocked = Reason(Check.LOCK, uuid, who=(lock.owner,))
    elif reading is None and not _reader_answers(sample, now, state.traits.stale_after_s):
        room.blocked = Reason(Check.STALE, uuid)
    elif reading is None:
        room.blocked = Reason(Check.MISSING, uuid)
    elif reading.free_bytes is None and usable is not None:
        room.declared_left_bytes = usable - sum(lease.charges.get(uuid, 0) for lease in here)
    elif reading.free_bytes is None:
        lost = reading.fault is not None and reading.fault.code == "GPU_IS_LOST"
        room.blocked = Reason(Check.MISSING if lost else Check.UNMEASURED, uuid)
    else:
        room.blocked = _stale(state, uuid, reading.taken_at, now)
    return room


def gpu_floor(state: GateState, device: Device) -> int:
    """Follows how fast others have grown here: at least 256 MB, at most a tenth."""
    growth = state.growth.get(device.uuid)
    rise = max((b for _, b in growth.rises), default=0) if growth else 0
    return max(GPU_FLOOR_BYTES, min(rise, int(GPU_FLOOR_SHARE * device.total_bytes)))


def machine_reason(state: GateState) -> Optional[Reason]:
    """Why nothing at all is admitted now."""
    lock = state.locks.get(MACHINE)
    if lock is not None:
        return Reason(Check.LOCK, MACHINE, who=(lock.owner,))
    if state.draining is not None:
        return Reason(Check.DRAIN, who=(state.draining,))
    return None


def _reader_answers(sample: Sample, now: float, stale_after_s: float) -> bool:
    """Whether the GPU reader is well: then a device that it does not list is gone."""
    return any(
        health.name == "gpu"
        and health.fault is None
        and health.taken_at is not None
        and now - health.taken_at <= stale_after_s
        for health in sample.readers
    )


def _stale(
    state: GateState, resource: str, taken_at: Optional[float], now: float
) -> Optional[Reason]:
    if taken_at is not None and now - taken_at <= state.traits.stale_after_s:
        return None
    age = {} if taken_at is None else {"age_ms": int(1000 * (now - taken_at))}
    return Reason(Check.STALE, resource, age)


def _reserved(state: GateState, resource: str) -> int:
    leases = sum(lease.reservation(resource) for lease in state.leases.values())
    gone = sum(x.reservation() for x in state.lingering.values() if x.resource == resource)
    return leases + gone


def _runs_held(state: GateState, resource: str) -> int:
    shares = state.attribution.resources.get(resource)
    if shares is None or shares.fault:
        return sum(lease.held(resource) for lease in state.leases.values())
    return sum(b for h, b in shares.by_holder.items() if h.kind is HolderKind.RUN)


def _runs_where(state: GateState, holds: Callable[[Lease], bool]) -> tuple[str, ...]:
    return tuple(run_id for run_id, lease in state.leases.items() if holds(lease))


def live_runs(state: GateState, devices: Iterable[str]) -> tuple[str, ...]:
    """The runs that live on any of these devices."""
    wanted = set(devices)
    return _runs_where(state, lambda lease: bool(wanted & set(lease.devices)))
