"""Requests that could never start here are refused at submit, with the numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from collections.abc import Mapping
from typing import Optional

from jupyter_gpugate.core.explain import megabytes
from jupyter_gpugate.core.model import Device, Request, Sample
from jupyter_gpugate.core.needs import models_of, needs_of
from jupyter_gpugate.core.state import GateState


@dataclass(frozen=True)
class Impossible:
    """Why a request is refused: the field to mend, and the numbers."""

    field_name: str
    message: str
    numbers: Mapping[str, int] = field(default_factory=dict)


def impossible(state: GateState, sample: Sample, request: Request) -> Optional[Impossible]:
    """The first thing that no waiting could mend, or None."""
    return _devices(state, request) or _memory(state, sample, request)


def _devices(state: GateState, request: Request) -> Optional[Impossible]:
    usable = [d for d in state.inventory.values() if not d.mig_enabled and not d.unified]
    counts = [sum(1 for d in usable if d.model == model) for model in models_of(state.inventory)]
    most = max(counts, default=0)
    if request.gpus <= most:
        return None
    what = "device" if most == 1 else "devices of one model"
    return Impossible(
        "gpus",
        f"gpus: asks for {request.gpus}, this machine has {most} {what}",
        {"asked": request.gpus, "present": most},
    )


def _memory(state: GateState, sample: Sample, request: Request) -> Optional[Impossible]:
    needs, _ = needs_of(state.calibration, request, state.inventory, state.driver)
    if sample.ram is not None and needs.ram.need_bytes is not None:
        total = sample.ram.total_bytes
        if needs.ram.need_bytes > total:
            return _too_much("hints.ram_bytes", "RAM", needs.ram.need_bytes, total)
    return _vram(state, request, [d for d in state.inventory.values() if not d.mig_enabled])


def _vram(state: GateState, request: Request, devices: list[Device]) -> Optional[Impossible]:
    if request.gpus == 0 or not devices:
        return None
    needs, _ = needs_of(state.calibration, request, state.inventory, state.driver)
    shortfalls = []
    for device in devices:
        need = needs.on(device.model).need_bytes
        limit = max(state.traits.usable_vram_bytes.get(device.uuid, 0), device.total_bytes)
        if need is None or need <= limit:
            return None
        shortfalls.append((limit, need))
    limit, need = max(shortfalls)
    return _too_much("hints.vram_bytes", "GPU memory", need, limit)


def _too_much(field_name: str, what: str, need: int, limit: int) -> Impossible:
    return Impossible(
        field_name,
        f"{field_name}: needs {megabytes(need)} of {what}, this machine has {megabytes(limit)}",
        {"need_bytes": need, "limit_bytes": limit},
    )


