"""The transition table: ``apply(state, events) -> state``.

Applying is total: an event that no longer fits (an old fence, a run that is gone) changes
nothing, so that a journal can be folded again after any crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Callable, Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.calibration import forget, sediment
from jupyter_gpugate.core.model import (
    RAM,
    AttemptOutcome,
    Peaks,
    Phase,
    Request,
    RunEnd,
)
from jupyter_gpugate.core.needs import needs_of
from jupyter_gpugate.core.state import (
    Ended,
    GateState,
    GroupKey,
    Lease,
    Lingering,
    Lock,
    Queued,
    Usage,
)

#: How many ended runs the gate remembers for their run sides to read.
ENDED_KEPT = 1000

#: What a run becomes when its attempt ends so; None: it queues again.
RUN_END: Mapping[AttemptOutcome, Optional[RunEnd]] = {
    AttemptOutcome.COMPLETED: RunEnd.COMPLETED,
    AttemptOutcome.FAILED: RunEnd.FAILED,
    AttemptOutcome.CANCELLED: RunEnd.CANCELLED,
    AttemptOutcome.OOM: RunEnd.OOM,
    AttemptOutcome.LOST: RunEnd.LOST,
    AttemptOutcome.EVICTED: None,
    AttemptOutcome.NOT_STARTED: None,
}


def apply(state: GateState, events: Iterable[ev.Event]) -> GateState:
    """Fold events into the state; the state given is left as it was."""
    draft = _Draft(state)
    for event in events:
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(draft, event)
    return draft.finish()


class _Draft:
    """A copy of the state that one batch of events may change, copied field by field at need."""

    def __init__(self, state: GateState) -> None:
        self._state = state
        self._changed: dict[str, Any] = {}
        self._own_groups: set[GroupKey] = set()

    def table(self, name: str) -> dict[Any, Any]:
        """A table of the state that may be changed."""
        if name not in self._changed:
            self._changed[name] = dict(getattr(self._state, name))
        table: dict[Any, Any] = self._changed[name]
        return table

    def get(self, name: str) -> Any:
        return self._changed.get(name, getattr(self._state, name))

    def set(self, name: str, value: Any) -> None:
        self._changed[name] = value

    def finish(self) -> GateState:
        return replace(self._state, **self._changed) if self._changed else self._state

    def enqueue(self, queued: Queued) -> None:
        """Put a request into the queue and its group, in its place."""
        run_id, max_wait = queued.request.run_id, queued.request.max_wait_s
        self._insert(self.table("queue"), run_id, queued)
        self._insert(self._group(queued.key), run_id, None)
        if max_wait is not None:
            self.table("expiries")[run_id] = queued.submitted_at + max_wait

    def dequeue(self, run_id: str) -> Optional[Queued]:
        queued: Optional[Queued] = self.table("queue").pop(run_id, None)
        if queued is not None:
            self._leave_group(queued)
            if run_id in self.get("expiries"):
                del self.table("expiries")[run_id]
        return queued

    def regroup(self, old: Queued, new: Queued) -> None:
        """Give a queued request other needs; it keeps its place."""
        self._leave_group(old)
        self.table("queue")[new.request.run_id] = new
        self._insert(self._group(new.key), new.request.run_id, None)

    def end(self, run_id: str, ended: Ended) -> None:
        table = self.table("ended")
        table[run_id] = ended
        while len(table) > ENDED_KEPT:
            del table[next(iter(table))]

    def lease(self, run_id: str, fence: int) -> Optional[Lease]:
        lease: Optional[Lease] = self.get("leases").get(run_id)
        return lease if lease is not None and lease.fence == fence else None

    def _group(self, key: GroupKey) -> dict[str, None]:
        groups = self.table("groups")
        if key not in self._own_groups:
            groups[key] = dict(groups.get(key, {}))
            self._own_groups.add(key)
        group: dict[str, None] = groups[key]
        return group

    def _leave_group(self, queued: Queued) -> None:
        group = self._group(queued.key)
        group.pop(queued.request.run_id, None)
        if not group:
            del self.table("groups")[queued.key]
            self._own_groups.discard(queued.key)

    def _insert(self, table: dict[str, Any], run_id: str, value: Any) -> None:
        """Add at the end, and put in order only where that is not the place."""
        queue: Mapping[str, Queued] = self.get("queue")
        last = next(reversed(table), None)
        table[run_id] = value
        if last is not None and last != run_id and queue[last].order > queue[run_id].order:
            ordered = sorted(table.items(), key=lambda item: queue[item[0]].order)
            table.clear()
            table.update(ordered)


# -- one handler per kind of event ------------------------------------------------------------


def _requested(draft: _Draft, event: ev.Requested) -> None:
    run_id = event.request.run_id
    if run_id in draft.get("queue") or run_id in draft.get("leases"):
        return
    if run_id in draft.get("ended"):
        return
    order = draft.get("order") + 1
    draft.set("order", order)
    draft.table("run_sides")[event.run_side] = event.at
    draft.enqueue(_queued(draft, event.request, order, event.at, event.run_side))


def _queued(draft: _Draft, request: Request, order: int, at: float, run_side: str) -> Queued:
    needs, estimate = needs_of(
        draft.get("calibration"), request, draft.get("inventory"), draft.get("driver")
    )
    return Queued(request, order, at, run_side, needs, estimate)


def _withdrawn(draft: _Draft, event: ev.Withdrawn) -> None:
    run_id = event.run_id
    lease: Optional[Lease] = draft.get("leases").get(run_id)
    if lease is not None and lease.phase is Phase.GRANTED:
        del draft.table("leases")[run_id]
        draft.end(run_id, Ended(event.end, event.reason, event.at, lease.attempt))
    elif draft.dequeue(run_id) is not None:
        draft.end(run_id, Ended(event.end, event.reason, event.at))


def _granted(draft: _Draft, event: ev.Granted) -> None:
    grant = event.grant
    queued = draft.dequeue(grant.run_id)
    if queued is None:
        return
    draft.set("fence", max(draft.get("fence"), grant.fence))
    draft.table("leases")[grant.run_id] = Lease(
        request=queued.request,
        order=queued.order,
        submitted_at=queued.submitted_at,
        run_side=queued.run_side,
        attempt=grant.attempt,
        fence=grant.fence,
        devices=grant.devices,
        charges=dict(grant.charges),
        granted_charges=dict(grant.charges),
        basis=dict(grant.basis),
        caps=dict(grant.caps),
        enforcement=grant.enforcement,
        granted_at=event.at,
        needs=queued.needs,
        estimate=queued.estimate,
        unstarted_grants=queued.unstarted_grants,
    )


def _declined(draft: _Draft, event: ev.Declined) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.phase is not Phase.GRANTED:
        return
    _give_back(draft, lease, event.at, event.reason, event.end)


def _give_back(
    draft: _Draft, lease: Lease, at: float, reason: str, end: Optional[RunEnd]
) -> None:
    """End a lease that no user code ran under: queue the run again, or end it."""
    del draft.table("leases")[lease.run_id]
    if end is not None:
        draft.end(lease.run_id, Ended(end, reason, at, lease.attempt))
        return
    queued = _queued(draft, lease.request, lease.order, lease.submitted_at, lease.run_side)
    draft.enqueue(
        replace(
            queued, attempts=lease.attempt - 1, unstarted_grants=lease.unstarted_grants + 1
        )
    )


def _started(draft: _Draft, event: ev.Started) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.phase is not Phase.GRANTED:
        return
    draft.table("leases")[lease.run_id] = replace(
        lease,
        phase=Phase.STARTING,
        process=event.process,
        boot_id=event.boot_id,
        tree=(event.process,),
        started_at=event.at,
        beat_at=event.at,
        usage={r: Usage(peak_moved_at=event.at) for r in (RAM, *lease.devices)},
    )


def _beat(draft: _Draft, event: ev.Beat) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.phase is Phase.GRANTED:
        return
    episode_at, longest = lease.episode_at, lease.longest_episode_s
    if event.episode > lease.episode:
        since = episode_at if episode_at is not None else lease.started_at
        longest = max(longest, event.at - since) if since is not None else longest
        episode_at = event.at
    stopping = lease.phase is Phase.STOPPING and event.phase is not Phase.STOPPING
    report_at = event.at - event.report.ram_age_s
    draft.table("leases")[lease.run_id] = replace(
        lease,
        phase=Phase.STOPPING if stopping else event.phase,
        tree=event.tree or lease.tree,
        beat_at=event.at,
        report=event.report,
        report_at=report_at if event.report.ram_held_bytes is not None else lease.report_at,
        peaks=greater_peaks(lease.peaks, event.peaks),
        episode=max(lease.episode, event.episode),
        episode_at=episode_at,
        longest_episode_s=longest,
        stop_reason=event.stop_reason or lease.stop_reason,
    )
    for uuid, overhead in event.report.device_overhead_bytes.items():
        device = draft.get("inventory").get(uuid)
        if device is not None:
            known = draft.get("device_overhead").get(device.model, 0)
            draft.table("device_overhead")[device.model] = max(known, overhead)


def greater_peaks(a: Peaks, b: Peaks) -> Peaks:
    """The greater of two reports, number by number; the later one says what is covered."""
    ram = [p for p in (a.ram_bytes, b.ram_bytes) if p is not None]
    vram = dict(a.vram_bytes)
    for uuid, peak in b.vram_bytes.items():
        vram[uuid] = max(peak, vram.get(uuid, 0))
    return Peaks(
        ram_bytes=max(ram) if ram else None,
        ram_meter=b.ram_meter or a.ram_meter,
        ram_covered=b.ram_covered,
        vram_bytes=vram,
        vram_covered=b.vram_covered,
    )


def _measured(draft: _Draft, event: ev.Measured) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None:
        return
    usage = dict(lease.usage)
    for resource, peak in event.peaks.items():
        seen = usage.get(resource, Usage())
        greatest = max(seen.peak_bytes, peak)
        usage[resource] = replace(seen, peak_bytes=greatest, journalled_peak_bytes=greatest)
    draft.table("leases")[lease.run_id] = replace(lease, usage=usage)


def _recharged(draft: _Draft, event: ev.Recharged) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None:
        return
    usage = dict(lease.usage)
    for resource in event.charges:
        seen = usage.get(resource, Usage())
        if event.reason == "settled":
            usage[resource] = replace(seen, settled=True, overrun_at=None)
        else:
            usage[resource] = replace(
                seen,
                settled=False,
                overrun_at=event.at,
                first_used_at=event.at,
                episode_at_first_use=lease.episode,
            )
    draft.table("leases")[lease.run_id] = replace(
        lease, charges={**lease.charges, **event.charges}, usage=usage
    )


def _finished(draft: _Draft, event: ev.Finished) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None:
        return
    end = RUN_END[event.end.outcome]
    if event.end.outcome is AttemptOutcome.NOT_STARTED:
        twice = lease.unstarted_grants >= 1
        _give_back(draft, lease, event.at, "never_started", RunEnd.FAILED if twice else None)
    else:
        del draft.table("leases")[lease.run_id]
        ended = Ended(
            end or RunEnd.FAILED,
            event.end.reason,
            event.at,
            lease.attempt,
            lease.fence,
            _measured_peaks(lease, event.end.peaks),
        )
        draft.end(lease.run_id, ended)
    for resource in lease.usage:
        _linger(draft, lease, resource, event.at)


def _measured_peaks(lease: Lease, reported: Peaks) -> dict[str, int]:
    """The greatest that anybody saw a run hold, per resource, for people to read."""
    peaks = {r: usage.peak_bytes for r, usage in lease.usage.items() if usage.read_at is not None}
    told = {**reported.vram_bytes, **({RAM: reported.ram_bytes} if reported.ram_bytes else {})}
    for resource, peak in told.items():
        peaks[resource] = max(peak, peaks.get(resource, 0))
    return peaks


def _linger(draft: _Draft, lease: Lease, resource: str, at: float) -> None:
    usage = lease.usage[resource]
    free: Mapping[str, int] = draft.get("free_seen")
    draft.table("lingering")[(lease.run_id, resource)] = Lingering(
        run_id=lease.run_id,
        owner=lease.request.owner,
        resource=resource,
        charge_bytes=lease.charges.get(resource, 0),
        last_held_bytes=usage.held_bytes,
        free_at_end=free.get(resource),
        ended_at=at,
        tree=lease.tree,
        held_bytes=usage.held_bytes,
    )


def _released(draft: _Draft, event: ev.Released) -> None:
    draft.table("lingering").pop((event.run_id, event.resource), None)


def _present(draft: _Draft, event: ev.Present) -> None:
    draft.table("run_sides")[event.run_side] = event.at


def _device_seen(draft: _Draft, event: ev.DeviceSeen) -> None:
    if draft.get("inventory").get(event.device.uuid) == event.device:
        return
    draft.table("inventory")[event.device.uuid] = event.device
    _renew_needs(draft, lambda _request: True)


def _device_forgotten(draft: _Draft, event: ev.DeviceForgotten) -> None:
    draft.table("inventory").pop(event.uuid, None)


def _driver_seen(draft: _Draft, event: ev.DriverSeen) -> None:
    draft.set("driver", event.major)
    _renew_needs(draft, lambda request: request.gpus > 0)


def _locked(draft: _Draft, event: ev.Locked) -> None:
    draft.table("locks")[event.resource] = Lock(
        event.resource, event.owner, event.at, event.until, event.kernel
    )


def _unlocked(draft: _Draft, event: ev.Unlocked) -> None:
    draft.table("locks").pop(event.resource, None)


def _drain_changed(draft: _Draft, event: ev.DrainChanged) -> None:
    draft.set("draining", (event.reason or "drained") if event.draining else None)


def _sedimented(draft: _Draft, event: ev.Sedimented) -> None:
    observation = event.observation
    draft.set("calibration", sediment(draft.get("calibration"), observation))
    family = observation.family
    _renew_needs(draft, lambda r: (r.owner, r.family.name) == (family.owner, family.name))


def _calibration_forgotten(draft: _Draft, event: ev.CalibrationForgotten) -> None:
    draft.set("calibration", forget(draft.get("calibration"), event.owner, event.name))
    _renew_needs(draft, lambda r: (r.owner, r.family.name) == (event.owner, event.name))


def _renew_needs(draft: _Draft, concerns: Callable[[Request], bool]) -> None:
    """Work the needs of queued requests out again where what they rest on has changed."""
    known: dict[Any, Any] = {}
    for old in list(draft.get("queue").values()):
        request = old.request
        if not concerns(request):
            continue
        like = (request.family, request.setting, request.hints)
        if like not in known:
            known[like] = needs_of(
                draft.get("calibration"), request, draft.get("inventory"), draft.get("driver")
            )
        needs, estimate = known[like]
        if (needs, estimate) != (old.needs, old.estimate):
            draft.regroup(old, replace(old, needs=needs, estimate=estimate))


def _restarted(draft: _Draft, event: ev.Restarted) -> None:
    """Nothing of another boot lives; on this boot everybody gets time to show up."""
    draft.set("patient_until", event.at + draft.get("traits").lease_ttl_s)
    for lease in list(draft.get("leases").values()):
        if lease.boot_id and lease.boot_id != event.boot_id:
            del draft.table("leases")[lease.run_id]
            draft.end(lease.run_id, Ended(RunEnd.LOST, "reboot", event.at, lease.attempt))
    for key, lingering in list(draft.get("lingering").items()):
        if draft.get("boot_id") != event.boot_id:
            del draft.table("lingering")[key]
        else:
            draft.table("lingering")[key] = replace(lingering, free_at_end=None)
    draft.set("boot_id", event.boot_id)


_HANDLERS: dict[type, Callable[[_Draft, Any], None]] = {
    ev.Requested: _requested,
    ev.Withdrawn: _withdrawn,
    ev.Granted: _granted,
    ev.Declined: _declined,
    ev.Started: _started,
    ev.Beat: _beat,
    ev.Measured: _measured,
    ev.Recharged: _recharged,
    ev.Finished: _finished,
    ev.Released: _released,
    ev.Present: _present,
    ev.DeviceSeen: _device_seen,
    ev.DeviceForgotten: _device_forgotten,
    ev.DriverSeen: _driver_seen,
    ev.Locked: _locked,
    ev.Unlocked: _unlocked,
    ev.DrainChanged: _drain_changed,
    ev.Sedimented: _sedimented,
    ev.CalibrationForgotten: _calibration_forgotten,
    ev.Restarted: _restarted,
}
