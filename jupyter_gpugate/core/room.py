"""What admission may still give in this tick, per resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Callable, Optional

from jupyter_gpugate.core.decisions import Check, Earmark, Reason
from jupyter_gpugate.core.devices import lock_on
from jupyter_gpugate.core.model import GB, MB, RAM, Device, DeviceReading, RamReading, Sample
from jupyter_gpugate.core.settling import holds_watch_slot, is_overrun
from jupyter_gpugate.core.state import MACHINE, GateState, Lease

RAM_FLOOR_BYTES = 2 * GB
RAM_FLOOR_SHARE = 0.04
GPU_FLOOR_BYTES = 256 * MB
GPU_FLOOR_SHARE = 0.10
#: A driver that takes longer than this for one pass over its boards is not waited for any longer.
SLOWEST_PASS_S = 20.0
#: The driver's own word for a device that is off the bus.
GPU_IS_LOST = "nvml-15"


@dataclass
class Room:
    """One resource in this tick; grants of the same tick take from it as they are made.

    Where the declared ledger is in force ``free_bytes`` is what an administrator declared usable,
    and ``reserved_bytes`` the sum of what is charged there.
    """

    resource: str
    total_bytes: int
    free_bytes: int
    floor_bytes: int
    reserved_bytes: int  # of leases, and of gone runs whose tree still lives
    runs_held_bytes: int  # what live and gone runs hold
    kept_bytes: int = 0  # by the driver for itself: nobody ever gets it
    earmarked_bytes: int = 0  # set aside for older runs
    measured: bool = True
    declared: bool = False
    locked: Optional[Reason] = None
    unread: Optional[Reason] = None  # no number to go by
    leases: int = 0
    exclusive: tuple[str, ...] = ()  # runs that have the device for themselves
    unsettled: tuple[str, ...] = ()  # runs that keep the device's one watch slot
    overrun: tuple[str, ...] = ()
    cleared_for: Optional[str] = None  # the exclusive run that the device is kept clear for
    utilisation: float = 0.0
    device: Optional[Device] = None
    room_bytes: int = field(init=False)  # what is left to give

    def __post_init__(self) -> None:
        kept = self.floor_bytes + self.reserved_bytes + self.earmarked_bytes
        self.room_bytes = self.free_bytes - kept

    @cached_property
    def alone_bytes(self) -> int:
        """What would fit with no run alive."""
        return self.free_bytes + self.runs_held_bytes - self.floor_bytes

    @cached_property
    def most_bytes(self) -> int:
        """What would fit with nobody else there at all."""
        if self.declared:
            return self.free_bytes
        least_floor = GPU_FLOOR_BYTES if self.device else self.floor_bytes
        return self.total_bytes - self.kept_bytes - least_floor

    def take(self, charge: int, run_id: str, *, exclusive: bool, watch: bool) -> None:
        """Count a grant of this tick."""
        self.reserved_bytes += charge
        self.room_bytes -= charge
        self.leases += 1
        if exclusive:
            self.exclusive = (*self.exclusive, run_id)
        if watch:
            self.unsettled = (*self.unsettled, run_id)

    def set_aside(self, need: int) -> None:
        """Keep so much for an older run."""
        self.earmarked_bytes += need
        self.room_bytes -= need

    def numbers(self, need: int) -> dict[str, int]:
        """The arithmetic of the fit check, for people to follow."""
        if self.declared:
            return {
                "need_bytes": need,
                "usable_bytes": self.free_bytes,
                "declared_bytes": self.reserved_bytes,
                "earmarked_bytes": self.earmarked_bytes,
                "room_bytes": self.room_bytes,
            }
        return {
            "need_bytes": need,
            "free_bytes": self.free_bytes,
            "floor_bytes": self.floor_bytes,
            "reserved_bytes": self.reserved_bytes,
            "earmarked_bytes": self.earmarked_bytes,
            "room_bytes": self.room_bytes,
            "alone_bytes": self.alone_bytes,
            "total_bytes": self.total_bytes,
        }


def rooms(state: GateState, sample: Sample, now: float) -> dict[str, Room]:
    """Every resource that gates: RAM, and each device of the inventory that is one."""
    result = {RAM: _ram_room(state, sample.ram, now)}
    for uuid, device in state.inventory.items():
        if not device.mig_enabled and not device.unified:
            result[uuid] = _device_room(state, sample, now, device)
    return result


def earmark(result: Mapping[str, Room], mark: Earmark) -> None:
    """Set aside what a mark stands for: bytes for a head, whole devices for an exclusive run."""
    for resource, need in mark.bytes_by_resource.items():
        if resource in result:
            result[resource].set_aside(need)
    for uuid in mark.devices if mark.check is Check.EXCLUSIVE else ():
        if uuid in result:
            result[uuid].cleared_for = mark.run_id


def _ram_room(state: GateState, ram: Optional[RamReading], now: float) -> Room:
    limit = state.traits.stale_after_s
    unread = _stale(RAM, ram.taken_at if ram else None, now, limit)
    total = ram.total_bytes if ram else 0
    return Room(
        resource=RAM,
        total_bytes=total,
        free_bytes=ram.free_bytes if ram else 0,
        floor_bytes=max(RAM_FLOOR_BYTES, int(RAM_FLOOR_SHARE * total)) if ram else 0,
        reserved_bytes=_reserved(state, RAM),
        runs_held_bytes=_runs_held(state, RAM),
        measured=unread is None,
        unread=unread,
        overrun=_runs_where(state.leases.values(), lambda lease: is_overrun(lease, RAM)),
    )


def _device_room(state: GateState, sample: Sample, now: float, device: Device) -> Room:
    uuid = device.uuid
    reading = sample.device(uuid)
    leases = state.leases.values()
    here = [lease for lease in leases if uuid in lease.devices]
    unread = _unread(state, sample, reading, uuid, now)
    usable = state.traits.usable_vram_bytes.get(uuid)
    lock = lock_on(state, device)
    room = Room(
        resource=uuid,
        total_bytes=device.total_bytes,
        free_bytes=(reading.free_bytes or 0) if reading else 0,
        floor_bytes=gpu_floor(state, device),
        reserved_bytes=_reserved(state, uuid),
        runs_held_bytes=_runs_held(state, uuid),
        kept_bytes=(reading.driver_reserved_bytes or 0) if reading else 0,
        measured=unread is None,
        locked=Reason(Check.LOCK, uuid, who=(lock.owner,)) if lock else None,
        unread=unread,
        leases=len(here),
        exclusive=_runs_where(here, lambda lease: lease.request.exclusive),
        unsettled=_runs_where(leases, lambda lease: holds_watch_slot(state, lease, uuid, now)),
        overrun=_runs_where(leases, lambda lease: is_overrun(lease, uuid)),
        utilisation=round(state.utilisation.get(uuid, 0.0), 2),
        device=device,
    )
    if usable is not None and unread is not None and unread.check is Check.UNMEASURED:
        return _declared(room, usable, sum(lease.charges.get(uuid, 0) for lease in here))
    return room


def _declared(room: Room, usable: int, charged: int) -> Room:
    """Nothing is measured here, but an administrator has said how much there is to give."""
    return replace(
        room,
        declared=True,
        unread=None,
        free_bytes=usable,
        floor_bytes=0,
        reserved_bytes=charged,
        runs_held_bytes=0,
    )


def _unread(
    state: GateState, sample: Sample, reading: Optional[DeviceReading], uuid: str, now: float
) -> Optional[Reason]:
    """Why there is no number for this device to go by."""
    if reading is None:
        gone = _reader_answers(sample, now, _patience_s(state, sample))
        return Reason(Check.MISSING if gone else Check.STALE, uuid)
    if reading.contradiction:
        return Reason(Check.UNMEASURED, uuid, who=(reading.contradiction,))
    if reading.free_bytes is not None:
        return _stale(uuid, reading.taken_at, now, _patience_s(state, sample))
    fault = reading.fault
    words = (fault.text or fault.code,) if fault else ()
    lost = fault is not None and fault.code == GPU_IS_LOST
    return Reason(Check.MISSING if lost else Check.UNMEASURED, uuid, who=words)


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


def _patience_s(state: GateState, sample: Sample) -> float:
    """How old a reading of a GPU may be: one pass later, and its successor's pass as well.

    A driver that is slow to tell of many boards is no reason to start nothing for ever.
    """
    took = max((h.took_s for h in sample.readers if h.name == "gpu"), default=0.0)
    return state.traits.stale_after_s + 2 * min(took, SLOWEST_PASS_S)


def _reader_answers(sample: Sample, now: float, patience_s: float) -> bool:
    """Whether the GPU reader is well: then a device that it does not list is gone.

    A reader that finds no GPU at all is asked rarely, and its answer stands meanwhile.
    """
    return any(
        health.name == "gpu"
        and health.fault is None
        and health.taken_at is not None
        and (not health.present or now - health.taken_at <= patience_s)
        for health in sample.readers
    )


def _stale(
    resource: str, taken_at: Optional[float], now: float, limit_s: float
) -> Optional[Reason]:
    if taken_at is not None and now - taken_at <= limit_s:
        return None
    age = {} if taken_at is None else {"age_ms": int(1000 * (now - taken_at))}
    return Reason(Check.STALE, resource, age)


def _reserved(state: GateState, resource: str) -> int:
    leases = sum(lease.reservation(resource) for lease in state.leases.values())
    gone = sum(x.reservation() for x in state.lingering.values() if x.resource == resource)
    return leases + gone


def _runs_held(state: GateState, resource: str) -> int:
    leases = sum(lease.held(resource) for lease in state.leases.values())
    gone = sum(x.held_bytes for x in state.lingering.values() if x.resource == resource)
    return leases + gone


def _runs_where(leases: Iterable[Lease], holds: Callable[[Lease], bool]) -> tuple[str, ...]:
    return tuple(lease.run_id for lease in leases if holds(lease))


def live_runs(state: GateState, devices: Iterable[str]) -> tuple[str, ...]:
    """The runs that live on any of these devices."""
    wanted = set(devices)
    return _runs_where(state.leases.values(), lambda lease: bool(wanted & set(lease.devices)))
