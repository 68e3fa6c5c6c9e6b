"""The room of each resource: the memory that admission may still give in this tick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Callable, Optional

from jupyter_gpugate.core.admission.devices import is_resource, lock_on, ram_share
from jupyter_gpugate.core.admission.readings import stale, unread_of
from jupyter_gpugate.core.decisions import Check, Earmark, Reason
from jupyter_gpugate.core.leases import Lease
from jupyter_gpugate.core.memory.settling import holds_watch_slot, is_overrun
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.resources import GB, MACHINE, MB, RAM
from jupyter_gpugate.core.samples import (
    CgroupReading,
    Device,
    RamReading,
    Sample,
)
from jupyter_gpugate.core.state import GateState

RAM_FLOOR_BYTES = 2 * GB
RAM_FLOOR_SHARE = 0.04
CGROUP_FLOOR_BYTES = 256 * MB
GPU_FLOOR_BYTES = 256 * MB
GPU_FLOOR_SHARE = 0.10


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
    kept_bytes: int = 0  # by the driver for itself: never available
    earmarked_bytes: int = 0  # set aside for older runs
    measured: bool = True
    declared: bool = False
    locked: Optional[Reason] = None
    unread: Optional[Reason] = None  # no number to go by
    leases: int = 0
    strangers: int = 0  # other holders of its memory
    last_fence: int = 0  # of the last grant there; 0: none is recorded
    exclusive: tuple[str, ...] = ()  # runs that have the device for themselves
    loading: tuple[str, ...] = ()  # services that are not ready yet
    unsettled: tuple[str, ...] = ()  # runs that keep the device's one watch slot
    overrun: tuple[str, ...] = ()
    cleared_for: Optional[str] = None  # the exclusive run that the device is kept clear for
    utilisation: float = 0.0
    device: Optional[Device] = None
    cgroup: str = ""  # of RAM: where the runs live that this room is for, as in their requests
    bound_by: str = MACHINE  # of RAM: the cgroup whose limit binds
    share_bytes: int = 0  # charged to a run of which nothing is known
    room_bytes: int = field(init=False)  # what is left to give

    def __post_init__(self) -> None:
        kept = self.floor_bytes + self.reserved_bytes + self.earmarked_bytes
        self.room_bytes = self.free_bytes - kept

    @cached_property
    def alone_bytes(self) -> int:
        """The bytes that would fit with no run alive."""
        return self.free_bytes + self.runs_held_bytes - self.floor_bytes

    @cached_property
    def most_bytes(self) -> int:
        """The bytes that would fit on the empty resource."""
        if self.declared:
            return self.free_bytes
        least_floor = GPU_FLOOR_BYTES if self.device else self.floor_bytes
        return self.total_bytes - self.kept_bytes - least_floor

    @property
    def neighbours(self) -> int:
        """Everybody that a run would share the device with."""
        return self.leases + self.strangers

    def take(self, charge: int, request: Request, fence: int, *, watch: bool) -> None:
        """Count a grant of this tick."""
        self.last_fence = fence
        run_id = request.run_id
        self.reserved_bytes += charge
        self.room_bytes -= charge
        self.leases += 1
        if request.exclusive:
            self.exclusive = (*self.exclusive, run_id)
        if request.service:
            self.loading = (*self.loading, run_id)
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
    result = {RAM: ram_room(state, sample.ram, now)}
    for cgroup in {key.cgroup for key in state.alike}:
        if cgroup:
            result[ram_in(cgroup)] = ram_room(state, sample.ram, now, cgroup)
    for uuid, device in state.inventory.items():
        if is_resource(device):
            result[uuid] = _device_room(state, sample, now, device)
    return result


def ram_floor(total_bytes: int) -> int:
    """Return the part of the machine's RAM that no run is given."""
    return max(RAM_FLOOR_BYTES, int(RAM_FLOOR_SHARE * total_bytes))


def earmark(result: Mapping[str, Room], mark: Earmark) -> None:
    """Set aside bytes for a head, or whole devices for an exclusive run."""
    for resource, need in mark.bytes_by_resource.items():
        if resource == RAM:
            for room in result.values():
                if room.resource == RAM and _competes(room, mark.cgroup):
                    room.set_aside(need)
        elif resource in result:
            result[resource].set_aside(need)
    for uuid in mark.devices if mark.check is Check.EXCLUSIVE else ():
        if uuid in result:
            result[uuid].cleared_for = mark.run_id


def ram_in(cgroup: str) -> str:
    """The key of the RAM that runs of a cgroup may have."""
    return f"{RAM}@{cgroup}" if cgroup else RAM


