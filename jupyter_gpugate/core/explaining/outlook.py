"""Forecasts a run's start from the usual durations of the live runs that must end first."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Optional

from jupyter_gpugate.core.decisions import Check, Reason
from jupyter_gpugate.core.evidence import Track
from jupyter_gpugate.core.learning.needs import setting_on
from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.resources import RAM
from jupyter_gpugate.core.state import GateState


def expected_ends(state: GateState) -> dict[str, float]:
    """Return the expected end of each live run, if such runs have completed before.

    A run that has lasted longer than they did is omitted: its end is unknown.
    """
    ends = {}
    for run_id, lease in state.leases.items():
        lasts = _usual_duration_s(state, lease)
        if lasts is not None and lease.live is not None:
            ends[run_id] = lease.live.started_at + lasts
    return ends


def eta_s(
    state: GateState, reasons: Iterable[Reason], ends: Mapping[str, float], now: float
) -> Optional[float]:
    """Return the seconds until the failed checks are expected to pass; None if unknown.

    It is the earliest moment: other waiting runs may come first, and free memory may change.
    """
    moments = [_moment(state, reason, ends, now) for reason in reasons]
    latest = max(moments, default=math.inf)
    return None if math.isinf(latest) else max(0.0, latest - now)


def _moment(state: GateState, reason: Reason, ends: Mapping[str, float], now: float) -> float:
    def end_of(lease: RunLease) -> float:
        end = ends.get(lease.run_id, math.inf)
        return end if end > now else math.inf

    if reason.check in (Check.EXCLUSIVE, Check.AFTER, Check.GROUP):
        there = [state.leases[run_id] for run_id in reason.who if run_id in state.leases]
        if reason.check is Check.GROUP:
            return min(map(end_of, there), default=math.inf)
        whole = len(there) == len(reason.who)
        return max(map(end_of, there), default=math.inf) if whole else math.inf
    if reason.check is not Check.FIT or reason.resource is None:
        return math.inf
    lacking = reason.numbers["need_bytes"] - reason.numbers["room_bytes"]
    for lease in sorted(state.leases.values(), key=end_of):
        charge = lease.charges.get(reason.resource, 0)
        lacking -= max(charge, lease.held(reason.resource))
        if lacking <= 0:
            return end_of(lease)
    return math.inf


def _usual_duration_s(state: GateState, lease: RunLease) -> Optional[float]:
    """The median of what completed in the same setting; RAM is measured of every run."""
    request = lease.request
    setting = setting_on(request, None, "")
    durations = [
        observation.duration_s
        for track in state.calibration.tracks(request.owner, request.family.name)
        if _is_of(track, lease) and track.setting == setting
        for observation in track.observations
        if observation.complete and observation.duration_s is not None
    ]
    return statistics.median(durations) if durations else None


def _is_of(track: Track, lease: RunLease) -> bool:
    return track.resource == RAM and track.family == lease.request.family
