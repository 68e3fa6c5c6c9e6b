"""The plain admission loop: every queued request looked at by itself, in order.

The grouped walk must agree with it, and its cost is compared with that of the grouped walk.
"""

from __future__ import annotations

from jupyter_gpugate.core.admission.checks import Admission
from jupyter_gpugate.core.admission.decide import Walk
from jupyter_gpugate.core.decisions import Earmark, Refusal
from jupyter_gpugate.core.requests import Grant
from jupyter_gpugate.core.samples import Sample
from jupyter_gpugate.core.state import GateState


def decide_one_by_one(
    state: GateState, sample: Sample, now: float
) -> tuple[tuple[Grant, ...], dict[str, Refusal], tuple[Earmark, ...]]:
    """The grants of this tick, each other request's own refusal by run id, and the earmarks."""
    walk = Walk(state, sample, now)
    grants, refusals = [], {}
    for run_id, queued in state.queue.items():
        asks = walk.asks(queued.key, queued)
        verdict = walk.check(asks)
        if isinstance(verdict, Admission):
            grants.append(walk.grant(queued, verdict))
        else:
            refusals[run_id] = verdict
            walk.heads.claim(asks, verdict)
    return tuple(grants), refusals, tuple(walk.heads.marks)
