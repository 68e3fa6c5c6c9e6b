"""The transitions of devices, locks, the drain and the calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.draft import Draft, handlers, on
from jupyter_gpugate.core.learning.calibration import forget, sediment
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.state import Lock


def _device_seen(draft: Draft, event: ev.DeviceSeen) -> None:
    if draft.inventory.rows.get(event.device.uuid) == event.device:
        return
    draft.inventory.own()[event.device.uuid] = event.device
    draft.renew_needs(lambda request: request.gpus > 0)


def _device_forgotten(draft: Draft, event: ev.DeviceForgotten) -> None:
    draft.last_fences.own().pop(event.uuid, None)
    if draft.inventory.own().pop(event.uuid, None) is not None:
        draft.renew_needs(lambda request: request.gpus > 0)


def _driver_seen(draft: Draft, event: ev.DriverSeen) -> None:
    draft.driver = event.major
    draft.renew_needs(lambda request: request.gpus > 0)


def _locked(draft: Draft, event: ev.Locked) -> None:
    draft.locks.own()[event.resource] = Lock(
        event.resource, event.owner, event.at, event.until, event.kernel
    )


def _unlocked(draft: Draft, event: ev.Unlocked) -> None:
    draft.locks.own().pop(event.resource, None)


def _drain_changed(draft: Draft, event: ev.DrainChanged) -> None:
    draft.draining = (event.reason or "drained") if event.draining else None


def _sedimented(draft: Draft, event: ev.Sedimented) -> None:
    observation = event.observation
    draft.calibration = sediment(draft.calibration, observation)
    ended = draft.ended.rows.get(observation.run_id)
    if ended is not None and observation.elsewhere_bytes is not None:
        elsewhere = {**ended.elsewhere, observation.resource: observation.elsewhere_bytes}
        draft.ended.own()[observation.run_id] = replace(ended, elsewhere=elsewhere)
    draft.renew_needs(_of_name(observation.family.owner, observation.family.name))


def _calibration_forgotten(draft: Draft, event: ev.CalibrationForgotten) -> None:
    draft.calibration = forget(draft.calibration, event.owner, event.name)
    draft.renew_needs(_of_name(event.owner, event.name))


def _of_name(owner: str, name: str) -> Callable[[Request], bool]:
    return lambda request: request.family.name == name and request.owner == owner


HANDLERS = handlers(
    on(ev.DeviceSeen, _device_seen),
    on(ev.DeviceForgotten, _device_forgotten),
    on(ev.DriverSeen, _driver_seen),
    on(ev.Locked, _locked),
    on(ev.Unlocked, _unlocked),
    on(ev.DrainChanged, _drain_changed),
    on(ev.Sedimented, _sedimented),
    on(ev.CalibrationForgotten, _calibration_forgotten),
)
