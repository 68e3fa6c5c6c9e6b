"""Changes of a run's charge while it lives: downwards when settled, upwards on overrun."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.leases import Lease, RunLease, Usage
from jupyter_gpugate.core.resources import MB
from jupyter_gpugate.core.state import GateState

SETTLED_FACTOR: Final = 1.25
SETTLED_EXTRA_BYTES: Final = 256 * MB
OVERRUN_FACTOR: Final = 1.25


def settling_events(state: GateState, lease: RunLease, now: float) -> Iterable[ev.Recharged]:
    """Return the new charges that follow from a run's measured memory."""
    overrun, settled = {}, {}
    for resource, usage in lease.usage.items():
        charge = lease.charges.get(resource, 0)
        if usage.held_bytes > charge:
            total = _total(state, resource)
            raised = overrun_charge(usage.held_bytes)
            overrun[resource] = max(usage.held_bytes, min(raised, total)) if total else raised
        elif is_unsettled(lease, resource) and _has_settled(state, lease, usage, now):
            settled[resource] = settled_charge(usage.peak_bytes, charge)
    if overrun:
        yield ev.Recharged(now, lease.run_id, lease.terms.fence, overrun, "overrun")
    if settled:
        yield ev.Recharged(now, lease.run_id, lease.terms.fence, settled, "settled")


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


def _has_settled(state: GateState, lease: RunLease, usage: Usage, now: float) -> bool:
    """A whole episode since the first use, and a peak that has stopped moving.

    Zero use is not settled use.
    """
    if lease.live is None or usage.peak_bytes == 0 or usage.first_used_at is None:
        return False
    unmoved = now - max(usage.peak_moved_at, usage.first_used_at)
    setting = lease.request.setting
    if setting.episodes <= 1:
        return unmoved >= state.traits.settle_unmoved_s
    # The episodes under way at the first use were not whole ones: one a worker, and one more.
    reported = lease.live.reported
    whole = reported.episode > usage.episode_at_first_use + setting.workers
    return whole and unmoved >= max(state.traits.settle_s, reported.longest_episode_s)


def _total(state: GateState, resource: str) -> Optional[int]:
    device = state.inventory.get(resource)
    return device.total_bytes if device else None
