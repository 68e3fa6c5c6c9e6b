"""Earmarks: room that is set aside for the oldest run, so that it does not wait for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from jupyter_gpugate.core.admission.checks import Asks, Look, look, ram_of
from jupyter_gpugate.core.admission.placement import bind
from jupyter_gpugate.core.admission.room import Room, earmark
from jupyter_gpugate.core.decisions import Check, Earmark, KeptWaiting
from jupyter_gpugate.core.resources import RAM

#: The reasons to wait that a head may have on its devices.
_PASSING = (Check.FIT, Check.LOADING)


class Heads:
    """The claims of one tick, made in submission order.

    A *head* has waited long, for room only or until a service has loaded: its need is set aside on
    the devices that it is bound to, RAM included.  Each resource has one head, the oldest.  The
    oldest exclusive run that waits only until others leave, and their memory is free, has its
    devices kept clear.
    """

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        self.marks: list[Earmark] = []
        self._rooms = rooms
        self._devices = frozenset(uuid for uuid, room in rooms.items() if room.device)
        self._waited_for: set[str] = set()
        self._cleared = False

    def claim(self, asks: Asks, waiting: KeptWaiting) -> bool:
        """Set room or devices aside for a refused request that is due; return whether it was."""
        old = asks.waited_s >= asks.state.traits.head_after_s
        head = old and not self._has_heads(waiting) and waiting.only(*_PASSING)
        alone = asks.key.exclusive and not self._cleared and _waits_for_devices(waiting)
        if not head and not alone:
            return False
        looks = look(asks, self._rooms) if asks.key.gpus else {}
        devices = self._bound(asks, looks, alone=alone)
        if devices is None:
            return False
        lacking = {reason.resource for reason in waiting.reasons if reason.resource == RAM}
        lacking.update(uuid for uuid in devices if looks[uuid].reason is not None)
        made = []
        if head and not lacking & self._waited_for:
            self._waited_for.update(filter(None, lacking))
            needs = {uuid: asks.on(self._rooms[uuid]).charge_bytes for uuid in devices}
            needs[RAM] = asks.on(ram_of(self._rooms, asks)).charge_bytes
            made.append(Earmark(asks.run_id, Check.FIT, devices, needs, asks.key.cgroup))
        if alone:
            self._cleared = True
            made.append(Earmark(asks.run_id, Check.EXCLUSIVE, devices, {}))
        for mark in made:
            earmark(self._rooms, mark)
        self.marks += made
        return bool(made)

    def _has_heads(self, waiting: KeptWaiting) -> bool:
        """Return whether the RAM, or every device, that it waits for has a head already."""
        for reason in waiting.reasons:
            if reason.resource == RAM:
                return RAM in self._waited_for
        return self._devices <= self._waited_for

    def _bound(
        self, asks: Asks, looks: Mapping[str, Look], *, alone: bool
    ) -> Optional[tuple[str, ...]]:
        """The devices to wait for: of those that lack nothing but room, or company's leaving."""

        def is_able(uuid: str, why: Optional[Check]) -> bool:
            if why is Check.LOADING and asks.is_watched(self._rooms[uuid]):
                return False  # it may also wait for the watch slot
            if why in _PASSING:
                return alone or uuid not in self._waited_for
            return why is None or (alone and why is Check.EXCLUSIVE)

        charges = {
            uuid: asks.on(self._rooms[uuid]).charge_bytes
            for uuid, look in looks.items()
            if is_able(uuid, look.reason.check if look.reason else None)
        }
        return bind(self._rooms, charges, asks.key.gpus, exclusive=alone)


def _waits_for_devices(waiting: KeptWaiting) -> bool:
    """Return whether only devices are lacking; without a lease, their room is free soon."""
    return all(
        reason.resource not in (None, RAM) and reason.check in (Check.EXCLUSIVE, Check.FIT)
        for reason in waiting.reasons
    )
