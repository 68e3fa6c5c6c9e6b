"""The next state while it is being made: only those tables are copied that a batch changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Callable, Generic, Optional, TypeVar

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.estimates import Estimates, Needs
from jupyter_gpugate.core.learning.needs import needs_of
from jupyter_gpugate.core.leases import RunLease
from jupyter_gpugate.core.queued import Queued, RequestKey
from jupyter_gpugate.core.requests import Chosen, Family, Hints, Request, Setting
from jupyter_gpugate.core.state import Ended, GateState

#: How many ended runs the gate remembers for their run sides to read.
ENDED_KEPT = 1000

K = TypeVar("K")
V = TypeVar("V")
E = TypeVar("E", bound=ev.Event)


class Table(Generic[K, V]):
    """A table of the state; it is copied before its first change."""

    __slots__ = ("_own", "rows")

    def __init__(self, rows: Mapping[K, V]) -> None:
        self.rows = rows  # with all changes so far; only to be read
        self._own: Optional[dict[K, V]] = None

    def own(self) -> dict[K, V]:
        """The rows, to be changed."""
        if self._own is None:
            self.rows = self._own = dict(self.rows)
        return self._own


class Draft:
    """A copy of the state that one batch of events may change; ``before`` stays as it is."""

    def __init__(self, state: GateState) -> None:
        self.before = state
        self.queue = Table(state.queue)
        self.alike = Table(state.alike)
        self.leases = Table(state.leases)
        self.lingering = Table(state.lingering)
        self.locks = Table(state.locks)
        self.ended = Table(state.ended)
        self.run_sides = Table(state.run_sides)
        self.expiries = Table(state.expiries)
        self.after = Table(state.after)
        self.inventory = Table(state.inventory)
        self.device_overhead = Table(state.device_overhead)
        self.last_fences = Table(state.last_fences)
        self.calibration = state.calibration
        self.draining = state.draining
        self.driver = state.driver
        self.boot_id = state.boot_id
        self.fence = state.fence
        self.order = state.order
        self.patient_until = state.patient_until
        self._own_alike: dict[RequestKey, dict[str, None]] = {}
        self._needs: dict[tuple[Family, Setting, Hints, Chosen], tuple[Needs, Estimates]] = {}

    def finish(self) -> GateState:
        """The next state; tables without a change are shared with the state before."""
        return replace(
            self.before,
            queue=self.queue.rows,
            alike=self.alike.rows,
            leases=self.leases.rows,
            lingering=self.lingering.rows,
            locks=self.locks.rows,
            ended=self.ended.rows,
            run_sides=self.run_sides.rows,
            expiries=self.expiries.rows,
            after=self.after.rows,
            inventory=self.inventory.rows,
            device_overhead=self.device_overhead.rows,
            last_fences=self.last_fences.rows,
            calibration=self.calibration,
            draining=self.draining,
            driver=self.driver,
            boot_id=self.boot_id,
            fence=self.fence,
            order=self.order,
            patient_until=self.patient_until,
        )

    # -- the queue ------------------------------------------------------------------------------

    def enqueue(self, queued: Queued) -> None:
        """Put a request into the queue in its place, with its needs of now."""
        request = queued.request
        needs, estimates = self._needs_of(request)
        queued = replace(queued, needs=needs, estimates=estimates)
        self._insert(self.queue.own(), request.run_id, queued)
        self._insert(self._alike_to(queued.key), request.run_id, None)
        if request.max_wait_s is not None:
            self.expiries.own()[request.run_id] = queued.waits_since + request.max_wait_s
        if request.after:
            self.after.own()[request.run_id] = request.after

    def dequeue(self, run_id: str) -> Optional[Queued]:
        """Take a request out of the queue; None if it is not there."""
        if run_id not in self.queue.rows:
            return None
        queued = self.queue.own().pop(run_id)
        self._leave_alike(queued)
        if run_id in self.expiries.rows:
            del self.expiries.own()[run_id]
        if run_id in self.after.rows:
            del self.after.own()[run_id]
        return queued

    def renew_needs(self, concerns: Callable[[Request], bool]) -> None:
        """Work out requests' needs again, after a change of calibration, inventory or driver."""
        self._needs.clear()
        for old in list(self.queue.rows.values()):
            if not concerns(old.request):
                continue
            needs, estimates = self._needs_of(old.request)
            if (needs, estimates) != (old.needs, old.estimates):
                self._leave_alike(old)
                new = replace(old, needs=needs, estimates=estimates)
                self.queue.own()[new.request.run_id] = new
                self._insert(self._alike_to(new.key), new.request.run_id, None)

    def _needs_of(self, request: Request) -> tuple[Needs, Estimates]:
        """Return the needs of a request, cached for equal requests as they are slow to compute."""
        like = (request.family, request.setting, request.hints, request.chosen)
        if like not in self._needs:
            self._needs[like] = needs_of(
                self.calibration, request, self.inventory.rows, self.driver
            )
        return self._needs[like]

    # -- leases ---------------------------------------------------------------------------------

    def lease(self, run_id: str, fence: int) -> Optional[RunLease]:
        """The live lease of this very fence."""
        lease = self.leases.rows.get(run_id)
        return lease if lease is not None and lease.terms.fence == fence else None

    def keep(self, lease: RunLease) -> None:
        self.leases.own()[lease.run_id] = lease

    def end(self, run_id: str, ended: Ended) -> None:
        """Remember how a run ended; the oldest ends are forgotten."""
        table = self.ended.own()
        table[run_id] = ended
        while len(table) > ENDED_KEPT:
            del table[next(iter(table))]

    # -- places in the queue --------------------------------------------------------------------

    def _alike_to(self, key: RequestKey) -> dict[str, None]:
        if key not in self._own_alike:
            own = dict(self.alike.rows.get(key, {}))
            self.alike.own()[key] = self._own_alike[key] = own
        return self._own_alike[key]

    def _leave_alike(self, queued: Queued) -> None:
        key = queued.key
        alike = self._alike_to(key)
        alike.pop(queued.request.run_id, None)
        if not alike:
            del self.alike.own()[key]
            del self._own_alike[key]

    def _insert(self, table: dict[str, V], run_id: str, value: V) -> None:
        """Add at the end, and put in order only where that is not the place."""
        queue = self.queue.rows
        last = next(reversed(table), None)
        table[run_id] = value
        if last is not None and last != run_id and queue[last].order > queue[run_id].order:
            ordered = sorted(table.items(), key=lambda item: queue[item[0]].order)
            table.clear()
            table.update(ordered)


# -- handlers of events -------------------------------------------------------------------------

Handler = Callable[[Draft, ev.Event], None]


def on(kind: type[E], handle: Callable[[Draft, E], None]) -> tuple[type[E], Handler]:
    """Return a kind of event with its handler, which ignores all other kinds."""

    def handler(draft: Draft, event: ev.Event) -> None:
        if isinstance(event, kind):
            handle(draft, event)

    return kind, handler


def handlers(*entries: tuple[type, Handler]) -> Mapping[type, Handler]:
    """Return a table of handlers by kind of event."""
    return dict(entries)
