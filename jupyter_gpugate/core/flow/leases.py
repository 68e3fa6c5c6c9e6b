"""The transitions of a lease: from its grant to what its run leaves behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.endings import End, Stop, StopKind
from jupyter_gpugate.core.estimates import Estimate
from jupyter_gpugate.core.flow.draft import Draft, handlers, on
from jupyter_gpugate.core.learning.needs import estimate_for
from jupyter_gpugate.core.leases import (
    Attempt,
    Granted,
    Live,
    Measured,
    Reported,
    RunLease,
    Stopping,
    Terms,
    Usage,
)
from jupyter_gpugate.core.memory.growers import FAILURES, others_of
from jupyter_gpugate.core.memory.lingering import left_behind, not_compared
from jupyter_gpugate.core.queued import Queued
from jupyter_gpugate.core.reports import AttemptOutcome, Peaks, Phase, RunEnd
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.core.resources import RAM, Holder, HolderKind
from jupyter_gpugate.core.shares import Share
from jupyter_gpugate.core.state import Ended

#: The end of a run by the outcome of its attempt; None: it queues again.
RUN_END: Mapping[AttemptOutcome, Optional[RunEnd]] = {
    AttemptOutcome.COMPLETED: RunEnd.COMPLETED,
    AttemptOutcome.FAILED: RunEnd.FAILED,
    AttemptOutcome.CANCELLED: RunEnd.CANCELLED,
    AttemptOutcome.OOM: RunEnd.OOM,
    AttemptOutcome.LOST: RunEnd.LOST,
    AttemptOutcome.EVICTED: None,
    AttemptOutcome.NOT_STARTED: None,
}

#: Limits of one process's memory beyond its framework's own; other amounts are no context.
_LEAST_OVERHEAD, _MOST_OVERHEAD = 64 << 20, 2 << 30


def _granted(draft: Draft, event: ev.Granted) -> None:
    grant = event.grant
    queued = draft.dequeue(grant.run_id)
    if queued is None:
        return
    draft.fence = max(draft.fence, grant.fence)
    draft.last_fences.own().update(dict.fromkeys(grant.devices, grant.fence))
    for key in [key for key in draft.lingering.rows if key[0] == grant.run_id]:
        # Memory that the previous attempt left behind must not count as this one's.
        del draft.lingering.own()[key]
    draft.keep(
        RunLease(
            holder=Holder(HolderKind.RUN, grant.run_id),
            terms=_terms(grant, queued, event.at),
            charges=grant.charges,
            caps=grant.caps,
            widest_caps=grant.caps,
            stage=Granted(_others_there(draft, grant.devices)),
            attempt=Attempt(queued, grant.attempt, _estimate_there(draft, queued, grant.devices)),
        )
    )


def _terms(grant: Grant, queued: Queued, at: float) -> Terms:
    return Terms(
        fence=grant.fence,
        devices=grant.devices,
        charges=grant.charges,
        basis=grant.basis,
        caps=grant.caps,
        enforcement=grant.enforcement,
        granted_at=at,
        exclusive=queued.request.exclusive,
        service=queued.request.service,
        cgroup=queued.request.cgroup,
    )


def _others_there(draft: Draft, devices: Iterable[str]) -> dict[str, tuple[Share, ...]]:
    """Return what others hold on the resources of a new lease, as of the last sample."""
    shares, leases = draft.before.attribution.resources, draft.leases.rows
    others = {r: others_of(shares[r], leases) for r in (RAM, *devices) if r in shares}
    return {resource: held for resource, held in others.items() if held is not None}


def _estimate_there(draft: Draft, queued: Queued, devices: Iterable[str]) -> Estimate:
    """Return the run's estimate for the kind of device that it was given."""
    inventory = draft.inventory.rows
    models = [inventory[uuid].model for uuid in devices if uuid in inventory]
    return estimate_for(queued.estimates, models[0] if models else "")


def _declined(draft: Draft, event: ev.Declined) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.live is not None:
        return
    if event.end is None:
        _queue_unstarted(draft, lease)
    else:
        _end(draft, lease, Ended(End.of(event.end, event.reason), event.at))


def _queue_unstarted(draft: Draft, lease: RunLease) -> None:
    """No user code ran under this lease: the run queues again, and the attempt does not count."""
    _queue_again(draft, lease, lease.attempt.number - 1, lease.attempt.queued.unstarted_grants + 1)


def _queue_again(draft: Draft, lease: RunLease, attempts: int, unstarted_grants: int) -> None:
    del draft.leases.own()[lease.run_id]
    queued = lease.attempt.queued
    draft.enqueue(replace(queued, attempts=attempts, unstarted_grants=unstarted_grants))


def _end(draft: Draft, lease: RunLease, ended: Ended, last: Peaks = Peaks()) -> None:
    """End a run as ``ended`` says, completed by its lease; ``last`` are its reported peaks."""
    del draft.leases.own()[lease.run_id]
    ended = replace(
        ended,
        attempt=lease.attempt.number,
        fence=lease.terms.fence,
        peaks=_peaks_of(lease.live, last),
    )
    if ended.end.kind in FAILURES:
        ended = replace(ended, charges=lease.charges, others=lease.others, grown=lease.grown)
    draft.end(lease.run_id, ended)


