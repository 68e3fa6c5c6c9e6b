"""Chooses the devices of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Callable, Optional

from jupyter_gpugate.core.admission.room import Room
from jupyter_gpugate.core.resources import MB

#: Devices with so little difference in memory are equal: idle ones never agree to the byte.
ALIKE_BYTES = 256 * MB

Rooms = Mapping[str, Room]
#: Of devices with the bytes that would be left on them, the best one.
_Choose = Callable[[Rooms, Mapping[str, int]], str]


def place(
    rooms: Rooms,
    charges: Mapping[str, int],
    count: int,
    policy: str,
    *,
    watch: bool = False,
) -> Optional[tuple[str, ...]]:
    """``count`` devices of one model out of those in ``charges``, in the driver's order; else None.

    ``spread`` takes the devices with the fewest neighbours and the least recent use first, then
    the tightest fit, and for a ``watch`` run those with the most room; ``pack`` takes the tightest
    fit first.  Among equals it is the one whose last grant is the oldest.
    """
    left = {uuid: rooms[uuid].room_bytes - charge for uuid, charge in charges.items()}
    choose = _tightest if policy == "pack" else _roomiest if watch else _quietest
    chosen = _of_one_model(rooms, _in_order(rooms, left, choose), count)
    return chosen and tuple(sorted(chosen, key=lambda uuid: (_index(rooms[uuid]), uuid)))


def _in_order(rooms: Rooms, left: dict[str, int], choose: _Choose) -> Iterator[str]:
    while left:
        best = choose(rooms, left)
        del left[best]
        yield best


def _quietest(rooms: Rooms, left: Mapping[str, int]) -> str:
    least = min(_company(rooms[uuid]) for uuid in left)
    quiet = {uuid: size for uuid, size in left.items() if _company(rooms[uuid]) == least}
    return min(_tight(quiet), key=lambda uuid: _turn(rooms[uuid]))


def _roomiest(rooms: Rooms, left: Mapping[str, int]) -> str:
    most = max(rooms[uuid].room_bytes for uuid in left)
    large = [uuid for uuid in left if most - rooms[uuid].room_bytes <= ALIKE_BYTES]
    return min(large, key=lambda uuid: (_company(rooms[uuid]), _turn(rooms[uuid])))


def _tightest(rooms: Rooms, left: Mapping[str, int]) -> str:
    return min(_tight(left), key=lambda uuid: (-rooms[uuid].neighbours, _turn(rooms[uuid])))


def _tight(left: Mapping[str, int]) -> list[str]:
    least = min(left.values())
    return [uuid for uuid, size in left.items() if size - least <= ALIKE_BYTES]


def _company(room: Room) -> tuple[float, ...]:
    return (room.neighbours, room.utilisation)


def _turn(room: Room) -> tuple[int, int, str]:
    return (room.last_fence, _index(room), room.resource)


def bind(
    rooms: Rooms, charges: Mapping[str, int], count: int, *, exclusive: bool = False
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


def _of_one_model(rooms: Rooms, order: Iterable[str], count: int) -> Optional[tuple[str, ...]]:
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
