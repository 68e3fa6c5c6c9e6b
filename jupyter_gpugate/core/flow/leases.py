"""The transitions of a lease: from its grant to what its run leaves behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.estimates import Estimate
from jupyter_gpugate.core.flow.draft import Draft, handlers, on
from jupyter_gpugate.core.learning.needs import estimate_for
from jupyter_gpugate.core.leases import Lease, Lingering, Usage
from jupyter_gpugate.core.memory.growers import FAILURES, others_of
from jupyter_gpugate.core.reports import (
    AttemptOutcome,
    Phase,
    RunEnd,
)
from jupyter_gpugate.core.resources import RAM
from jupyter_gpugate.core.shares import Share
from jupyter_gpugate.core.state import Ended, Queued

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

#: A live attempt only ever moves on in this order.
_PHASES = (Phase.GRANTED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING)
#: What one process may hold beyond its framework's own memory; anything else is no context.
_LEAST_OVERHEAD, _MOST_OVERHEAD = 64 << 20, 2 << 30


def _granted(draft: Draft, event: ev.Granted) -> None:
    grant = event.grant
    queued = draft.dequeue(grant.run_id)
    if queued is None:
        return
    draft.fence = max(draft.fence, grant.fence)
    for key in [key for key in draft.lingering.rows if key[0] == grant.run_id]:
        # What the attempt before left behind must not count as this one's.
        del draft.lingering.own()[key]
    draft.keep(
        Lease(
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
            estimate=_estimate_there(draft, queued, grant.devices),
            unstarted_grants=queued.unstarted_grants,
            others=_others_there(draft, grant.devices),
        )
    )


def _others_there(draft: Draft, devices: Iterable[str]) -> dict[str, tuple[Share, ...]]:
    """Return what others hold on the resources of a new lease, as of the last sample."""
    shares, leases = draft.before.attribution.resources, draft.leases.rows
    told = {r: others_of(shares[r], leases) for r in (RAM, *devices) if r in shares}
    return {resource: held for resource, held in told.items() if held is not None}


def _estimate_there(draft: Draft, queued: Queued, devices: Iterable[str]) -> Estimate:
    """Return the run's estimate for the kind of device that it was given."""
    inventory = draft.inventory.rows
    models = [inventory[uuid].model for uuid in devices if uuid in inventory]
    return estimate_for(queued.estimates, models[0] if models else "")


def _declined(draft: Draft, event: ev.Declined) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.phase is not Phase.GRANTED:
        return
    if event.end is None:
        _queue_unstarted(draft, lease)
    else:
        _end(draft, lease, event.at, event.end, event.reason)


def _queue_unstarted(draft: Draft, lease: Lease) -> None:
    """No user code ran under this lease: the run queues again, and the attempt does not count."""
    _queue_again(draft, lease, lease.attempt - 1, lease.unstarted_grants + 1)


def _queue_again(draft: Draft, lease: Lease, attempts: int, unstarted_grants: int) -> None:
    del draft.leases.own()[lease.run_id]
    draft.enqueue(
        Queued(
            request=lease.request,
            order=lease.order,
            submitted_at=lease.submitted_at,
            run_side=lease.run_side,
            attempts=attempts,
            unstarted_grants=unstarted_grants,
        )
    )


def _end(  # noqa: PLR0917 - an end and what is known of it
    draft: Draft, lease: Lease, at: float, end: RunEnd, reason: str, evidence: str = ""
) -> None:
    del draft.leases.own()[lease.run_id]
    ended = Ended(end, reason, at, lease.attempt, lease.fence, _peaks_of(lease), evidence=evidence)
    if end in FAILURES:
        ended = replace(ended, charges=lease.charges, others=lease.others, grown=lease.grown)
    draft.end(lease.run_id, ended)


def _peaks_of(lease: Lease) -> dict[str, int]:
    """The greatest that anybody saw a run hold, per resource, for people to read."""
    reported = lease.peaks
    peaks = {r: usage.peak_bytes for r, usage in lease.usage.items() if usage.read_at is not None}
    told = {**reported.vram_bytes, **({RAM: reported.ram_bytes} if reported.ram_bytes else {})}
    for resource, peak in told.items():
        peaks[resource] = max(peak, peaks.get(resource, 0))
    return peaks


def _started(draft: Draft, event: ev.Started) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.phase is not Phase.GRANTED:
        return
    free = draft.before.free_seen
    draft.keep(
        replace(
            lease,
            phase=Phase.STARTING,
            process=event.process,
            boot_id=event.boot_id,
            tree=(event.process,),
            started_at=event.at,
            beat_at=event.at,
            usage={
                r: Usage(peak_moved_at=event.at, free_at_grant=free.get(r))
                for r in (RAM, *lease.devices)
            },
        )
    )


