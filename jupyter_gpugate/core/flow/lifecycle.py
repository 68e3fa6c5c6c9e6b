"""The transition table: ``apply(state, events) -> state``.

Applying is total: an event that no longer fits (an old fence, a run that is gone) changes
nothing, so that a journal can be folded again after any crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Optional

from jupyter_gpugate.core import events as ev
from jupyter_gpugate.core.endings import End
from jupyter_gpugate.core.flow import charges, leases, registry
from jupyter_gpugate.core.flow.draft import Draft, Handler, handlers, on
from jupyter_gpugate.core.queued import Queued
from jupyter_gpugate.core.state import Ended, GateState


def apply(state: GateState, events: Iterable[ev.Event]) -> GateState:
    """Fold events into the state; the state given is left as it was."""
    draft: Optional[Draft] = None
    for event in events:
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            draft = draft or Draft(state)
            handler(draft, event)
    return draft.finish() if draft is not None else state


def _requested(draft: Draft, event: ev.Requested) -> None:
    run_id = event.request.run_id
    if run_id in draft.queue.rows or run_id in draft.leases.rows or run_id in draft.ended.rows:
        return
    draft.order += 1
    _seen(draft, event.run_side, event.at)
    draft.enqueue(Queued(event.request, draft.order, event.at, event.run_side))


def _withdrawn(draft: Draft, event: ev.Withdrawn) -> None:
    run_id, end = event.run_id, End.of(event.end, event.reason)
    lease = draft.leases.rows.get(run_id)
    if lease is not None and lease.live is None:
        del draft.leases.own()[run_id]
        draft.end(run_id, Ended(end, event.at, lease.attempt.number))
    elif draft.dequeue(run_id) is not None:
        draft.end(run_id, Ended(end, event.at))


def _present(draft: Draft, event: ev.Present) -> None:
    _seen(draft, event.run_side, event.at)


def _seen(draft: Draft, run_side: str, at: float) -> None:
    table = draft.run_sides.own()
    table[run_side] = max(at, table.get(run_side, at))


_HANDLERS: Mapping[type, Handler] = {
    **handlers(
        on(ev.Requested, _requested), on(ev.Withdrawn, _withdrawn), on(ev.Present, _present)
    ),
    **leases.HANDLERS,
    **charges.HANDLERS,
    **registry.HANDLERS,
}
