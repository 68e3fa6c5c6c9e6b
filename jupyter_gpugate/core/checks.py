"""The checks that a request passes, or the reason why it does not, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

from jupyter_gpugate.core.decisions import Check, Reason, Refusal
from jupyter_gpugate.core.estimation import provisional_charge
from jupyter_gpugate.core.model import RAM, Basis
from jupyter_gpugate.core.placement import place
from jupyter_gpugate.core.room import Room, live_runs
from jupyter_gpugate.core.state import GateState, GroupKey, TermNeed

#: Of the devices that refuse a run, the one whose reason comes last here is nearest to taking it.
NEARNESS = (
    Check.MISSING,
    Check.UNMEASURED,
    Check.STALE,
    Check.LOCK,
    Check.EXCLUSIVE,
    Check.LIMITS,
    Check.EXTERNAL_HOLDS,
    Check.WATCH_SLOT,
    Check.OVERRUN,
    Check.FIT,
)


class Ask(NamedTuple):
    """What a request would be charged on one resource, and by which rung."""

    charge_bytes: int
    basis: Basis


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
            declared = room.declared_left_bytes is not None
            return Ask(need.need_bytes, Basis.DECLARED if declared else need.basis)
        traits = self.state.traits
        share = traits.watch_ram_share if room.resource == RAM else traits.watch_vram_share
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
    whole = _whole(asks, machine)
    if whole is not None:
        return Refusal((whole,))
    ram_ask = asks.on(rooms[RAM])
    ram = _room_reason(asks, rooms[RAM], ram_ask)
    devices, asked, reason = _devices(asks, rooms)
    reasons = tuple(r for r in (reason, ram) if r is not None)
    if reasons:
        return Refusal(reasons)
    return Admission(devices, {RAM: ram_ask, **asked})


def _whole(asks: Asks, machine: Optional[Reason]) -> Optional[Reason]:
    """Reasons that have nothing to do with room."""
    limit = asks.state.traits.max_running_per_user
    if asks.parked:
        return Reason(Check.PARKED)
    if machine is not None:
        return machine
    if limit is not None and asks.running >= limit:
        return Reason(Check.LIMITS, None, {"running": asks.running, "limit": limit})
    return None


def _devices(
    asks: Asks, rooms: Mapping[str, Room]
) -> tuple[tuple[str, ...], dict[str, Ask], Optional[Reason]]:
    """The devices it would get with what it is charged there, or the nearest reason."""
    wanted = asks.key.gpus
    if wanted == 0:
        return (), {}, None
    passing: dict[str, Ask] = {}
    refused: list[tuple[int, int, Reason]] = []
    for uuid, room in rooms.items():
        if room.device is None:
            continue
        ask = asks.on(room)
        reason = _device_reason(asks, room, ask)
        if reason is None:
            passing[uuid] = ask
        else:
            shortfall = ask.charge_bytes - room.room_bytes
            refused.append((-NEARNESS.index(reason.check), shortfall, reason))
    charges = {uuid: ask.charge_bytes for uuid, ask in passing.items()}
    devices = place(rooms, charges, wanted, asks.state.traits.placement)
    if devices is not None:
        return devices, {uuid: passing[uuid] for uuid in devices}, None
    nearest = min(refused, key=lambda item: item[:2], default=None)
    missing = Reason(Check.MISSING, None, {"wanted": wanted, "present": len(passing)})
    return (), {}, nearest[2] if nearest else missing


def _device_reason(asks: Asks, room: Room, ask: Ask) -> Optional[Reason]:
    """Why this device does not take the run now."""
    if room.blocked is not None:
        return room.blocked
    alone_wanted = asks.key.exclusive and room.leases
    if alone_wanted:
        return Reason(Check.EXCLUSIVE, room.resource, who=live_runs(asks.state, [room.resource]))
    holders = room.exclusive or tuple(r for r in (room.cleared_for,) if r and r != asks.run_id)
    if holders:
        return Reason(Check.EXCLUSIVE, room.resource, who=holders)
    limit = asks.state.traits.max_runs_per_device
    if room.leases >= limit:
        return Reason(Check.LIMITS, room.resource, {"running": room.leases, "limit": limit})
    if ask.basis is Basis.WATCH and room.declared_left_bytes is not None:
        return Reason(Check.UNMEASURED, room.resource)
    if ask.basis is Basis.WATCH and room.unsettled:
        return Reason(Check.WATCH_SLOT, room.resource, who=room.unsettled)
    return _room_reason(asks, room, ask)


def _room_reason(asks: Asks, room: Room, ask: Ask) -> Optional[Reason]:
    """The fit check, with the arithmetic it rests on."""
    if room.blocked is not None:
        return room.blocked
    if ask.basis is Basis.WATCH and room.overrun:
        return Reason(Check.OVERRUN, room.resource, who=room.overrun)
    if room.declared_left_bytes is not None:
        fits = ask.charge_bytes <= room.declared_left_bytes
    else:
        fits = ask.charge_bytes <= room.room_bytes
    if fits:
        return None
    beyond = room.declared_left_bytes is None and ask.charge_bytes > room.alone_bytes
    numbers = room.numbers(ask.charge_bytes)
    return Reason(Check.EXTERNAL_HOLDS if beyond else Check.FIT, room.resource, numbers)