def _beat(draft: Draft, event: ev.Beat) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.phase is Phase.GRANTED:
        return
    changes: dict[str, Any] = {}
    if event.report.ram_held_bytes is not None:
        age = event.report.ram_age_s
        changes.update(report_at=event.at - age, report_gap_s=max(lease.report_gap_s, age))
    if event.episode > lease.episode:
        longest = max(lease.longest_episode_s, _episode_s(lease, event))
        changes.update(episode=event.episode, episode_at=event.at, longest_episode_s=longest)
    draft.keep(
        replace(
            lease,
            phase=max(lease.phase, event.phase, key=_PHASES.index),
            tree=event.tree or lease.tree,
            beat_at=event.at,
            report=event.report,
            peaks=lease.peaks.merged(event.peaks),
            stop_reason=event.stop_reason or lease.stop_reason,
            **changes,
        )
    )


def _episode_s(lease: Lease, event: ev.Beat) -> float:
    """How long an episode lasts: each worker is busy with one, and they end side by side."""
    since = lease.episode_at if lease.episode_at is not None else lease.started_at
    if since is None:
        return 0.0
    return (event.at - since) * lease.request.setting.workers / (event.episode - lease.episode)


def _measured(draft: Draft, event: ev.Measured) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None:
        return
    usage = dict(lease.usage)
    for resource, peak in event.peaks.items():
        seen = usage.get(resource, Usage())
        greatest = max(seen.peak_bytes, peak)
        usage[resource] = replace(seen, peak_bytes=greatest, journalled_peak_bytes=greatest)
    draft.keep(replace(lease, usage=usage))


def _recharged(draft: Draft, event: ev.Recharged) -> None:
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
    draft.keep(replace(lease, charges={**lease.charges, **event.charges}, usage=usage))


# -- an end -------------------------------------------------------------------------------------


def _finished(draft: Draft, event: ev.Finished) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None:
        return
    outcome = event.end.outcome
    end = RUN_END[outcome]
    if end is not None:
        known = replace(lease, peaks=lease.peaks.merged(event.end.peaks))
        _end(draft, known, event.at, end, event.end.reason, event.end.oom_evidence)
    elif outcome is AttemptOutcome.EVICTED:
        _queue_again(draft, lease, lease.attempt, lease.unstarted_grants)
    elif lease.unstarted_grants:
        _end(draft, lease, event.at, RunEnd.FAILED, "never_started")
    else:
        _queue_unstarted(draft, lease)
    for resource in lease.usage:
        _linger(draft, lease, resource, event.at)
    _learn_overhead(draft, lease)


def _linger(draft: Draft, lease: Lease, resource: str, at: float) -> None:
    held = lease.held(resource)
    draft.lingering.own()[(lease.run_id, resource)] = Lingering(
        run_id=lease.run_id,
        owner=lease.request.owner,
        resource=resource,
        charge_bytes=lease.charges.get(resource, 0),
        held_bytes=held,
        last_held_bytes=held,
        ended_at=at,
        supervisor=lease.process,
        tree=tuple(key for key in lease.tree if key != lease.process),
        most_free_bytes=draft.before.free_seen.get(resource),
    )


def _learn_overhead(draft: Draft, lease: Lease) -> None:
    """Keep what a process of this run held beyond its framework's own memory, where it is least."""
    for uuid in lease.devices:
        device = draft.inventory.rows.get(uuid)
        usage = lease.usage.get(uuid)
        if device is None or usage is None or usage.overhead_bytes is None:
            continue
        each = usage.overhead_bytes // lease.request.setting.workers
        if _LEAST_OVERHEAD <= each <= _MOST_OVERHEAD:
            known = draft.device_overhead.rows.get(device.model, each)
            draft.device_overhead.own()[device.model] = min(known, each)


def _released(draft: Draft, event: ev.Released) -> None:
    draft.lingering.own().pop((event.run_id, event.resource), None)


def _restarted(draft: Draft, event: ev.Restarted) -> None:
    """Nothing of another boot lives; on this boot everybody gets time to show up."""
    draft.patient_until = event.at + draft.before.traits.lease_ttl_s
    rebooted = draft.boot_id not in ("", event.boot_id)
    for lease in list(draft.leases.rows.values()):
        if lease.boot_id and lease.boot_id != event.boot_id:
            _end(draft, lease, event.at, RunEnd.LOST, "reboot")
        elif rebooted and lease.phase is Phase.GRANTED:
            _queue_again(draft, lease, lease.attempt - 1, lease.unstarted_grants)
    for key, lingering in list(draft.lingering.rows.items()):
        if rebooted:
            del draft.lingering.own()[key]
        else:
            draft.lingering.own()[key] = replace(lingering, most_free_bytes=None)
    draft.boot_id = event.boot_id


HANDLERS = handlers(
    on(ev.Granted, _granted),
    on(ev.Declined, _declined),
    on(ev.Started, _started),
    on(ev.Beat, _beat),
    on(ev.Measured, _measured),
    on(ev.Recharged, _recharged),
    on(ev.Finished, _finished),
    on(ev.Released, _released),
    on(ev.Restarted, _restarted),
)
