"""Changes of a run's charge while it lives: downwards when settled, upwards on overrun."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.leases import Lease, RunLease, Usage
from jupyter_gpugate.core.resources import MB, RAM
from jupyter_gpugate.core.state import GateState

SETTLED_FACTOR: Final = 1.25
SETTLED_EXTRA_BYTES: Final = 256 * MB
OVERRUN_FACTOR: Final = 1.25
#: Whole episodes after which a run settles early, and how many of them must not raise its peak.
EARLY_EPISODES: Final = 3
EARLY_UNMOVED_EPISODES: Final = 2


def settling_events(state: GateState, lease: RunLease, now: float) -> Iterable[ev.Recharged]:
    """Return the new charges that follow from a run's measured memory."""
    overrun, settled = {}, {}
    for resource, usage in lease.usage.items():
        charge = lease.charges.get(resource, 0)
        if usage.held_bytes > charge:
            total = _total(state, resource)
            raised = overrun_charge(usage.held_bytes)
            overrun[resource] = max(usage.held_bytes, min(raised, total)) if total else raised
        elif is_unsettled(lease, resource) and _has_settled(state, lease, resource, now):
            least = min(charge, _proven(lease, resource))
            settled[resource] = max(settled_charge(usage.peak_bytes, charge), least)
    if overrun:
        yield ev.Recharged(now, lease.run_id, lease.terms.fence, overrun, "overrun")
    if settled:
        yield ev.Recharged(now, lease.run_id, lease.terms.fence, settled, "settled")


def _proven(lease: RunLease, resource: str) -> int:
    """Return the reservation that an attempt with too little memory has called for; else 0."""
    queued = lease.attempt.queued
    if queued.retry is None or not queued.lacked_memory or resource == RAM:
        return 0
    return queued.retry.charge_bytes


def settled_charge(peak_bytes: int, charge_bytes: int) -> int:
    """Return the charge of a run that has shown its peak: it only ever falls."""
    return min(charge_bytes, math.ceil(SETTLED_FACTOR * peak_bytes) + SETTLED_EXTRA_BYTES)


def overrun_charge(held_bytes: int) -> int:
    """Return the charge of a run that holds more than it was charged."""
    return math.ceil(OVERRUN_FACTOR * held_bytes)


def is_unsettled(lease: Lease, resource: str) -> bool:
    """Whether a run may still grow in a way that nothing known bounds."""
    return lease.unsettled_watch(resource) or is_overrun(lease, resource)


def is_overrun(lease: Lease, resource: str) -> bool:
    """Whether a run held more than its charge and has not settled since."""
    usage = lease.usage.get(resource)
    return usage is not None and usage.overrun_at is not None


def holds_watch_slot(state: GateState, lease: Lease, resource: str, now: float) -> bool:
    """Whether an unmeasured run keeps the device's one slot: not after long zero use."""
    if not lease.unsettled_watch(resource):
        return False
    usage = lease.usage.get(resource)
    used = usage is not None and usage.peak_bytes > 0
    since = lease.live.started_at if lease.live else lease.terms.granted_at
    return used or now - since < state.traits.watch_slot_s


def _has_settled(state: GateState, lease: RunLease, resource: str, now: float) -> bool:
    """Return whether whole episodes have ended since the first use, and the peak stands still.

    Zero use is not settled use.
    """
    usage, traits = lease.usage[resource], state.traits
    if lease.live is None or usage.peak_bytes == 0 or usage.first_used_at is None:
        return False
    unmoved_s = now - max(usage.peak_moved_at, usage.first_used_at)
    if lease.request.setting.episodes <= 1:
        limit_s = traits.settle_ram_unmoved_s if resource == RAM else traits.settle_unmoved_s
        return unmoved_s >= limit_s
    longest_s = lease.live.reported.longest_episode_s
    is_long = _whole(lease, usage.episode_at_first_use) >= 1
    if is_long and unmoved_s >= max(traits.settle_s, longest_s):
        return True
    return _has_settled_early(lease, usage) and unmoved_s >= traits.settle_early_s


def _has_settled_early(lease: RunLease, usage: Usage) -> bool:
    """Return whether enough whole episodes have ended, and the last of them moved no peak."""
    enough = _whole(lease, usage.episode_at_first_use) >= EARLY_EPISODES
    return enough and _whole(lease, usage.episode_at_peak) >= EARLY_UNMOVED_EPISODES


def _whole(lease: RunLease, since: int) -> int:
    """Count the episodes that began and ended since so many had ended.

    Those that were under way at that moment, one a worker, were not whole ones.
    """
    done = lease.live.reported.episode if lease.live else 0
    return done - since - lease.request.setting.workers


def _total(state: GateState, resource: str) -> Optional[int]:
    device = state.inventory.get(resource)
    return device.total_bytes if device else None
