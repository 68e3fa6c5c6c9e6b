"""What admission must know of a request, worked out once and kept until it can change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from jupyter_gpugate.core.calibration import Calibration
from jupyter_gpugate.core.estimation import estimate
from jupyter_gpugate.core.model import (
    RAM,
    VRAM,
    Basis,
    Device,
    Estimate,
    EstimateTerm,
    HolderKind,
    Origin,
    Request,
    Setting,
)
from jupyter_gpugate.core.state import Needs, TermNeed


def models_of(inventory: Mapping[str, Device]) -> dict[str, Device]:
    """The machine's kinds of device, each with one device that stands for it."""
    models: dict[str, Device] = {}
    for uuid in sorted(inventory):
        device = inventory[uuid]
        if not device.mig_enabled and not device.unified:
            models.setdefault(device.model, device)
    return models


def setting_on(request: Request, device: Optional[Device], driver: str) -> Setting:
    """The circumstances in which a request would run on this kind of device."""
    runtime = request.setting.runtime
    if device is not None and driver:
        runtime = f"{runtime} driver {driver}".strip()
    return replace(request.setting, device_model=device.model if device else None, runtime=runtime)


def estimate_on(
    calibration: Calibration, request: Request, device: Optional[Device], driver: str
) -> Estimate:
    """The request's estimate on one kind of device, or of RAM alone without one."""
    ram = estimate(
        calibration, request.family, setting_on(request, None, driver), request.hints, (RAM,)
    )
    if device is None or request.gpus == 0:
        return ram
    vram = estimate(
        calibration,
        request.family,
        setting_on(request, device, driver),
        request.hints,
        (VRAM,),
        device_model=device.model,
        device_total=device.total_bytes,
    )
    ignored = tuple(sorted(set(ram.ignored_parameters) | set(vram.ignored_parameters)))
    return Estimate(terms=vram.terms + ram.terms, ignored_parameters=ignored)


def needs_of(
    calibration: Calibration, request: Request, inventory: Mapping[str, Device], driver: str
) -> tuple[Needs, Estimate]:
    """The request's needs on every kind of device here, and the estimate people are shown."""
    models = models_of(inventory) if request.gpus else {}
    try:
        estimates = {
            name: estimate_on(calibration, request, device, driver)
            for name, device in models.items()
        }
        shown = next(iter(estimates.values()), None)
        if shown is None:
            shown = estimate_on(calibration, request, None, driver)
    except Exception as error:  # noqa: BLE001 - a run without a number is watched; the gate goes on
        shown = _nothing_known(request, f"the estimate failed: {error!r}")
        estimates = dict.fromkeys(models, shown)
    vram = tuple((name, _term_need(e.term(VRAM))) for name, e in estimates.items())
    return Needs(ram=_term_need(shown.term(RAM)), vram=vram), shown


def _nothing_known(request: Request, why: str) -> Estimate:
    resources = (VRAM, RAM) if request.gpus else (RAM,)
    return Estimate(tuple(EstimateTerm(r, HolderKind.RUN, None, note=why) for r in resources))


def _term_need(term: EstimateTerm) -> TermNeed:
    prior, bound = term.prior_bytes, term.lower_bound_bytes
    if term.need_bytes is None:
        return TermNeed(None, Basis.WATCH, prior, bound)
    basis = Basis.HINT if term.origin is Origin.HINT else Basis.CALIBRATED
    return TermNeed(term.need_bytes, basis, prior, bound, term.peak_bytes)
