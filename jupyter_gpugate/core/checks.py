"""The checks that a request passes, or the reasons why it does not, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable, NamedTuple, Optional, Union

from jupyter_gpugate.core.decisions import TOLD_ORDER, Check, Reason, Refusal
from jupyter_gpugate.core.estimation import provisional_charge
from jupyter_gpugate.core.model import RAM, Basis
from jupyter_gpugate.core.placement import place
from jupyter_gpugate.core.room import Room, live_runs
from jupyter_gpugate.core.state import GateState, GroupKey, TermNeed

#: Of the devices that refuse a run, the one whose reason stands last here is nearest to taking it.
_NEARNESS = (
    Check.MISSING,
    Check.UNMEASURED,
    Check.STALE,
    Check.EXTERNAL_HOLDS,
    Check.LOCK,
    Check.EXCLUSIVE,
    Check.LIMITS,
    Check.WATCH_SLOT,
    Check.OVERRUN,
    Check.FIT,
)
_FARNESS = {check: -place for place, check in enumerate(_NEARNESS)}


class Ask(NamedTuple):
    """What a request would be charged on one resource, and by which rung."""

    charge_bytes: int
    basis: Basis


class Look(NamedTuple):
    """One device as one request finds it; ``reason`` None: it would take the run now."""

    ask: Ask
    reason: Optional[Reason]


@dataclass(frozen=True)
class Admission:
    """A request that passed every check, placed."""

    devices: tuple[str, ...]
    asks: Mapping[str, Ask]  # by resource


@dataclass(frozen=True)
class Asks:
    """One request in one tick, as the checks see it."""

    state: GateState
    run_id: str
    key: GroupKey
    waited_s: float
    parked: bool
    running: int  # of the same owner

    def on(self, room: Room) -> Ask:
        """What it would be charged there: a number it has, or a provisional charge."""
        need = self.need(room)
        if need.need_bytes is not None:
            charge, most = need.need_bytes, room.most_bytes
            if charge > most:
                # What the machine cannot give is no condition for a start: the margin goes first.
                charge = max(most, charge if need.peak_bytes is None else need.peak_bytes)
            return Ask(charge, Basis.DECLARED if room.declared else need.basis)
        traits = self.state.traits
        share = traits.watch_vram_share if room.device else traits.watch_ram_share
        charge = provisional_charge(
            prior_bytes=need.prior_bytes,
            lower_bound_bytes=need.lower_bound_bytes,
            share_bytes=int(share * room.total_bytes),
            fits_alone_bytes=room.alone_bytes,
            fits_now_bytes=room.room_bytes,
            shrink=self.waited_s >= traits.watch_wait_s,
        )
        return Ask(charge, Basis.WATCH)

    def need(self, room: Room) -> TermNeed:
        if room.device is None:
            return self.key.needs.ram
        return self.key.needs.on(room.device.model)


def check(
    asks: Asks, rooms: Mapping[str, Room], machine: Optional[Reason]
) -> Union[Admission, Refusal]:
    """Every check on one request; an admission is placed but not yet counted."""
    if asks.parked:
        return Refusal((Reason(Check.PARKED),))
    ram = rooms[RAM]
    ram_ask = asks.on(ram)
    found = [machine, _user_limit(asks), ram.unread or _overrun(asks, ram, ram_ask)]
    found[2] = found[2] or _fit(asks, ram, ram_ask)
    devices: Optional[tuple[str, ...]] = ()
    asked = {RAM: ram_ask}
    if asks.key.gpus:
        looks = look(asks, rooms)
        passing = {uuid: seen.ask.charge_bytes for uuid, seen in looks.items() if not seen.reason}
        devices = place(rooms, passing, asks.key.gpus, asks.state.traits.placement)
        if devices is None:
            found.append(_nearest(rooms, looks, asks.key.gpus))
        else:
            asked.update((uuid, looks[uuid].ask) for uuid in devices)
    reasons = [reason for reason in found if reason is not None]
    if reasons or devices is None:
        return Refusal(tuple(sorted(reasons, key=lambda reason: TOLD_ORDER[reason.check])))
    return Admission(devices, asked)


def look(asks: Asks, rooms: Mapping[str, Room]) -> dict[str, Look]:
    """Every device as this request finds it."""
    looks = {}
    for uuid, room in rooms.items():
        if room.device is not None:
            ask = asks.on(room)
            looks[uuid] = Look(ask, _device_reason(asks, room, ask))
    return looks


def _device_reason(asks: Asks, room: Room, ask: Ask) -> Optional[Reason]:
    for passes in _DEVICE_CHECKS:
        reason = passes(asks, room, ask)
        if reason is not None:
            return reason
    return None


def _nearest(rooms: Mapping[str, Room], looks: Mapping[str, Look], wanted: int) -> Reason:
    """The reason to tell: of the last device that is lacking, on the model nearest to enough."""
    refused: dict[str, list[tuple[int, int, int, Reason]]] = {}
    present: dict[str, int] = {}
    for uuid, (ask, reason) in looks.items():
        device = rooms[uuid].device
        if device is None:
            continue
        present[device.model] = present.get(device.model, 0) + 1
        ranks = refused.setdefault(device.model, [])
        if reason is not None:
            short = ask.charge_bytes - rooms[uuid].room_bytes
            ranks.append((_FARNESS[reason.check], short, device.index, reason))
    lasts = []
    for model, ranks in refused.items():
        lacking = wanted - (present[model] - len(ranks))
        if lacking <= len(ranks):
            lasts.append(sorted(ranks, key=lambda rank: rank[:3])[lacking - 1])
    if lasts:
        return min(lasts, key=lambda rank: rank[:3])[3]
    numbers = {"wanted": wanted, "present": max(present.values(), default=0)}
    return Reason(Check.MISSING, None, numbers)


# -- one check each: None where it passes -----------------------------------------------------


def _user_limit(asks: Asks) -> Optional[Reason]:
    limit = asks.state.traits.max_running_per_user
    if limit is None or asks.running < limit:
        return None
    return Reason(Check.LIMITS, None, {"running": asks.running, "limit": limit})


def _lock(_asks: Asks, room: Room, _ask: Ask) -> Optional[Reason]:
    return room.locked


def _exclusive(asks: Asks, room: Room, _ask: Ask) -> Optional[Reason]:
    if asks.key.exclusive and room.leases:
        return Reason(Check.EXCLUSIVE, room.resource, who=live_runs(asks.state, [room.resource]))
    if room.exclusive:
        return Reason(Check.EXCLUSIVE, room.resource, who=room.exclusive)
    if room.cleared_for not in (None, asks.run_id):
        return Reason(Check.EXCLUSIVE, room.resource, who=(room.cleared_for or "",))
    return None


def _runs_limit(asks: Asks, room: Room, _ask: Ask) -> Optional[Reason]:
    limit = asks.state.traits.max_runs_per_device
    if room.leases < limit:
        return None
    return Reason(Check.LIMITS, room.resource, {"running": room.leases, "limit": limit})


def _unread(_asks: Asks, room: Room, ask: Ask) -> Optional[Reason]:
    if room.declared and ask.basis is Basis.WATCH:
        return Reason(Check.UNMEASURED, room.resource, {"usable_bytes": room.free_bytes})
    return room.unread


def _watch_slot(_asks: Asks, room: Room, ask: Ask) -> Optional[Reason]:
    if ask.basis is Basis.WATCH and room.unsettled:
        return Reason(Check.WATCH_SLOT, room.resource, who=room.unsettled)
    return None


def _overrun(_asks: Asks, room: Room, ask: Ask) -> Optional[Reason]:
    if ask.basis is Basis.WATCH and room.overrun:
        return Reason(Check.OVERRUN, room.resource, who=room.overrun)
    return None


def _fit(_asks: Asks, room: Room, ask: Ask) -> Optional[Reason]:
    """The measured check, with the arithmetic it rests on."""
    if ask.charge_bytes <= room.room_bytes:
        return None
    beyond = ask.charge_bytes > room.alone_bytes and not room.declared
    numbers = room.numbers(ask.charge_bytes)
    return Reason(Check.EXTERNAL_HOLDS if beyond else Check.FIT, room.resource, numbers)


_DEVICE_CHECKS: tuple[Callable[[Asks, Room, Ask], Optional[Reason]], ...] = (
    _lock,
    _exclusive,
    _runs_limit,
    _unread,
    _watch_slot,
    _overrun,
    _fit,
)
