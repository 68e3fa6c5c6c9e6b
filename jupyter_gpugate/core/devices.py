"""Devices by the names that people give them, and what a lock on one closes.

Numbers repeat: a board that is missing keeps the one it had, and slices count from 0 on each board.
So a number is a name only where it means one device, and no two devices are shown by one name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Optional

from jupyter_gpugate.core.model import Device
from jupyter_gpugate.core.state import MACHINE, GateState, Lock

Inventory = Mapping[str, Device]

#: "GPU-" and eight digits: what tells most devices apart.
SHORT = 12


def name_of(inventory: Inventory, uuid: str) -> str:
    """What a device is called, such as ``GPU 0``; another of that name makes its UUID a part."""
    if uuid not in inventory:
        return f"device {uuid}"
    names = {other: _plain_name(inventory, device) for other, device in inventory.items()}
    plain = names[uuid]
    if Counter(names.values())[plain] == 1:
        return plain
    return f"{plain} [{short(inventory, uuid)}]"


def _plain_name(inventory: Inventory, device: Device) -> str:
    if device.parent is None:
        return f"GPU {device.index}"
    board = inventory.get(device.parent)
    where = f" of GPU {board.index}" if board else ""
    return f"MIG slice {device.index}{where}"


def short(inventory: Inventory, uuid: str) -> str:
    """The beginning of a UUID, as long as it takes to be the only one."""
    for length in range(SHORT, len(uuid)):
        if sum(other.startswith(uuid[:length]) for other in inventory) == 1:
            return uuid[:length]
    return uuid


def matches(inventory: Inventory, word: str) -> tuple[str, ...]:
    """The devices that a word may mean: a UUID, the beginning of one, or a number."""
    if word in inventory:
        return (word,)
    numbered = [uuid for uuid, device in inventory.items() if word == str(device.index)]
    boards = [uuid for uuid in numbered if inventory[uuid].parent is None]
    if numbered:
        return tuple(boards or numbered)
    return tuple(uuid for uuid in inventory if word and uuid.startswith(word))


def resources_of(inventory: Inventory, uuid: str) -> tuple[str, ...]:
    """What a device is to runs: itself, the slices that it is cut into, or nothing of its own."""
    device = inventory[uuid]
    if device.mig_enabled:
        return tuple(other for other, part in inventory.items() if part.parent == uuid)
    return () if device.unified else (uuid,)


def closed_by(inventory: Inventory, resource: str) -> frozenset[str]:
    """The resources that a lock closes; everything, for one on the machine."""
    if resource == MACHINE:
        return frozenset({MACHINE, *inventory})
    return frozenset(resources_of(inventory, resource)) if resource in inventory else frozenset()


def lock_on(state: GateState, device: Device) -> Optional[Lock]:
    """The lock that closes a device: its own, or that of the board which it is a slice of."""
    return state.locks.get(device.uuid) or state.locks.get(device.parent or "")


def ignored_settings(state: GateState) -> tuple[str, ...]:
    """Settings that name a device and have no effect, and why."""
    told = []
    for name in state.traits.usable_vram_bytes:
        device = state.inventory.get(name)
        if device is None:
            told.append(f"usable_vram_mb: no device here has the UUID {name!r}")
        elif not resources_of(state.inventory, name):
            told.append(f"usable_vram_mb: {name} has no memory of its own to give")
        elif device.mig_enabled:
            told.append(f"usable_vram_mb: {name} is cut into slices: name those")
    return tuple(told)
