"""Names of resources and amounts of memory, as people read them.

Numbers of devices repeat: a missing board keeps its number, and slices count from 0 on each board.
So a number is accepted only if it means one device, and no two devices share a display name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from jupyter_gpugate.core.resources import MACHINE, MB, RAM
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import GateState

Inventory = Mapping[str, Device]

#: "GPU-" and eight digits, which distinguish most devices.
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


def megabytes(value: int) -> str:
    """Format bytes as MB (2^20): ``2,049 MB``."""
    return f"{round(value / MB):,} MB"


def resource_words(state: GateState, resource: str) -> str:
    """Return the unique name of a resource: ``RAM``, ``GPU 0 (NVIDIA L4)``."""
    if resource == RAM:
        return "RAM"
    if resource == MACHINE:
        return "this machine"
    device = state.inventory.get(resource)
    if device is None:
        return f"device {resource}"
    return f"{name_of(state.inventory, resource)} ({device.model})"
