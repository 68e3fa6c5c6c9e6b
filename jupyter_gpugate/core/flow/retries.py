"""Attempts that ran out of memory: whether their run is tried again, and with how much."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.room import GPU_FLOOR_BYTES
from jupyter_gpugate.core.learning.margins import OOM_FACTOR, SATURATED
from jupyter_gpugate.core.learning.observations import OWN_CAP, sedimented
from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.memory.growers import FULL_BYTES
from jupyter_gpugate.core.memory.holding import apply_sample
from jupyter_gpugate.core.naming import resource_words
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.core.requests import Basis, Retry, RetryCause
from jupyter_gpugate.core.resources import RAM, VRAM
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState

DEVICE_FULL: Final = "device_full"
#: If others held less than this share of a device, a run that has filled it would fill it again.
LEAST_OTHERS: Final = 0.05


def with_retry(state: GateState, event: ev.Finished, sample: Optional[Sample]) -> ev.Finished:
    """Return the end of an attempt with the retry that its run gets, if any: one in all.

    ``sample`` was taken after the end, ``state`` before it.  An end is judged by evidence: the
    worker's, and what was measured beside the run.
    """
    lease = state.leases.get(event.run_id)
    if lease is None or lease.terms.fence != event.fence or lease.live is None:
        return event
    if lease.attempt.queued.retry is not None or not _may_be_oom(lease, event.end):
        return event
    judged = replace(event, end=_with_evidence(state, lease, event.end))
    retry = _pushed_out(state, lease, judged, sample) or _too_small(state, lease, judged)
    return event if retry is None else replace(judged, retry=retry)


def _may_be_oom(lease: RunLease, end: EndReport) -> bool:
    """Return whether an attempt may have failed for want of memory.

    No one looks into a program: if it fails by itself, what was measured beside it decides.
    """
    if end.outcome is AttemptOutcome.OOM:
        return True
    is_program = lease.request.kind == "program"
    return is_program and end.outcome is AttemptOutcome.FAILED and bool(end.exit_code)


def _with_evidence(state: GateState, lease: RunLease, end: EndReport) -> EndReport:
    """Return the end of a program as out of memory if its device was full beyond its charge."""
    if end.outcome is AttemptOutcome.OOM:
        return end
    full = any(
        lease.held(uuid) > lease.terms.charges.get(uuid, 0) and _is_full(state, uuid)
        for uuid in lease.terms.devices
    )
    if not full:
        return end
    return replace(end, outcome=AttemptOutcome.OOM, oom_resource=VRAM, oom_evidence=DEVICE_FULL)


def _is_full(state: GateState, resource: str) -> bool:
    """Return whether the last sample before an end showed a resource full."""
    return state.free_seen.get(resource, FULL_BYTES) < FULL_BYTES


def _pushed_out(
    state: GateState, lease: RunLease, event: ev.Finished, sample: Optional[Sample]
) -> Optional[Retry]:
    """Return a retry with the same charge if others took what was promised to the run."""
    end = event.end
    if end.oom_evidence == OWN_CAP:
        return None
    grown = _grown(state, lease, sample)
    for resource in _lacked(lease, end):
        charge, usage = lease.terms.charges.get(resource, 0), lease.usage.get(resource)
        risen = grown.get(resource, 0)
        if end.outcome is not AttemptOutcome.OOM and not _is_evident(state, lease, resource):
            continue
        if risen and usage is not None and usage.peak_bytes <= charge:
            return _retry(state, RetryCause.PUSHED_OUT, event, resource, risen, charge)
    return None


def _is_evident(state: GateState, lease: RunLease, resource: str) -> bool:
    """Return whether a failed program needed what others took of its charge.

    The charge of a first run is generous: it needed all of it only if the device was full.
    """
    return lease.terms.basis.get(resource) is not Basis.WATCH or _is_full(state, resource)


def _lacked(lease: RunLease, end: EndReport) -> Iterable[str]:
    """Return the resources that an attempt may have lacked; of RAM, the kernel gives evidence."""
    return (RAM,) if end.oom_resource == RAM else lease.terms.devices


def _grown(state: GateState, lease: RunLease, sample: Optional[Sample]) -> dict[str, int]:
    """Return by how much others grew on each resource where the run ran short."""
    if sample is not None:
        try:
            at = sample.ram.taken_at if sample.ram else 0.0
            observed, _ = apply_sample(state, sample, at)
            lease = observed.leases[lease.run_id]
        except Exception:  # noqa: BLE001, S110 - whatever was read, the sample before it counts
            pass
    return {r: sum(one.rise_bytes for one in rises) for r, rises in lease.grown.items()}


def _too_small(state: GateState, lease: RunLease, event: ev.Finished) -> Optional[Retry]:
    """Return a retry with a larger charge if there is one; an amount that was chosen stays."""
    end = event.end
    if end.oom_resource != VRAM or end.oom_evidence not in (OWN_CAP, DEVICE_FULL):
        return None
    uuid = max(lease.terms.devices, key=lambda u: _peak(lease, u), default="")
    device = state.inventory.get(uuid)
    shown = [s.observation for s in sedimented(state, event, 0.0)]
    at = next((one.oom_at_bytes for one in shown if one.resource == VRAM), None)
    if device is None or at is None or lease.terms.basis.get(uuid) is Basis.CHOSEN:
        return None
    most = device.total_bytes - GPU_FLOOR_BYTES
    if at * (1 + SATURATED) >= most or _was_alone(state, lease, uuid, end):
        return None  # it had all of the device
    larger = max(lease.terms.charges.get(uuid, 0), math.ceil(OOM_FACTOR * at))
    return _retry(state, RetryCause(end.oom_evidence), event, uuid, at, min(larger, most))


def _was_alone(state: GateState, lease: RunLease, uuid: str, end: EndReport) -> bool:
    """Return whether a run has filled a device on which nobody else held much."""
    shares, device = state.attribution.resources.get(uuid), state.inventory[uuid]
    if end.oom_evidence != DEVICE_FULL or shares is None or shares.fault:
        return False
    others = shares.used_bytes - shares.by_holder.get(lease.holder, 0)
    return others < LEAST_OTHERS * device.total_bytes


def _peak(lease: RunLease, uuid: str) -> int:
    usage = lease.usage.get(uuid)
    return usage.peak_bytes if usage else 0


def _retry(  # noqa: PLR0917 - the fields of a retry, in their order
    state: GateState,
    cause: RetryCause,
    event: ev.Finished,
    resource: str,
    at_bytes: int,
    charge_bytes: int,
) -> Retry:
    where = resource_words(state, resource)
    return Retry(cause, resource, where, at_bytes, charge_bytes, event.fence)
