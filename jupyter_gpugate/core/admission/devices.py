"""Names of devices, and the resources that a lock on one closes.

Numbers repeat: a missing board keeps its number, and slices count from 0 on each board.
So a number is accepted only if it means one device, and no two devices share a display name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Optional

from jupyter_gpugate.core.resources import MACHINE
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import GateState, Lock

Inventory = Mapping[str, Device]

#: "GPU-" and eight digits: what tells most devices apart.
SHORT = 12


def name_of(inventory: Inventory, uuid: str) -> str:
    """Return a device's display name, such as ``GPU 0``, with its UUID where that is ambiguous."""
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
    """Return the shortest beginning of a UUID that is unique."""
    for length in range(SHORT, len(uuid)):
        if sum(other.startswith(uuid[:length]) for other in inventory) == 1:
            return uuid[:length]
    return uuid


def matches(inventory: Inventory, word: str) -> tuple[str, ...]:
    """Return the devices that a word may mean: a UUID, the beginning of one, or a number."""
    if word in inventory:
        return (word,)
    numbered = [uuid for uuid, device in inventory.items() if word == str(device.index)]
    boards = [uuid for uuid in numbered if inventory[uuid].parent is None]
    if numbered:
        return tuple(boards or numbered)
    return tuple(uuid for uuid in inventory if word and uuid.startswith(word))


def resources_of(inventory: Inventory, uuid: str) -> tuple[str, ...]:
    """Return a device's resources: itself, its MIG slices, or none."""
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
    """Return the lock that closes a device: its own, or that of its board."""
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
