"""When a service is ready: its URL has answered or, if it has none, its peak stands still."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.leases import Live, RunLease, Usage
from jupyter_gpugate.core.resources import RAM
from jupyter_gpugate.core.state import GateState

#: Meters that cannot distinguish the memory of one run, and so show no peak of it.
_WITHOUT_PEAKS = ("by_delta", "report")


def ready_events(state: GateState, lease: RunLease, now: float) -> Iterable[ev.Ready]:
    """Return the event of a service that has become ready."""
    if lease.live is not None and lease.is_loading and _is_ready(state, lease, lease.live, now):
        yield ev.Ready(now, lease.run_id, lease.terms.fence)


def _is_ready(state: GateState, lease: RunLease, live: Live, now: float) -> bool:
    if live.reported.ready or lease.request.by_url:
        return live.reported.ready
    telling = _telling(state, lease, live, now)
    return all(_stands_still(state, live.measured.usage.get(r), now) for r in telling)


def _telling(state: GateState, lease: RunLease, live: Live, now: float) -> tuple[str, ...]:
    """Return the resources whose peaks are judged: the devices, or RAM if they show nothing.

    A device shows nothing if its driver does not report the memory of each process, or if the
    service has not used it for as long as a run may keep a watch slot unused.
    """
    usage = live.measured.usage
    devices = [u for u in lease.terms.devices if _meter(usage.get(u)) not in _WITHOUT_PEAKS]
    is_unused = all(usage.get(u, Usage()).peak_bytes == 0 for u in devices)
    if not devices or (is_unused and now - live.started_at >= state.traits.watch_slot_s):
        return (RAM,)
    return tuple(devices)


def _meter(usage: Optional[Usage]) -> str:
    return usage.meter if usage is not None else ""


def _stands_still(state: GateState, usage: Optional[Usage], now: float) -> bool:
    """Return whether a peak above 0 has not risen noticeably for a while."""
    if usage is None or usage.peak_bytes == 0 or usage.first_used_at is None:
        return False
    return now - max(usage.plateau_at, usage.first_used_at) >= state.traits.ready_unmoved_s
