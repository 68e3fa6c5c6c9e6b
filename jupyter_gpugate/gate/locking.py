"""Resolves the device that a call names, and the resources that a lock on it closes."""

from __future__ import annotations

from collections.abc import Collection

from jupyter_gpugate.core.admission.devices import closed_by, resources_of
from jupyter_gpugate.core.admission.masks import VARIABLE, in_words, mask_of, visible
from jupyter_gpugate.core.admission.room import live_runs
from jupyter_gpugate.core.naming import matches, name_of, short
from jupyter_gpugate.core.resources import MACHINE
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.port import ActiveRun, Rejected


def device_named(gate: GateLoop, name: str, field: str, prefer: Collection[str] = ()) -> str:
    """Return a device's UUID, given the UUID, its beginning, or a number that means one device.

    ``prefer`` are the devices that a number means rather than others which have it too.
    """
    inventory = gate.state.inventory
    found = matches(inventory, name)
    if len(found) > 1 and name.isdigit():
        found = tuple(uuid for uuid in found if uuid in prefer) or found
    if len(found) == 1:
        return found[0]
    if not found:
        problem = f"{field}: no device {name!r} here"
        raise Rejected("bad_request", problem, field=field, devices=list(inventory))
    named = ", ".join(f"{short(inventory, uuid)} ({name_of(inventory, uuid)})" for uuid in found)
    problem = f"{field}: {name!r} may be any of {len(found)} devices: {named}; name one by its UUID"
    raise Rejected("bad_request", problem, field=field, candidates=list(found))


def present(gate: GateLoop) -> frozenset[str]:
    """The devices that the newest sample shows."""
    return frozenset(reading.device.uuid for reading in gate.sample.devices)


def resource_named(gate: GateLoop, name: str, prefer: Collection[str]) -> str:
    """Return the resource of a lock: a device or, without a name, the machine."""
    return MACHINE if name in ("", MACHINE) else device_named(gate, name, "resource", prefer)


def words_for(state: GateState, resource: str) -> str:
    """Return the resource of a lock in words."""
    return "the machine" if resource == MACHINE else name_of(state.inventory, resource)


def closes(gate: GateLoop, resource: str) -> frozenset[str]:
    """The resources that a lock would close; refused where it would close none."""
    inventory = gate.state.inventory
    if resource == MACHINE:
        return closed_by(inventory, resource)
    words = name_of(inventory, resource)
    if not resources_of(inventory, resource):
        why = "shares the machine's memory" if inventory[resource].unified else "has no slices now"
        problem = f"{words} {why}: a lock on it would have no effect; lock the machine"
        raise Rejected("state", problem, resource=resource)
    readers = [health for health in gate.sample.readers if health.name == "gpu"]
    answers = any(health.fault is None and health.taken_at is not None for health in readers)
    if answers and resource not in present(gate):
        raise Rejected("state", f"{words} is missing: no run starts there", resource=resource)
    return closed_by(inventory, resource)


def refuse_hidden(
    state: GateState, resource: str, closed: Collection[str], setting: str | None
) -> None:
    """Refuse a device that the caller's mask hides."""
    mask = None if setting is None else mask_of({VARIABLE: setting})
    in_mask = visible(mask, state.inventory)
    if in_mask is not None and resource != MACHINE and not in_mask.issuperset(closed):
        here = in_words(mask, state.inventory)
        problem = f"resource: {words_for(state, resource)} is not visible to this notebook: {here}"
        raise Rejected("bad_request", problem, field="resource")


def at_work(state: GateState, closed: Collection[str]) -> tuple[ActiveRun, ...]:
    """Return the active runs on the locked resources; the lock does not stop them."""
    everything = MACHINE in closed
    runs = tuple(state.leases) if everything else live_runs(state, closed)
    return tuple(ActiveRun(r, state.leases[r].request.family.name) for r in runs)


def refuse_another(state: GateState, resource: str, closed: Collection[str], owner: str) -> None:
    """Refuse a lock on a resource that another user has locked."""
    for lock in state.locks.values():
        alike = (lock.resource == MACHINE) == (resource == MACHINE)
        same = closed_by(state.inventory, lock.resource) & set(closed)
        if lock.owner != owner and alike and same:
            words = words_for(state, lock.resource)
            raise Rejected("state", f"{words} is locked by {lock.owner}")


def refuse_closed_otherwise(state: GateState, resource: str) -> None:
    """Refuse to release a resource that another lock keeps closed."""
    if resource in state.locks or resource == MACHINE:
        return
    for lock in state.locks.values():
        if closed_by(state.inventory, resource) & closed_by(state.inventory, lock.resource):
            words, other = words_for(state, resource), words_for(state, lock.resource)
            problem = f"{words} is locked with {other}: release that one"
            raise Rejected("state", problem, locked=lock.resource)
