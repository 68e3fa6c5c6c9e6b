"""``decide(state, sample, now)``: which queued requests start in this tick, and why others wait.

Requests are walked in submission order; one that does not pass is skipped, not blocking, and a
grant lowers what the next one sees.  Within a tick room only shrinks, so once a request is refused
all that are equal to it are refused for the same reasons: the walk costs one look per group of
equal requests and one per grant.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Optional, Union

from jupyter_gpugate.core.checks import Admission, Asks, check
from jupyter_gpugate.core.decisions import Check, Decisions, Earmark, Refusal
from jupyter_gpugate.core.model import RAM, Basis, Enforcement, Grant, Request, Sample
from jupyter_gpugate.core.placement import bind
from jupyter_gpugate.core.room import clear_for, earmark, machine_reason, rooms
from jupyter_gpugate.core.state import GateState, GroupKey, Queued


def decide(state: GateState, sample: Sample, now: float) -> Decisions:
    """The verdict on every queued request; pure, and the same for the same input."""
    walk = Walk(state, sample, now)
    walk.set_room_aside()
    return walk.admit()


def enforcement_of(request: Request) -> Enforcement:
    """How far a cap can bind this run: by its framework's allocator, by advice, or not at all."""
    runtime = request.setting.runtime
    if request.gpus == 0:
        return Enforcement.NONE
    if request.kind == "cell" and runtime.startswith("torch"):
        return Enforcement.ENFORCED
    if runtime.startswith(("jax", "tensorflow")):
        return Enforcement.ADVISED
    return Enforcement.NONE


class Walk:
    """One tick's walk over the groups of equal requests."""

    def __init__(self, state: GateState, sample: Sample, now: float) -> None:
        self.state = state
        self.now = now
        self.rooms = rooms(state, sample, now)
        self.machine = machine_reason(state)
        self.running: dict[str, int] = {}
        for lease in state.leases.values():
            owner = lease.request.owner
            self.running[owner] = self.running.get(owner, 0) + 1
        self.earmarks: list[Earmark] = []
        self.fence = state.fence

    def set_room_aside(self) -> None:
        """For the oldest run kept waiting for room only, and for the oldest one kept waiting only
        for others to leave a device that it wants for itself."""
        head: Optional[Earmark] = None
        exclusive: Optional[Earmark] = None
        for key, queued in self._oldest_of_each_group():
            old = self.now - queued.submitted_at >= self.state.traits.head_after_s
            if not ((head is None and old) or (exclusive is None and key.exclusive)):
                continue
            verdict = self.check(key, queued)
            if not isinstance(verdict, Refusal):
                continue
            if head is None and old and verdict.only(Check.FIT):
                head = self._mark(key, queued, Check.FIT)
            elif exclusive is None and key.exclusive and verdict.only(Check.EXCLUSIVE):
                exclusive = self._mark(key, queued, Check.EXCLUSIVE)
        if head is not None:
            earmark(self.rooms, head)
            self.earmarks.append(head)
        if exclusive is not None:
            clear_for(self.rooms, exclusive)
            self.earmarks.append(exclusive)

    def admit(self) -> Decisions:
        """Admit whatever fits, oldest first."""
        grants: list[Grant] = []
        refusals: dict[GroupKey, Refusal] = {}
        heap: list[tuple[int, Queued, GroupKey, Iterator[str]]] = []
        for key, group in self.state.groups.items():
            self._push(heap, key, iter(group))
        while heap:
            _, queued, key, rest = heapq.heappop(heap)
            verdict = self.check(key, queued)
            if isinstance(verdict, Refusal):
                refusals[key] = verdict
            else:
                grants.append(self.grant(queued, verdict))
                self._push(heap, key, rest)
        return Decisions(tuple(grants), refusals, tuple(self.earmarks))

    def _push(
        self,
        heap: list[tuple[int, Queued, GroupKey, Iterator[str]]],
        key: GroupKey,
        members: Iterator[str],
    ) -> None:
        run_id = next(members, None)
        if run_id is not None:
            queued = self.state.queue[run_id]
            heapq.heappush(heap, (queued.order, queued, key, members))

    def _oldest_of_each_group(self) -> Iterator[tuple[GroupKey, Queued]]:
        oldest = [
            (key, self.state.queue[next(iter(group))]) for key, group in self.state.groups.items()
        ]
        return iter(sorted(oldest, key=lambda item: item[1].order))

    def check(self, key: GroupKey, queued: Queued) -> Union[Admission, Refusal]:
        """The verdict on one request; what is set aside for itself does not stand in its way."""
        own = [mark for mark in self.earmarks if mark.run_id == queued.request.run_id]
        for mark in own:
            earmark(self.rooms, mark, sign=-1)
        verdict = check(self._asks(key, queued), self.rooms, self.machine)
        for mark in own:
            earmark(self.rooms, mark)
        return verdict

    def _asks(self, key: GroupKey, queued: Queued) -> Asks:
        return Asks(
            state=self.state,
            run_id=queued.request.run_id,
            key=key,
            waited_s=self.now - queued.submitted_at,
            parked=self._parked(queued.run_side),
            running=self.running.get(key.owner, 0),
        )

    def _parked(self, run_side: str) -> bool:
        seen = max(self.state.run_sides.get(run_side, 0.0), self.state.patient_until)
        return self.now - seen > self.state.traits.absent_after_s

    def _mark(self, key: GroupKey, queued: Queued, why: Check) -> Optional[Earmark]:
        asks = self._asks(key, queued)
        charges = {
            uuid: asks.on(room).charge_bytes
            for uuid, room in self.rooms.items()
            if room.device is not None and room.blocked is None
        }
        ram = asks.on(self.rooms[RAM])
        devices = bind(self.rooms, charges, key.gpus)
        if devices is None or ram.charge_bytes > self.rooms[RAM].alone_bytes:
            return None
        needs = {RAM: ram.charge_bytes, **{uuid: charges[uuid] for uuid in devices}}
        set_aside = needs if why is Check.FIT else {}
        return Earmark(queued.request.run_id, why, devices, set_aside)

    def grant(self, queued: Queued, admission: Admission) -> Grant:
        request = queued.request
        self.fence += 1
        self.running[request.owner] = self.running.get(request.owner, 0) + 1
        for resource, ask in admission.asks.items():
            watch = ask.basis is Basis.WATCH
            self.rooms[resource].take(ask.charge_bytes, request.run_id, request.exclusive, watch)
        return Grant(
            run_id=request.run_id,
            attempt=queued.attempts + 1,
            fence=self.fence,
            devices=admission.devices,
            charges={resource: ask.charge_bytes for resource, ask in admission.asks.items()},
            basis={resource: ask.basis for resource, ask in admission.asks.items()},
            caps=self._caps(request, admission),
            enforcement=enforcement_of(request),
            start_by_s=self.state.traits.start_by_s,
            device_totals={uuid: self.rooms[uuid].total_bytes for uuid in admission.devices},
        )

    def _caps(self, request: Request, admission: Admission) -> dict[str, int]:
        """The charge less what each worker's context costs: a framework cannot give that back."""
        caps = {}
        for uuid in admission.devices:
            device = self.rooms[uuid].device
            overhead = self.state.device_overhead.get(device.model, 0) if device else 0
            charge = admission.asks[uuid].charge_bytes
            caps[uuid] = max(0, charge - overhead * request.setting.workers)
        return caps
