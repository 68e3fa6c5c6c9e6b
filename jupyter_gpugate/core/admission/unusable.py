"""Refuses, at submit, choices of devices that no device here satisfies."""

from __future__ import annotations

from typing import NamedTuple, Optional

from jupyter_gpugate.core.admission.choices import (
    allowed,
    boards_named,
    in_words,
    named,
    of_model,
)
from jupyter_gpugate.core.admission.masks import visible
from jupyter_gpugate.core.naming import name_of
from jupyter_gpugate.core.requests import Choice, Request
from jupyter_gpugate.core.state import GateState


class Unusable(NamedTuple):
    """The field to correct, and why."""

    field_name: str
    message: str


def unusable_choice(
    state: GateState, request: Request, gated: frozenset[str]
) -> Optional[Unusable]:
    """Return what is wrong with the devices of a request; ``gated`` are those that runs can get."""
    if request.gpus == 0:
        return _needless(request)
    in_mask = visible(request.visible, state.inventory)
    there = gated if in_mask is None else gated & in_mask
    for word in request.device:
        problem = _problem_with(word, state, gated, there)
        if problem:
            here = _here(state, Choice(request.visible), there)
            return Unusable("device", f"device: {problem}; {here}")
    choice = Choice(request.visible, request.device)
    left = allowed(choice, state)
    there = gated if left is None else gated & left
    if request.model and not there & of_model(request.model, state.inventory):
        problem = f"no GPU with {request.model!r} in the name of its model"
        return Unusable("device_model", f"device_model: {problem}; {_here(state, choice, there)}")
    return None


def _needless(request: Request) -> Optional[Unusable]:
    for name, value in (("device", request.device), ("device_model", request.model)):
        if value:
            return Unusable(name, f"{name}: the run asks for no GPU (gpus: 0): leave one out")
    return None


def _problem_with(word: str, state: GateState, gated: frozenset[str], there: frozenset[str]) -> str:
    """Return why a name means no device that the run could get; "" if it does."""
    found = boards_named(word, state)
    if not found:
        return f"no GPU here is {word!r}"
    if len(found) > 1:
        return f"{word!r} is the beginning of several UUIDs"
    devices, name = named(word, state), name_of(state.inventory, next(iter(found)))
    if not devices & gated:
        return f"{name} has no memory of its own that a run could be given"
    return "" if devices & there else f"{name} is hidden from this notebook"


def _here(state: GateState, choice: Choice, there: frozenset[str]) -> str:
    """List the devices that a choice leaves, or those of the machine."""
    inventory = state.inventory
    order = sorted(there, key=lambda u: (inventory[u].parent or "", inventory[u].index))
    listed = ", ".join(_listed(state, uuid) for uuid in order) or "no GPU"
    return in_words(choice, state) or f"this machine has {listed}"


def _listed(state: GateState, uuid: str) -> str:
    """Return a device by the name that `device` takes, and its model."""
    device, name = state.inventory[uuid], name_of(state.inventory, uuid)
    return (
        f"{name} ({device.model})" if device.parent is None else f"{uuid} ({name}, {device.model})"
    )
