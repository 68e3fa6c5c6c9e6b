"""Refuses at submit, with numbers, requests that could never start here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Optional

from jupyter_gpugate.core.admission.choices import allowed, in_words
from jupyter_gpugate.core.admission.room import GPU_FLOOR_BYTES, ram_floor
from jupyter_gpugate.core.admission.unusable import unusable_choice
from jupyter_gpugate.core.estimates import TermNeed
from jupyter_gpugate.core.learning.needs import needs_of
from jupyter_gpugate.core.naming import megabytes
from jupyter_gpugate.core.requests import Basis, Request
from jupyter_gpugate.core.run_spec import LEAST_CHOSEN_BYTES
from jupyter_gpugate.core.samples import Device, Sample
from jupyter_gpugate.core.state import GateState

_FIELDS = {"RAM": "ram_bytes", "GPU memory": "vram_bytes"}


@dataclass(frozen=True)
class Impossible:
    """The reason why a request is refused: the field to correct, and the numbers."""

    field_name: str
    message: str
    numbers: Mapping[str, int] = field(default_factory=dict)


def impossible(state: GateState, sample: Sample, request: Request) -> Optional[Impossible]:
    """Return the first problem that no waiting could solve, or None."""
    return _numbers(request) or _devices(state, request) or _memory(state, sample, request)


def _numbers(request: Request) -> Optional[Impossible]:
    """Refuse numbers that are too small, such as a negative hint."""
    least: dict[str, tuple[Optional[float], int]] = {
        "gpus": (request.gpus, 0),
        "workers": (request.setting.workers, 1),
        "episodes": (request.setting.episodes, 1),
        "hints.vram_bytes": (request.hints.vram_bytes, 1),
        "hints.ram_bytes": (request.hints.ram_bytes, 1),
        "chosen.vram_bytes": (request.chosen.vram_bytes, LEAST_CHOSEN_BYTES),
        "chosen.ram_bytes": (request.chosen.ram_bytes, LEAST_CHOSEN_BYTES),
    }
    for name, (value, limit) in least.items():
        if value is not None and value < limit:
            numbers = {"value": int(value), "least": limit}
            return Impossible(name, f"{name}: {value} is too small, the least is {limit}", numbers)
    if request.gpus == 0 and request.chosen.vram_bytes is not None:
        name = "chosen.vram_bytes"
        problem = "the run has no GPU whose memory could be chosen: leave it out, or ask for a GPU"
        return Impossible(name, f"{name}: {problem}")
    return None


def _devices(state: GateState, request: Request) -> Optional[Impossible]:
    refused = unusable_choice(state, request, frozenset(d.uuid for d in _usable(state)))
    if refused is not None:
        return Impossible(*refused)
    most = max(_counts(state, request).values(), default=0)
    if request.gpus <= most:
        return None
    fix = f"{most} at most" if most else "0, or leave it out"
    has = {0: "no GPU", 1: "1 GPU"}.get(most, f"{most} GPUs of one model")
    asked = "1 GPU" if request.gpus == 1 else f"{request.gpus} GPUs"
    left = _left(state, request) if _counts(state) else ""
    here = left or f"this machine has {has}"
    return Impossible(
        "gpus",
        f"gpus: the run asks for {asked}, but {here}: ask for {fix}",
        {"asked": request.gpus, "present": most},
    )


def _counts(state: GateState, request: Optional[Request] = None) -> dict[str, int]:
    """Count the devices that one run can have of each model; a process can use one MIG slice."""
    counts: dict[str, int] = {}
    for device in _usable(state, request):
        known = counts.get(device.model, 0)
        counts[device.model] = 1 if device.parent is not None else known + 1
    return counts


def _usable(state: GateState, request: Optional[Request] = None) -> Iterator[Device]:
    """Return the gated devices that the request may have."""
    permitted = allowed(request.choice, state) if request else None
    for uuid, device in state.inventory.items():
        if (
            not device.mig_enabled
            and not device.unified
            and (permitted is None or uuid in permitted)
        ):
            yield device


def _memory(state: GateState, sample: Sample, request: Request) -> Optional[Impossible]:
    needs, _ = needs_of(state.calibration, request, state.inventory, state.driver)
    if sample.ram is not None:
        limit = sample.ram.total_bytes
        if needs.ram.basis is Basis.CHOSEN:
            limit -= ram_floor(limit)
        least = _least(needs.ram)
        if least is not None and least > limit:
            return _too_much(request, "RAM", needs.ram, limit)
    counts = _counts(state, request)
    largest: Optional[tuple[int, TermNeed]] = None
    for device in _usable(state, request) if request.gpus else ():
        need = needs.on(device.model)
        least = _least(need)
        limit = device.total_bytes
        if need.basis is Basis.CHOSEN:
            limit = _most_chosen(sample, device)
        limit = max(state.traits.usable_vram_bytes.get(device.uuid, 0), limit)
        if counts[device.model] < request.gpus:
            continue
        if least is None or least <= limit:
            return None
        if largest is None or limit > largest[0]:
            largest = (limit, need)
    left = _left(state, request)
    return _too_much(request, "GPU memory", largest[1], largest[0], left) if largest else None


def _left(state: GateState, request: Request) -> str:
    """Describe the devices that are left to a request; "" where none is closed to it."""
    words = in_words(request.choice, state)
    whom = "run" if request.device or request.model else "notebook"
    return f"{words} to this {whom}" if words else ""


def _most_chosen(sample: Sample, device: Device) -> int:
    """Return the bytes that a run can be given on the empty device: a choice has no margin."""
    reading = sample.device(device.uuid)
    kept = (reading.driver_reserved_bytes or 0) if reading else 0
    return device.total_bytes - kept - GPU_FLOOR_BYTES


def _least(need: TermNeed) -> Optional[int]:
    """Return what it needs for certain: a margin that does not fit into the machine is omitted."""
    return need.need_bytes if need.least_bytes is None else need.least_bytes


def _too_much(
    request: Request, what: str, need: TermNeed, limit: int, left: str = ""
) -> Impossible:
    least = _least(need) or 0
    numbers = {"need_bytes": least, "limit_bytes": limit}
    has = megabytes(limit)
    there = f"{left}, with {has} at most" if left else f"this machine has {has}"
    if need.basis is Basis.HINT:
        name = f"hints.{_FIELDS[what]}"
        return Impossible(name, f"{name}: needs {megabytes(least)} of {what}, {there}", numbers)
    if need.basis is Basis.CHOSEN:
        name = f"chosen.{_FIELDS[what]}"
        can = f"{left}, where a run" if left else "a run on this machine"
        chosen = f"{megabytes(least)} of {what} is chosen, but {can} can have {has} at most"
        return Impossible(name, f"{name}: {chosen}: choose less", numbers)
    name = "workers" if request.setting.workers > 1 else "name"
    measured = f"earlier runs needed {megabytes(least)} of {what}, {there}"
    return Impossible(name, f"{name}: {measured}", numbers)
