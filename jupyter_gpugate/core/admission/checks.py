"""The checks that a request passes, or the reasons why it does not, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

from jupyter_gpugate.core.admission.choices import in_words
from jupyter_gpugate.core.admission.placement import place
from jupyter_gpugate.core.admission.room import Room, live_runs, ram_in
from jupyter_gpugate.core.decisions import TOLD_ORDER, Check, KeptWaiting, Reason
from jupyter_gpugate.core.estimates import TermNeed
from jupyter_gpugate.core.learning.estimation import LEAST_WATCH_BYTES, provisional_charge
from jupyter_gpugate.core.queued import RequestKey
from jupyter_gpugate.core.requests import Basis
from jupyter_gpugate.core.resources import MACHINE, RAM
from jupyter_gpugate.core.state import GateState

#: Of the devices that refuse a run, the one whose reason stands last here is nearest to taking it.
_NEARNESS = (
    Check.MISSING,
    Check.UNMEASURED,
    Check.STALE,
    Check.EXTERNAL_HOLDS,
    Check.LOCK,
    Check.EXCLUSIVE,
    Check.LIMITS,
    Check.LOADING,
    Check.WATCH_SLOT,
    Check.OVERRUN,
    Check.FIT,
)
_FARNESS = {check: -place for place, check in enumerate(_NEARNESS)}


def _beyond(room: Room, need: TermNeed) -> int:
    """Return the charge of a need beyond what the resource has: what is not certain is dropped.

    Of a number drawn from other settings nothing is certain: the run gets what no others hold.
    """
    if need.least_bytes == 0:
        return min(room.most_bytes, max(room.alone_bytes, LEAST_WATCH_BYTES))
    return max(room.most_bytes, need.least_bytes or 0)


class Ask(NamedTuple):
    """The charge of a request on one resource, and its rung of the trust ladder."""

    charge_bytes: int
    basis: Basis


class Look(NamedTuple):
    """One device as one request finds it; ``reason`` None: it would take the run now."""

    reason: Optional[Reason]
    ask: Optional[Ask] = None  # None: the device is closed to it at any charge


@dataclass(frozen=True)
class Admission:
    """A request that passed every check, placed."""

    devices: tuple[str, ...]
    asks: Mapping[str, Ask]  # by resource


class Asks(NamedTuple):
    """One request in one tick, as the checks see it."""

    state: GateState
    run_id: str
    key: RequestKey
    waited_s: float
    parked: bool
    running: int  # of the same owner
    allowed: Optional[frozenset[str]] = None  # the devices it may be placed on; None: all
    awaited: tuple[str, ...] = ()  # unfinished runs that have to complete first
    in_group: tuple[str, ...] = ()  # active runs of its group, if that has a limit

    def on(self, room: Room) -> Ask:
        """Return its charge there: its need if that is known, or a provisional charge."""
        need = self.need(room)
        if need.need_bytes is not None:
            charge = need.need_bytes
            if charge > room.most_bytes:
                charge = _beyond(room, need)
            return Ask(charge, Basis.DECLARED if room.declared else need.basis)
        charge = provisional_charge(
            prior_bytes=need.prior_bytes,
            is_prior_close=need.is_prior_close,
            lower_bound_bytes=need.lower_bound_bytes,
            share_bytes=room.share_bytes,
            fits_alone_bytes=room.alone_bytes,
            fits_now_bytes=room.room_bytes,
            shrink=self.may_shrink,
        )
        return Ask(charge, Basis.WATCH)

    @property
    def may_shrink(self) -> bool:
        """Return whether it is charged what fits now: not where too little has ended it before."""
        return self.waited_s >= self.state.traits.watch_wait_s and not self.key.lacked_memory

    def may_use(self, room: Room) -> bool:
        """Whether its notebook sees this device, and the run may have it."""
        return self.allowed is None or room.resource in self.allowed

    def is_watched(self, room: Room) -> bool:
        """Return whether its need there is unknown."""
        return self.need(room).need_bytes is None

    def need(self, room: Room) -> TermNeed:
        if room.device is None:
            return self.key.needs.ram
        return self.key.needs.on(room.device.model)


def check(
    asks: Asks, rooms: Mapping[str, Room], machine: Optional[Reason]
) -> Union[Admission, KeptWaiting]:
    """Every check on one request; an admission is placed but not yet counted."""
    held_back = _held_back(asks)
    if held_back is not None:
        return KeptWaiting((held_back,))
    ram = ram_of(rooms, asks)
    asked = {RAM: asks.on(ram)}
    devices: tuple[str, ...] = ()
    device_reason = None
    wanted = asks.key.gpus
    if wanted:
        looks = look(asks, rooms)
        passing = {u: look.ask for u, look in looks.items() if look.ask and not look.reason}
        placed = None
        if len(passing) >= wanted:
            charges = {uuid: ask.charge_bytes for uuid, ask in passing.items()}
            watch = all(ask.basis is Basis.WATCH for ask in passing.values())
            placed = place(rooms, charges, wanted, asks.state.traits.placement, watch=watch)
        if placed is None:
            device_reason = _nearest(asks, rooms, looks)
        else:
            devices = placed
            asked.update((uuid, passing[uuid]) for uuid in devices)
    ram_reason = _ram_reason(asks, ram, asked[RAM])
    found = (machine, _user_limit(asks), device_reason, ram_reason)
    reasons = [reason for reason in found if reason is not None]
    if not reasons:
        return Admission(devices, asked)
    if len(reasons) > 1:
        reasons.sort(key=_told_order)
    return KeptWaiting(tuple(reasons))


def _told_order(reason: Reason) -> int:
    return TOLD_ORDER[reason.check]


def look(asks: Asks, rooms: Mapping[str, Room]) -> dict[str, Look]:
    """Every device that this request may be placed on, as it finds it."""
    looks = {}
    for uuid, room in rooms.items():
        if room.device is None or not asks.may_use(room):
            continue
        closed = (
            room.locked
            or _exclusive(asks, room)
            or _loading(room)
            or _runs_limit(asks, room)
            or _unread(asks, room)
            or _watch_slot(asks, room)
            or _overrun(asks, room)
        )
        if closed:
            looks[uuid] = Look(closed)
        else:
            ask = asks.on(room)
            looks[uuid] = Look(_fit(room, ask), ask)
    return looks


def ram_of(rooms: Mapping[str, Room], asks: Asks) -> Room:
    """Return the RAM room of a request; the gate's, for a cgroup without queued requests."""
    return rooms.get(ram_in(asks.key.cgroup)) or rooms[RAM]


