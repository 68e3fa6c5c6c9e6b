"""``decide(state, sample, now)``: which queued requests start in this tick, and why others wait.

Requests are walked in submission order; one that does not pass is skipped, not blocking, and a
grant lowers what the next one sees.  Within a tick room only shrinks, so once a request is refused
all that are equal to it are refused as well: the walk costs one look per set of equal requests
and one per grant.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Optional, Union

from jupyter_gpugate.core.admission import caps
from jupyter_gpugate.core.admission.checks import Admission, Ask, Asks, check
from jupyter_gpugate.core.admission.choices import allowed
from jupyter_gpugate.core.admission.heads import Heads
from jupyter_gpugate.core.admission.room import machine_reason, rooms
from jupyter_gpugate.core.decisions import Decisions, KeptWaiting
from jupyter_gpugate.core.learning.needs import needs_of
from jupyter_gpugate.core.queued import Queued, RequestKey, key_of
from jupyter_gpugate.core.requests import (
    Basis,
    Choice,
    Enforcement,
    Grant,
    Request,
)
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState


def decide(state: GateState, sample: Sample, now: float) -> Decisions:
    """The verdict on every queued request; pure, and the same for the same input."""
    return Walk(state, sample, now).admit()


def verdict_on(
    state: GateState, sample: Sample, request: Request, now: float
) -> Union[Admission, KeptWaiting]:
    """Return the verdict on a request at the end of the queue, without reserving anything."""
    walk = Walk(state, sample, now)
    walk.admit()
    needs, _ = needs_of(state.calibration, request, state.inventory, state.driver)
    key = key_of(request, "", needs)
    return walk.check(walk.asks_of(key, request.run_id, waited_s=0.0, parked=False))


def enforcement_of(request: Request) -> Enforcement:
    """Return the enforcement of this run's cap: by its allocator, by advice, or none."""
    runtime = request.setting.runtime
    if request.gpus == 0:
        return Enforcement.NONE
    if request.kind == "cell" and runtime.startswith("torch"):
        return Enforcement.ENFORCED
    if runtime.startswith(("jax", "tensorflow")):
        return Enforcement.ADVISED
    return Enforcement.NONE


class Walk:
    """One tick's walk over the queue, oldest first."""

    def __init__(self, state: GateState, sample: Sample, now: float) -> None:
        self.state = state
        self.rooms = rooms(state, sample, now)
        self.machine = machine_reason(state)
        self.heads = Heads(self.rooms)
        self.running: dict[str, int] = {}
        self._in_group: dict[tuple[str, str], tuple[str, ...]] = {}
        for lease in state.leases.values():
            self._count(lease.request)
        self._now = now
        self._fence = state.fence
        self._parked: dict[str, bool] = {}
        self._allowed: dict[Choice, Optional[frozenset[str]]] = {}
        self._awaited: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}

    def admit(self) -> Decisions:
        """Admit every request that fits, and set room aside for heads."""
        grants: list[Grant] = []
        kept_waiting: dict[RequestKey, KeptWaiting] = {}
        queue = self.state.queue
        heap: list[tuple[int, str, RequestKey, Iterator[str]]] = []
        for key, equals in self.state.alike.items():
            rest = iter(equals)
            run_id = next(rest)
            heap.append((queue[run_id].order, run_id, key, rest))
        heapq.heapify(heap)
        while heap:
            _, run_id, key, rest = heap[0]
            asks = self.asks(key, queue[run_id])
            verdict = self.check(asks)
            if isinstance(verdict, Admission):
                grants.append(self.grant(queue[run_id], verdict))
                following = next(rest, None)
            else:
                kept_waiting.setdefault(key, verdict)
                # All that are equal to it are refused as well, but may head another resource.
                following = next(rest, None) if self.heads.claim(asks, verdict) else None
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (queue[following].order, following, key, rest))
        widened = tuple(caps.widened(self.state, self.rooms, grant) for grant in grants)
        changed = caps.followed(self.state, self.rooms, grants)
        return Decisions(widened, kept_waiting, tuple(self.heads.marks), changed)

    def asks(self, key: RequestKey, queued: Queued) -> Asks:
        """A queued request as the checks see it."""
        # Since the submit, also of a run that is tried again: the oldest has waited longest.
        waited_s = self._now - queued.submitted_at
        parked = self._is_parked(queued.run_side)
        return self.asks_of(key, queued.request.run_id, waited_s=waited_s, parked=parked)

    def asks_of(self, key: RequestKey, run_id: str, *, waited_s: float, parked: bool) -> Asks:
        """A request as the checks see it now."""
        if key.choice not in self._allowed:
            self._allowed[key.choice] = allowed(key.choice, self.state)
        return Asks(
            state=self.state,
            run_id=run_id,
            key=key,
            waited_s=waited_s,
            parked=parked,
            running=self.running.get(key.owner, 0),
            allowed=self._allowed[key.choice],
            awaited=self._awaited_of(key.after),
            in_group=self._in_group.get((key.owner, key.group), ()) if key.group else (),
        )

    def _awaited_of(self, after: tuple[str, ...]) -> tuple[str, ...]:
        """Return the runs among these that have not ended; of a group many requests wait for."""
        if after not in self._awaited:
            queue, leases = self.state.queue, self.state.leases
            self._awaited[after] = tuple(r for r in after if r in queue or r in leases)
        return self._awaited[after]

    def _count(self, request: Request) -> None:
        """Count a run as active, for its owner and for its group."""
        owner, group = request.owner, (request.owner, request.group)
        self.running[owner] = self.running.get(owner, 0) + 1
        if request.group:
            self._in_group[group] = (*self._in_group.get(group, ()), request.run_id)

    def _is_parked(self, run_side: str) -> bool:
        if run_side not in self._parked:
            present_at = max(self.state.run_sides.get(run_side, 0.0), self.state.patient_until)
            self._parked[run_side] = self._now - present_at > self.state.traits.absent_after_s
        return self._parked[run_side]

    def check(self, asks: Asks) -> Union[Admission, KeptWaiting]:
        """The verdict on one request, with what older ones have left."""
        return check(asks, self.rooms, self.machine)

    def grant(self, queued: Queued, admission: Admission) -> Grant:
        """Count an admission against all that come later, and make its grant."""
        request, asks = queued.request, admission.asks
        self._fence += 1
        self._count(request)
        for resource, ask in asks.items():
            # RAM is one machine's, however many cgroups look at it: until the next tick tells,
            # each counts the grant.
            for room in self.rooms.values():
                if room.resource == resource:
                    watch = ask.basis is Basis.WATCH
                    room.take(ask.charge_bytes, request, self._fence, watch=watch)
        return Grant(
            run_id=request.run_id,
            attempt=queued.attempts + 1,
            fence=self._fence,
            devices=admission.devices,
            charges={resource: ask.charge_bytes for resource, ask in asks.items()},
            basis={resource: ask.basis for resource, ask in asks.items()},
            caps={uuid: self._cap(uuid, request, asks[uuid]) for uuid in admission.devices},
            enforcement=enforcement_of(request),
            start_by_s=self.state.traits.start_by_s,
            device_totals={uuid: self.rooms[uuid].total_bytes for uuid in admission.devices},
            retry=queued.retry_with({resource: ask.charge_bytes for resource, ask in asks.items()}),
        )

    def _cap(self, uuid: str, request: Request, ask: Ask) -> int:
        """The charge less what each worker's context costs: a framework cannot give that back."""
        workers = request.setting.workers
        return caps.cap_within(self.state, self.rooms[uuid], workers, ask.charge_bytes)
