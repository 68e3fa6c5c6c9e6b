"""The transition table: ``apply(state, events) -> state``.

Applying is total: an event that no longer fits (an old fence, a run that is gone) changes
nothing, so that a journal can be folded again after any crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.flow import leases, registry
from jupyter_gpugate.core.flow.draft import Draft
from jupyter_gpugate.core.leases import Lease
from jupyter_gpugate.core.reports import Phase
from jupyter_gpugate.core.state import Ended, GateState, Queued


def apply(state: GateState, events: Iterable[ev.Event]) -> GateState:
    """Fold events into the state; the state given is left as it was."""
    draft = Draft(state)
    for event in events:
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(draft, event)
    return draft.finish()


def _requested(draft: Draft, event: ev.Requested) -> None:
    run_id = event.request.run_id
    if any(run_id in draft.get(name) for name in ("queue", "leases", "ended")):
        return
    order = draft.get("order") + 1
    draft.set("order", order)
    _seen(draft, event.run_side, event.at)
    draft.enqueue(Queued(event.request, order, event.at, event.run_side))


def _withdrawn(draft: Draft, event: ev.Withdrawn) -> None:
    run_id = event.run_id
    lease: Optional[Lease] = draft.get("leases").get(run_id)
    if lease is not None and lease.phase is Phase.GRANTED:
        del draft.table("leases")[run_id]
        draft.end(run_id, Ended(event.end, event.reason, event.at, lease.attempt))
    elif draft.dequeue(run_id) is not None:
        draft.end(run_id, Ended(event.end, event.reason, event.at))


def _present(draft: Draft, event: ev.Present) -> None:
    _seen(draft, event.run_side, event.at)


def _seen(draft: Draft, run_side: str, at: float) -> None:
    table = draft.table("run_sides")
    table[run_side] = max(at, table.get(run_side, at))


_HANDLERS: dict[type, Callable[[Draft, Any], None]] = {
    ev.Requested: _requested,
    ev.Withdrawn: _withdrawn,
    ev.Present: _present,
    **leases.HANDLERS,
    **registry.HANDLERS,
}
