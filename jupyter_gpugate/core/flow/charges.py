"""The transitions of a live lease's amounts: its peaks, its charges and its caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow.draft import Draft, handlers, on
from jupyter_gpugate.core.leases import Live, Usage


def _measured(draft: Draft, event: ev.Measured) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.live is None:
        return
    usage = dict(lease.usage)
    for resource, peak in event.peaks.items():
        before = usage.get(resource, Usage())
        greatest = max(before.peak_bytes, peak)
        usage[resource] = replace(before, peak_bytes=greatest, journalled_peak_bytes=greatest)
    draft.keep(replace(lease, stage=_with_usage(lease.live, usage)))


def _recharged(draft: Draft, event: ev.Recharged) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None or lease.live is None:
        return
    usage = dict(lease.usage)
    for resource in event.charges:
        before = usage.get(resource, Usage())
        if event.reason == "settled":
            usage[resource] = replace(before, settled=True, overrun_at=None)
        else:
            usage[resource] = replace(
                before,
                settled=False,
                overrun_at=event.at,
                first_used_at=event.at,
                episode_at_first_use=lease.live.reported.episode,
                episode_at_peak=lease.live.reported.episode,
            )
    charges, stage = {**lease.charges, **event.charges}, _with_usage(lease.live, usage)
    draft.keep(replace(lease, charges=charges, stage=stage))


def _recapped(draft: Draft, event: ev.Recapped) -> None:
    lease = draft.lease(event.run_id, event.fence)
    if lease is None:
        return
    widest = {uuid: max(cap, lease.widest_caps.get(uuid, 0)) for uuid, cap in event.caps.items()}
    draft.keep(
        replace(
            lease,
            caps={**lease.caps, **event.caps},
            widest_caps={**lease.widest_caps, **widest},
        )
    )


def _with_usage(live: Live, usage: Mapping[str, Usage]) -> Live:
    return replace(live, measured=replace(live.measured, usage=usage))


HANDLERS = handlers(
    on(ev.Measured, _measured),
    on(ev.Recharged, _recharged),
    on(ev.Recapped, _recapped),
)
