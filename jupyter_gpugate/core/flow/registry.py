"""The transitions of what stands beside the runs: devices, locks, the drain, what was learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.draft import Draft
from jupyter_gpugate.core.learning.calibration import forget, sediment
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.state import Lock


def _device_seen(draft: Draft, event: ev.DeviceSeen) -> None:
    if draft.get("inventory").get(event.device.uuid) == event.device:
        return
    draft.table("inventory")[event.device.uuid] = event.device
    draft.renew_needs(lambda request: request.gpus > 0)


def _device_forgotten(draft: Draft, event: ev.DeviceForgotten) -> None:
    if draft.table("inventory").pop(event.uuid, None) is not None:
        draft.renew_needs(lambda request: request.gpus > 0)


def _driver_seen(draft: Draft, event: ev.DriverSeen) -> None:
    draft.set("driver", event.major)
    draft.renew_needs(lambda request: request.gpus > 0)


def _locked(draft: Draft, event: ev.Locked) -> None:
    draft.table("locks")[event.resource] = Lock(
        event.resource, event.owner, event.at, event.until, event.kernel
    )


def _unlocked(draft: Draft, event: ev.Unlocked) -> None:
    draft.table("locks").pop(event.resource, None)


def _drain_changed(draft: Draft, event: ev.DrainChanged) -> None:
    draft.set("draining", (event.reason or "drained") if event.draining else None)


def _sedimented(draft: Draft, event: ev.Sedimented) -> None:
    observation = event.observation
    draft.set("calibration", sediment(draft.get("calibration"), observation))
    ended = draft.get("ended").get(observation.run_id)
    if ended is not None and observation.elsewhere_bytes is not None:
        elsewhere = {**ended.elsewhere, observation.resource: observation.elsewhere_bytes}
        draft.table("ended")[observation.run_id] = replace(ended, elsewhere=elsewhere)
    draft.renew_needs(_of_name(observation.family.owner, observation.family.name))


def _calibration_forgotten(draft: Draft, event: ev.CalibrationForgotten) -> None:
    draft.set("calibration", forget(draft.get("calibration"), event.owner, event.name))
    draft.renew_needs(_of_name(event.owner, event.name))


def _of_name(owner: str, name: str) -> Callable[[Request], bool]:
    return lambda request: request.family.name == name and request.owner == owner


HANDLERS: Mapping[type, Callable[[Draft, Any], None]] = {
    ev.DeviceSeen: _device_seen,
    ev.DeviceForgotten: _device_forgotten,
    ev.DriverSeen: _driver_seen,
    ev.Locked: _locked,
    ev.Unlocked: _unlocked,
    ev.DrainChanged: _drain_changed,
    ev.Sedimented: _sedimented,
    ev.CalibrationForgotten: _calibration_forgotten,
}
