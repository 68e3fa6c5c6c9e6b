"""The plain admission loop: every queued request looked at by itself, in order.

The grouped walk must agree with it, and its cost is compared with that of the grouped walk.
"""

from __future__ import annotations

from dataclasses import replace

from jupyter_gpugate.core.admission.checks import Admission
from jupyter_gpugate.core.admission.decide import Walk
from jupyter_gpugate.core.decisions import Earmark, KeptWaiting
from jupyter_gpugate.core.requests import Basis, Grant
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState


def decide_one_by_one(
    state: GateState, sample: Sample, now: float
) -> tuple[tuple[Grant, ...], dict[str, KeptWaiting], tuple[Earmark, ...]]:
    """The grants of this tick, each other request's own refusal by run id, and the earmarks."""
    walk = Walk(state, sample, now)
    grants, kept_waiting = [], {}
    for run_id, queued in state.queue.items():
        asks = walk.asks(queued.key, queued)
        verdict = walk.check(asks)
        if isinstance(verdict, Admission):
            grants.append(walk.grant(queued, verdict))
        else:
            kept_waiting[run_id] = verdict
            walk.heads.claim(asks, verdict)
    return tuple(widened(walk, grant) for grant in grants), kept_waiting, tuple(walk.heads.marks)


def widened(walk: Walk, grant: Grant) -> Grant:
    """The grant whose cap is, where its need is unknown, its charge and all that the tick left."""
    workers = walk.state.queue[grant.run_id].request.setting.workers
    caps = dict(grant.caps)
    for uuid in grant.devices:
        if grant.basis[uuid] is Basis.WATCH:
            model = walk.state.inventory[uuid].model
            left = max(0, walk.rooms[uuid].room_bytes)
            contexts = workers * walk.state.device_overhead.get(model, 0)
            caps[uuid] = grant.charges[uuid] + left
            caps[uuid] -= contexts if contexts < caps[uuid] else 0
    return replace(grant, caps=caps)
