"""The devices that a run may have: by the mask of its notebook, by name, and by model.

A device is named by its number, by its UUID, or by the beginning of one UUID alone.  Numbers are
the driver's, as `nvidia-smi` shows them.  A board that is divided into slices means all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from jupyter_gpugate.core.admission.masks import in_words as mask_in_words
from jupyter_gpugate.core.admission.masks import names_of, slices_of, visible
from jupyter_gpugate.core.requests import Choice, Request
from jupyter_gpugate.core.samples import Device
from jupyter_gpugate.core.state import GateState

#: Numbers are short, and no other digits than these are a driver's.
_NUMBER = re.compile(r"[0-9]{1,9}")

Inventory = Mapping[str, Device]


def allowed(choice: Choice, state: GateState) -> Optional[frozenset[str]]:
    """Return the devices that a choice leaves; None: all of them."""
    if choice == Choice():
        return None
    inventory = state.inventory
    in_mask = visible(choice.mask, inventory)
    left = frozenset(inventory) if in_mask is None else in_mask
    if choice.named:
        left &= frozenset().union(*(named(word, state) for word in choice.named))
    return left & of_model(choice.model, inventory) if choice.model else left


def named(word: str, state: GateState) -> frozenset[str]:
    """Return the devices of one name: one board, one slice, or all slices of a board."""
    found = boards_named(word, state)
    return slices_of(found, state.inventory) if len(found) == 1 else frozenset()


def boards_named(word: str, state: GateState) -> frozenset[str]:
    """Return all boards and slices that a name may mean; more than one is ambiguous.

    A missing board keeps its number, so that of a board that is there comes first.
    """
    inventory = state.inventory
    if word in inventory:
        return frozenset((word,))
    if _NUMBER.fullmatch(word):
        boards = (u for u, d in inventory.items() if d.parent is None and d.index == int(word))
        numbered = frozenset(boards)
        return numbered & state.present or numbered
    return frozenset(u for u in inventory if word and u.lower().startswith(word.lower()))


def of_model(text: str, inventory: Inventory) -> frozenset[str]:
    """Return the devices with a text in their model's name, or in that of a slice's board."""

    def model(device: Device) -> str:
        board = inventory.get(device.parent or "")
        return f"{device.model} {board.model}" if board else device.model

    wanted = text.lower()
    return frozenset(u for u, device in inventory.items() if wanted in model(device).lower())


def pinned(request: Request, state: GateState) -> Request:
    """Return a request with UUIDs for numbers, which may be those of other boards later."""
    if not request.device:
        return request
    uuids = tuple(next(iter(boards_named(word, state)), word) for word in request.device)
    return replace(request, device=uuids)


def in_words(choice: Choice, state: GateState) -> str:
    """Describe a choice and the devices that it leaves; "" where it leaves all."""
    mask = mask_in_words(choice.mask, state.inventory)
    if not choice.named and not choice.model:
        return mask
    device = f"device={','.join(choice.named)}" if choice.named else ""
    model = f"device_model={choice.model}" if choice.model else ""
    settings = [one for one in (mask.partition(" leaves ")[0], device, model) if one]
    verb = "leaves" if len(settings) == 1 else "leave"
    left = allowed(choice, state) or frozenset()
    return f"{' and '.join(settings)} {verb} {names_of(left, state.inventory) or 'no GPU'}"
