"""The need of a run and whether it would start now, without starting or reserving it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

from jupyter_gpugate.core.admission.checks import Admission
from jupyter_gpugate.core.admission.choices import allowed
from jupyter_gpugate.core.admission.decide import verdict_on
from jupyter_gpugate.core.admission.room import rooms
from jupyter_gpugate.core.decisions import KeptWaiting
from jupyter_gpugate.core.estimates import Estimate
from jupyter_gpugate.core.explaining.advice import advised
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.explaining.rows import Forecast, Reason
from jupyter_gpugate.core.explaining.waiting import model_told
from jupyter_gpugate.core.learning.estimation import max_workers
from jupyter_gpugate.core.learning.needs import estimate_for, models_of, needs_of, setting_on
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.resources import RAM, VRAM
from jupyter_gpugate.core.run_spec import MOST_WORKERS
from jupyter_gpugate.core.samples import Device, Sample
from jupyter_gpugate.core.state import GateState


def forecast(state: GateState, sample: Sample, request: Request, now: float) -> Forecast:
    """Return the need of a run, and whether it would start now."""
    verdict = verdict_on(state, sample, request, now)
    model = model_told(state, _about(verdict), request.choice)
    device = models_of(state.inventory).get(model) if request.gpus else None
    _, estimates = needs_of(state.calibration, request, state.inventory, state.driver)
    estimate = estimate_for(estimates, model)
    resources = [RAM, *([VRAM] if device else [])]
    reasons = _reasons(state, verdict, request, estimate)
    return Forecast(
        name=request.family.name,
        gpus=request.gpus,
        workers=request.setting.workers,
        terms=estimate.terms,
        level_parameters=estimate.level_parameters,
        total_bytes={r: estimate.total_bytes(r) for r in resources},
        known_bytes={r: estimate.known_bytes(r) for r in resources},
        missing=estimate.gaps(),
        max_workers=_most_workers(state, sample, request, device, now),
        would_start=not reasons,
        reasons=reasons,
    )


def _most_workers(
    state: GateState, sample: Sample, request: Request, device: Optional[Device], now: float
) -> Optional[int]:
    if request.kind == "program":  # it has one
        return None
    here = rooms(state, sample, now)
    permitted = allowed(request.choice, state)
    room = {RAM: here[RAM].room_bytes}
    if device is not None:
        alike = [
            r.room_bytes
            for uuid, r in here.items()
            if r.device
            and r.device.model == device.model
            and (permitted is None or uuid in permitted)
        ]
        room[VRAM] = max(alike, default=0)
    # A chosen amount is that of the run, however many workers share it.
    chosen = {r: amount for r in room if (amount := request.chosen.of(r)) is not None}
    if any(amount > room.pop(r) for r, amount in chosen.items()):
        return 0
    if not room:
        return MOST_WORKERS
    return max_workers(
        state.calibration,
        request.family,
        setting_on(request, device, state.driver),
        request.hints,
        room,
        device_model=device.model if device else None,
        device_total=device.total_bytes if device else None,
    )


def _about(verdict: Union[Admission, KeptWaiting]) -> Sequence[str]:
    """Return the devices of a verdict: where the run would start, or which it would wait for."""
    if isinstance(verdict, KeptWaiting):
        return [reason.resource for reason in verdict.reasons if reason.resource]
    return verdict.devices


def _reasons(
    state: GateState, verdict: Union[Admission, KeptWaiting], request: Request, estimate: Estimate
) -> tuple[Reason, ...]:
    """The reasons that would keep it waiting if it were alone at the end of the queue."""
    if not isinstance(verdict, KeptWaiting):
        return ()
    return tuple(
        Reason(
            kind=reason.check.value,
            resource=reason.resource,
            message=advised(
                explain(state, reason), reason.check, reason.resource, request, estimate
            ),
            numbers=dict(reason.numbers),
        )
        for reason in verdict.reasons
    )