def _ram_reason(asks: Asks, ram: Room, ask: Ask) -> Optional[Reason]:
    return ram.unread or _overrun(asks, ram) or _fit(ram, ask)


def _nearest(asks: Asks, rooms: Mapping[str, Room], looks: Mapping[str, Look]) -> Reason:
    """Return the reason of the last lacking device, on the model that is nearest to enough."""
    wanted = asks.key.gpus
    ranks: dict[str, list[tuple[int, int, int, str]]] = {}
    for uuid, (reason, ask) in looks.items():
        room = rooms[uuid]
        if room.device is None:
            continue
        # Devices that would take it now rank before all others.
        far = -len(_FARNESS) if reason is None else _FARNESS[reason.check]
        short = ask.charge_bytes - room.room_bytes if ask else 0
        ranks.setdefault(room.device.model, []).append((far, short, room.device.index, uuid))
    lasts = [sorted(devices)[wanted - 1] for devices in ranks.values() if len(devices) >= wanted]
    told = looks[min(lasts)[3]].reason if lasts else None
    numbers = {"wanted": wanted, "present": max(map(len, ranks.values()), default=0)}
    choice = in_words(asks.key.choice, asks.state)
    return told or Reason(Check.MISSING, None, numbers, who=(choice,) if choice else ())


# -- one check each: None where it passes -----------------------------------------------------


def _held_back(asks: Asks) -> Optional[Reason]:
    """Return a reason that no memory can remove, so that none is looked for."""
    if asks.parked:
        return Reason(Check.PARKED)
    if asks.awaited:
        return Reason(Check.AFTER, None, {"unfinished": len(asks.awaited)}, who=asks.awaited)
    limit, running = asks.key.at_most, len(asks.in_group)
    if limit is not None and running >= limit:
        return Reason(Check.GROUP, None, {"running": running, "limit": limit}, who=asks.in_group)
    return None


def _user_limit(asks: Asks) -> Optional[Reason]:
    limit = asks.state.traits.max_running_per_user
    if limit is None or asks.running < limit:
        return None
    return Reason(Check.LIMITS, None, {"running": asks.running, "limit": limit})


def _exclusive(asks: Asks, room: Room) -> Optional[Reason]:
    if room.leases and asks.key.exclusive:
        return Reason(Check.EXCLUSIVE, room.resource, who=live_runs(asks.state, [room.resource]))
    if room.exclusive:
        return Reason(Check.EXCLUSIVE, room.resource, who=room.exclusive)
    if room.cleared_for not in (None, asks.run_id):
        return Reason(Check.EXCLUSIVE, room.resource, who=(room.cleared_for or "",))
    return None


def _loading(room: Room) -> Optional[Reason]:
    """A service sizes its caches by the whole device's change: nothing may grow beside it."""
    return Reason(Check.LOADING, room.resource, who=room.loading) if room.loading else None


def _runs_limit(asks: Asks, room: Room) -> Optional[Reason]:
    limit = asks.state.traits.max_runs_per_device
    if room.leases < limit:
        return None
    return Reason(Check.LIMITS, room.resource, {"running": room.leases, "limit": limit})


def _unread(asks: Asks, room: Room) -> Optional[Reason]:
    if room.declared and asks.is_watched(room):
        return Reason(Check.UNMEASURED, room.resource, {"usable_bytes": room.free_bytes})
    return room.unread


def _watch_slot(asks: Asks, room: Room) -> Optional[Reason]:
    if room.unsettled and asks.is_watched(room):
        return Reason(Check.WATCH_SLOT, room.resource, who=room.unsettled)
    return None


def _overrun(asks: Asks, room: Room) -> Optional[Reason]:
    if room.overrun and asks.is_watched(room):
        return Reason(Check.OVERRUN, room.resource, who=room.overrun)
    return None


def _fit(room: Room, ask: Ask) -> Optional[Reason]:
    """The measured check, with the arithmetic it rests on."""
    need = ask.charge_bytes
    if need <= room.room_bytes:
        return None
    beyond = need > room.alone_bytes and not room.declared
    check = Check.EXTERNAL_HOLDS if beyond else Check.FIT
    return Reason(check, room.resource, room.numbers(need), bound=_bound(room))


def _bound(room: Room) -> str:
    if room.bound_by == MACHINE:
        return ""
    whose = "its notebook" if room.cgroup else "the gate"
    return f"the limit of cgroup {room.bound_by}, in which {whose} runs"
