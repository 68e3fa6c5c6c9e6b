"""The observations of an attempt that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Optional, Union

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.evidence import Observation
from jupyter_gpugate.core.learning.needs import setting_on
from jupyter_gpugate.core.leases import Lease, Live, RunLease, Usage
from jupyter_gpugate.core.memory.elsewhere import risen_elsewhere
from jupyter_gpugate.core.reports import AttemptOutcome, EndReport
from jupyter_gpugate.core.requests import Basis, Enforcement, RetryCause
from jupyter_gpugate.core.resources import RAM, VRAM
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState

#: A stretch without a reading longer than this leaves a peak a lower bound.
LONGEST_GAP_S = 15.0
OWN_CAP = "own_cap"


def sedimented(
    state: GateState, event: ev.Event, wall: float, sample: Optional[Sample] = None
) -> tuple[ev.Sedimented, ...]:
    """The observations that an end, or a service's `Ready`, yields, given the state before it.

    ``sample`` was taken after it: it shows whether memory of others was released with the run.
    """
    if not isinstance(event, (ev.Finished, ev.Ready)):
        return ()
    lease = state.leases.get(event.run_id)
    if lease is None or lease.terms.fence != event.fence or lease.live is None:
        return ()
    end = _so_far(event, lease.live)
    if end.outcome is AttemptOutcome.NOT_STARTED:
        return ()
    seen = (_of_ram(lease.live, end, event.at), _of_vram(state, lease, end, event.at))
    lessons = []
    for shown in filter(None, seen):
        if isinstance(event, ev.Ready) and shown.peak_bytes == 0:
            continue  # it may load at its first request, or in a daemon: its end shows that
        lesson = _observation(state, lease, end, wall, shown)
        risen = _elsewhere(state, lease, shown, sample)
        if risen is not None:
            lesson = replace(lesson, complete=False, elsewhere_bytes=risen)
        lessons.append(ev.Sedimented(event.at, lesson))
    return tuple(lessons)


def _so_far(event: Union[ev.Finished, ev.Ready], live: Live) -> EndReport:
    """Return an attempt's end with all reported peaks; a ready service counts as if it ended."""
    if isinstance(event, ev.Ready):
        return EndReport(AttemptOutcome.COMPLETED, peaks=live.reported.peaks, ready=True)
    end, peaks = event.end, live.reported.peaks.merged(event.end.peaks)
    if event.retry is not None and event.retry.cause is RetryCause.PUSHED_OUT:
        end = replace(end, oom_resource=None)  # others took what was reserved for it
    return replace(end, peaks=peaks, ready=live.ready_at is not None or end.ready)


def _elsewhere(
    state: GateState, lease: Lease, shown: _Shown, sample: Optional[Sample]
) -> Optional[int]:
    """Return the memory that a daemon or a server seems to have held for this run."""
    live = lease.live
    if sample is None or live is None:
        return None
    here = lease.terms.devices if shown.resource == VRAM else (RAM,)
    found = (risen_elsewhere(state, live, r, shown.peak_bytes, sample) for r in here)
    return max((risen for risen in found if risen is not None), default=None)


class _Shown(NamedTuple):
    """The measurements of an attempt on one kind of resource."""

    resource: str
    peak_bytes: int
    whole: bool  # no long stretch without a reading


def _of_ram(live: Live, end: EndReport, at: float) -> Optional[_Shown]:
    """The supervisor's peak, unless the gate saw one process of the tree hold more than that.

    Then it is the gate's own sum over the tree, and no less than what was reported.
    """
    usage, peaks = live.measured.usage.get(RAM, Usage()), end.peaks
    reported = peaks.ram_bytes or 0
    if reported and reported >= usage.process_peak_bytes:
        whole = peaks.ram_covered or live.reported.report_gap_s <= LONGEST_GAP_S
        return _Shown(RAM, reported, whole)
    if usage.read_at is None:
        return None
    peak = max(usage.peak_bytes, usage.summed_peak_bytes, reported)
    return _Shown(RAM, peak, _gap(usage, at) <= LONGEST_GAP_S)


