"""Finds the runs that a tick has changed."""

from __future__ import annotations

from jupyter_gpugate.core.decisions import Decisions
from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.queued import Queued
from jupyter_gpugate.core.state import GateState
from jupyter_gpugate.gate.port import Change, GateEnd, Standing


class Changes:
    """Compares each tick with the one before; an unchanged state costs nothing."""

    def __init__(self, state: GateState) -> None:
        self._state = GateState()
        self._waiting: dict[str, Standing] = {}
        self.standings: dict[str, Standing] = {}
        self.take(state, Decisions())

    def take(self, state: GateState, decisions: Decisions) -> list[Change]:
        """Return the runs that have changed since the call before, those that are gone last."""
        if state.queue is self._state.queue and state.leases is self._state.leases:
            return []
        if state.queue is not self._state.queue:
            self._waiting = {run_id: _queued(queued) for run_id, queued in state.queue.items()}
        before = self.standings
        active = {run_id: _active(lease) for run_id, lease in state.leases.items()}
        self._state, self.standings = state, self._waiting | active
        moved = [
            Change(run_id, standing, _dominant_reason(state, decisions, run_id))
            for run_id, standing in self.standings.items()
            if before.get(run_id) != standing
        ]
        gone = [run_id for run_id in before if run_id not in self.standings]
        return [*moved, *(Change(run_id, None, ended=_end_of(state, run_id)) for run_id in gone)]


def _dominant_reason(state: GateState, decisions: Decisions, run_id: str) -> str:
    """The kind of the first reason for which a run waits, if it does."""
    queued = state.queue.get(run_id)
    reasons = decisions.reasons_of(queued.key) if queued is not None else ()
    return reasons[0].check.value if reasons else ""


def _end_of(state: GateState, run_id: str) -> GateEnd | None:
    ended = state.ended.get(run_id)
    return GateEnd(ended.end, ended.attempt) if ended else None


def _queued(queued: Queued) -> Standing:
    return Standing(queued.request.family.name, "queued", None, queued.attempts)


def _active(lease: RunLease) -> Standing:
    return Standing(lease.request.family.name, "active", lease.phase, lease.attempt.number)
