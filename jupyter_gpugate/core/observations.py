"""What an attempt that ends has taught."""

from __future__ import annotations

from typing import Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.model import (
    RAM,
    VRAM,
    AttemptOutcome,
    Enforcement,
    EndReport,
    Observation,
)
from jupyter_gpugate.core.needs import setting_on
from jupyter_gpugate.core.state import GateState, Lease, Usage

#: A stretch without a reading longer than this leaves a peak a lower bound.
LONGEST_GAP_S = 15.0


def sedimented(
    state: GateState, event: ev.Event, wall: float
) -> tuple[ev.Sedimented, ...]:
    """The observations that a `Finished` event yields, given the state before it."""
    if not isinstance(event, ev.Finished):
        return ()
    lease = state.leases.get(event.run_id)
    nothing = event.end.outcome is AttemptOutcome.NOT_STARTED
    if lease is None or lease.fence != event.fence or nothing or lease.started_at is None:
        return ()
    observations = (_of_ram(lease, event, wall), _of_vram(state, lease, event, wall))
    return tuple(ev.Sedimented(event.at, o) for o in observations if o is not None)


def _of_ram(lease: Lease, event: ev.Finished, wall: float) -> Optional[Observation]:
    """The supervisor's peak, unless the gate saw one process of the tree hold more than that."""
    usage = lease.usage.get(RAM, Usage())
    peaks = event.end.peaks
    reported = max(peaks.ram_bytes or 0, lease.peaks.ram_bytes or 0)
    if reported and reported >= usage.process_peak_bytes:
        peak, covered = reported, peaks.ram_covered
        gap = 0.0 if peaks.ram_meter else usage.longest_gap_s
    elif usage.read_at is not None:
        peak, covered, gap = usage.peak_bytes, False, _gap(usage, event.at)
    else:
        return None
    if event.end.oom_resource == RAM:
        peak = max(peak, 1)
    return _observation(
        lease, event, wall, RAM, peak, complete=covered or gap <= LONGEST_GAP_S
    )


def _of_vram(
    state: GateState, lease: Lease, event: ev.Finished, wall: float
) -> Optional[Observation]:
    """The gate's own measurement per device, the greatest of them, raised by torch's own peak."""
    if not lease.devices:
        return None
    reported = event.end.peaks.vram_bytes
    peaks: list[int] = []
    whole = True
    for uuid in lease.devices:
        usage = lease.usage.get(uuid, Usage())
        measured = usage.read_at is not None
        if not measured and uuid not in reported:
            return None
        peaks.append(max(usage.peak_bytes, reported.get(uuid, 0)))
        gap = _gap(usage, event.at) if measured else float("inf")
        whole = whole and (gap <= LONGEST_GAP_S or event.end.peaks.vram_covered)
    device = state.inventory.get(lease.devices[0])
    return _observation(
        lease,
        event,
        wall,
        VRAM,
        max(peaks),
        complete=whole,
        state=state,
        total=device.total_bytes if device else None,
    )


def _gap(usage: Usage, ended_at: float) -> float:
    last = ended_at - usage.read_at if usage.read_at is not None else 0.0
    return max(usage.longest_gap_s, last)


def _observation(
    lease: Lease,
    event: ev.Finished,
    wall: float,
    resource: str,
    peak: int,
    *,
    complete: bool,
    state: Optional[GateState] = None,
    total: Optional[int] = None,
) -> Observation:
    end = event.end
    on_gpu = resource == VRAM
    charged = lease.devices if on_gpu else (RAM,)
    charges = [lease.granted_charges[r] for r in charged if r in lease.granted_charges]
    caps = [lease.caps[r] for r in charged if r in lease.caps]
    device = state.inventory.get(lease.devices[0]) if state and on_gpu else None
    oom_here = end.oom_resource == resource
    return Observation(
        family=lease.request.family,
        setting=setting_on(lease.request, device, state.driver if state else ""),
        resource=resource,
        peak_bytes=peak,
        complete=complete and _did_all(lease, end),
        at=wall,
        outcome=end.outcome,
        charge_bytes=min(charges, default=None),
        cap_bytes=min(caps, default=None),
        enforcement=lease.enforcement if on_gpu else Enforcement.NONE,
        oom_at_bytes=max([peak, *charges]) if oom_here and end.oom_evidence == "own_cap" else
        (peak if oom_here else None),
        device_total_bytes=total,
        duration_s=end.duration_s,
        neighbours=lease.neighbours,
        run_id=lease.run_id,
    )


def _did_all(lease: Lease, end: EndReport) -> bool:
    """Completed, and with all its episodes."""
    if end.outcome is not AttemptOutcome.COMPLETED:
        return False
    asked = lease.request.setting.episodes
    return lease.request.kind == "program" or end.episodes_done >= asked

