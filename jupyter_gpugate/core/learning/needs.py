"""The needs of a request, from its estimates on every kind of device here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Optional

from jupyter_gpugate.core.estimates import (
    GUESSED,
    NO_ESTIMATE,
    Estimate,
    Estimates,
    EstimateTerm,
    Needs,
    Origin,
    TermNeed,
)
from jupyter_gpugate.core.evidence import Calibration
from jupyter_gpugate.core.learning.estimation import estimate
from jupyter_gpugate.core.requests import Basis, Request, Setting
from jupyter_gpugate.core.resources import RAM, VRAM, HolderKind
from jupyter_gpugate.core.samples import Device

#: The rung of the trust ladder by origin, where it is not that of a measurement.
_RUNGS: Mapping[Optional[Origin], Basis] = {
    Origin.HINT: Basis.HINT,
    Origin.CHOSEN: Basis.CHOSEN,
}


def models_of(inventory: Mapping[str, Device]) -> dict[str, Device]:
    """Return the machine's device models, each with one device as its representative."""
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
    ram = _chosen(request, RAM) or estimate(
        calibration, request.family, setting_on(request, None, driver), request.hints, (RAM,)
    )
    if device is None or request.gpus == 0:
        return ram
    vram = _chosen(request, VRAM) or estimate(
        calibration,
        request.family,
        setting_on(request, device, driver),
        request.hints,
        (VRAM,),
        device_model=device.model,
        device_total=device.total_bytes,
    )
    level = tuple(sorted(set(ram.level_parameters) | set(vram.level_parameters)))
    return Estimate(terms=vram.terms + ram.terms, level_parameters=level)


def _chosen(request: Request, resource: str) -> Optional[Estimate]:
    """Return the amount that the author has fixed: nothing is estimated there."""
    amount = request.chosen.of(resource)
    if amount is None:
        return None
    term = EstimateTerm(resource, HolderKind.RUN, amount, Origin.CHOSEN, peak_bytes=amount)
    return Estimate((term,))


def needs_of(
    calibration: Calibration, request: Request, inventory: Mapping[str, Device], driver: str
) -> tuple[Needs, Estimates]:
    """The request's needs on every kind of device here, and the estimates they come from."""
    models = models_of(inventory) if request.gpus else {}
    kinds: dict[str, Optional[Device]] = {**models} or {"": None}
    try:
        told = {name: estimate_on(calibration, request, d, driver) for name, d in kinds.items()}
    except Exception as error:  # noqa: BLE001 - a run without a number is watched; the gate goes on
        told = dict.fromkeys(kinds, _nothing_known(request, f"the estimate failed: {error!r}"))
    vram = tuple((name, _term_need(told[name].term(VRAM))) for name in models)
    estimates = tuple((name, named(told[name], name if len(models) > 1 else "")) for name in kinds)
    return Needs(ram=_term_need(estimates[0][1].term(RAM)), vram=vram), estimates


def named(estimates: Estimate, model: str) -> Estimate:
    """Return the estimate with the kind of device that it is for."""
    terms = (replace(t, device_model=model) if t.resource == VRAM else t for t in estimates.terms)
    return replace(estimates, terms=tuple(terms))


def estimate_for(estimates: Estimates, model: str) -> Estimate:
    """The one for this kind of device, or any."""
    known = dict(estimates)
    return known.get(model) or next(iter(known.values()), NO_ESTIMATE)


def _nothing_known(request: Request, why: str) -> Estimate:
    terms: list[EstimateTerm] = []
    for resource in (VRAM, RAM) if request.gpus else (RAM,):
        chosen = _chosen(request, resource)
        gap = EstimateTerm(resource, HolderKind.RUN, None, note=why)
        terms += chosen.terms if chosen else (gap,)
    return Estimate(tuple(terms))


def _term_need(term: EstimateTerm) -> TermNeed:
    prior, bound = term.prior_bytes, term.lower_bound_bytes
    if term.need_bytes is None:
        return TermNeed(None, Basis.WATCH, prior, bound, None, term.is_prior_close)
    basis = _RUNGS.get(term.origin, Basis.CALIBRATED)
    least = 0 if term.origin in GUESSED else term.peak_bytes
    return TermNeed(term.need_bytes, basis, prior, bound, least)