def _peaks_of(live: Optional[Live], last: Peaks) -> dict[str, int]:
    """The greatest that anybody saw a run hold, per resource, for people to read."""
    usages = live.measured.usage if live else {}
    reported = live.reported.peaks.merged(last) if live else last
    peaks = {r: usage.peak_bytes for r, usage in usages.items() if usage.read_at is not None}
    others = {**reported.vram_bytes, **({RAM: reported.ram_bytes} if reported.ram_bytes else {})}
    for resource, peak in others.items():
        peaks[resource] = max(peak, peaks.get(resource, 0))
    return peaks


def _started(draft: Draft, event: ev.Started) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or not isinstance(lease.stage, Granted):
        return
    free = draft.before.free_seen
    usage = {
        r: Usage(peak_moved_at=event.at, free_at_grant=free.get(r))
        for r in (RAM, *lease.terms.devices)
    }
    live = Live(
        process=event.process,
        boot_id=event.boot_id,
        started_at=event.at,
        reported=Reported(at=event.at, tree=(event.process,)),
        measured=Measured(usage, lease.stage.others),
        ready_at=None,
    )
    draft.keep(replace(lease, stage=live))


def _beat(draft: Draft, event: ev.Beat) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.live is None:
        return
    workers = lease.request.setting.workers
    live = replace(lease.live, reported=_reported(lease.live, event, workers))
    if isinstance(live, Stopping):
        live = replace(live, stop=event.stop or live.stop, survivors=event.survivors)
    elif event.phase is Phase.STOPPING or event.stop:
        live = _stopping(live, event.stop or Stop.of(StopKind.ENDED), event.survivors)
    draft.keep(replace(lease, stage=live))


def _stopping(live: Live, stop: Stop, survivors: tuple[int, ...]) -> Stopping:
    return Stopping(**vars(live), stop=stop, survivors=survivors)


def _reported(live: Live, event: ev.Beat, workers: int) -> Reported:
    """Return a live lease's reports after a heartbeat."""
    reported = replace(
        live.reported,
        at=event.at,
        tree=event.tree or live.reported.tree,
        is_running=live.reported.is_running or event.phase in (Phase.RUNNING, Phase.STOPPING),
        report=event.report,
        peaks=live.reported.peaks.merged(event.peaks),
        ready=live.reported.ready or event.ready,
        resumed=event.resumed,
    )
    if event.report.ram_held_bytes is not None:
        age = event.report.ram_age_s
        gap = max(reported.report_gap_s, age)
        reported = replace(reported, report_at=event.at - age, report_gap_s=gap)
    if event.episode > reported.episode:
        longest = max(reported.longest_episode_s, _episode_s(live, event, workers))
        reported = replace(
            reported, episode=event.episode, episode_at=event.at, longest_episode_s=longest
        )
    return reported


def _episode_s(live: Live, event: ev.Beat, workers: int) -> float:
    """Return the duration of an episode, given that the workers run episodes in parallel."""
    reported = live.reported
    since = reported.episode_at if reported.episode_at is not None else live.started_at
    return (event.at - since) * workers / (event.episode - reported.episode)


def _ready(draft: Draft, event: ev.Ready) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.live is None or not lease.is_loading:
        return
    draft.keep(replace(lease, stage=replace(lease.live, ready_at=event.at)))


# -- an end -------------------------------------------------------------------------------------


def _finished(draft: Draft, event: ev.Finished) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None:
        return
    outcome = event.end.outcome
    end, unstarted_grants = RUN_END[outcome], lease.attempt.queued.unstarted_grants
    if event.retry is not None:
        queued = replace(lease.attempt.queued, retry=event.retry, retried_at=event.at)
        again = replace(lease, attempt=replace(lease.attempt, queued=queued))
        _queue_again(draft, again, lease.attempt.number, unstarted_grants)
    elif end is not None:
        known = End.of(end, event.end.reason)
        ended = Ended(known, event.at, evidence=event.end.oom_evidence)
        _end(draft, lease, ended, event.end.peaks)
    elif outcome is AttemptOutcome.EVICTED:
        _queue_again(draft, lease, lease.attempt.number, unstarted_grants)
    elif unstarted_grants:
        _end(draft, lease, Ended(End(RunEnd.FAILED, "never_started"), event.at))
    else:
        _queue_unstarted(draft, lease)
    if lease.live is not None:
        draft.lingering.own().update(left_behind(lease, lease.live, draft.before, event.at))
        _learn_overhead(draft, lease)


def _learn_overhead(draft: Draft, lease: RunLease) -> None:
    """Keep the least memory of one process beyond its framework's own, per device model."""
    for uuid in lease.terms.devices:
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
        if lease.live is None and rebooted:
            queued = lease.attempt.queued
            _queue_again(draft, lease, lease.attempt.number - 1, queued.unstarted_grants)
        elif lease.live and lease.live.boot_id not in ("", event.boot_id):
            _end(draft, lease, Ended(End(RunEnd.LOST, "reboot"), event.at))
    for key, lingering in list(draft.lingering.rows.items()):
        if rebooted:
            del draft.lingering.own()[key]
        else:
            draft.lingering.own()[key] = not_compared(lingering)
    draft.boot_id = event.boot_id


HANDLERS = handlers(
    on(ev.Granted, _granted),
    on(ev.Declined, _declined),
    on(ev.Started, _started),
    on(ev.Beat, _beat),
    on(ev.Ready, _ready),
    on(ev.Finished, _finished),
    on(ev.Released, _released),
    on(ev.Restarted, _restarted),
)
