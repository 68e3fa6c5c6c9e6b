"""The next state while it is being made: only those fields are copied that a batch changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable, Optional

from jupyter_gpugate.core.estimates import Estimates, Needs
from jupyter_gpugate.core.learning.needs import needs_of
from jupyter_gpugate.core.leases import Lease
from jupyter_gpugate.core.requests import Request
from jupyter_gpugate.core.state import (
    Ended,
    GateState,
    GroupKey,
    Queued,
)

#: How many ended runs the gate remembers for their run sides to read.
ENDED_KEPT = 1000
#: What the needs of a request rest on.
_GROUNDS = ("calibration", "inventory", "driver")


class Draft:
    """A copy of the state that one batch of events may change; the state itself stays as it is."""

    def __init__(self, state: GateState) -> None:
        self._state = state
        self._changed: dict[str, Any] = {}
        self._own_groups: set[GroupKey] = set()
        self._needs: dict[Any, tuple[Needs, Estimates]] = {}

    def table(self, name: str) -> dict[Any, Any]:
        """A table of the state that may be changed."""
        if name not in self._changed:
            self.set(name, dict(getattr(self._state, name)))
        elif name in _GROUNDS:
            self._needs.clear()
        table: dict[Any, Any] = self._changed[name]
        return table

    def get(self, name: str) -> Any:
        """A field as it stands now, only to be read."""
        return self._changed[name] if name in self._changed else getattr(self._state, name)

    def set(self, name: str, value: Any) -> None:
        self._changed[name] = value
        if name in _GROUNDS:
            self._needs.clear()

    def finish(self) -> GateState:
        return replace(self._state, **self._changed) if self._changed else self._state

    # -- the queue ------------------------------------------------------------------------------

    def enqueue(self, queued: Queued) -> None:
        """Put a request into the queue and its group, in its place, with its needs of now."""
        request = queued.request
        needs, estimates = self._needs_of(request)
        queued = replace(queued, needs=needs, estimates=estimates)
        self._insert(self.table("queue"), request.run_id, queued)
        self._insert(self._group(queued.key), request.run_id, None)
        if request.max_wait_s is not None:
            self.table("expiries")[request.run_id] = queued.submitted_at + request.max_wait_s

    def dequeue(self, run_id: str) -> Optional[Queued]:
        """Take a request out of the queue; None if it is not there."""
        if run_id not in self.get("queue"):
            return None
        queued: Queued = self.table("queue").pop(run_id)
        self._leave_group(queued)
        if run_id in self.get("expiries"):
            del self.table("expiries")[run_id]
        return queued

    def renew_needs(self, concerns: Callable[[Request], bool]) -> None:
        """Work out again what requests need, where what that rests on has changed."""
        for old in list(self.get("queue").values()):
            if not concerns(old.request):
                continue
            needs, estimates = self._needs_of(old.request)
            if (needs, estimates) != (old.needs, old.estimates):
                self._leave_group(old)
                new = replace(old, needs=needs, estimates=estimates)
                self.table("queue")[new.request.run_id] = new
                self._insert(self._group(new.key), new.request.run_id, None)

    def _needs_of(self, request: Request) -> tuple[Needs, Estimates]:
        """The same for all requests that are alike: many are, and it takes a while to tell."""
        like = (request.family, request.setting, request.hints)
        if like not in self._needs:
            self._needs[like] = needs_of(
                self.get("calibration"), request, self.get("inventory"), self.get("driver")
            )
        return self._needs[like]

    # -- leases ---------------------------------------------------------------------------------

    def lease(self, run_id: str, fence: int) -> Optional[Lease]:
        """The live lease of this very fence."""
        lease: Optional[Lease] = self.get("leases").get(run_id)
        return lease if lease is not None and lease.fence == fence else None

    def keep(self, lease: Lease) -> None:
        self.table("leases")[lease.run_id] = lease

    def end(self, run_id: str, ended: Ended) -> None:
        """Remember how a run ended; the oldest ends are forgotten."""
        table = self.table("ended")
        table[run_id] = ended
        while len(table) > ENDED_KEPT:
            del table[next(iter(table))]

    # -- places in the queue --------------------------------------------------------------------

    def _group(self, key: GroupKey) -> dict[str, None]:
        groups = self.table("groups")
        if key not in self._own_groups:
            groups[key] = dict(groups.get(key, {}))
            self._own_groups.add(key)
        group: dict[str, None] = groups[key]
        return group

    def _leave_group(self, queued: Queued) -> None:
        key = queued.key
        group = self._group(key)
        group.pop(queued.request.run_id, None)
        if not group:
            del self.table("groups")[key]
            self._own_groups.discard(key)

    def _insert(self, table: dict[str, Any], run_id: str, value: Any) -> None:
        """Add at the end, and put in order only where that is not the place."""
        queue: Mapping[str, Queued] = self.get("queue")
        last = next(reversed(table), None)
        table[run_id] = value
        if last is not None and last != run_id and queue[last].order > queue[run_id].order:
            ordered = sorted(table.items(), key=lambda item: queue[item[0]].order)
            table.clear()
            table.update(ordered)
