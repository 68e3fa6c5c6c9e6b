"""Chooses the devices of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Optional

from jupyter_gpugate.core.admission.room import Room


def place(
    rooms: Mapping[str, Room],
    charges: Mapping[str, int],
    count: int,
    policy: str,
) -> Optional[tuple[str, ...]]:
    """``count`` devices of one model out of those in ``charges``, the best first; else None.

    ``spread`` tries the devices with the fewest leases and the least recent use first, then the
    tightest fit; ``pack`` tries the tightest fit first.
    """

    def spread(uuid: str) -> tuple[float, ...]:
        room = rooms[uuid]
        return (room.leases, room.utilisation, room.room_bytes - charges[uuid], _index(room))

    def pack(uuid: str) -> tuple[float, ...]:
        room = rooms[uuid]
        return (room.room_bytes - charges[uuid], -room.leases, _index(room))

    return _of_one_model(rooms, sorted(charges, key=pack if policy == "pack" else spread), count)


def bind(
    rooms: Mapping[str, Room], charges: Mapping[str, int], count: int, *, exclusive: bool = False
) -> Optional[tuple[str, ...]]:
    """The devices that a head waits for, of those that could hold it with every run ended.

    The one that lacks least comes first; an exclusive run waits where the fewest runs live.
    What lacks least can only come to lack less while it is set aside, so the head never swings
    between devices without getting nearer.
    """
    able = [uuid for uuid, charge in charges.items() if charge <= rooms[uuid].alone_bytes]

    def lacking(uuid: str) -> tuple[float, ...]:
        room = rooms[uuid]
        leases = room.leases if exclusive else 0
        return (leases, max(0, charges[uuid] - room.room_bytes), _index(room))

    return _of_one_model(rooms, sorted(able, key=lacking), count)


def _of_one_model(
    rooms: Mapping[str, Room], order: Iterable[str], count: int
) -> Optional[tuple[str, ...]]:
    if count == 0:
        return ()
    by_model: dict[str, list[str]] = {}
    for uuid in order:
        device = rooms[uuid].device
        # A process sees one MIG slice and no more.
        if device is None or (count > 1 and device.parent is not None):
            continue
        chosen = by_model.setdefault(device.model, [])
        chosen.append(uuid)
        if len(chosen) == count:
            return tuple(chosen)
    return None


def _index(room: Room) -> int:
    return room.device.index if room.device else 0