def ram_room(state: GateState, ram: Optional[RamReading], now: float, cgroup: str = "") -> Room:
    """The RAM for runs that live in ``cgroup``, or beside the gate.

    Every run takes from the machine, and from the limits above its own cgroup; of the two the one
    that leaves less binds.
    """
    reading = _reading_in(ram, cgroup)
    taken_at = ram.taken_at if ram and reading else None
    unread = stale(RAM, taken_at, now, state.traits.stale_after_s)
    total = ram.total_bytes if ram else 0
    room = Room(
        resource=RAM,
        total_bytes=total,
        free_bytes=reading.free_bytes if reading else 0,
        floor_bytes=ram_floor(total) if ram else 0,
        reserved_bytes=_reserved(state, RAM),
        runs_held_bytes=_runs_held(state, RAM),
        measured=unread is None,
        unread=unread,
        overrun=_runs_where(state.leases.values(), lambda lease: is_overrun(lease, RAM)),
        cgroup=cgroup,
        share_bytes=int(ram_share(state) * total),
    )
    if ram is None or reading is None or reading.bound_by == MACHINE:
        return room
    of_machine = replace(room, free_bytes=ram.available_bytes)
    limited = _limited(state, room, ram, reading.bound_by)
    return min(limited, of_machine, key=lambda one: one.room_bytes)


def _reading_in(ram: Optional[RamReading], cgroup: str) -> Optional[CgroupReading]:
    if ram is None or cgroup:
        return ram.cgroups.get(cgroup) if ram else None
    return CgroupReading(ram.free_bytes, ram.bound_by)


def _limited(state: GateState, room: Room, ram: RamReading, bound_by: str) -> Room:
    """The RAM that the limit of a cgroup leaves; only runs that live below it take from that."""

    def is_below(lease: Lease) -> bool:
        return _is_below(lease.terms.cgroup or ram.cgroup, bound_by)

    below = [lease for lease in state.leases.values() if is_below(lease)]
    gone = [left for left in state.lingering.values() if left.resource == RAM]
    return replace(
        room,
        # The limit of a notebook's own cgroup protects no gate and no machine.
        floor_bytes=CGROUP_FLOOR_BYTES if room.cgroup else room.floor_bytes,
        reserved_bytes=sum(lease.reservation(RAM) for lease in below)
        + sum(left.reservation() for left in gone),
        runs_held_bytes=sum(lease.held(RAM) for lease in below)
        + sum(left.held_bytes for left in gone),
        bound_by=bound_by,
    )


def _competes(room: Room, cgroup: str) -> bool:
    """Whether runs that live in ``cgroup`` take from this room of RAM."""
    return room.bound_by == MACHINE or room.cgroup == cgroup or _is_below(cgroup, room.bound_by)


def _is_below(cgroup: str, level: str) -> bool:
    return f"{cgroup}/".startswith(f"{level.rstrip('/')}/")


def _device_room(state: GateState, sample: Sample, now: float, device: Device) -> Room:
    uuid = device.uuid
    reading = sample.device(uuid)
    leases = state.leases.values()
    here = [lease for lease in leases if uuid in lease.terms.devices]
    unread = unread_of(state, sample, reading, uuid, now)
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
        strangers=state.strangers.get(uuid, 0),
        last_fence=state.last_fences.get(uuid, 0),
        exclusive=_runs_where(here, lambda lease: lease.terms.exclusive),
        loading=_runs_where(here, lambda lease: lease.is_loading),
        unsettled=_runs_where(leases, lambda lease: holds_watch_slot(state, lease, uuid, now)),
        overrun=_runs_where(leases, lambda lease: is_overrun(lease, uuid)),
        utilisation=round(state.utilisation.get(uuid, 0.0), 2),
        device=device,
        share_bytes=int(state.traits.watch_vram_share * device.total_bytes),
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


def _reserved(state: GateState, resource: str) -> int:
    leases = sum(lease.reservation(resource) for lease in state.leases.values())
    gone = sum(x.reservation() for x in state.lingering.values() if x.resource == resource)
    return leases + gone


def _runs_held(state: GateState, resource: str) -> int:
    leases = sum(lease.held(resource) for lease in state.leases.values())
    gone = sum(x.held_bytes for x in state.lingering.values() if x.resource == resource)
    return leases + gone


def _runs_where(leases: Iterable[Lease], holds: Callable[[Lease], bool]) -> tuple[str, ...]:
    return tuple(lease.holder.name for lease in leases if holds(lease))


def live_runs(state: GateState, devices: Iterable[str]) -> tuple[str, ...]:
    """The runs that live on any of these devices."""
    wanted = set(devices)
    return _runs_where(state.leases.values(), lambda lease: bool(wanted & set(lease.terms.devices)))