def _of_vram(state: GateState, lease: RunLease, end: EndReport, at: float) -> Optional[_Shown]:
    """The gate's own measurement per device, the greatest of them, raised by torch's own peak."""
    peaks: list[int] = []
    whole = True
    for uuid in lease.terms.devices:
        usage = lease.usage.get(uuid, Usage())
        reported = end.peaks.vram_bytes.get(uuid)
        if usage.read_at is None and reported is None and not _hit_its_cap(end):
            return None
        peaks.append(max(usage.peak_bytes, _by_report(state, lease, uuid, reported or 0)))
        covered = end.peaks.vram_covered and reported is not None
        whole = whole and (covered or _gap(usage, at) <= LONGEST_GAP_S)
    # A program that has replaced its mask needs its memory wherever it was given a device.
    peaks += [lease.usage[uuid].peak_bytes for uuid in lease.elsewhere] if peaks else []
    return _Shown(VRAM, max(peaks), whole) if peaks else None


def _hit_its_cap(end: EndReport) -> bool:
    return end.oom_resource == VRAM and end.oom_evidence == OWN_CAP


def _by_report(state: GateState, lease: RunLease, uuid: str, reported: int) -> int:
    """A framework's own peak and its contexts, which it does not count; within the device."""
    usage, device = lease.usage.get(uuid), state.inventory.get(uuid)
    if not reported or device is None:
        return reported
    each = state.device_overhead.get(device.model, 0)
    contexts = usage.overhead_bytes if usage is not None else None
    if contexts is None:
        contexts = each * lease.request.setting.workers
    return max(reported, min(reported + contexts, device.total_bytes))


def _gap(usage: Usage, ended_at: float) -> float:
    if usage.read_at is None:
        return float("inf")
    return max(usage.longest_gap_s, ended_at - usage.read_at)


def _observation(
    state: GateState, lease: RunLease, end: EndReport, wall: float, shown: _Shown
) -> Observation:
    on_gpu = shown.resource == VRAM
    device = state.inventory.get(lease.terms.devices[0]) if on_gpu else None
    granted, terms = lease.terms.devices if on_gpu else (RAM,), lease.terms
    charges = [terms.charges[r] for r in granted if r in terms.charges]
    caps = [_most(state, lease, u, lease.widest_caps) for u in terms.devices] if on_gpu else []
    return Observation(
        family=lease.request.family,
        setting=setting_on(lease.request, device, state.driver if on_gpu else ""),
        resource=shown.resource,
        peak_bytes=shown.peak_bytes,
        complete=shown.whole and _did_all(lease, end, shown.resource),
        at=wall,
        outcome=end.outcome,
        charge_bytes=min(charges, default=None),
        cap_bytes=min(caps, default=None),
        enforcement=terms.enforcement if on_gpu else Enforcement.NONE,
        oom_at_bytes=_ran_out_at(state, lease, end, shown),
        device_total_bytes=device.total_bytes if device is not None else None,
        # How long a service lasts says nothing about the next one.
        duration_s=None if lease.request.service else end.duration_s,
        neighbours=lease.live.measured.neighbours if lease.live else 0,
        run_id=lease.run_id,
    )


def _most(state: GateState, lease: RunLease, uuid: str, caps: Mapping[str, int]) -> int:
    """Return the most that a cap lets a run hold on a device, its frameworks' contexts included.

    A known need's cap is made of its charge.
    """
    device, charge = state.inventory.get(uuid), lease.terms.charges.get(uuid, 0)
    if device is None or lease.terms.basis.get(uuid) is not Basis.WATCH:
        return charge
    contexts = state.device_overhead.get(device.model, 0) * lease.request.setting.workers
    return min(caps.get(uuid, 0) + contexts, device.total_bytes)


def _ran_out_at(state: GateState, lease: RunLease, end: EndReport, shown: _Shown) -> Optional[int]:
    """Return the bytes at which it ran out of memory: under its own cap, the whole cap."""
    if end.oom_resource != shown.resource:
        return None
    if end.oom_evidence != OWN_CAP or shown.resource != VRAM:
        return shown.peak_bytes
    caps = (_most(state, lease, uuid, lease.caps) for uuid in lease.terms.devices)
    return max([shown.peak_bytes, *caps])


def _did_all(lease: RunLease, end: EndReport, resource: str) -> bool:
    """Completed, and with all its episodes; a service that was ready, unless it ran out of this."""
    if lease.request.service:
        return bool(end.ready) and end.oom_resource != resource
    if end.outcome is not AttemptOutcome.COMPLETED:
        return False
    return lease.request.kind == "program" or end.episodes_done >= lease.request.setting.episodes
