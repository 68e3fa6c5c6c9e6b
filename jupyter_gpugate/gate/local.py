"""The gate that lives in this process, as its servers use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.admission.choices import in_words
from jupyter_gpugate.core.evidence import Track
from jupyter_gpugate.core.explaining.forecast import forecast
from jupyter_gpugate.core.explaining.rows import Forecast, Snapshot
from jupyter_gpugate.core.explaining.snapshot import (
    device_name,
    inputs_of,
    queued_row,
    running_row,
)
from jupyter_gpugate.core.learning.idle import advice
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.gate.changes import Changes
from jupyter_gpugate.gate.gpu.accelerators import unmanaged
from jupyter_gpugate.gate.journal.history import History
from jupyter_gpugate.gate.journal.journal import JournalError
from jupyter_gpugate.gate.locking import (
    at_work,
    closes,
    device_named,
    present,
    refuse_another,
    refuse_closed_otherwise,
    refuse_hidden,
    resource_named,
    words_for,
)
from jupyter_gpugate.gate.loop import GateLoop
from jupyter_gpugate.gate.port import (
    Decided,
    Figures,
    Gate,
    Listener,
    Locked,
    LockRequest,
    Machine,
    Rejected,
    RunView,
    Samples,
    Standing,
    StoryEvent,
    Totals,
    Unlocked,
    Unrecorded,
)
from jupyter_gpugate.proc import Caller


class LocalGate(Gate):
    """Answers from the loop of this process, and hands out values only."""

    def __init__(self, loop: GateLoop, history: History, owner: str) -> None:
        self.loop = loop
        self._history = history
        self._owner = owner

    def for_caller(self, caller: Caller) -> LocalGate:
        return LocalGate(self.loop, self._history, caller.name)

    @property
    def version(self) -> int:
        return self.loop.version

    def follow(self, listener: Listener) -> Mapping[str, Standing]:
        loop = self.loop
        changes = Changes(loop.state)
        loop.listeners.append(lambda: listener(changes.take(loop.state, loop.decisions)))
        return dict(changes.standings)

    def figures(self) -> Figures:
        counts = self.loop.counts
        totals = Totals(counts.submitted, counts.admitted, counts.evicted, dict(counts.refused))
        return Figures(self.loop.snapshot(), totals)

    async def changed(self, version: int, timeout_s: float) -> int:
        return await self.loop.changed(version, timeout_s)

    # -- answers --------------------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        return self.loop.snapshot()

    async def decided(self) -> Decided:
        loop = self.loop
        inputs = inputs_of(loop.decided_state, loop.sample, loop.decided_at)
        return Decided(loop.snapshot(), inputs, loop.decisions.grants)

    async def run(self, request: Request, devices: Sequence[str]) -> RunView:
        state, now, run_id = self.loop.state, self.loop.decided_at, request.run_id
        queued, lease = state.queue.get(run_id), state.leases.get(run_id)
        waiting = None
        if queued is not None:
            position = list(state.queue).index(run_id) + 1
            waiting = queued_row(state, self.loop.decisions, queued, position, now)
        return RunView(
            queued=waiting,
            running=running_row(state, lease, now) if lease is not None else None,
            devices=tuple(device_name(state, uuid) for uuid in devices),
            elsewhere=tuple(device_name(state, u) for u in (lease.elsewhere if lease else ())),
            visible=in_words(request.choice, state),
            advice=advice(state.calibration, request.family),
        )

    async def story(self, run_id: str) -> list[StoryEvent]:
        try:
            return await self.loop.story(run_id)
        except JournalError as error:
            raise Unrecorded(str(error)) from None

    async def estimate(self, request: Request) -> Forecast:
        return forecast(self.loop.state, self.loop.sample, request, self.loop.now())

    async def machine(self) -> Machine:
        found = unmanaged(measured=bool(self.loop.state.inventory))
        return Machine(self.loop.snapshot(), self.loop.sample.ram, tuple(found))

    async def samples(self, since: int) -> Samples:
        return self._history.since(since)

    async def calibrations(self) -> Mapping[str, tuple[Track, ...]]:
        calibration = self.loop.state.calibration
        names = [name for owner, name in calibration.names if owner == self._owner]
        return {name: calibration.tracks(self._owner, name) for name in names}

    # -- orders ---------------------------------------------------------------------------------

    async def lock(self, wanted: LockRequest) -> Locked:
        loop, owner = self.loop, self._owner
        resource = resource_named(loop, wanted.resource, present(loop))
        closed = closes(loop, resource)
        refuse_hidden(loop.state, resource, closed, wanted.visible)
        refuse_another(loop.state, resource, closed, owner)
        now = loop.now()
        opened = [r for r in self._own_locks() if r != resource]
        for other in opened:
            await self._record(ev.Unlocked(now, other))
        await self._record(ev.Locked(now, resource, owner, now + wanted.seconds, wanted.kernel))
        return Locked(
            locked=resource,
            for_s=wanted.seconds,
            name=words_for(loop.state, resource),
            closes=tuple(sorted(closed)),
            opened=tuple(words_for(loop.state, other) for other in opened),
            at_work=at_work(loop.state, closed),
        )

    async def unlock(self, resource: str) -> Unlocked:
        loop, own = self.loop, self._own_locks()
        if resource or not own:
            resource = resource_named(loop, resource, loop.state.locks or present(loop))
        else:
            resource = own[0]
        refuse_closed_otherwise(loop.state, resource)
        was_locked = resource in loop.state.locks
        await self._record(ev.Unlocked(loop.now(), resource))
        return Unlocked(resource, words_for(loop.state, resource), was_locked)

    async def drain(self, reason: str) -> tuple[str, ...]:
        await self._record(ev.DrainChanged(self.loop.now(), draining=True, reason=reason))
        # Nothing is granted any more: these are all that live.
        return tuple(self.loop.state.leases)

    async def end_drain(self) -> None:
        await self._record(ev.DrainChanged(self.loop.now(), draining=False))

    async def forget_device(self, name: str) -> str:
        uuid = device_named(self.loop, name, "forget")
        if self.loop.sample.device(uuid) is not None:
            raise Rejected("state", f"{uuid} is present: only a missing device can be forgotten")
        await self._record(ev.DeviceForgotten(self.loop.now(), uuid))
        return uuid

    async def forget_calibration(self, name: str) -> None:
        await self._record(ev.CalibrationForgotten(self.loop.now(), self._owner, name))

    def _own_locks(self) -> list[str]:
        return [r for r, lock in self.loop.state.locks.items() if lock.owner == self._owner]

    async def _record(self, event: ev.Event) -> None:
        try:
            await self.loop.record(event)
        except JournalError as error:
            raise Unrecorded(str(error)) from None
