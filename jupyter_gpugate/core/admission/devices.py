"""The resources of a device, and the locks that close them."""

from __future__ import annotations

from typing import Optional

from jupyter_gpugate.core.naming import Inventory
from jupyter_gpugate.core.resources import MACHINE
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import GateState, Lock


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
    notes = []
    for name in state.traits.usable_vram_bytes:
        device = state.inventory.get(name)
        if device is None:
            notes.append(f"usable_vram_mb: no device here has the UUID {name!r}")
        elif not resources_of(state.inventory, name):
            notes.append(f"usable_vram_mb: {name} has no memory of its own")
        elif device.mig_enabled:
            notes.append(f"usable_vram_mb: {name} is divided into slices: name those")
    return tuple(notes)


def is_resource(device: Device) -> bool:
    """Return whether runs are placed on a device: not a divided board, nor one on shared RAM."""
    return not device.mig_enabled and not device.unified


def ram_share(state: GateState) -> float:
    """Return the share of RAM of a run of which nothing is known: one on each device takes half."""
    devices = sum(map(is_resource, state.inventory.values()))
    share = state.traits.watch_ram_share
    return min(share, 1 / (2 * devices)) if devices else share
