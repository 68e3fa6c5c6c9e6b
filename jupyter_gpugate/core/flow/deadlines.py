"""Events that are due because time has passed, or because a process is gone."""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.endings import IN_VAIN, End
from jupyter_gpugate.core.explaining.explain import explain
from jupyter_gpugate.core.leases import Granted, Live
from jupyter_gpugate.core.memory.lingering import is_there
from jupyter_gpugate.core.reports import (
    AttemptOutcome,
    EndReport,
    RunEnd,
)
from jupyter_gpugate.core.resources import Holder
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState


def due(state: GateState, sample: Sample, last: Decisions, now: float) -> Iterable[ev.Event]:
    """The events whose time has come; who waited while the gate was away gets a fresh time to live.

    ``last`` says what an expired run waited for.
    """
    yield from _expired(state, last, now)
    if now < state.patient_until:
        return
    for lease in state.leases.values():
        fence, stage = lease.terms.fence, lease.stage
        if isinstance(stage, Granted):
            since = max(lease.terms.granted_at, state.patient_until)
            if now >= since + state.traits.start_by_s:
                end = RunEnd.FAILED if lease.attempt.queued.unstarted_grants else None
                yield ev.Declined(now, lease.run_id, fence, "never_started", end)
        elif _is_lost(state, lease.holder, stage, sample, now):
            end_report = EndReport(AttemptOutcome.LOST, "supervisor gone")
            yield ev.Finished(now, lease.run_id, fence, end_report)
    for lock in state.locks.values():
        kernel_gone = (
            lock.kernel is not None and sample.processes and not is_there(lock.kernel, sample)
        )
        if now >= lock.until or kernel_gone:
            yield ev.Unlocked(now, lock.resource)


def in_vain(state: GateState, now: float) -> Iterable[ev.Withdrawn]:
    """Return the ends of queued runs that start only after a run that did not complete."""
    rejected: set[str] = set()
    for run_id, after in state.after.items():  # a run comes before those that wait for it
        for first in after:
            ended = state.ended.get(first)
            kind = RunEnd.REJECTED if first in rejected else ended.end.kind if ended else None
            if kind not in (None, RunEnd.COMPLETED):
                rejected.add(run_id)
                end = End(RunEnd.REJECTED, "after", f"{first} {IN_VAIN[kind]}")
                yield ev.Withdrawn(now, run_id, end.kind, end.reason)
                break


def _expired(state: GateState, last: Decisions, now: float) -> Iterable[ev.Event]:
    """Queued runs that have waited their longest; one that waited for the gate itself gets time."""
    back_at = state.patient_until - state.traits.lease_ttl_s
    for run_id, deadline in state.expiries.items():
        queued = state.queue[run_id]
        if now >= deadline and (now >= state.patient_until or queued.waits_since > back_at):
            reasons = last.reasons_of(queued.key)
            waited_for = explain(state, reasons[0]) if reasons else ""
            end = End(RunEnd.EXPIRED, "max_wait", waited_for)
            yield ev.Withdrawn(now, run_id, end.kind, end.reason)


def _is_lost(state: GateState, own: Holder, live: Live, sample: Sample, now: float) -> bool:
    """Return whether it is overdue, and no process of its tree lives."""
    if now - live.reported.at <= state.traits.lease_ttl_s or not sample.processes:
        return False
    # A heartbeat names the tree of two seconds ago: younger processes are known by their parents.
    known = [key for key, holder in state.attribution.holder_of.items() if holder == own]
    known += [*live.reported.tree, live.process]
    return not any(is_there(key, sample) for key in known)
