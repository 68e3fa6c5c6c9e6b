"""The devices that a mask such as ``CUDA_VISIBLE_DEVICES=1`` leaves to a notebook.

A mask is read as CUDA reads it: numbers, UUIDs and unique beginnings of UUIDs, separated by commas.
The first entry that names no device ends the list, and a device that is named twice leaves none.
Numbers count boards in the order of the PCI bus, which is CUDA's order under
``CUDA_DEVICE_ORDER=PCI_BUS_ID`` and on machines whose boards are alike.  A board divided into
slices means all of them.

``NVIDIA_VISIBLE_DEVICES`` is not read: the container runtime has applied it already.

A run gets a mask of its own devices: `entries`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from jupyter_gpugate.core.admission.readings import unread_of
from jupyter_gpugate.core.decisions import Check
from jupyter_gpugate.core.naming import name_of
from jupyter_gpugate.core.samples import Device, Sample
from jupyter_gpugate.core.state import GateState

VARIABLE = "CUDA_VISIBLE_DEVICES"
#: The entries of a mask that may name a device; None: there is no mask.
Mask = Optional[tuple[str, ...]]

_MOST = 64
#: Anything longer names no device, and what is kept of a mask stays short.
_NUMBER = re.compile(r"\+?0*([0-9]{1,9})(?![0-9])")
_UUID = re.compile(r"(?:GPU|MIG)-[\w/-]{0,92}", re.ASCII)


def mask_of(environ: Mapping[str, str]) -> Mask:
    """Return the mask that an environment holds, up to the first entry that can be no device."""
    text = environ.get(VARIABLE)
    if text is None:
        return None
    entries = []
    for entry in map(str.strip, text.split(",", _MOST)[:_MOST]):
        number = _NUMBER.match(entry)
        if number is None and _UUID.fullmatch(entry) is None:
            break
        entries.append(number[1] if number else entry)
    return tuple(entries)


def visible(mask: Mask, inventory: Mapping[str, Device]) -> Optional[frozenset[str]]:
    """Return the devices that a mask leaves; None: all of them."""
    if mask is None:
        return None
    seen: set[str] = set()
    for entry in mask:
        named = _named(entry, inventory)
        if not named:
            break
        if not seen.isdisjoint(named):
            return frozenset()
        seen |= named
    return frozenset(seen)


def in_words(mask: Mask, inventory: Mapping[str, Device]) -> str:
    """Describe a mask and the devices that it leaves; "" without a mask."""
    left = visible(mask, inventory)
    if mask is None or left is None:
        return ""
    setting = f"{VARIABLE}={','.join(mask)}"
    boards = [device for device in inventory.values() if device.parent is None]
    by_number = any(entry.isdigit() for entry in mask)
    mixed = by_number and len({board.model for board in boards}) > 1
    order = " (numbers in PCI bus order)" if mixed else ""
    return f"{setting}{order} leaves {names_of(left, inventory) or 'no GPU'}"


def _named(entry: str, inventory: Mapping[str, Device]) -> set[str]:
    if entry.isdigit():
        named = {u for u, d in inventory.items() if d.parent is None and str(d.index) == entry}
    elif entry in inventory:
        named = {entry}
    else:
        named = {uuid for uuid in inventory if uuid.lower().startswith(entry.lower())}
        if len(named) > 1:
            return set()
    return set(slices_of(named, inventory))


def slices_of(devices: Iterable[str], inventory: Mapping[str, Device]) -> frozenset[str]:
    """Return devices with all slices of a board in place of the board."""
    named = frozenset(devices)
    cut = {uuid for uuid in named if inventory[uuid].mig_enabled}
    return named - cut | {uuid for uuid, device in inventory.items() if device.parent in cut}


def names_of(uuids: Iterable[str], inventory: Mapping[str, Device]) -> str:
    """List devices by name and model."""
    order = sorted(uuids, key=lambda uuid: (inventory[uuid].parent or "", inventory[uuid].index))
    return ", ".join(f"{name_of(inventory, uuid)} ({inventory[uuid].model})" for uuid in order)


def entries(
    state: GateState, sample: Sample, devices: Sequence[str], now: float
) -> tuple[str, ...]:
    """Return the entries of a mask that leaves these devices to a run, in their order.

    They are the numbers of the newest sample, which every launcher and server can read; UUIDs
    where the site prefers them, and where numbers may mean other devices: on a machine with MIG
    slices, and as long as the driver gives no current answer.
    """
    boards = [one.device for one in sample.devices if one.device.parent is None]
    by_bus = sorted(boards, key=lambda board: board.bus)
    if (
        state.traits.device_mask == "uuid"
        or any(board.mig_enabled for board in boards)
        or [board.index for board in by_bus] != sorted(board.index for board in boards)
        or any(_may_be_another(state, sample, uuid, now) for uuid in devices)
    ):
        return tuple(devices)
    number = {board.uuid: str(board.index) for board in boards}
    return tuple(number.get(uuid, uuid) for uuid in devices)


def _may_be_another(state: GateState, sample: Sample, uuid: str, now: float) -> bool:
    """Whether the number of a device is that of an old reading."""
    unread = unread_of(state, sample, sample.device(uuid), uuid, now)
    return unread is not None and unread.check is not Check.UNMEASURED
